"""SLAQ: the worked example, floors and gangs, what it remembers, and that it lowers losses sooner than equal shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.core.action import Action
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.job import LossCurve
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.convergence import drawn_curve
from fairway.policies import make_policy
from fairway.policies.slaq import Pool, Slaq, hand_out
from fairway.testing import check_policy, job, snapshot_of
from fairway.testing.pace import loops
from fairway.testing.seeds import ALL

STEEP, SHALLOW = LossCurve(40.0, 0.5, 0.3, 0.1), LossCurve(40.0, 0.001, 0.3, 0.1)


def pool_of(rows: int, free: int, *, held: Sequence[int] = (), most: int = 9) -> Pool:
    return Pool([free], [0] * rows, [1] * rows, [most] * rows, list(held) or [0] * rows, [0] * rows)


def from_table(*rows: Sequence[float]) -> Any:
    return lambda row, gpus: rows[row][min(gpus, len(rows[row])) - 1]


def test_the_worked_example_ends_with_two_units_each() -> None:
    pool = pool_of(2, 4)
    assert pool.take(0, 1)
    assert pool.take(1, 1)
    hand_out(pool, [0, 1], from_table((0.30, 0.42, 0.47), (0.10, 0.19, 0.27)))
    assert pool.gpus == [2, 2]
    assert pool.free == [0]


def test_the_first_of_the_extra_units_of_the_worked_example_goes_to_a() -> None:
    pool = pool_of(2, 3)
    hand_out(pool, [0, 1], from_table((0.30, 0.42, 0.47), (0.10, 0.19, 0.27)))
    assert pool.gpus == [2, 1]


def test_units_that_bring_nothing_are_not_handed_out_but_minima_are() -> None:
    pool = pool_of(2, 8)
    hand_out(pool, [0, 1], from_table((0.3, 0.3), (0.0, 0.0)))
    assert pool.gpus == [1, 1]


def test_what_a_row_holds_is_reached_over_a_dip_where_other_sizes_cost_a_restart() -> None:
    table = from_table((0.1, 0.15, 0.18, 0.5, 0.2))
    pool = pool_of(1, 8, held=[4])
    hand_out(pool, [0], table)
    assert pool.gpus == [4]
    pool = pool_of(1, 3, held=[4])
    hand_out(pool, [0], table)
    assert pool.gpus == [3]


def elastic(name: str, loss: LossCurve, **about: Any) -> JobSpec:
    return job(name, 2, 40_000.0, gpus_min=1, gpus_max=16, loss=loss, **about)


def courses(policy: Slaq, jobs: list[JobSpec], steps: int, cluster: str = "v100:2x8") -> list[Decision]:
    """Decisions at the ends of intervals while every job runs on the gang that it asked for."""
    memory: Any = {}
    decisions = []
    for step in range(1, steps + 1):
        now_s = 1000.0 + step * policy.interval_s
        running = {spec.id: spec.gpus for spec in jobs}
        attained = {spec.id: step * policy.interval_s for spec in jobs}
        snapshot = snapshot_of(
            jobs, cluster, now_s=now_s, running=running, attained=attained, knows=policy.knows, memory=memory
        )
        decisions.append(policy.decide(snapshot))
        check(snapshot, decisions[-1])
        memory = json.loads(json.dumps(decisions[-1].memory, default=lambda array: array.tolist()))
    return decisions


def test_gpus_go_to_the_loss_that_still_falls() -> None:
    jobs = [
        elastic("converged", LossCurve(40.0, 500.0, 0.3, 0.1)),
        elastic("learning", LossCurve(40.0, 0.02, 0.3, 0.1)),
    ]
    gpus = courses(Slaq(), jobs, 5)[-1].gpus.tolist()
    assert gpus[1] > 8 > gpus[0] >= 1


def test_losses_of_different_size_are_comparable() -> None:
    """The same curve a hundred times as large is no more urgent."""
    small = LossCurve(40.0, 0.05, 0.3, 0.1)
    large = LossCurve(40.0, 0.0005, 0.003, 10.0)
    jobs = [elastic("small", small, checkpoint_s=0.0), elastic("large", large, checkpoint_s=0.0)]
    assert courses(Slaq(), jobs, 5)[-1].gpus.tolist() == [8, 8]


def test_every_elastic_job_keeps_its_floor() -> None:
    jobs = [elastic(f"old-{n}", LossCurve(40.0, 900.0, 0.3, 0.1)) for n in range(3)] + [elastic("new", STEEP)]
    for decision in courses(Slaq(), jobs, 4):
        assert (decision.gpus >= 1).all()


def test_without_the_floor_the_most_promising_go_first() -> None:
    jobs = [elastic(f"j{n}", STEEP) for n in range(20)]
    attained = {f"j{n}": 5000.0 for n in range(4)}
    about: Any = {"now_s": 9000.0, "attained": attained, "knows": ("loss",)}
    snapshot = snapshot_of(jobs, "v100:16", **about)
    assert np.nonzero(Slaq(floor=True).decide(snapshot).gpus)[0].tolist() == list(range(16))
    assert np.nonzero(Slaq(floor=False).decide(snapshot).gpus)[0].tolist() == list(range(4, 20))


def test_gangs_are_whole_and_ranked_by_what_each_gpu_brings() -> None:
    jobs = [job("wide", 4, 9000.0), job("narrow", 2, 9000.0, submitted_s=1.0), job("one", 1, 9000.0, submitted_s=2.0)]
    snapshot = snapshot_of(jobs, "v100:4", now_s=10.0, knows=("loss",))
    assert Slaq().decide(snapshot).gpus.tolist() == [0, 2, 1]


def test_between_intervals_running_jobs_are_left_alone_and_newcomers_get_what_is_free() -> None:
    jobs = [elastic("a", STEEP), job("b", 3, 900.0, submitted_s=1050.0)]
    about: Any = {"now_s": 1050.0, "running": {"a": 2}, "attained": {"a": 1000.0}, "knows": ("loss",)}
    first = snapshot_of(jobs[:1], "v100:8", **(about | {"now_s": 1000.0}))
    memory = Slaq().decide(first).memory
    decision = Slaq().decide(snapshot_of(jobs, "v100:8", memory=memory, **about))
    assert decision.gpus.tolist() == [2, 3]
    assert decision.wake_s == memory["next_s"] == 1060.0


def test_protected_jobs_are_worked_around() -> None:
    jobs = [elastic("fresh", SHALLOW), elastic("other", STEEP)]
    snapshot = snapshot_of(
        jobs, "v100:8", now_s=30.0, running={"fresh": 7}, attained={"fresh": 30.0}, min_run_s=60.0, knows=("loss",)
    )
    decision = Slaq().decide(snapshot)
    check(snapshot, decision)
    assert decision.gpus.tolist() == [7, 1]


def test_what_is_remembered_is_bounded_and_forgets_jobs_that_have_left() -> None:
    policy = Slaq(history=4)
    jobs = [elastic("a", STEEP), elastic("b", STEEP)]
    memory = courses(policy, jobs, 9)[-1].memory
    assert np.shape(memory["losses"]) == (2, 4)
    assert list(memory["counts"]) == [4, 4]
    alone = snapshot_of(jobs[:1], "v100:8", now_s=9000.0, knows=("loss",), memory=memory)
    assert len(policy.decide(alone).memory["jobs"]) == 1


def test_a_job_that_was_thrown_back_starts_its_history_again() -> None:
    policy = Slaq()
    jobs = [elastic("a", STEEP)]
    memory = courses(policy, jobs, 6)[-1].memory
    about: Any = {"now_s": 5000.0, "running": {"a": 2}, "attained": {"a": 10.0}, "knows": ("loss",)}
    after = policy.decide(snapshot_of(jobs, "v100:2x8", memory=memory, **about)).memory
    assert list(memory["counts"]) == [6]
    assert list(after["counts"]) == [1]


def test_nobody_is_woken_where_there_is_nothing_to_divide() -> None:
    snapshot = snapshot_of([job("a", 2, 900.0)], "v100:8", knows=("loss",))
    assert Slaq().decide(snapshot).wake_s == np.inf


class FirstTimes:
    """When each job had done a given part of its work."""

    def __init__(self, goals: list[float]) -> None:
        self.goals, self.reached_s = goals, [np.nan] * len(goals)

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        snapshot = state.snapshot()
        for number, done in zip(snapshot.jobs.tolist(), snapshot.progress.tolist(), strict=True):
            if np.isnan(self.reached_s[number]) and done >= self.goals[number]:
                self.reached_s[number] = snapshot.now_s

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        pass


def test_losses_fall_sooner_than_under_proportional_shares() -> None:
    """Nine tenths of the reduction come at least a third sooner on average."""
    random = np.random.default_rng(5)
    specs = []
    for n in range(40):
        about: Any = {"gpus_min": 1, "gpus_max": 16, "loss": drawn_curve(0, n)}
        specs.append(job(f"j{n}", 2, float(random.uniform(1800, 7200)), submitted_s=90.0 * n, **about))
    goals = []
    for spec in specs:
        curve = spec.loss
        assert curve is not None
        assert spec.duration_s is not None
        first, last = curve.at(0.0), curve.at(1.0)
        at = (1 / (first - 0.9 * (first - last) - curve.b2) - curve.b1) / (curve.b0 * curve.epochs)
        goals.append(at * spec.duration_s)
    delays = {}
    for policy in ("slaq", "proportional"):
        times = FirstTimes(goals)
        simulate(Workload.of(specs), cluster="v100:12x4", policy=policy, observer=times)
        delays[policy] = np.nanmean(np.array(times.reached_s) - [spec.submitted_s for spec in specs])
    assert delays["slaq"] < delays["proportional"] * 2 / 3


@pytest.mark.parametrize("knobs", ["interval_s=33.3,history=3", "floor=off,decay=0.5"])
def test_the_contract_holds_with_other_knobs(knobs: str) -> None:
    check_policy(f"slaq:{knobs}", seeds=[20], work_conserving=True, other_processes=ALL)


@pytest.mark.parametrize("knobs", ["interval_s=0", "history=2", "decay=0", "decay=1.5", "history=1000"])
def test_senseless_knobs_are_refused(knobs: str) -> None:
    with pytest.raises(InputError, match="must be"):
        make_policy(f"slaq:{knobs}")


def test_two_thousand_jobs_are_divided_in_milliseconds() -> None:
    """The budget is 20 ms of CPU, four loops; five times as much is allowed here, because test machines are shared."""
    many = [replace(elastic(f"j{n}", drawn_curve(0, n)), gpus=1) for n in range(400)]
    many += [elastic(f"w{n}", STEEP) for n in range(1600)]
    policy, memory = Slaq(), {}
    taken = []
    for step in range(1, 6):
        now_s = step * 60.0
        attained = {f"j{n}": now_s - 30.0 for n in range(400)}
        running = {f"j{n}": 1 for n in range(400)}
        about: Any = {"now_s": now_s, "running": running, "attained": attained, "memory": memory}
        snapshot = snapshot_of(many, "v100:50x8", knows=policy.knows, **about)
        decision = policy.decide(snapshot)
        taken.append(loops(lambda now=snapshot: policy.decide(now), tries=1))  # type: ignore[misc]
        memory = dict(decision.memory)
    assert min(taken) < 20
