"""List scheduling of tasks on mixed GPUs: rounds of jobs in a given order, each task on the GPU that a rule picks.

An order is a sequence of positions of jobs. The k-th time that a job appears stands for its k-th round, so every order
respects the rounds. A task starts when its GPU is free and the round before it is synchronised. GPUs of one type differ
only in when they are free, so a heap per type gives the candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.kernels import compiled_as
from fairway.core.portable import dot
from fairway.solvers.task_jobs import Groups, TaskGpus, TaskJobs, checked, on_grid

EARLIEST_AVAILABLE, EARLIEST_FINISH = "earliest_available", "earliest_finish"
ASSIGNS = (EARLIEST_AVAILABLE, EARLIEST_FINISH)


class TaskSchedule(NamedTuple):
    """Where and when each task runs, in the order in which tasks were placed, and when each job is complete."""

    job: Ints
    round: Ints
    """The round of each task; 0 is the present one."""
    gpu: Ints
    start_s: Floats
    end_s: Floats
    """When the GPU is free again. Synchronisation comes after it."""
    completion_s: Floats
    value: float
    """The weighted sum of completion times."""


def schedule(jobs: TaskJobs, gpus: TaskGpus, order: Ints, assign: str, switch_s: Floats | None = None) -> TaskSchedule:
    """Place all tasks in the order of their rounds.

    `earliest_available` takes the GPU that is free first (then the faster one), `earliest_finish` the one on which the
    task is synchronised first (then the one on which it starts first). `switch_s` (by job and type) is what a GPU needs
    before a task if its last task here was one of another job.
    """
    board = Board(jobs, gpus, switch_s)
    return board.schedule(order, assign)


class Board:
    """Jobs and GPUs in the form in which many orders are tried on them."""

    def __init__(self, jobs: TaskJobs, gpus: TaskGpus, switch_s: Floats | None = None) -> None:
        self.jobs = jobs = checked(jobs, gpus)
        self.groups = Groups(jobs)
        self.free_s = on_grid(gpus.free_s)
        self.types = jobs.task_s.shape[1]
        self.kind = gpus.kind
        self.sorted: Ints = np.lexsort((np.arange(len(gpus.kind)), self.free_s, gpus.kind)).astype(np.int64)
        """GPUs by type, then by when they are free, then by number: a heap for each type."""
        self.begins: Ints = np.searchsorted(gpus.kind[self.sorted], np.arange(self.types + 1)).astype(np.int64)
        self.switch_s = on_grid(np.zeros_like(jobs.task_s) if switch_s is None else switch_s)
        self.count = int(self.groups.tasks.sum())

    def completions(self, order: Ints, assign: str, extra_s: Floats | None = None) -> tuple[Floats, Ints, Floats]:
        """When each job is complete; the GPU of each task; start and end of each task."""
        jobs = self.jobs
        extra_s = np.zeros_like(jobs.task_s) if extra_s is None else extra_s
        completion_s = jobs.ready_s.copy()
        gpu, times_s = np.zeros(self.count, dtype=np.int64), np.zeros((2, self.count))
        place(
            (order, jobs.tasks, jobs.first_tasks, self.sorted, self.begins),
            (jobs.first_synced_s, jobs.task_s.ravel(), jobs.sync_s.ravel(), self.switch_s.ravel(), extra_s.ravel()),
            assign == EARLIEST_FINISH, self.free_s.copy(), completion_s, gpu, times_s,
        )  # fmt: skip
        return completion_s, gpu, times_s

    def value(self, completion_s: Floats) -> float:
        """The weighted sum of completion times."""
        return dot(self.jobs.weight, completion_s)

    def schedule(self, order: Ints, assign: str, extra_s: Floats | None = None) -> TaskSchedule:
        """The schedule of an order."""
        completion_s, gpu, times_s = self.completions(order, assign, extra_s)
        rounds = self.rounds(order)
        tasks = self.groups.tasks[self.groups.first[order] + rounds]
        job, at = np.repeat(order, tasks), np.repeat(rounds, tasks)
        return TaskSchedule(job, at, gpu, times_s[0], times_s[1], completion_s, self.value(completion_s))

    def rounds(self, order: Ints) -> Ints:
        """The round for which each entry of an order stands."""
        found = np.empty(len(order), dtype=np.int64)
        found[np.argsort(order, kind="stable")] = self.groups.round
        return found


def _place_loop(whole: Any, seconds: Any, finish: Any, free_s: Any, ready_s: Any, gpu: Any, times_s: Any) -> None:
    order, tasks, first_tasks, start_heap, begins = whole
    first_synced_s, task_s, sync_s, switch_s, extra_s = seconds
    types, jobs, at, heap = len(begins) - 1, len(tasks), 0, start_heap.copy()
    holder, begun = [-1] * len(free_s), [False] * jobs
    for job in order:
        count, synced_s, opens_s = tasks[job], 0.0, ready_s[job]
        if not begun[job]:
            count, synced_s, begun[job] = first_tasks[job], first_synced_s[job], True
        for _ in range(count):
            best, best_key, best_then = -1, np.inf, np.inf
            for kind in range(types):
                here = job * types + kind
                if begins[kind] == begins[kind + 1] or task_s[here] == np.inf:
                    continue
                key, then = free_s[heap[begins[kind]]], task_s[here]
                if finish:
                    then = max(key, opens_s)
                    key = then + task_s[here] + sync_s[here] + extra_s[here]
                if best >= 0 and key == best_key and then == best_then:
                    if heap[begins[kind]] < heap[begins[best]]:
                        best = kind
                elif key < best_key or (key == best_key and then < best_then):
                    best, best_key, best_then = kind, key, then
            low, high, here = begins[best], begins[best + 1], job * types + best
            chosen = heap[low]
            start_s = max(free_s[chosen], opens_s)
            if holder[chosen] >= 0 and holder[chosen] != job:
                start_s += switch_s[here]
            end_s = start_s + task_s[here]
            holder[chosen], free_s[chosen] = job, end_s
            synced_s = max(synced_s, end_s + sync_s[here])
            gpu[at], times_s[0][at], times_s[1][at] = chosen, start_s, end_s
            at += 1
            slot = low
            while True:
                child = low + 2 * (slot - low) + 1
                if child >= high:
                    break
                left, right = heap[child], heap[min(child + 1, high - 1)]
                if free_s[right] < free_s[left] or (free_s[right] == free_s[left] and right < left):
                    child, left = child + 1, right
                if end_s < free_s[left] or (end_s == free_s[left] and chosen < left):
                    break
                heap[slot] = left
                slot = child
            heap[slot] = chosen
        ready_s[job] = max(synced_s, opens_s) if count == 0 else synced_s


@compiled_as(_place_loop)
def place(whole: Any, seconds: Any, finish: bool, free_s: Floats, ready_s: Floats, gpu: Ints, times_s: Floats) -> None:
    """Place tasks; write GPUs and times of tasks, and into `ready_s` when each job is complete.

    The same loop over lists, which are faster than arrays where nothing is compiled.
    """
    lists = free_s.tolist(), ready_s.tolist(), gpu.tolist(), times_s.tolist()
    _place_loop([each.tolist() for each in whole], [each.tolist() for each in seconds], finish, *lists)
    for array, values in zip((free_s, ready_s, gpu, times_s), lists, strict=True):
        array[:] = values
