"""Plans tasks on mixed GPUs: an order from a relaxation, list scheduling, and a search for better orders.

`earliest_available` starts from the published plan: the order of the relaxation, and each task on the GPU that is free
first. The relaxation is the linear program, or beyond its size the dual with equal prices (`task_fluid`).

`earliest_finish` takes orders from the dual with prices. A task that runs on a GPU type that is dear for it takes work
from others. So the time until it finishes counts together with what that costs the jobs that are still to come.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.solvers.task_fluid import Dual, Fluid
from fairway.solvers.task_jobs import TaskGpus, TaskJobs, growing, on_grid
from fairway.solvers.task_relaxation import order_of, relax
from fairway.solvers.task_schedule import EARLIEST_FINISH, TaskBoard, TaskSchedule

_MOST_ROUNDS_IN_PROGRAM = 400
_AVERAGED = 30
"""Steps of the dual over which mean busy times are averaged."""
_TOGETHER = 0.3
"""By how much of a job's completion its rounds are moved in an order, which keeps the rounds of a job together."""
_COSTS = (0.0, 0.5, 2.0, 4.0)
"""How much of what a dear GPU costs others counts; tried with each order."""
_MOST_TRIALS, _MOST_PLACED = 200, 200_000
"""How many changes of the best order are tried, and how many tasks are placed for it at most."""
_FACTORS = (0.25, 0.5, 0.7, 0.85, 1.2, 1.4, 2.0, 4.0)


class PlanHint(NamedTuple):
    """What did best in one plan. The next plan, with a few jobs more or fewer, is quicker if it starts from there."""

    prices: Floats
    """Prices of GPU types."""
    form: int
    """Which order was the best."""
    share: float
    """How much of what a dear GPU costs others counted."""


class TaskPlan(NamedTuple):
    """A schedule of all tasks, and what the next plan may start from."""

    schedule: TaskSchedule
    value: float
    """The weighted sum of completion times."""
    order: Ints
    """The order that gave the schedule: a position of a job for each of its rounds."""
    hint: PlanHint | None


def plan(
    jobs: TaskJobs,
    gpus: TaskGpus,
    assign: str = EARLIEST_FINISH,
    hint: PlanHint | None = None,
    switch_s: Floats | None = None,
) -> TaskPlan:
    """A schedule with a small weighted sum of completion times."""
    board = TaskBoard(jobs, gpus, switch_s)
    if not len(jobs.weight):
        nothing = np.zeros(0, dtype=np.int64)
        return TaskPlan(board.schedule(nothing, assign), 0.0, nothing, hint)
    if hint is not None and len(hint.prices) != board.types:
        hint = None
    search, placed = _Search(board, Fluid(jobs, gpus), assign), _MOST_PLACED if hint is None else _MOST_PLACED // 4
    if assign == EARLIEST_FINISH:
        hint = search.start(hint)
    else:
        search.try_one(_Trial(_published(search.fluid, gpus), np.zeros_like(jobs.task_s)))
    search.improve(placed)
    order = search.best.order(board.jobs)
    found = board.schedule(order, assign, search.best.extra_s)
    return TaskPlan(found, found.value, order, hint)


class _Trial(NamedTuple):
    """What a schedule is made from: a key for each round, and seconds that count for a job on a type."""

    keys: Floats
    extra_s: Floats

    def order(self, jobs: TaskJobs) -> Ints:
        return order_of(jobs, self.keys)


