"""A lower bound for tasks on mixed GPUs: no schedule has a smaller weighted sum of completion times.

It is the largest of three: each job as if it had all GPUs, all jobs at one price for each GPU type (`task_fluid`), and
at prices that change over time (`task_prices`). The second one is strong where jobs wait for most of the time, the
third one also where they wait now and then.
"""

from __future__ import annotations

import numpy as np

from fairway.solvers.task_fluid import Fluid
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_prices import time_bound

_SAFE = 1.0 - 1e-9
"""What rounding may cost."""


def lower_bound(jobs: TaskJobs, gpus: TaskGpus, *, over_time: bool = True) -> float:
    """A number that no schedule's weighted sum of completion times is below.

    `over_time` looks for a stronger one by prices that change over time, which takes ten times as long.
    """
    if not len(jobs.weight):
        return 0.0
    fluid = Fluid(jobs, gpus)
    dual = fluid.refine(fluid.search())
    alone = float(np.add.reduce(fluid.jobs.weight * fluid.alone_s))
    found = max(alone, dual.value)
    return (max(found, time_bound(fluid, dual)) if over_time else found) * _SAFE
