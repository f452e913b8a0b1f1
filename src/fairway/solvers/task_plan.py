from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Ints
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_relaxation import order_of, relax
from fairway.solvers.task_schedule import TaskSchedule, schedule


class TaskPlan(NamedTuple):
    schedule: TaskSchedule


def plan(jobs: TaskJobs, gpus: TaskGpus, assign: str) -> TaskPlan:
    found = relax(jobs, gpus)
    return TaskPlan(schedule(jobs, gpus, order_of(jobs, found.mean_busy_s), assign))


def weighted_order(jobs: TaskJobs, gpus: TaskGpus) -> Ints:
    found = relax(jobs, gpus)
    order = order_of(jobs, found.mean_busy_s)
    place = np.zeros(len(jobs.rounds), dtype=np.int64)
    for at in range(len(order) - 1, -1, -1):
        place[order[at]] = at
    return place