class _Search:
    """Tries orders and costs, and keeps the best."""

    def __init__(self, board: TaskBoard, fluid: Fluid, assign: str) -> None:
        self.board, self.fluid, self.assign = board, fluid, assign
        self.value = np.inf
        self.best = _Trial(np.zeros(0), np.zeros(0))

    def try_one(self, trial: _Trial) -> bool:
        """Keep a trial if it is better than the best, or as good; says whether it is."""
        order = trial.order(self.board.jobs)
        value = self.board.value(self.board.completions(order, self.assign, trial.extra_s)[0])
        if value > self.value:
            return False
        self.value, self.best = value, trial
        return True

    def start(self, hint: PlanHint | None) -> PlanHint:
        """Orders of the relaxation and by work per weight, with several costs; or only what was the best before."""
        fluid, groups = self.fluid, self.fluid.groups
        dual = fluid.search(None if hint is None else hint.prices)
        busy_s = fluid.average(dual, _AVERAGED)
        ends_s = np.maximum(np.maximum.reduceat(busy_s + fluid.behind_s, groups.first), fluid.alone_s)
        work = np.add.reduceat(fluid.work(dual.prices), groups.first)
        cost_s = _costs_s(fluid, dual, ends_s)
        forms = (busy_s, busy_s + _TOGETHER * ends_s[groups.job], (work / fluid.jobs.weight)[groups.job])
        tried = [(form, share) for form in range(len(forms)) for share in _COSTS]
        if hint is not None:
            tried = [(form, share) for form, share in tried if form == hint.form or share == hint.share]
        used = PlanHint(dual.prices, *tried[0])
        for form, share in tried:
            if self.try_one(_Trial(forms[form], share * cost_s)):
                used = PlanHint(dual.prices, form, share)
        return used

    def improve(self, placed: int) -> None:
        """Move single jobs to other places in the order, and change what they take a type to cost."""
        jobs, groups = self.fluid.jobs, self.fluid.groups
        random = np.random.default_rng(len(jobs.weight))
        for _ in range(min(_MOST_TRIALS, placed // max(self.board.count, 1))):
            job, factor = int(random.integers(len(jobs.weight))), _FACTORS[int(random.integers(len(_FACTORS)))]
            keys, extra_s = self.best.keys.copy(), self.best.extra_s.copy()
            move = int(random.integers(3 if self.assign == EARLIEST_FINISH else 2))
            if move == 0:
                keys[groups.first[job] : groups.last[job] + 1] *= factor
            elif move == 1:
                keys[int(random.integers(groups.first[job], groups.last[job] + 1))] *= factor
                keys = growing(groups, keys)
            else:
                kind = int(random.integers(self.board.types))
                extra_s[job, kind] = 0.0 if factor < 0.5 else extra_s[job, kind] * factor + jobs.task_s[job].min() / 2
            self.try_one(_Trial(keys, extra_s))


def queues(schedule: TaskSchedule, gpus: int) -> tuple[Ints, Ints]:
    """The tasks of a schedule by GPU, then by start; and where the tasks of each GPU begin in that (and end)."""
    at = np.lexsort((schedule.start_s, schedule.gpu))
    return at, np.searchsorted(schedule.gpu[at], np.arange(gpus + 1))


def _published(fluid: Fluid, gpus: TaskGpus) -> Floats:
    """The mean busy times of the relaxation in which all types have the same price."""
    if len(fluid.groups.job) <= _MOST_ROUNDS_IN_PROGRAM:
        return relax(fluid.jobs, gpus).mean_busy_s
    return fluid.average(fluid.spread(np.ones(fluid.types)), _AVERAGED)


def _costs_s(fluid: Fluid, dual: Dual, ends_s: Floats) -> Floats:
    """What a task costs on each type beyond its cheapest, in seconds of its own round.

    Work that is done before other jobs delays them all. A delay of the job's round counts with the weight of the job,
    of which each task carries its part.
    """
    jobs = fluid.jobs
    work = jobs.task_s * dual.prices
    more = np.where(np.isfinite(work), work - work.min(axis=1)[:, None], 0.0)
    at = np.argsort(ends_s, kind="stable")
    later = np.empty(len(at))
    later[at] = np.add.reduce(jobs.weight) - np.cumsum(jobs.weight[at])
    rate = float(np.add.reduce(dual.prices[fluid.kind]))
    return on_grid(more * (np.maximum(later, 0.0) * jobs.tasks / (jobs.weight * rate))[:, None])
