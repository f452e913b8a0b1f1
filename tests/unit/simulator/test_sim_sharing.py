"""Jobs beside each other and jobs suspended warm, in the simulated world: what failures and other batch sizes do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import fairway
from fairway import Faults, JobSpec, Workload
from fairway.core.decision import Decision
from fairway.core.event import JobEvicted, JobStarted
from fairway.core.job import Regime
from fairway.core.snapshot import Snapshot
from fairway.simulator.faults import Outage
from fairway.testing import Invariants


class Heard(Invariants):
    """Keeps all events, and watches the laws."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def after_events(self, state: Any, events: Any) -> None:
        super().after_events(state, events)
        self.events += events


def test_a_job_suspended_in_the_memory_of_a_node_pays_a_restart_when_the_node_fails() -> None:
    jobs = [JobSpec(name, 0.0, gpus=4, duration_s=1000.0) for name in "ab"]
    heard = Heard()
    down = Faults((Outage(200.0, 0, 100.0),))
    policy = "gandiva_fair:quantum_s=60"
    about: dict[str, Any] = {"restart_cost_s": 300.0, "faults": down, "observer": heard}
    fairway.simulate(Workload.of(jobs), cluster="v100:4", policy=policy, **about)
    evicted = [event.job for event in heard.events if isinstance(event, JobEvicted)]
    assert sorted(evicted) == [0, 1]
    after = [event for event in heard.events if isinstance(event, JobStarted) and event.time_s >= 300]
    first = {job: next(event for event in after if event.job == job) for job in (0, 1)}
    assert [event.ready_s - event.time_s for event in first.values()] == [300.0, 300.0]


@pytest.mark.parametrize("policy", ["antman:eps=0.9", "gandiva:pack=3,hysteresis=0", "gandiva:pack=4,hysteresis=0"])
@pytest.mark.parametrize("at", [0.05, 0.5])
def test_a_guest_goes_when_the_batch_of_its_host_leaves_no_room(policy: str, at: float) -> None:
    regimes = (Regime(at, 16), Regime(1.0, 160))
    host = JobSpec("host", 0.0, gpus=1, steps=60000, model="ResNet-50", batch_size=16, regimes=regimes)
    priority = -1 if policy.startswith("antman") else 0
    more: dict[str, Any] = {"model": "ResNet-50", "batch_size": 16, "priority": priority}
    guests = [JobSpec(f"g{n}", float(n), gpus=1, steps=(n + 1) * 30000, **more) for n in range(4)]
    heard = Heard()
    result = fairway.simulate(Workload.of([host, *guests]), cluster="v100:1", policy=policy, observer=heard)
    assert result.finished == 5


@dataclass(frozen=True)
class Offer:
    """Offers the second job as a guest of the first for a minute; then each has GPUs of its own."""

    name: ClassVar[str] = "offer"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        rows = len(snapshot)
        return Decision(
            np.ones(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.int8),
            wake_s=snapshot.now_s + 60 if rows == 2 else np.inf,
            partners={1: 0} if rows == 2 and snapshot.now_s < 50 else {},
        )


def test_a_guest_that_was_refused_runs_at_full_speed_on_its_own_gpus() -> None:
    jobs = [
        JobSpec("host", 0.0, duration_s=100.0, gpu_types=("v100",)),
        JobSpec("other", 0.0, duration_s=1000.0, gpu_types=("k80",)),
    ]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:1,k80:1", policy=Offer(), rules="tiresias")
    assert result.jct_s.tolist() == [100.0, 1060.0]


@dataclass(frozen=True)
class Trio:
    """Two throttled guests beside the first job; afterwards they stay as they are."""

    name: ClassVar[str] = "trio"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        rows = len(snapshot)
        return Decision(
            np.ones(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.int8),
            partners=dict.fromkeys(range(1, rows), 0),
            throttles=dict.fromkeys(range(1, rows), 0.2),
        )


def test_the_heir_of_a_host_is_not_throttled_any_more() -> None:
    class Seen(Heard):
        def after_round(self, snapshot: Snapshot, decision: Decision, actions: Any) -> None:
            super().after_round(snapshot, decision, actions)
            if len(snapshot) == 2:
                assert snapshot.throttle.tolist() == [1.0, 0.2]
                assert snapshot.rate[0] > 3 * snapshot.rate[1]
                self.seen = True

    jobs = [JobSpec("h", 0.0, duration_s=100.0)] + [JobSpec(name, 0.0, duration_s=1000.0) for name in "ab"]
    seen = Seen()
    fairway.simulate(Workload.of(jobs), cluster="v100:1", policy=Trio(), observer=seen)
    assert seen.seen


def test_a_loss_curve_belongs_to_the_job_and_not_to_its_place_in_the_trace() -> None:
    jobs = [JobSpec(f"j{n}", 10.0 * n, gpus=1, gpus_max=4, gpus_min=1, duration_s=4000.0) for n in range(4)]
    before = JobSpec("before", 0.0, gpus=1, duration_s=1.0)
    alone = fairway.simulate(Workload.of(jobs), cluster="v100:8", policy="slaq")
    after = fairway.simulate(Workload.of([before, *jobs]), cluster="v100:8", policy="slaq")
    took = {spec.id: float(jct) for spec, jct in zip(after.specs, after.jct_s, strict=True)}
    assert [took[spec.id] for spec in alone.specs[1:]] == pytest.approx(alone.jct_s.tolist()[1:], rel=0.02)
