"""Simulated GPUs work through queues of tasks: rounds, synchronisation, switches, failures, regimes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from task_world import TaskTimes, gpus, run_toy, task_job

from fairway import JobSpec, Workload, simulate
from fairway.core.job import Regime
from fairway.policies import make_policy
from fairway.simulator.faults import Faults, Outage
from fairway.testing import Invariants, cluster
from fairway.testing.harness import run_policy, unfinished
from fairway.testing.seeds import some


@pytest.mark.parametrize(
    ("policy", "times_s"),
    [
        ("sched_homo:order=arrival,group_s=0.5", (4.0, 6.0, 3.0)),
        ("sched_homo:types=aware,group_s=0.5", (7.0, 3.0, 1.0)),
        ("hare:assign=earliest_available,group_s=0.5", (5.0, 3.0, 1.0)),
        ("hare:group_s=0.5", (5.0, 3.0, 1.0)),
    ],
)
def test_the_toy_has_the_totals_of_the_specification(policy: str, times_s: tuple[float, ...]) -> None:
    result = run_toy(policy)
    assert tuple(result.jct_s.tolist()) == times_s
    assert sum(times_s) == {"sched_homo": 13.0 if "arrival" in policy else 11.0, "hare": 9.0}[policy.partition(":")[0]]


def test_the_published_schedule_of_the_toy_is_carried_out() -> None:
    result = run_toy("hare:assign=earliest_available,group_s=0.5")
    seen = sorted((gpu[0], start_s, end_s, job) for job, start_s, end_s, gpu in result.ledger.segments)
    first = [(0, 0.0, 1.0, 2), (0, 1.0, 2.0, 0), (0, 2.0, 3.0, 0), (0, 3.0, 4.0, 0)]
    assert seen == [*first, (1, 0.0, 2.0, 1), (1, 3.0, 5.0, 0), (2, 0.0, 3.0, 1)]


def test_no_schedule_of_the_toy_is_below_the_bound_that_is_told() -> None:
    result = run_toy("hare:group_s=0.5")
    assert result.least_weighted_jct_s is not None
    assert 6.25 / 3 <= result.least_weighted_jct_s <= 3.0
    assert result.jct_weighted_s == 3.0


def test_a_round_begins_when_the_last_one_is_synchronised() -> None:
    profile = TaskTimes({"a": (2.0,)}, {"a": 1.0})
    jobs = Workload.of([task_job("a", 3, 2)])
    result = simulate(jobs, cluster=gpus(2), policy="hare:group_s=0.5", profile=profile, switching="0")
    assert result.jct_s.tolist() == [9.0]
    assert sorted({(start_s, end_s) for _, start_s, end_s, _ in result.ledger.segments}) == [(0, 2), (3, 5), (6, 8)]
    # One GPU does the two tasks of a round one after the other, and synchronises the first meanwhile.
    alone = simulate(jobs, cluster=gpus(1), policy="hare:group_s=0.5", profile=profile, switching="0")
    assert alone.jct_s.tolist() == [15.0]


def test_time_with_several_tasks_counts_once_as_run_time() -> None:
    result = run_toy("hare:assign=earliest_available,group_s=0.5")
    assert result.queue_s.tolist() == [1.0, 0.0, 0.0]
    assert result.ledger.held_gpu_s.tolist() == [5.0, 5.0, 1.0]


def test_switches_between_jobs_are_paid_for() -> None:
    free = run_toy("sched_homo:order=arrival,group_s=0.5")
    dear = run_toy("sched_homo:order=arrival,group_s=0.5", switching="5s")
    assert dear.jct_s[1] == free.jct_s[1] + 10.0
    assert dear.figures()["lost_gpu_h"] == pytest.approx(dear.figures()["switching_gpu_h"])
    default = run_toy("hare:group_s=0.5", switching=None)
    assert default.settings.switching == "resident"
    assert 9.0 < default.jct_s.sum() < 9.05
    given = run_toy("hare:group_s=0.5", switching=None, restart_cost_s=2.0)
    assert given.settings.switching == "2s"


def test_jobs_that_are_larger_than_the_cluster_run_as_tasks() -> None:
    jobs = Workload.of([task_job("a", 2, 8)])
    result = simulate(jobs, cluster=gpus(1, 2), policy="hare", profile=TaskTimes({"a": (1.0, 2.0)}), switching="0")
    assert result.finished == 1
    assert result.jct_s[0] >= 2 * 8 / 2.0


def test_a_job_that_fits_no_gpu_is_left_out_and_the_others_run() -> None:
    machines = cluster("v100:2,k80:2")
    jobs = [JobSpec("a", 0, gpus=2, duration_s=100), JobSpec("b", 0, gpus=2, duration_s=100, memory_bytes=2**40)]
    result = simulate(Workload.of(jobs), cluster=machines, policy="hare", skip_impossible=True)
    assert (result.finished, result.skipped) == (1, 1)


def test_a_job_without_work_ends_at_once() -> None:
    jobs = [JobSpec("a", 0, gpus=3, duration_s=0), JobSpec("b", 0, gpus=2, duration_s=60)]
    result = simulate(Workload.of(jobs), cluster="v100:2,k80:2", policy="hare", observer=Invariants())
    assert result.finished == 2


def test_regimes_of_a_job_change_its_speed_between_rounds() -> None:
    halves = (Regime(0.5), Regime(1.0, speed=2.0))
    job = JobSpec("a", 0, gpus=2, duration_s=960, adaptation="schedule", regimes=halves)
    result = simulate(Workload.of([job]), cluster="v100:4", policy="hare", observer=Invariants(), switching="0")
    assert result.jct_s[0] == pytest.approx(720.0, abs=1e-3)


def test_tasks_of_a_failed_node_are_done_again_elsewhere() -> None:
    jobs = [JobSpec(str(n), 0, gpus=2, duration_s=600) for n in range(4)]
    faults = Faults((Outage(100.0, 0, 900.0), Outage(1500.0, 1, math.inf)))
    run = run_policy(make_policy("hare"), jobs, cluster("v100:3x2"), faults=faults)
    assert not unfinished(run, jobs)
    lost = run_policy(make_policy("hare"), jobs, cluster("v100:3x2"))
    assert run.engine.ledger.held_gpu_s.sum() > lost.engine.ledger.held_gpu_s.sum()  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", some(range(12), 4))
@pytest.mark.parametrize("policy", ["hare", "hare:assign=earliest_available", "hare:clairvoyant=no", "sched_homo"])
def test_random_jobs_keep_the_laws_and_the_bound(policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    names = [f"m{n}" for n in range(6)]
    times = {name: tuple(np.round(random.uniform(1, 9, 3), 2).tolist()) for name in names}
    synced = {name: round(float(random.uniform(0, 1)), 2) for name in names}
    jobs = [
        task_job(
            name,
            int(random.integers(1, 4)),
            int(random.integers(1, 5)),
            round(float(random.uniform(0, 8)), 1),
            weight=float(random.integers(1, 5)),
            priority=int(random.integers(0, 2)) if seed % 2 else 0,
        )
        for name in names
    ]
    grouped = f"{policy}{',' if ':' in policy else ':'}group_s=0.5"
    seen = simulate(
        Workload.of(jobs),
        cluster=gpus(2, 1, 2),
        policy=grouped,
        profile=TaskTimes(times, synced),
        observer=Invariants(),
    )
    assert seen.finished == len(jobs)
    assert seen.jct_weighted_s is not None
    assert seen.least_weighted_jct_s is not None
    assert seen.jct_weighted_s >= seen.least_weighted_jct_s - 1e-9


def test_rules_of_published_simulators_run_whole_gangs() -> None:
    jobs = Workload.of([JobSpec(str(n), 0, gpus=2, duration_s=3000) for n in range(3)])
    result = simulate(jobs, cluster="v100:4", policy="hare", rules="gavel")
    assert result.finished == 3
    assert result.least_weighted_jct_s is None


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_grouping_rounds_changes_the_outcome_by_little(seed: int) -> None:
    random = np.random.default_rng(100 + seed)
    names = [f"m{n}" for n in range(10)]
    times = {name: tuple(np.round(random.uniform(1, 4, 2), 2).tolist()) for name in names}
    sizes = [(int(random.integers(8, 24)), int(random.integers(1, 4))) for _ in names]
    jobs = Workload.of([task_job(name, *size) for name, size in zip(names, sizes, strict=True)])
    means = []
    # Every round by itself (up to the most that are planned), and groups of about a quarter of a job.
    for group_s in (0.5, 10.0):
        about = {"cluster": gpus(3, 3), "profile": TaskTimes(times), "switching": "0"}
        result = simulate(jobs, policy=f"hare:group_s={group_s}", **about)  # type: ignore[arg-type]
        means.append(result.jct_weighted_s or 0.0)
    assert means[1] == pytest.approx(means[0], rel=0.08)
