"""Every policy meets jobs that change their batch size: all jobs end once, the laws hold, runs repeat, and nobody who
is not told sees what is still to come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fairway.policies
from fairway import Faults, JobSpec, Workload, simulate
from fairway.core.admission import admit
from fairway.core.decision import Decision
from fairway.core.event import JobFinished, RegimeEntered
from fairway.core.job import Regime
from fairway.core.snapshot import Snapshot
from fairway.core.tenant import TenantSpec
from fairway.policies import make_policy, policies
from fairway.testing import Invariants, adaptive_workload
from fairway.testing.seeds import quick, some
from fairway.traces import shockwave_like

CLUSTERS = ("v100:2x4", "v100:1x4,t4:2x2")


class Heard(Invariants):
    """The laws, and all events and actions with their times."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.actions: list[tuple[float, str]] = []

    def after_events(self, state: Any, events: Any) -> None:
        super().after_events(state, events)
        self.events += events

    def after_round(self, snapshot: Any, decision: Any, actions: Any) -> None:
        super().after_round(snapshot, decision, actions)
        self.actions += [(snapshot.now_s, repr(action)) for action in actions]

    def ended(self) -> Counter[int]:
        return Counter(event.job for event in self.events if isinstance(event, JobFinished))

    def changes(self) -> list[RegimeEntered]:
        return [event for event in self.events if isinstance(event, RegimeEntered)]


def heard_of(policy: str, workload: Workload, **about: Any) -> Heard:
    heard = Heard()
    simulate(workload, policy=policy, observer=heard, **about)
    heard.check_replay()
    return heard


@pytest.mark.parametrize("where", some(CLUSTERS, 1))
@pytest.mark.parametrize("policy", quick(policies()))
def test_adaptive_jobs_end_once_and_runs_repeat(policy: str, where: str) -> None:
    workload = adaptive_workload(7, jobs=16)
    one, other = (heard_of(policy, workload, cluster=where) for _ in range(2))
    assert one.ended() == dict.fromkeys(range(16), 1)
    assert one.events == other.events
    assert one.actions == other.actions
    assert {event.batch_size for event in one.changes()} >= {0, 32, 64}


@pytest.mark.parametrize("policy", sorted(policies()))
def test_adaptive_jobs_survive_failures(policy: str) -> None:
    workload = adaptive_workload(3, jobs=12)
    faults = Faults(mtbf_s=2500.0, repair_s=40.0, seed=3)
    heard = heard_of(policy, workload, cluster="v100:3x2,t4:2x2", faults=faults)
    assert heard.ended() == dict.fromkeys(range(12), 1)


@pytest.mark.parametrize("rules", ["gavel", "shockwave"])
@pytest.mark.parametrize("policy", sorted(policies()))
def test_adaptive_jobs_end_once_in_the_engine_of_rounds(policy: str, rules: str) -> None:
    workload = adaptive_workload(5, jobs=10, elastic=False)
    drawn = shockwave_like(jobs=4, seed=2, mean_interarrival_s=30.0, max_h=0.4, rate=lambda model, batch, gpus: 2.0)
    more = tuple(replace(job, id=f"drawn-{job.id}", gpus=1, gpus_min=1, gpus_max=1) for job in drawn.jobs)
    workload = Workload.of([*workload.jobs, *more])
    heard = heard_of(policy, workload, cluster="v100:2x4", rules=rules, round_s=60.0)
    assert heard.ended() == dict.fromkeys(range(14), 1)


def _futures() -> list[Workload]:
    """The same jobs, of which one will change its batch size at other points and to other sizes."""
    jobs = adaptive_workload(11, jobs=12).jobs
    regimes = (
        (Regime(0.5, 16), Regime(1.0, 64)),
        (Regime(0.5, 16), Regime(0.7, 32), Regime(1.0, 16)),
        (Regime(0.8, 16), Regime(1.0, 32)),
    )
    base = {"gpus": 1, "steps": 2500.0, "model": "VGG19", "batch_size": 16, "adaptation": "schedule"}
    changing = [JobSpec("changing", 0.0, regimes=each, **base) for each in regimes]
    return [Workload.of([one, *jobs]) for one in changing]


BLIND = sorted(name for name in policies() if not {"duration", "regimes"} & make_policy(name).knows)


@pytest.mark.parametrize("policy", BLIND)
def test_policies_that_are_not_told_decide_the_same_until_a_batch_size_changes(policy: str) -> None:
    runs = [heard_of(policy, workload, cluster="v100:1x4") for workload in _futures()]
    first_s = [next(event.time_s for event in run.changes() if event.job == 0) for run in runs]
    for run, other, until_s in ((runs[0], runs[1], first_s[0]), (runs[0], runs[2], first_s[0])):
        before, also = ([entry for entry in each.actions if entry[0] < until_s] for each in (run, other))
        assert before == also
        assert len(before) >= 4


@pytest.mark.parametrize("path", sorted(Path(fairway.policies.__path__[0]).rglob("*.py")), ids=lambda path: path.name)
def test_no_policy_reads_the_columns_that_hold_the_future(path: Path) -> None:
    """What is left of a job goes through `snapshot.oracle`, which asks whether the policy may know."""
    text = path.read_text()
    assert not [name for name in ("REGIME_END", "TAIL_S", "LEFT_S", "LEFT_RATE") if name in text]


@dataclass(frozen=True)
class Told:
    """First come, first served, by a policy that looks at every training."""

    name: ClassVar[str] = "told"
    knows: ClassVar[frozenset[str]] = frozenset({"regimes"})
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        for row in range(len(snapshot)):
            training = snapshot.training(row)
            assert training is not None
            present = [stage for stage in training.stages if stage.batch_size == snapshot.batch_size[row]]
            assert any(_proportional(stage.speeds, snapshot.speeds[:, row].tolist()) for stage in present)
        return admit(snapshot, preempt=False)


def _proportional(one: tuple[float, ...], other: list[float]) -> bool:
    """Whether speeds in epochs and in steps stand in the same ratio on all GPU types."""
    ratios = [a / b for a, b in zip(one, other, strict=True) if b > 0]
    return max(ratios) <= min(ratios) * (1 + 1e-9)


@pytest.mark.parametrize("rules", ["native", "shockwave"])
def test_announced_speeds_are_those_of_the_types_that_a_tenant_has(rules: str) -> None:
    jobs = [
        replace(job, queue="abx"[at % 3]) for at, job in enumerate(adaptive_workload(9, jobs=12, elastic=False).jobs)
    ]
    tenants = [TenantSpec.of("a", "t4:1x4"), TenantSpec.of("b", "v100:1x4")]
    about: dict[str, Any] = {"cluster": "v100:2x4,t4:2x4", "tenants": tenants, "rules": rules}
    result = simulate(Workload.of(jobs), policy=Told(), observer=Invariants(), **about)
    assert result.finished == 12
