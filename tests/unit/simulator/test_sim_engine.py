"""The simulated engine by hand examples: restarts, protection, regimes, placement, packing, failures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.core.admission import admit
from fairway.core.decision import Decision, Reason
from fairway.core.job import Regime
from fairway.core.snapshot import Snapshot
from fairway.models.names import ProfileKey
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.result import Result
from fairway.simulator.rules import Rules
from fairway.testing import job

FREE = Rules("free")


def run(*jobs: JobSpec, cluster: str = "v100:4", policy: Any = "fifo", rules: Any = FREE, **about: Any) -> Result:
    return simulate(Workload.of(list(jobs)), cluster=cluster, policy=policy, rules=rules, **about)


def ends(result: Result) -> list[float]:
    return [round(float(end), 6) for end in result.finished_s]


def test_a_restart_costs_once_per_restart_and_never_at_the_first_start() -> None:
    long, short = job("long", 4, 1000.0), job("short", 4, 10.0, submitted_s=100.0)
    result = run(long, short, policy="srtf", rules="native")
    assert ends(result) == [1000.0 + 10.0 + 30.0, 110.0]
    assert result.ledger.lost_gpu_s.tolist() == [4 * 30.0, 0.0]
    figures = result.figures()
    assert (figures["preemptions"], figures["restarts"]) == (1, 1)
    assert figures["lost_gpu_h"] == pytest.approx(4 * 30.0 / 3600)


def test_a_job_that_knows_its_own_restart_cost_pays_that() -> None:
    long, short = job("long", 4, 1000.0, checkpoint_s=7.0), job("short", 4, 10.0, submitted_s=100.0)
    assert ends(run(long, short, policy="srtf", rules="native"))[0] == 1017.0


def test_a_job_that_has_just_started_is_left_alone_for_a_minute() -> None:
    long, short = job("long", 4, 1000.0), job("short", 4, 10.0, submitted_s=5.0)
    assert ends(run(long, short, policy="srtf", rules="native")) == [1040.0, 70.0]


def test_a_job_that_would_end_sooner_anyway_is_not_stopped_for_its_restart() -> None:
    """40 s are left of the first, the second takes 60 s: no reason to stop; with 80 s left it is stopped."""
    result = run(job("a", 4, 140.0), job("b", 4, 60.0, submitted_s=100.0), policy="srtf", rules="native")
    assert (ends(result), result.figures()["preemptions"]) == ([140.0, 200.0], 0)
    result = run(job("a", 4, 180.0), job("b", 4, 60.0, submitted_s=100.0), policy="srtf", rules="native")
    assert (ends(result), result.figures()["preemptions"]) == ([270.0, 160.0], 1)


@pytest.mark.parametrize(
    ("charge", "end"),
    [("restart", 1000.0 + 10.0 + 30.0), ("start", 1000.0 + 40.0 + 60.0), ("absence", 1000.0 + 40.0 + 30.0)],
)
def test_which_starts_pay(charge: Any, end: float) -> None:
    rules = Rules("test", restart_cost_s=30.0, charge=charge)
    result = run(job("long", 4, 1000.0), job("short", 4, 10.0, submitted_s=100.0), policy="srtf", rules=rules)
    assert ends(result)[0] == end


def test_regimes_change_the_speed_without_a_round_of_their_own() -> None:
    regimes = (Regime(0.5), Regime(0.75, None, 2.0), Regime(1.0, None, 0.5))
    result = run(job("a", 2, 100.0, regimes=regimes))
    assert ends(result) == [50.0 + 25.0 / 2 + 25.0 / 0.5]
    assert result.ledger.exclusive_s.tolist() == [112.5]
    assert result.ledger.lost_gpu_s.tolist() == [0.0]


def test_thirds_as_regimes_end_exactly() -> None:
    regimes = (Regime(1 / 3, None, 1.0), Regime(2 / 3, None, 3.0), Regime(1.0, None, 1 / 3))
    assert ends(run(job("a", 1, 100.0, regimes=regimes))) == pytest.approx([100 / 3 + 100 / 9 + 100.0], abs=1e-5)


def test_a_preempted_job_resumes_in_its_regime() -> None:
    long = job("long", 4, 200.0, regimes=(Regime(0.5), Regime(1.0, None, 2.0)))
    result = run(long, job("short", 4, 10.0, submitted_s=120.0), policy="srtf")
    assert ends(result) == [160.0, 130.0]


def test_srtf_counts_the_speed_of_regimes_ahead() -> None:
    """60 s of work that will run at triple speed after a third is shorter than 40 s."""
    quick = job("quick", 4, 60.0, regimes=(Regime(1 / 3), Regime(1.0, None, 4.0)))
    assert ends(run(job("slow", 4, 40.0), quick, policy="srtf")) == pytest.approx([70.0, 30.0], abs=1e-5)


@dataclass(frozen=True)
class Sized:
    """Gives every job a number of GPUs that depends on the time; one job at a time or in pairs."""

    sizes: tuple[tuple[float, int], ...] = ((0.0, 4),)
    name: ClassVar[str] = "sized"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        size = [gpus for at_s, gpus in self.sizes if at_s <= snapshot.now_s][-1]
        later = [at_s for at_s, _ in self.sizes if at_s > snapshot.now_s]
        rows = np.arange(len(snapshot))
        reasons = np.where(rows > 0, int(Reason.OTHER), 0).astype(np.int8)
        return Decision(np.where(rows > 0, 0, size), reasons, wake_s=later[0] if later else math.inf)


def test_an_elastic_job_runs_at_a_concave_speed() -> None:
    elastic = job("a", 2, 100.0, gpus_min=1, gpus_max=4)
    assert ends(run(elastic, policy=Sized(((0.0, 4),)))) == pytest.approx([100.0 / 2**0.9], abs=1e-5)
    assert ends(run(elastic, policy=Sized(((0.0, 1),)))) == pytest.approx([100.0 * 2**0.9], abs=1e-5)


def test_a_resize_is_a_restart_and_no_preemption() -> None:
    elastic = job("a", 2, 100.0, gpus_min=1, gpus_max=4)
    rules = Rules("test", restart_cost_s=10.0)
    result = run(elastic, policy=Sized(((0.0, 2), (40.0, 4))), rules=rules)
    assert ends(result) == pytest.approx([50.0 + 60.0 / 2**0.9], abs=1e-5)
    figures = result.figures()
    assert (figures["preemptions"], figures["restarts"]) == (0, 1)
    assert result.ledger.lost_gpu_s.tolist() == [40.0]


def test_regimes_and_sizes_multiply() -> None:
    elastic = job("a", 2, 100.0, gpus_min=1, gpus_max=4, regimes=(Regime(0.5), Regime(1.0, None, 2.0)))
    assert ends(run(elastic, policy=Sized(((0.0, 4),)))) == pytest.approx([75.0 / 2**0.9], abs=1e-5)


class Profiled:
    """Ten steps a second for every GPU; a spread gang runs at 80 %; packed jobs keep 60 % and 70 %."""

    name = "made up"
    models = ("m",)

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        return 10.0 * gpus * (0.8 if spread else 1.0) * (2.0 if batch_size == 64 else 1.0)

    def pair_rates(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        if 64 in (a.batch_size, b.batch_size):
            return None
        return 6.0 * a.gpus, 7.0 * b.gpus


def _steps(name: str, gpus: int, steps: float, **more: Any) -> JobSpec:
    return JobSpec(name, more.pop("submitted_s", 0.0), gpus, steps=steps, model="m", **more)


def test_steps_run_as_fast_as_the_profile_says() -> None:
    assert ends(run(_steps("a", 2, 1000.0), profile=Profiled())) == [50.0]


def test_a_gang_on_more_nodes_than_needed_is_slower_only_where_places_count() -> None:
    gang = _steps("a", 2, 1000.0)
    about: dict[str, Any] = {"cluster": "v100:2x4", "profile": Profiled()}
    assert ends(run(gang, **about)) == [50.0]
    assert ends(run(gang, placement="spread", **about)) == [62.5]
    assert ends(run(gang, placement="count", **about)) == [50.0]
    assert ends(run(gang, placement="spread", rules=Rules("flat", spread_matters=False), **about)) == [50.0]
    assert ends(run(_steps("a", 8, 4000.0), placement="spread", **about)) == [50.0]


@dataclass(frozen=True)
class Pairs:
    """Packs each odd row onto the row before it."""

    name: ClassVar[str] = "pairs"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        if len(snapshot) == 2:
            return Decision(snapshot.gpus.copy(), np.zeros(2, dtype=np.int8), partners={1: 0})
        return admit(snapshot, preempt=False)


def test_packed_jobs_slow_each_other_until_one_ends() -> None:
    a, b = _steps("a", 2, 1000.0), _steps("b", 2, 700.0)
    result = run(a, b, cluster="v100:2", policy=Pairs(), profile=Profiled())
    # b is the guest: 6 of 10 steps per GPU; a keeps 7 of 10.
    b_end = 700.0 / 12
    a_end = b_end + (1000.0 - 14 * b_end) / 20
    assert ends(result) == pytest.approx([a_end, b_end], abs=1e-5)
    assert result.ledger.lost_gpu_s.tolist() == [0.0, 0.0]


def test_durations_without_a_profile_pack_at_a_fixed_speed() -> None:
    result = run(job("a", 2, 110.0), job("b", 2, 55.0), cluster="v100:2", policy=Pairs())
    assert ends(result) == pytest.approx([100.0 + 55.0, 100.0], abs=1e-5)


def test_a_pair_that_does_not_fit_is_refused_and_both_still_finish() -> None:
    a, b = _steps("a", 2, 1000.0), _steps("b", 2, 2000.0, batch_size=64)
    result = run(a, b, cluster="v100:2", policy=Pairs(), profile=Profiled())
    assert ends(result) == [50.0, 100.0]


def test_a_node_failure_rolls_back_to_the_last_checkpoint() -> None:
    rules = Rules("test", restart_cost_s=10.0, checkpoint_every_s=60.0)
    faults = Faults((Outage(150.0, 0, 50.0),))
    result = run(job("a", 4, 300.0), rules=rules, faults=faults)
    # 120 s are safe at the failure; back at 200 s, 10 s of restart, 180 s of work.
    assert ends(result) == [390.0]
    assert result.ledger.evictions.tolist() == [1]
    assert result.ledger.lost_gpu_s.tolist() == [4 * (30.0 + 10.0)]
    assert result.figures()["preemptions"] == 0


def test_a_job_of_its_own_checkpoint_interval_falls_back_to_that() -> None:
    faults = Faults((Outage(150.0, 0, 50.0),))
    own = job("a", 4, 300.0, checkpoint_every_s=100.0)
    assert ends(run(own, rules=Rules("test", checkpoint_every_s=60.0), faults=faults)) == [400.0]
    never_lost = job("a", 4, 300.0, checkpoint_every_s=0.0)
    assert ends(run(never_lost, faults=faults)) == [350.0]


def test_a_failure_while_restarting_loses_nothing_more() -> None:
    rules = Rules("test", restart_cost_s=30.0, checkpoint_every_s=60.0)
    faults = Faults((Outage(60.0, 0, 10.0), Outage(80.0, 0, 10.0)))
    assert ends(run(job("a", 4, 100.0), rules=rules, faults=faults)) == [90.0 + 30.0 + 40.0]


def test_a_job_moves_to_a_node_that_is_up() -> None:
    faults = Faults((Outage(60.0, 0, math.inf),))
    result = run(job("a", 4, 100.0), cluster="v100:2x4", rules=Rules("t", checkpoint_every_s=60.0), faults=faults)
    assert ends(result) == [100.0]
    assert [segment[3] for segment in result.ledger.segments] == [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize("rules", ["native", "gavel", "shockwave", "pollux", "tiresias"])
def test_a_job_whose_cluster_is_gone_is_not_counted_as_finished(rules: str) -> None:
    result = run(job("a", 4, 1000.0), rules=rules, faults=Faults((Outage(500.0, 0, math.inf),)))
    assert (result.finished, result.jobs) == (0, 1)
    assert result.figures()["makespan_s"] is None


def test_a_failure_in_the_second_regime_can_fall_back_to_the_first() -> None:
    rules = Rules("test", checkpoint_every_s=80.0)
    spec = job("a", 4, 200.0, regimes=(Regime(0.5), Regime(1.0, None, 2.0)))
    result = run(spec, rules=rules, faults=Faults((Outage(110.0, 0, 10.0),)))
    # At 110 s the last checkpoint is that at 80 s: 80 s of work; 20 s at speed 1 and 100 s at speed 2 are left.
    assert ends(result) == pytest.approx([120.0 + 20.0 + 50.0], abs=1e-5)


def test_drawn_failures_come_from_the_seed_alone() -> None:
    jobs = [job(f"job-{n}", 2, 5000.0, submitted_s=10.0 * n) for n in range(8)]
    about: dict[str, Any] = {"cluster": "v100:4x2", "rules": "native"}
    one, same, other = (run(*jobs, faults=Faults(mtbf_s=4000.0, seed=s), **about) for s in (1, 1, 2))
    assert one.ledger.evictions.sum() > 0
    assert ends(one) == ends(same)
    assert ends(one) != ends(other)
    assert one.finished == other.finished == 8


@pytest.mark.parametrize("bad", [{"mtbf_s": 0.0}, {"mtbf_s": -1.0}, {"mtbf_s": math.nan}, {"repair_s": math.inf}])
def test_senseless_faults_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Faults(**bad)


@pytest.mark.parametrize("outage", [Outage(0.0, 9, 1.0), Outage(-1.0, 0, 1.0), Outage(0.0, 0, 0.0)])
def test_an_outage_must_fit_the_cluster(outage: Outage) -> None:
    with pytest.raises(InputError, match="does not fit"):
        run(job("a"), faults=Faults((outage,)))


def test_overlapping_outages_keep_a_node_down_until_the_last_ends() -> None:
    rules = Rules("test", checkpoint_every_s=0.0)
    faults = Faults((Outage(10.0, 0, 20.0), Outage(20.0, 0, 50.0)))
    assert ends(run(job("a", 4, 100.0), rules=rules, faults=faults)) == [70.0 + 90.0]


def test_mixed_clusters_scale_durations_by_the_first_type() -> None:
    result = run(job("a", 1, 100.0), job("b", 1, 100.0), cluster="v100:1,k80:1")
    slow = next(t.speed for t in result.cluster.types if t.name == "k80")
    assert ends(result) == pytest.approx([100.0, 100.0 / slow], abs=1e-5)
    assert result.ledger.exclusive_s.tolist() == [100.0, 100.0]


def test_a_job_that_names_its_type_gets_it_and_keeps_its_duration() -> None:
    result = run(job("a", 1, 100.0, gpu_types=("k80",)), cluster="v100:1,k80:1")
    assert ends(result) == [100.0]
    assert result.ledger.segments[0][3] == (1,)


def test_an_impossible_gang_is_an_error_or_is_counted() -> None:
    jobs = [job("ok", 2, 10.0), job("huge", 9, 10.0), job("a100", 1, 10.0, gpu_types=("a100",))]
    with pytest.raises(InputError, match=r"'huge' can never run.*--skip-impossible"):
        run(*jobs)
    result = run(*jobs, skip_impossible=True)
    assert (result.jobs, result.finished, result.skipped) == (3, 1, 2)
    with pytest.raises(InputError, match="no job"):
        run(jobs[1], skip_impossible=True)


def test_a_gang_must_fit_one_type() -> None:
    with pytest.raises(InputError, match="larger than the 4 GPUs of one type"):
        run(job("a", 5, 10.0), cluster="v100:4,k80:4")


def test_jobs_without_work_end_when_they_start() -> None:
    result = run(job("a", 4, 0.0), job("b", 4, 0.0), job("c", 4, 5.0))
    assert ends(result) == [0.0, 0.0, 5.0]
    assert np.isnan(result.rho["static"][:2]).all()


def test_thirds_of_seconds_do_not_drift() -> None:
    jobs = [job(f"job-{n}", 4, 1 / 3) for n in range(300)]
    result = run(*jobs)
    assert result.finished_s[-1] == pytest.approx(100.0, abs=300 * 1e-6)
    assert result.costs.rounds <= 601


def test_simultaneous_events_are_one_round() -> None:
    jobs = [job(f"a{n}", 1, 10.0) for n in range(4)] + [job(f"b{n}", 1, 10.0, submitted_s=10.0) for n in range(4)]
    result = run(*jobs)
    assert ends(result) == [10.0] * 4 + [20.0] * 4
    assert result.costs.rounds == 2


@pytest.mark.parametrize("policy", ["las:levels=100.0005", "proportional:quantum_s=100.0005"])
def test_a_wake_up_between_two_ticks_of_the_clock_moves_it_on(policy: str) -> None:
    jobs = [job("a", 4, 200.0), job("b", 4, 200.0)]
    result = run(*jobs, policy=policy, rules="tiresias", placement="count")
    assert sorted(ends(result))[-1] == 400.0


def test_integer_rules_round_up_to_whole_seconds() -> None:
    result = run(job("a", 4, 10.2), job("b", 4, 1.0, submitted_s=0.5), rules="tiresias", placement="count")
    assert ends(result) == [11.0, 12.0]


def test_rounds_of_a_fixed_length_start_jobs_at_their_multiples() -> None:
    jobs = [job("a", 4, 25.0), job("b", 4, 10.0, submitted_s=1.0)]
    assert ends(run(*jobs, round_s=10.0)) == [25.0, 40.0]
    at_end = Rules("ends", round_s=10.0, frees_gpus="at_round_end")
    result = run(*jobs, rules=at_end)
    assert ends(result) == [25.0, 40.0]


def test_a_round_rule_frees_gpus_at_its_end_but_reports_the_true_completion() -> None:
    at_end = Rules("ends", round_s=60.0, frees_gpus="at_round_end")
    result = run(job("a", 4, 25.0), job("b", 4, 30.0), rules=at_end)
    assert ends(result) == [25.0, 90.0]


@pytest.mark.parametrize("bad", [{"round_s": -1.0}, {"restart_cost_s": math.nan}, {"replan_interval_s": math.inf}])
def test_senseless_times_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match="finite number of seconds"):
        run(job("a"), **bad)


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    run(job("a", 1, 10.0), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1, 1)
