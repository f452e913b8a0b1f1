"""Small cases of tasks on mixed GPUs, and the best schedule of each by trying all of them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from fairway.solvers.task_jobs import TaskGpus, TaskJobs

MOST_TASKS = 8
State: TypeAlias = tuple[int, int, float, float]
"""What is left of a job: rounds, tasks of the present one, when they may start, when started ones are synchronised."""


def toy() -> tuple[TaskJobs, TaskGpus]:
    """The worked example: three jobs on three GPUs."""
    task_s = np.array([[1.0, 2.0, 2.0], [2.0, 2.0, 3.0], [1.0, 3.0, 3.0]])
    return _jobs(np.ones(3), np.zeros(3), np.array([2, 1, 1]), np.array([2, 2, 1]), task_s), TaskGpus(
        np.arange(3), np.zeros(3)
    )


def _jobs(
    weight: np.ndarray, ready_s: np.ndarray, rounds: np.ndarray, tasks: np.ndarray, task_s: np.ndarray
) -> TaskJobs:
    count = len(weight)
    return TaskJobs(weight, ready_s, rounds, tasks, tasks.copy(), np.zeros(count), task_s, np.zeros_like(task_s))


def small(seed: int, *, plain: bool = False) -> tuple[TaskJobs, TaskGpus]:
    """At most eight tasks on three GPUs of one to three types.

    Unless the case is `plain`, there are synchronisation times, types on which a job cannot run, GPUs that are busy
    for a while, and rounds of which some tasks have started.
    """
    random = np.random.default_rng([seed, 17])
    types = int(random.integers(1, 4))
    kind = np.sort(np.append(np.arange(types), random.integers(types, size=3 - types)))
    rounds, tasks, left = [], [], MOST_TASKS
    while left > 0 and len(rounds) < 4:
        size = int(random.integers(1, min(3, left) + 1))
        rounds.append(int(random.integers(1, min(3, left // size) + 1)))
        tasks.append(size)
        left -= size * rounds[-1]
    count = len(rounds)
    weight = random.integers(1, 6, count).astype(float)
    ready_s = random.integers(0, 9, count) * random.integers(0, 2, count) * 0.5
    task_s = random.integers(1, 13, (count, types)) * 0.5
    jobs = _jobs(weight, ready_s, np.array(rounds), np.array(tasks), task_s)
    gpus = TaskGpus(kind, np.zeros(3))
    if plain:
        return jobs, gpus
    barred = random.random((count, types)) < 0.2
    barred[np.arange(count), random.integers(types, size=count)] = False
    first = np.where(random.random(count) < 0.3, random.integers(0, jobs.tasks + 1), jobs.tasks)
    begun_s = np.where(first < jobs.tasks, ready_s + random.integers(1, 9, count) * 0.5, 0.0)
    return jobs._replace(
        task_s=np.where(barred, np.inf, task_s),
        sync_s=random.integers(0, 3, (count, types)) * 0.25,
        first_tasks=first,
        first_synced_s=begun_s,
    ), gpus._replace(free_s=random.integers(0, 5, 3) * 0.5 * float(random.integers(0, 2)))


class Optimum:
    """The least weighted sum of completion times: all tasks in the order of their starts, each on each GPU."""

    def __init__(self, jobs: TaskJobs, gpus: TaskGpus) -> None:
        self.kinds = gpus.kind.tolist()
        self.task_s, self.sync_s = jobs.task_s.tolist(), jobs.sync_s.tolist()
        self.weight, self.tasks = jobs.weight.tolist(), jobs.tasks.tolist()
        self.best_s = (jobs.task_s + jobs.sync_s).min(axis=1).tolist()
        self.value = np.inf
        started = [
            (rounds, left, ready, synced)
            for rounds, left, ready, synced in zip(
                jobs.rounds.tolist(), jobs.first_tasks.tolist(), jobs.ready_s.tolist(), jobs.first_synced_s.tolist(),
                strict=True,
            )
        ]  # fmt: skip
        self._try([self._onward(job, *state) for job, state in enumerate(started)], gpus.free_s.tolist(), 0.0)

    def _onward(
        self, job: int, rounds: int, left: int, ready_s: float, synced_s: float
    ) -> tuple[int, int, float, float]:
        """The state, with the next round in place of one of which no task is left."""
        if left or not rounds:
            return rounds, left, ready_s, synced_s
        ready_s = max(ready_s, synced_s)
        return (rounds - 1, self.tasks[job], ready_s, 0.0) if rounds > 1 else (0, 0, ready_s, 0.0)

    def _least(self, state: list[State]) -> float:
        return sum(
            weight * (max(ready_s + rounds * best_s, synced_s + (rounds - 1) * best_s) if rounds else ready_s)
            for weight, best_s, (rounds, _, ready_s, synced_s) in zip(self.weight, self.best_s, state, strict=True)
        )

    def _try(self, state: list[State], free_s: list[float], since_s: float) -> None:
        if self._least(state) >= self.value:
            return
        if not any(rounds for rounds, *_ in state):
            self.value = self._least(state)
            return
        for job, (rounds, left, ready_s, synced_s) in enumerate(state):
            if not rounds:
                continue
            seen = set()
            for gpu, kind in enumerate(self.kinds):
                start_s = max(ready_s, free_s[gpu])
                if (kind, free_s[gpu]) in seen or start_s < since_s or self.task_s[job][kind] == np.inf:
                    continue
                seen.add((kind, free_s[gpu]))
                end_s = start_s + self.task_s[job][kind]
                later = max(synced_s, end_s + self.sync_s[job][kind])
                next_state = [*state]
                next_state[job] = self._onward(job, rounds, left - 1, ready_s, later)
                self._try(next_state, [*free_s[:gpu], end_s, *free_s[gpu + 1 :]], start_s)


def large(count: int, gpus: int, seed: int) -> tuple[TaskJobs, TaskGpus]:
    """Jobs of some minutes on four types whose speeds differ by job."""
    random = np.random.default_rng([seed, count, gpus])
    slower = np.array([1.0, 2.0, 3.2, 7.0]) * (0.6 + 0.8 * random.random((count, 4)))
    task_s = (20.0 + 200.0 * random.random((count, 1))) * slower
    rounds, tasks = random.integers(1, 9, count), random.integers(1, 9, count)
    jobs = _jobs(random.integers(1, 6, count).astype(float), np.zeros(count), rounds, tasks, task_s)
    sync_s = np.broadcast_to(0.02 * task_s.min(axis=1)[:, None], task_s.shape)
    return jobs._replace(sync_s=sync_s), TaskGpus(np.arange(gpus) % 4, np.zeros(gpus))
