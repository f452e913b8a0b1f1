"""Plans tasks on mixed GPUs: an order from a relaxation, list scheduling, and a search for better orders.

`earliest_available` is the published plan: the order of the relaxation, and each task on the GPU that is free first.
The relaxation is the linear program, or beyond its size the dual with equal prices (`task_bound`).

`earliest_finish` takes orders from the dual with prices. A task that runs on a GPU type that is dear for it takes work
from others. So the time until it finishes counts together with what that costs the jobs that are still to come.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.solvers.task_bound import Dual, Fluid
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_relaxation import order_of, relax
from fairway.solvers.task_schedule import EARLIEST_AVAILABLE, EARLIEST_FINISH, Board, TaskSchedule

_MOST_ROUNDS_IN_PROGRAM = 400
_COSTS = (0.0, 0.5, 2.0, 4.0)
"""How much of what a dear GPU costs others counts."""
_AVERAGED = 30
"""Steps of the dual over which mean busy times are averaged."""


class TaskPlan(NamedTuple):
    """A schedule of all tasks, and what the next plan may start from."""

    schedule: TaskSchedule
    value: float
    """The weighted sum of completion times."""
    order: Ints
    """The order that gave the schedule: a position of a job for each of its rounds."""
    prices: Floats
    """Prices of GPU types. The next plan is quicker if it gets them."""


def plan(
    jobs: TaskJobs,
    gpus: TaskGpus,
    assign: str = EARLIEST_FINISH,
    prices: Floats | None = None,
    switch_s: Floats | None = None,
) -> TaskPlan:
    """A schedule with a small weighted sum of completion times."""
    board = Board(jobs, gpus, switch_s)
    if not len(jobs.weight):
        nothing = np.zeros(0, dtype=np.int64)
        return TaskPlan(board.schedule(nothing, assign), 0.0, nothing, np.ones(board.types))
    if assign == EARLIEST_AVAILABLE:
        order, prices = _published(jobs, gpus)
        found = board.schedule(order, assign)
        return TaskPlan(found, found.value, order, prices)
    fluid = Fluid(jobs, gpus)
    dual = fluid.search(prices)
    mean_busy_s = fluid.average(dual, _AVERAGED)
    orders = [order_of(fluid.jobs, mean_busy_s)]
    cost_s = _costs_s(fluid, dual, mean_busy_s)
    best = (np.inf, orders[0], cost_s)
    for order in orders:
        for share in _COSTS:
            value = board.value(board.completions(order, assign, share * cost_s)[0])
            if value < best[0]:
                best = (value, order, share * cost_s)
    return TaskPlan(board.schedule(best[1], assign, best[2]), best[0], best[1], dual.prices)


def queues(schedule: TaskSchedule, gpus: int) -> tuple[Ints, Ints]:
    """The tasks of a schedule by GPU, then by start; and where the tasks of each GPU begin in that (and end)."""
    at = np.lexsort((schedule.start_s, schedule.gpu))
    return at, np.searchsorted(schedule.gpu[at], np.arange(gpus + 1))


def _published(jobs: TaskJobs, gpus: TaskGpus) -> tuple[Ints, Floats]:
    """The order of the relaxation in which all types have the same price."""
    fluid = Fluid(jobs, gpus)
    prices = np.ones(fluid.types)
    if len(fluid.groups.job) <= _MOST_ROUNDS_IN_PROGRAM:
        return order_of(fluid.jobs, relax(jobs, gpus).mean_busy_s), prices
    dual = fluid.ascend(fluid.even()._replace(prices=prices), 40, 1.0)
    return order_of(fluid.jobs, fluid.average(dual, _AVERAGED)), prices


def _costs_s(fluid: Fluid, dual: Dual, mean_busy_s: Floats) -> Floats:
    """What a task costs on each type beyond its cheapest, in seconds of its own round.

    Work that is done before other jobs delays them all. A delay of the job's round counts with the weight of the job,
    of which each task carries its part.
    """
    jobs, groups = fluid.jobs, fluid.groups
    work = jobs.task_s * dual.prices
    more = np.where(np.isfinite(work), work - work.min(axis=1)[:, None], 0.0)
    ends_s = np.maximum(np.maximum.reduceat(mean_busy_s + fluid.behind_s, groups.first), fluid.alone_s)
    at = np.argsort(ends_s, kind="stable")
    later = np.empty(len(at))
    later[at] = np.add.reduce(jobs.weight) - np.cumsum(jobs.weight[at])
    rate = float(np.add.reduce(dual.prices[fluid.kind]))
    return np.asarray(more * (np.maximum(later, 0.0) * jobs.tasks / (jobs.weight * rate))[:, None])
