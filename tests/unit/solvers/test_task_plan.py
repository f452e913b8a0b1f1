"""Plans of tasks on mixed GPUs: the worked example, lawful schedules, and how near they are to the best."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from task_cases import Optimum, large, small, toy

from fairway.core import kernels
from fairway.solvers import task_fluid, task_prices, task_schedule
from fairway.solvers.task_bound import lower_bound
from fairway.solvers.task_fluid import Fluid
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_plan import plan, queues
from fairway.solvers.task_prices import TimePrices
from fairway.solvers.task_relaxation import order_of, relax
from fairway.solvers.task_schedule import ASSIGNS, EARLIEST_FINISH, TaskSchedule, schedule
from fairway.testing.seeds import first_seed, some

CASES = [(first_seed() + seed, plain) for seed in range(400) for plain in (True, False)]


@cache
def _optimum(seed: int, plain: bool) -> float:
    return Optimum(*small(seed, plain=plain)).value


def _check(jobs: TaskJobs, gpus: TaskGpus, found: TaskSchedule) -> None:
    """Every task runs once, on a GPU that can run it, after the round before it, and alone on its GPU."""
    rounds = [
        (job, number)
        for job, (count, tasks, first) in enumerate(
            zip(jobs.rounds.tolist(), jobs.tasks.tolist(), jobs.first_tasks.tolist(), strict=True)
        )
        for number in range(count)
        for _ in range(tasks if number else first)
    ]
    assert sorted(zip(found.job.tolist(), found.round.tolist(), strict=True)) == rounds
    kinds = gpus.kind[found.gpu]
    assert found.end_s - found.start_s == pytest.approx(jobs.task_s[found.job, kinds], abs=1e-5)
    synced_s = found.end_s + jobs.sync_s[found.job, kinds]
    for job in range(len(jobs.weight)):
        ready_s, mine = jobs.ready_s[job], found.job == job
        for number in range(jobs.rounds[job]):
            of_round = mine & (found.round == number)
            assert (found.start_s[of_round] >= ready_s - 1e-5).all()
            started_s = jobs.first_synced_s[job] if number == 0 else 0.0
            ready_s = max(ready_s, started_s, synced_s[of_round].max(initial=0.0))
        assert found.completion_s[job] == pytest.approx(ready_s, abs=1e-5)
    at, begins = queues(found, len(gpus.kind))
    for gpu in range(len(gpus.kind)):
        queue = at[begins[gpu] : begins[gpu + 1]]
        assert (found.gpu[queue] == gpu).all()
        assert (found.start_s[queue] >= np.append(gpus.free_s[gpu], found.end_s[queue[:-1]])[: len(queue)] - 1e-5).all()
    assert found.value == pytest.approx(float((jobs.weight * found.completion_s).sum()))


def test_the_relaxation_of_the_worked_example() -> None:
    found = relax(*toy())
    assert found.value == pytest.approx(6.25)
    assert found.completion_s == pytest.approx([19 / 6, 25 / 12, 1.0])
    assert found.mean_busy_s == pytest.approx([5 / 3, 8 / 3, 13 / 12, 0.5])
    assert order_of(toy()[0], found.mean_busy_s).tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize("assign", ASSIGNS)
def test_the_schedule_of_the_worked_example(assign: str) -> None:
    jobs, gpus = toy()
    found = schedule(jobs, gpus, np.array([2, 1, 0, 0]), assign)
    rows = zip(found.job.tolist(), found.round.tolist(), found.gpu.tolist(), found.start_s.tolist(), strict=True)
    assert sorted(rows) == [
        (0, 0, 0, 1),
        (0, 0, 0, 2),
        (0, 1, 0, 3),
        (0, 1, 1, 3),
        (1, 0, 1, 0),
        (1, 0, 2, 0),
        (2, 0, 0, 0),
    ]
    assert found.completion_s.tolist() == [5.0, 3.0, 1.0]
    assert plan(jobs, gpus, assign).value == found.value == 9.0 == Optimum(jobs, gpus).value


@pytest.mark.parametrize(("seed", "plain"), some(CASES, 30))
def test_no_schedule_is_below_a_bound(seed: int, plain: bool) -> None:
    jobs, gpus = small(seed, plain=plain)
    best = _optimum(seed, plain) * (1 + 1e-9)
    assert relax(jobs, gpus).value <= best + 1e-5
    assert lower_bound(jobs, gpus) <= best
    random = np.random.default_rng(seed)
    fluid = Fluid(jobs, gpus)
    for _ in range(5):
        start = fluid.even()._replace(prices=random.random(fluid.types) + 0.01)
        assert fluid.ascend(start, 3, 1.0).value <= best
    model = TimePrices(fluid, 10.0 + 30.0 * float(random.random()))
    for size in (0.1, 1.0, 3.0):
        falling = np.sort(random.random((fluid.types, model.capacity_s.shape[1])), axis=1)[:, ::-1]
        assert model.bound(size * falling)[0] <= best


@pytest.mark.parametrize(("seed", "plain"), some(CASES, 30))
def test_a_plan_is_lawful_and_between_its_bounds(seed: int, plain: bool) -> None:
    jobs, gpus = small(seed, plain=plain)
    finite = np.where(np.isfinite(jobs.task_s), jobs.task_s, np.nan)
    apart = float(np.nanmax(np.nanmax(finite, axis=1) / np.nanmin(finite, axis=1)))
    for assign in ASSIGNS:
        found = plan(jobs, gpus, assign)
        _check(jobs, gpus, found.schedule)
        assert found.value >= _optimum(seed, plain) * (1 - 1e-9)
        if plain:
            assert found.value <= apart * (2 + apart) * relax(jobs, gpus).value


def test_plans_are_near_the_best() -> None:
    ratios = [plan(*small(seed, plain=plain)).value / _optimum(seed, plain) for seed, plain in some(CASES, 20)]
    assert np.mean(ratios) <= 1.01
    assert np.max(ratios) <= 1.25


@pytest.mark.parametrize("seed", some(range(20), 1))
def test_larger_plans_are_lawful_and_not_far_above_the_bound(seed: int) -> None:
    jobs, gpus = large(8, 6, seed)
    found = plan(jobs, gpus)
    _check(jobs, gpus, found.schedule)
    again = plan(jobs, gpus, hint=found.hint)
    _check(jobs, gpus, again.schedule)
    bound = lower_bound(jobs, gpus)
    assert bound <= found.value <= 1.4 * bound
    assert again.value <= 1.02 * found.value
    published = plan(jobs, gpus, "earliest_available")
    _check(jobs, gpus, published.schedule)
    assert published.value > found.value


@pytest.mark.parametrize("seed", some(range(50), 10))
def test_both_forms_of_the_relaxation_agree(seed: int) -> None:
    """With equal prices and no releases, the dual is that of the linear program."""
    jobs, gpus = small(seed, plain=True)
    jobs = jobs._replace(ready_s=np.zeros(len(jobs.weight)))
    fluid = Fluid(jobs, gpus)
    dual = fluid.ascend(fluid.even()._replace(prices=np.ones(fluid.types)), 200, 0.3)
    assert dual.value >= 0.97 * relax(jobs, gpus).value


def test_a_task_waits_for_a_switch_and_for_none_after_its_own_job() -> None:
    jobs, _ = toy()
    one = TaskGpus(np.zeros(1, dtype=np.int64), np.zeros(1))
    found = schedule(jobs, one, np.array([2, 1, 0, 0]), EARLIEST_FINISH, np.full((3, 3), 0.25))
    assert found.start_s.tolist() == [0.0, 1.25, 3.25, 5.5, 6.5, 7.5, 8.5]
    assert found.job.tolist() == [2, 1, 1, 0, 0, 0, 0]
    for holder, start_s in ((1, 0.25), (2, 0.0), (-1, 0.0), (-2, 0.25)):
        held = one._replace(holder=np.array([holder]))
        found = schedule(jobs, held, np.array([2, 1, 0, 0]), EARLIEST_FINISH, np.full((3, 3), 0.25))
        assert found.start_s[0] == start_s


@pytest.mark.parametrize("assign", ASSIGNS)
def test_between_tasks_of_two_jobs_there_is_time_for_the_switch(assign: str) -> None:
    jobs, gpus = large(8, 4, 2)
    switch_s = np.random.default_rng(3).integers(1, 30, jobs.task_s.shape).astype(float)
    found = plan(jobs, gpus, assign, switch_s=switch_s).schedule
    _check(jobs, gpus, found)
    at, begins = queues(found, len(gpus.kind))
    for gpu, kind in enumerate(gpus.kind.tolist()):
        queue = at[begins[gpu] : begins[gpu + 1]]
        before, after = queue[:-1], queue[1:]
        needs_s = np.where(found.job[before] == found.job[after], 0.0, switch_s[found.job[after], kind])
        assert (found.start_s[after] - found.end_s[before] >= needs_s - 1e-5).all()


def test_a_job_stays_where_it_needs_no_switch() -> None:
    jobs, _ = toy()
    jobs = jobs._replace(task_s=np.full((3, 1), 1.0), sync_s=np.zeros((3, 1)), tasks=np.ones(3, dtype=np.int64))
    jobs = jobs._replace(first_tasks=jobs.tasks, rounds=np.full(3, 4))
    three = TaskGpus(np.zeros(3, dtype=np.int64), np.zeros(3))
    found = schedule(jobs, three, np.tile([0, 1, 2], 4), EARLIEST_FINISH, np.full((3, 1), 0.5))
    assert all(len(set(found.gpu[found.job == job].tolist())) == 1 for job in range(3))
    assert found.completion_s.tolist() == [4.0, 4.0, 4.0]


def test_a_later_task_fills_a_gap() -> None:
    jobs = toy()[0]._replace(
        rounds=np.ones(3, dtype=np.int64), tasks=np.ones(3, dtype=np.int64), first_tasks=np.ones(3, dtype=np.int64),
        ready_s=np.array([5.0, 0.0, 0.0]), task_s=np.array([[1.0], [3.0], [2.0]]), sync_s=np.zeros((3, 1)),
    )  # fmt: skip
    one = TaskGpus(np.zeros(1, dtype=np.int64), np.zeros(1))
    assert schedule(jobs, one, np.arange(3), EARLIEST_FINISH).start_s.tolist() == [5.0, 0.0, 3.0]
    assert schedule(jobs, one, np.arange(3), ASSIGNS[0]).start_s.tolist() == [5.0, 6.0, 9.0]


def test_jobs_that_cannot_be_planned_are_named() -> None:
    jobs, gpus = toy()
    for broken, words in (
        (jobs._replace(task_s=np.where([[0], [1], [0]], np.inf, jobs.task_s)), "position 1: no GPU"),
        (jobs._replace(weight=np.array([1.0, 1.0, 0.0])), "position 2: its weight"),
        (jobs._replace(rounds=np.array([0, 1, 1])), "position 0: it has no rounds"),
    ):
        for solve in (relax, lower_bound, plan):
            with pytest.raises(ValueError, match=words):
                solve(broken, gpus)


def test_no_jobs_are_a_plan_of_nothing() -> None:
    jobs, gpus = toy()
    none = TaskJobs(*(column[:0] for column in jobs))
    assert plan(none, gpus).value == lower_bound(none, gpus) == relax(none, gpus).value == 0.0


@pytest.fixture
def restored() -> Iterator[None]:
    """Functions of the modules as they were, after they have been replaced."""
    modules = (task_fluid, task_prices, task_schedule)
    before, in_use = [dict(vars(module)) for module in modules], kernels._in_use
    yield
    kernels._in_use = in_use
    for module, names in zip(modules, before, strict=True):
        vars(module).update(names)


def test_what_numba_compiles_plans_the_same(restored: None) -> None:
    numba = pytest.importorskip("numba")
    cases = [large(5, 4, 1), small(4), small(5)]

    def figures() -> list[tuple[list[float], list[int], float]]:
        plans = [plan(*case) for case in cases]
        return [
            (found.schedule.start_s.tolist(), found.schedule.gpu.tolist(), lower_bound(*case))
            for found, case in zip(plans, cases, strict=True)
        ]

    for kernel, _ in kernels._LOOPS:
        if kernel.__module__.startswith("fairway.solvers.task_"):
            kernel.__globals__[kernel.__name__] = kernel
    plainly = figures()
    for kernel, loop in kernels._LOOPS:
        if kernel.__module__.startswith("fairway.solvers.task_"):
            kernel.__globals__[kernel.__name__] = numba.njit(cache=True)(loop)
    assert figures() == plainly
