"""Jobs as rounds of tasks on mixed GPUs: the input of the planner, as plain arrays.

A job has rounds, and a round has a number of tasks that are alike. Tasks of one round may run at different times and on
different GPUs. All of them have to be synchronised before the next round begins. Times count from now. They are whole
multiples of `GRID_S`, so that sums of them are exact and equal times are equal on every CPU. Source: Hare (HPDC 2022).
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints

GRID_S = 1.0 / 2**20
"""The unit of times."""


class TaskJobs(NamedTuple):
    """What is left of each job. `[jobs, types]` arrays are infinite where a job cannot run."""

    weight: Floats
    """What a second of a job's completion time costs, above 0."""
    ready_s: Floats
    """When tasks of the present round may start: the arrival, or the synchronisation of the last round."""
    rounds: Ints
    """Rounds that are left, the present one included, at least 1."""
    tasks: Ints
    """Tasks of a round, at least 1."""
    first_tasks: Ints
    """Tasks of the present round that have not started."""
    first_synced_s: Floats
    """When those tasks of the present round that have started will be synchronised; 0 if there are none."""
    task_s: Floats
    """Seconds of one task, by job and type."""
    sync_s: Floats
    """Seconds of synchronisation after a task, by job and type. The GPU is free during it."""


class TaskGpus(NamedTuple):
    """The type of each GPU that is up, and when it is free."""

    kind: Ints
    free_s: Floats
    holder: Ints | None = None
    """The position of the job whose task is the last one there; -1 if a task needs no switch, -2 for any other job."""


def on_grid(times_s: Floats) -> Floats:
    """The times as whole multiples of the unit."""
    return np.asarray(np.rint(times_s / GRID_S) * GRID_S)


def checked(jobs: TaskJobs, gpus: TaskGpus) -> TaskJobs:
    """The jobs with their times on the grid; an error that names a job which no GPU can run."""
    task_s = on_grid(jobs.task_s)
    present = np.zeros(task_s.shape[1], dtype=np.bool_)
    present[gpus.kind] = True
    usable = (np.isfinite(task_s) & present).any(axis=1)
    if not usable.all():
        raise ValueError(f"job at position {int(usable.argmin())}: no GPU can run its tasks")
    if not (jobs.weight > 0).all():
        raise ValueError(f"job at position {int((jobs.weight > 0).argmin())}: its weight is not above 0")
    if not (jobs.rounds >= 1).all():
        raise ValueError(f"job at position {int((jobs.rounds >= 1).argmin())}: it has no rounds")
    return jobs._replace(
        ready_s=on_grid(jobs.ready_s),
        first_synced_s=on_grid(jobs.first_synced_s),
        task_s=np.where(present, np.maximum(task_s, GRID_S), np.inf),
        sync_s=np.where(np.isfinite(task_s), on_grid(jobs.sync_s), 0.0),
    )


class TaskGroups:
    """The tasks of each job and round as one entry, jobs one after the other, rounds in their order."""

    def __init__(self, jobs: TaskJobs) -> None:
        self.job: Ints = np.repeat(np.arange(len(jobs.rounds)), jobs.rounds)
        self.first: Ints = np.cumsum(jobs.rounds) - jobs.rounds
        """The entry of each job's present round."""
        self.last: Ints = self.first + jobs.rounds - 1
        self.round: Ints = np.arange(len(self.job)) - self.first[self.job]
        self.tasks: Ints = jobs.tasks[self.job]
        self.tasks[self.first] = jobs.first_tasks

    @cached_property
    def later(self) -> Ints:
        """How many rounds come after this one."""
        return self.last[self.job] - np.arange(len(self.job))

    def starts_s(self, jobs: TaskJobs, first_s: Floats, round_s: Floats) -> Floats:
        """When each round can start, if the present one takes `first_s` and each later one `round_s`."""
        begun_s = np.where(jobs.first_tasks > 0, jobs.ready_s + first_s, 0.0)
        second_s = np.maximum(begun_s, jobs.first_synced_s)
        found = second_s[self.job] + (self.round - 1) * round_s[self.job]
        found[self.first] = jobs.ready_s
        return np.asarray(found)


def growing(groups: TaskGroups, keys: Floats) -> Floats:
    """The keys of rounds, none below that of an earlier round of its job."""
    found = keys.copy()
    for number in range(1, int(groups.round.max(initial=0)) + 1):
        at = (groups.round == number).nonzero()[0]
        found[at] = np.maximum(found[at], found[at - 1])
    return found
