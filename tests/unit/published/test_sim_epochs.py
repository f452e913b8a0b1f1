"""Training in epochs: whole seconds, placements that matter, GPUs freed at the end of the round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fairway import simulate
from fairway.core.batch import BatchLimits, Split
from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.event import RegimeEntered
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.models.pollux_profile import PolluxProfile
from fairway.policies import make_policy
from fairway.published.epochs import EpochRates
from fairway.simulator.engine import SimulatedEngine
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.result import Result
from fairway.simulator.rules import POLLUX
from fairway.testing import Invariants, cluster
from fairway.testing.harness import run_engine

STEP_S = {1: 1.03, 2: 0.53, 3: 0.4, 11: 0.83, 4: 0.31, 112: 0.9, 13: 0.7, 22: 0.6, 44: 0.2}
ENDS = (10.0, 20.0, 30.0)
"""Progress at the end of each epoch; without gradient noise a larger batch gains nothing, so it is iterations, too."""


@pytest.fixture
def profile(tmp_path: Path) -> PolluxProfile:
    folder = tmp_path / "cifar10"
    folder.mkdir()
    rows = [f"{at},{local},{s},{s / 10}" for at, s in STEP_S.items() for local in (1, 100)]
    (folder / "placements-aws.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *rows]))
    for batch in (100, 200):
        rows = [f"{end},{end * 100 / batch},{0.5},1,{0 if batch == 100 else 1}" for end in ENDS]
        (folder / f"validation-{batch}.csv").write_text(
            "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows])
        )
    return PolluxProfile(str(tmp_path))


def train(name: str = "a", gpus: int = 1, submitted_s: float = 0.0, batch: int = 100, **more: Any) -> JobSpec:
    about: dict[str, Any] = {"model": "ResNet-18", "batch_size": batch // gpus, "global_batch": batch, "steps": 1000.0}
    return JobSpec(name, submitted_s, gpus, **(about | more))


def run(profile: PolluxProfile, *jobs: JobSpec, where: str = "aws:1x1", **more: Any) -> Result:
    about: dict[str, Any] = {"rules": "pollux", "policy": "fifo", **more}
    return simulate(Workload.of(list(jobs)), cluster=where, profile=profile, **about)


def test_every_epoch_lasts_whole_seconds(profile: PolluxProfile) -> None:
    result = run(profile, train())
    # 30 s to start, then three epochs of 10.3 s, each counted as 10.
    assert result.finished_s.tolist() == [60.0]
    assert result.ledger.exclusive_s.tolist() == [30.0]


def test_work_that_ends_after_a_round_began_is_freed_at_its_end(profile: PolluxProfile) -> None:
    result = run(profile, train("a"), train("b"))
    # The last epoch is done at 60.3 s. It counts as done at 60 s, but the round at 60 s cannot know.
    assert result.finished_s.tolist() == [60.0, 180.0]
    assert result.ledger.started_s.tolist() == [0.0, 120.0]


def test_work_that_ends_just_before_a_round_is_freed_by_it(profile: PolluxProfile) -> None:
    rules = replace(POLLUX, restart_cost_s=29.0)
    result = run(profile, train("a"), train("b"), rules=rules)
    assert result.ledger.started_s.tolist() == [0.0, 60.0]
    assert result.finished_s.tolist() == [59.0, 119.0]


def test_a_round_between_the_counted_and_the_real_end_of_the_work_finds_the_job_running(
    profile: PolluxProfile,
) -> None:
    result = run(profile, train("a", gpus_max=2), where="aws:1x2", policy=GrowAt60())
    # At 60 s, 0.31 of the last epoch are left; they take 0.16 s on two GPUs, after a restart.
    assert result.ledger.starts.tolist() == [2]
    assert result.finished_s.tolist() == [90.0]


@dataclass(frozen=True)
class GrowAt60:
    """One GPU before a minute has passed, two from then on."""

    name: ClassVar[str] = "grow-at-60"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        gpus = np.full(len(snapshot), 1 if snapshot.now_s < 60 else 2)
        return Decision(gpus, np.zeros(len(snapshot), dtype=np.int8))


def test_where_a_gang_sits_decides_how_fast_it_is(profile: PolluxProfile) -> None:
    together = run(profile, train("a", 2), where="aws:1x2")
    apart = run(profile, train("a", 2), where="aws:2x1")
    counted = run(profile, train("a", 2), where="aws:2x1", placement="count")
    assert together.finished_s.tolist() == [30 + 3 * 5]
    assert apart.finished_s.tolist() == [30 + 3 * 8]
    assert counted.finished_s.tolist() == apart.finished_s.tolist()
    assert together.ledger.exclusive_s.tolist() == [15.0]


def test_the_order_in_which_nodes_are_taken_is_the_shape_of_the_ring(profile: PolluxProfile) -> None:
    rates = EpochRates(cluster("aws:4x4"), profile)
    first = rates.regimes(train())[0]

    def seconds(*gpus: int) -> float:
        return 1 / rates.rate_in(train(gpus=len(gpus)), first, 0, gpus, True)

    assert seconds(0, 4, 5, 6) == seconds(4, 5, 6, 0) == pytest.approx(0.7)
    assert seconds(0, 4, 8, 9) == seconds(8, 9, 0, 4) == pytest.approx(0.9)
    assert seconds(0, 1, 4, 5) == pytest.approx(0.6)


def test_a_batch_that_one_gpu_cannot_hold_is_accumulated(profile: PolluxProfile) -> None:
    one, two = run(profile, train(batch=200)), run(profile, train(gpus=2, batch=200), where="aws:1x2")
    # Signal 1 and variance 1 at 200: an iteration of twice the batch is worth 4/3 of one.
    pass_s, exchange_s = 1.03, 0.103
    assert one.finished_s.tolist() == [30 + 3 * round(10 / (4 / 3) * (2 * pass_s - exchange_s))]
    assert two.finished_s.tolist() == [30 + 3 * round(10 / (4 / 3) * 0.53)]


def test_the_oracle_of_optimus_counts_the_epochs_that_have_not_begun(profile: PolluxProfile) -> None:
    engine = _engine(profile, train(batch=200, gpus_max=4), where="aws:1x4", tells=frozenset({"scaling"}))
    events: list[Any] = list(engine.poll(0.0))
    assert events[0].steps_left == 10.0
    assert events[0].scaling == pytest.approx((1 / (2 * 1.03 - 0.103), 1 / 0.53, 1 / 0.4, 1 / 0.31))
    rates = engine.rates
    assert [rates.steps_left(train(), epoch) for epoch in rates.regimes(train())] == [20.0, 10.0, 1.0]


def _engine(profile: PolluxProfile, *jobs: JobSpec, where: str, **more: Any) -> SimulatedEngine:
    machines = cluster(where)
    return SimulatedEngine(machines, jobs, EpochRates(machines, profile), POLLUX, round_s=60.0, **more)


def test_each_epoch_is_announced_and_every_law_is_kept(profile: PolluxProfile) -> None:
    jobs = [train(f"job-{n}", 1 + n % 3, submitted_s=7.0 * n, batch=100 * (1 + n % 2)) for n in range(12)]
    faults = Faults((Outage(100.0, 1, 30.0), Outage(251.0, 0, 100.0)))
    engine = _engine(profile, *jobs, where="aws:2x3", faults=faults)
    watched = run_engine(engine, make_policy("las"), engine.cluster, placement="freest", round_s=60.0)
    assert not np.isnan(engine.ledger.finished_s).any()
    assert engine.ledger.evictions.sum() > 0
    entered = [entry.event for entry in watched.invariants.journal if isinstance(entry.event, RegimeEntered)]
    assert len(entered) >= 2 * len(jobs)
    for event in entered:
        assert round(event.regime_end, 9) in ENDS
        assert event.progress <= event.regime_end


def test_a_failure_throws_a_job_back_to_the_epoch_of_its_checkpoint(profile: PolluxProfile) -> None:
    rules = replace(POLLUX, checkpoint_every_s=15.0)
    result = run(profile, train(), rules=rules, faults=Faults((Outage(58.0, 0, 1.0),)))
    # At 58 s it had run for 28 s; what counts is the state after 15 s: 5 s into the second epoch.
    left = 5.3 / 1.03 * 1.03
    assert result.finished_s.tolist() == [60 + 30 + round(left) + 10]


def test_what_is_left_falls_to_nothing(profile: PolluxProfile) -> None:
    rates = EpochRates(cluster("aws:1x1"), profile)
    spec = train()
    tails = [rates.tail_s(spec, epoch, rates.work(spec)) for epoch in rates.regimes(spec)]
    assert tails == [20.0, 10.0, 0.0]
    assert rates.work(spec) == 30.0


def test_jobs_that_give_a_duration_run_as_long_as_they_say(profile: PolluxProfile) -> None:
    spec = JobSpec("a", 0, duration_s=100.5)
    for given in (profile, None):
        result = simulate(Workload.of([spec]), cluster="aws:1x1", policy="fifo", rules="pollux", profile=given)
        assert result.finished_s.tolist() == [130.5]


def test_epochs_need_a_profile_that_has_some() -> None:
    with pytest.raises(InputError, match=r"the pollux rules train in epochs: .*--profile DIR.*not built-in estimates"):
        simulate(Workload.of([train()]), cluster="aws:1x1", policy="fifo", rules="pollux")


def test_a_type_that_the_job_may_not_use_has_no_speed(profile: PolluxProfile) -> None:
    rates = EpochRates(cluster("aws:1x1,t4:1x2"), profile)
    assert rates.speeds(train(), 100)[0] > 0
    assert rates.speeds(train(gpu_types=("v100",)), 100) == (0.0, 0.0)
    assert rates.speeds(train(gpus=2), 50)[0] == 0.0
    assert math.isnan(rates.steps_left(JobSpec("d", 0, duration_s=5), rates.regimes(JobSpec("d", 0, duration_s=5))[0]))


def test_the_profile_also_serves_other_rules(profile: PolluxProfile) -> None:
    result = run(profile, train(steps=100.0), rules="native")
    assert result.finished_s.tolist() == pytest.approx([103.0], abs=1e-5)


@pytest.mark.parametrize("round_s", [0.0, 13.37, 7.0])
def test_progress_never_falls_at_whatever_instant_one_looks(profile: PolluxProfile, round_s: float) -> None:
    """An epoch that is rounded up to whole seconds does no more than its work."""
    jobs = [train(f"job-{n}", 1 + n % 3, submitted_s=3.1 * n, batch=100 * (1 + n % 2)) for n in range(10)]
    result = run(profile, *jobs, where="aws:2x3", policy="las", round_s=round_s, observer=Invariants())
    assert result.finished == len(jobs)


def test_a_prospect_counts_the_epochs_of_the_application_at_one_batch_size(profile: PolluxProfile) -> None:
    rates = EpochRates(cluster("aws:1x1"), profile)
    prospect = rates.prospect(train())
    assert prospect.epochs == 3.0
    (stage,) = prospect.stages
    assert (stage.batch_size, stage.speeds) == (100, (pytest.approx(1 / 10.3),))
    assert len(rates.prospect(JobSpec("timed", 0.0, duration_s=100.0)).stages) == 1


def test_a_batch_that_a_policy_chooses_is_within_what_was_measured(profile: PolluxProfile) -> None:
    rates = EpochRates(cluster("aws:2x4"), profile)
    spec = train(adaptation="tuned")
    assert rates.limits(train()) is None
    assert rates.limits(spec) == BatchLimits(100, 200, 1, 100, True)
    where = (spec, rates.regimes(spec)[0], 0, (0, 1), True)
    # At a batch of 200 the noise scale is 100, so an iteration is worth 4/3 of one at 100.
    assert rates.rate_split(*where, Split(100)) == pytest.approx(4 / 3 / 0.53)
    assert rates.rate_split(*where, Split(50, 1)) == pytest.approx(4 / 3 / (0.53 + 0.53 * 0.9))
    timing, noise = rates.measured(*where, Split(100))
    assert timing[:4] == (1, 2, 100, 0)
    assert timing[4:6] == pytest.approx((0.53, 0.53 * 0.9))
    assert noise == pytest.approx(100.0)
    assert rates.measured(*where, Split(50))[1] == 0.0


def test_pollux_adapts_the_jobs_that_allow_it_and_only_them(profile: PolluxProfile) -> None:
    jobs = [train("a", 1, 60.0, adaptation="tuned"), train("b", 2, 60.0)]
    result = run(profile, *jobs, where="aws:2x4", policy="pollux")
    assert result.finished == 2
    assert {job for job, _, _ in result.ledger.batches} == {0}
    assert {len(gpus) for job, _, _, gpus in result.ledger.segments if job == 1} == {2}
