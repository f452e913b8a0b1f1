"""The linear relaxation of tasks on mixed GPUs, whose mean busy times give the order of list scheduling.

Tasks are not assigned to GPUs. Instead, each set of tasks takes as long as all GPUs together need for it if every task
runs at its best speed (Queyranne's inequalities over mean busy times). There is one for every set, but the set that is
breached most is always a prefix of the tasks by mean busy time. So a sort finds new inequalities, and they are added
until none is breached. Tasks of one round are alike and the program is convex, so one variable stands for a round.
HiGHS solves the dual: inequalities are columns, and the multipliers of its rows are the mean busy times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.portable import dot
from fairway.solvers.highs import ColumnProgram, Columns
from fairway.solvers.task_jobs import TaskGpus, TaskGroups, TaskJobs, checked

_PASSES = 60
_MOST_CUTS = 40
"""The most inequalities that are added in one pass."""
_BREACH = 1e-7
"""The largest breach that is left, as a share of an inequality's right side."""
_NUDGE = 1e-7
"""How far weights are moved, in proportion, so that one solution is the best."""
_SHOWN = 1.0 / 2**16
"""Mean busy times are multiples of this when they are compared."""


class Relaxation(NamedTuple):
    """A mean busy time for each job and round, jobs one after the other, and a completion time for each job."""

    mean_busy_s: Floats
    completion_s: Floats
    value: float
    """The weighted sum of completion times."""


class WorkCapacity:
    """How much work GPUs can have done by any time, if each works from the time it is free."""

    def __init__(self, free_s: Floats, rate: Floats | None = None) -> None:
        at = np.argsort(free_s, kind="stable")
        self.since_s = free_s[at]
        self.rate = np.cumsum(np.ones(len(at)) if rate is None else rate[at])
        """The rate at which work is done from each of these times on."""
        spans_s = np.diff(self.since_s)
        self.done = np.concatenate([[0.0], np.cumsum(spans_s * self.rate[:-1])])
        middle_s = (self.since_s[1:] + self.since_s[:-1]) / 2
        self.moment = np.concatenate([[0.0], np.cumsum(spans_s * self.rate[:-1] * middle_s)])

    def moments(self, work: Floats) -> Floats:
        """The least sum of work times the time at which it is done, for each total of work."""
        at = np.searchsorted(self.done, work, side="right") - 1
        rest = work - self.done[at]
        return np.asarray(self.moment[at] + rest * (self.since_s[at] + rest / (2 * self.rate[at])))


def relax(jobs: TaskJobs, gpus: TaskGpus) -> Relaxation:
    """Solve the relaxation as published, by inequalities that are added where they are breached."""
    jobs = checked(jobs, gpus)
    if not len(jobs.weight):
        return Relaxation(np.zeros(0), np.zeros(0), 0.0)
    groups = TaskGroups(jobs)
    task_s, sync_s = best_times_s(jobs)
    floor_s = groups.starts_s(jobs, task_s + sync_s, task_s + sync_s) + task_s[groups.job] / 2
    found = _solve(jobs, groups, task_s, sync_s, floor_s, WorkCapacity(gpus.free_s))
    nothing = groups.tasks == 0
    found[nothing] = floor_s[nothing]
    ends_s = found[groups.last] + task_s / 2 + sync_s
    completion_s = np.where(groups.tasks[groups.last] > 0, ends_s, jobs.first_synced_s)
    completion_s = np.maximum(completion_s, np.where(jobs.rounds == 1, jobs.first_synced_s, 0.0))
    return Relaxation(found, completion_s, dot(jobs.weight, completion_s))


def best_times_s(jobs: TaskJobs) -> tuple[Floats, Floats]:
    """The least time of a task and of a synchronisation for each job."""
    sync_s = np.where(np.isfinite(jobs.task_s), jobs.sync_s, np.inf).min(axis=1)
    return jobs.task_s.min(axis=1), sync_s


def order_of(jobs: TaskJobs, mean_busy_s: Floats) -> Ints:
    """Positions of jobs, one for each round, by mean busy time; then earlier rounds, more weight, position.

    Mean busy times that differ by rounding only are equal. A round never comes before an earlier one of its job.
    """
    groups = TaskGroups(jobs)
    keys = np.rint(mean_busy_s / _SHOWN)
    ratio = (jobs.weight / jobs.task_s.min(axis=1))[groups.job]
    at = np.lexsort((groups.job, -ratio, groups.round, keys))
    return np.asarray(groups.job[at])


def _solve(
    jobs: TaskJobs, groups: TaskGroups, task_s: Floats, sync_s: Floats, floor_s: Floats, capacity: WorkCapacity
) -> Floats:
    """The mean busy times of the best solution; 0 for a round that has no tasks."""
    count = len(groups.job)
    work = groups.tasks * task_s[groups.job]
    cost = np.zeros(count)
    cost[groups.last] = jobs.weight * (1 + _NUDGE * (1 + np.arange(len(jobs.weight))) / len(jobs.weight))
    program = ColumnProgram(np.full(count, -np.inf), cost)
    every = np.arange(count)
    program.add(Columns(every[:, None], np.ones((count, 1)), floor_s))
    follows = np.setdiff1d(every, groups.first)
    step_s = (task_s + sync_s)[groups.job[follows]]
    step_s[groups.tasks[follows - 1] == 0] = -np.inf
    linked = np.isfinite(step_s)
    pairs = np.stack([follows, follows - 1], axis=1)[linked]
    program.add(Columns(pairs, np.tile([1.0, -1.0], (len(pairs), 1)), step_s[linked]))
    found = floor_s
    for _ in range(_PASSES):
        cuts = _breached(found, work, capacity)
        if not cuts:
            break
        for members, least in cuts:
            # An inequality is scaled so that its largest factor is about 1.
            scale = float(work[members].max())
            program.add(Columns(members[None], work[members][None] / scale, np.array([least / scale])))
        point = program.solve()
        if point is None:
            raise RuntimeError("the relaxation of tasks has no solution")
        found = point.multipliers
    return np.array(found)


def _breached(mean_busy_s: Floats, work: Floats, capacity: WorkCapacity) -> list[tuple[Ints, float]]:
    """The prefixes whose inequality is breached more than that of their neighbours, and what each must come to."""
    order = np.argsort(mean_busy_s, kind="stable")
    order = order[work[order] > 0]
    if not len(order):
        return []
    least = capacity.moments(np.cumsum(work[order]))
    breach = (least - np.cumsum(work[order] * mean_busy_s[order])) / least
    around = np.concatenate([[-np.inf], breach, [-np.inf]])
    peaks = ((breach > _BREACH) & (breach >= around[:-2]) & (breach > around[2:])).nonzero()[0]
    peaks = peaks[np.argsort(-breach[peaks], kind="stable")[:_MOST_CUTS]]
    return [(np.sort(order[: end + 1]), float(least[end])) for end in peaks.tolist()]
