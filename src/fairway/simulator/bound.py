"""The least weighted completion time that any schedule of a workload can have (see docs/policies/hare.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairway.core.cluster import Cluster
from fairway.core.job import JobSpec
from fairway.simulator.rates import Rates
from fairway.simulator.tasks import task_times

_ROUND_S = 60.0
_MOST_ROUNDS = ((500, 16), (2_000, 8), (20_000, 4))
"""The rounds into which jobs are divided at most, by the number of jobs. Larger workloads get no bound."""

_MOST_WITH_TIME = 100
"""The rounds of all jobs up to which a stronger bound is worked out, which takes seconds."""


def least_weighted_jct_s(jobs: Sequence[JobSpec], rates: Rates, cluster: Cluster) -> float | None:
    """A number that the mean completion time by weight is never below; None for a workload that is too large.

    It holds for jobs as gangs and as tasks, whatever is known and whatever is preempted, without costs of switches.
    """
    from fairway.solvers.task_bound import lower_bound
    from fairway.solvers.task_jobs import TaskGpus, TaskJobs

    most = next((rounds for limit, rounds in _MOST_ROUNDS if len(jobs) <= limit), None)
    if most is None:
        return None
    kinds = range(len(cluster.types))
    rounds, task_s, sync_s = list[int](), list[list[float]](), list[list[float]]()
    for job in jobs:
        work, speeds = rates.work(job), rates.speeds(job, job.batch_size)
        alone_s = rates.alone_s(job)
        count = max(min(int(alone_s / _ROUND_S) + 1, most), 1)
        times = [task_times(rates, job, work, (0.0, work), kind) if speeds[kind] > 0 else None for kind in kinds]
        rounds.append(count)
        task_s.append([np.inf if each is None else each[0] / count for each in times])
        sync_s.append([0.0 if each is None else each[1] / count for each in times])
    weight = np.array([job.weight for job in jobs])
    arrival_s = np.array([job.submitted_s for job in jobs])
    tasks, nothing = np.array([job.gpus for job in jobs]), np.zeros(len(jobs))
    given = TaskJobs(weight, arrival_s, np.array(rounds), tasks, tasks, nothing, np.array(task_s), np.array(sync_s))
    gpus = TaskGpus(np.array([cluster.node_type[node] for node in cluster.node_of_gpu]), np.zeros(cluster.gpu_count))
    quick = sum(rounds) > _MOST_WITH_TIME
    least = lower_bound(given, gpus, over_time=not quick) - float(np.add.reduce(weight * arrival_s))
    return max(least, 0.0) / float(np.add.reduce(weight))
