"""Plans of shares: rounding errors, restarts, deadlines, weights and leases leave nobody without its due."""

from __future__ import annotations

import numpy as np
import pytest

import fairway
from fairway import JobSpec, Workload
from fairway.policies import make_policy
from fairway.policies.gavel.situation import Situation
from fairway.policies.gavel.throughputs import Throughputs
from fairway.policies.gavel.times import smallest_rho
from fairway.simulator.faults import Faults, Outage
from fairway.testing import job, snapshot_of


@pytest.mark.parametrize("third", range(0, 30, 3))
def test_a_plan_is_not_missed_by_a_rounding_error(third: int) -> None:
    begin_s = 168 + third / 3 + 1 / 3
    jobs = [JobSpec("a", begin_s, duration_s=333.3), JobSpec("b", begin_s + 300, duration_s=50.0)]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:2", policy="max_min_fairness", rules="gavel")
    assert not np.isnan(result.jct_s).any()


def test_a_makespan_is_not_sought_for_jobs_that_cannot_run_now() -> None:
    faults = Faults(schedule=(Outage(100.0, 0, 1000.0),))
    jobs = Workload.of([JobSpec("a", 0, gpus=2, duration_s=1000.0)])
    result = fairway.simulate(jobs, cluster="v100:2x1", policy="min_makespan", rules="gavel", faults=faults)
    assert result.jct_s[0] < 4000


def test_single_jobs_do_not_starve_behind_gangs_that_are_owed_restarts() -> None:
    jobs = [JobSpec(f"gang-{n}", 0, gpus=4, duration_s=3000.0) for n in range(8)]
    jobs += [JobSpec(f"single-{n}", 0, gpus=1, duration_s=3000.0) for n in range(4)]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:4", policy="max_min_fairness", round_s=60.0)
    singles = [jct for spec, jct in zip(result.specs, result.jct_s, strict=True) if spec.gpus == 1]
    assert max(singles) < 15_000


@pytest.mark.parametrize("slack", [1.3, 2.0, 3.0])
@pytest.mark.parametrize("round_s", [60.0, 360.0])
def test_a_deadline_with_time_to_spare_is_kept_in_spite_of_restarts(slack: float, round_s: float) -> None:
    jobs = [JobSpec("a", 0, duration_s=100_000.0), JobSpec("b", 0, duration_s=3600.0, deadline_s=3600.0 * slack)]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:1", policy="min_cost_slo", round_s=round_s)
    assert result.jct_s[1] <= 3600.0 * slack


def test_beyond_the_level_a_heavier_job_gets_no_less() -> None:
    crowd = [job(f"k{n}") for n in range(20)]
    jobs = [*crowd, job("heavy", weight=4.0), job("light", weight=1.0)]
    speeds = {spec.id: (1.0, 0.0) if spec.id in ("heavy", "light") else (0.0, 1.0) for spec in jobs}
    snapshot = snapshot_of(jobs, "v100:1,k80:1", speeds=speeds)
    plan = make_policy("max_min_fairness").plan(Situation(snapshot, np.zeros((22, 2))))  # type: ignore[attr-defined]
    assert plan.x[20, 0] > plan.x[21, 0]


def test_the_smallest_rho_is_reached_though_some_have_waited_far_longer() -> None:
    rates = np.array([[3.08243226], [2.93675599], [1.52452262], [0.50521529], [3.90711096]])
    left = np.array([2821.89, 882.9, 1249.66, 8326.3, 37.28])
    waited_s = np.array([1e5, 0.0, 0.0, 10.0, 1e5])
    isolated_s = np.array([7423.8, 2406.1, 6557.7, 131846.0, 176.3])
    _, rho = smallest_rho(Throughputs.alone(rates, np.ones(5), np.ones(1)), left, waited_s, isolated_s)
    assert rho <= 567.28
    with_less = left / (rates[:, 0] * (0.999 * rho * isolated_s - waited_s))
    assert (with_less < 0).any() or with_less.sum() > 1.0 or (with_less > 1.0).any()


def test_jobs_of_equal_worth_share_what_is_left() -> None:
    snapshot = snapshot_of([job("a"), job("b"), job("c")], "v100:1")
    plan = make_policy("max_throughput").plan(Situation(snapshot, np.zeros((3, 1))))  # type: ignore[attr-defined]
    assert plan.x[:, 0] == pytest.approx([1 / 3] * 3)


def test_a_newcomer_is_not_stopped_because_the_next_plan_is_far() -> None:
    jobs = [
        JobSpec("a", 0, duration_s=50_000.0),
        JobSpec("x", 500, duration_s=100.0),
        JobSpec("b", 700, duration_s=3000.0),
    ]
    result = fairway.simulate(
        Workload.of(jobs), cluster="v100:1x4", policy="max_min_fairness", replan_interval_s=20_000.0
    )
    assert result.jct_s.tolist() == [50_000.0, 100.0, 3000.0]


def test_first_come_first_served_stops_nobody() -> None:
    jobs = [
        JobSpec("first", 0, gpus=4, duration_s=1000.0, gpu_types=("v100",)),
        JobSpec("moves", 1, gpus=3, duration_s=9000.0),
        JobSpec("bound", 2, gpus=2, duration_s=5000.0, gpu_types=("v100",)),
        JobSpec("late", 3, gpus=1, duration_s=2000.0),
    ]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:1x5,k80:1x4", policy="gavel_fifo")
    assert result.figures()["preemptions"] == 0


def test_a_lease_ends_for_a_job_that_could_have_a_faster_gpu() -> None:
    jobs = [JobSpec("a", 0, duration_s=600.0), JobSpec("b", 1, duration_s=100_000.0)]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:1x1,k80:1x1", policy="themis")
    assert result.jct_s[1] < 110_000


def test_short_rounds_are_charged_for_restarts_too() -> None:
    jobs = Workload.of([JobSpec(f"j{n}", 0, duration_s=600.0) for n in range(3)])
    about = {"cluster": "v100:1", "policy": "isolated", "rules": "shockwave", "round_s": 60.0}
    free, charged = (fairway.simulate(jobs, restart_cost_s=cost, **about) for cost in (0.0, 20.0))  # type: ignore[arg-type]
    assert charged.figures()["lost_gpu_h"] > free.figures()["lost_gpu_h"]


def test_every_policy_of_the_family_takes_the_knobs_of_the_family() -> None:
    names = (
        "max_min_fairness finish_time_fairness min_makespan max_throughput gavel_fifo gavel_sjf min_cost min_cost_slo"
    )
    for name in [*names.split(), "water_filling", "hierarchical", "isolated"]:
        policy = make_policy(f"{name}:heterogeneity=agnostic,packing=on")
        assert (policy.heterogeneity, policy.packing) == ("agnostic", True)  # type: ignore[attr-defined]
