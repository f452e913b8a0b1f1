"""List scheduling of tasks on mixed GPUs: rounds of jobs in a given order, each task on the GPU that a rule picks.

An order is a sequence of positions of jobs. The k-th time that a job appears stands for its k-th round, so every order
respects the rounds. A task starts when its GPU is free and the round before it is synchronised. GPUs of one type differ
only in when they are free, so a heap per type gives the candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.kernels import compiled, compiled_as
from fairway.core.portable import dot
from fairway.solvers.task_jobs import TaskGpus, TaskGroups, TaskJobs, checked, on_grid

EARLIEST_AVAILABLE, EARLIEST_FINISH = "earliest_available", "earliest_finish"
_LOOKED_AT = 64
"""How many gaps are looked at for a task before it goes behind all others."""
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
    task is synchronised first (then the one on which it starts first), also in gaps before tasks that were placed
    earlier. `switch_s` (by job and type) is what a GPU needs before a task if its last task was one of another job.
    """
    board = TaskBoard(jobs, gpus, switch_s)
    return board.schedule(order, assign)


class TaskBoard:
    """Jobs and GPUs in the form in which many orders are tried on them."""

    def __init__(self, jobs: TaskJobs, gpus: TaskGpus, switch_s: Floats | None = None) -> None:
        self.jobs = jobs = checked(jobs, gpus)
        self.groups = TaskGroups(jobs)
        self.free_s = on_grid(gpus.free_s)
        self.types = jobs.task_s.shape[1]
        self.kind = gpus.kind
        self.holder = np.full(len(gpus.kind), -1) if gpus.holder is None else gpus.holder
        self.latest: Ints = np.argsort(-self.free_s, kind="stable")
        """GPUs by when they are free, the last one first."""
        self.gpus_of: Ints = np.bincount(gpus.kind, minlength=self.types)
        self.shortest_s: Floats = jobs.task_s.min(axis=0, initial=np.inf)
        self.switch_s = on_grid(np.zeros_like(jobs.task_s) if switch_s is None else switch_s)
        self.count = int(self.groups.tasks.sum())

    def completions(self, order: Ints, assign: str, extra_s: Floats | None = None) -> tuple[Floats, Ints, Floats]:
        """When each job is complete; the GPU of each task; start and end of each task."""
        jobs = self.jobs
        extra_s = np.zeros_like(jobs.task_s) if extra_s is None else extra_s
        completion_s = jobs.ready_s.copy()
        gpu, times_s = np.zeros(self.count, dtype=np.int64), np.zeros((2, self.count))
        tables = (jobs.task_s, jobs.sync_s, self.switch_s, extra_s)
        place_all(
            (order, jobs.tasks, jobs.first_tasks, self.latest, self.kind, self.holder, self.gpus_of),
            (jobs.first_synced_s, self.shortest_s, *(table.ravel() for table in tables)),
            assign == EARLIEST_FINISH, self.free_s, completion_s, gpu, times_s,
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


@compiled
def put(spaces: Any, space: Any) -> None:
    """Insert a free span of a GPU (its end, its start negated, the GPU) where it belongs."""
    low, high = 0, len(spaces)
    while low < high:
        middle = (low + high) // 2
        if spaces[middle] < space:
            low = middle + 1
        else:
            high = middle
    spaces.insert(low, space)


@compiled
def earliest(spaces: Any) -> int:
    """The GPU that is free first for good; of equal ones, the one with the lowest number."""
    place = len(spaces) - 1
    while place > 0 and spaces[place - 1][0] == np.inf and spaces[place - 1][1] == spaces[place][1]:
        place -= 1
    return place


@compiled
def own(spaces: Any, tails: int, opens_s: float, holder: Any, job: int) -> int:
    """A GPU that is free for good when a task can start and needs no switch for it; -1 if none is near."""
    first = waiting(spaces, tails, opens_s)
    for place in range(first, min(first + _LOOKED_AT, len(spaces))):
        if holder[spaces[place][2]] == job:
            return place
    return -1


@compiled
def waiting(spaces: Any, tails: int, opens_s: float) -> int:
    """Of GPUs that are free for good by a time, the one that was busy last."""
    low, high = len(spaces) - tails, len(spaces)
    while low < high:
        middle = (low + high) // 2
        if -spaces[middle][1] > opens_s:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def fitting(spaces: Any, tails: int, opens_s: float, need_s: float) -> int:
    """The free span in which a task can start first.

    Of those that are free when it can start, the one that ends first, so that long spans stay whole; among GPUs with
    nothing behind, the one that was busy last.
    """
    gaps = len(spaces) - tails
    low, high = 0, gaps
    while low < high:
        middle = (low + high) // 2
        if spaces[middle][0] < opens_s + need_s:
            low = middle + 1
        else:
            high = middle
    best, best_s = -1, np.inf
    for place in range(low, min(low + _LOOKED_AT, gaps)):
        start_s = -spaces[place][1]
        if start_s <= opens_s:
            return place
        if start_s < best_s and start_s + need_s <= spaces[place][0]:
            best, best_s = place, start_s
    place = waiting(spaces, tails, opens_s)
    if place < len(spaces):
        return place
    place = earliest(spaces)
    return best if best_s < -spaces[place][1] else place


@compiled
def offer(
    spaces: Any, tails: int, holder: Any, job: int, opens_s: float, own_s: Any, finish: bool
) -> tuple[float, float, int, int]:
    """What a type offers for a task: by what offers are compared, then the GPU, and its place among the free spans."""
    task_s, sync_s, switch_s, extra_s = own_s
    if not finish:
        place = earliest(spaces)
        return -spaces[place][1], task_s, spaces[place][2], place
    place = own(spaces, tails, opens_s, holder, job) if switch_s > 0.0 else -1
    if place < 0:
        place = fitting(spaces, tails, opens_s, task_s + switch_s)
    end_s, begin_s, gpu = spaces[place]
    start_s = max(-begin_s, opens_s)
    done_s = start_s + task_s + sync_s + extra_s
    if end_s < np.inf or (holder[gpu] != -1 and holder[gpu] != job):
        done_s += switch_s
    return done_s, start_s, gpu, place


def _place_loop(whole: Any, seconds: Any, finish: Any, free_s: Any, ready_s: Any, gpus: Any, times_s: Any) -> None:
    order, tasks, first_tasks, latest, kinds, holders, gpus_of = whole
    first_synced_s, shortest_s, task_s, sync_s, switch_s, extra_s = seconds
    types, at, nowhere = len(gpus_of), 0, (np.inf, np.inf, -1, -1)
    holder, begun, offers = holders.copy(), [False for _ in tasks], [nowhere for _ in gpus_of]
    spaces = [[(np.inf, -free_s[gpu], gpu) for gpu in latest if kinds[gpu] == kind] for kind in range(types)]
    for job in order:
        count, synced_s, opens_s = tasks[job], 0.0, ready_s[job]
        if not begun[job]:
            count, synced_s, begun[job] = first_tasks[job], first_synced_s[job], True
        stale, kind = -1, 0
        for _ in range(count):
            # Tasks of a round are alike, so only the type that took the last one has a new offer.
            for other in range(types):
                here = job * types + other
                if task_s[here] == np.inf:
                    offers[other] = nowhere
                elif stale < 0 or stale == other:
                    own_s = task_s[here], sync_s[here], switch_s[here], extra_s[here]
                    offers[other] = offer(spaces[other], gpus_of[other], holder, job, opens_s, own_s, finish)
            kind = 0
            for other in range(1, types):
                if offers[other] < offers[kind]:
                    kind = other
            end_s, begin_s, gpu = spaces[kind].pop(offers[kind][3])
            stale, here, turns_s = kind, job * types + kind, max(-begin_s, opens_s)
            start_s = turns_s
            if end_s < np.inf or (holder[gpu] != -1 and holder[gpu] != job):
                start_s += switch_s[here]
            else:
                turns_s -= switch_s[here]
            # A gap before the task keeps room for the switch to it.
            if finish and turns_s + begin_s >= shortest_s[kind]:
                put(spaces[kind], (turns_s, begin_s, gpu))
            done_s = start_s + task_s[here]
            if end_s == np.inf:
                holder[gpu] = job
            if end_s - done_s >= shortest_s[kind]:
                put(spaces[kind], (end_s, -done_s, gpu))
            synced_s = max(synced_s, done_s + sync_s[here])
            gpus[at], times_s[0][at], times_s[1][at] = gpu, start_s, done_s
            at += 1
        ready_s[job] = max(synced_s, opens_s) if count == 0 else synced_s


@compiled_as(_place_loop)
def place_all(
    whole: Any, seconds: Any, finish: bool, free_s: Floats, ready_s: Floats, gpus: Ints, times_s: Floats
) -> None:
    """Place tasks; write GPUs and times of tasks, and into `ready_s` when each job is complete.

    The same loop over lists, which are faster than arrays where nothing is compiled.
    """
    lists = ready_s.tolist(), gpus.tolist(), times_s.tolist()
    _place_loop([each.tolist() for each in whole], [each.tolist() for each in seconds], finish, free_s.tolist(), *lists)
    for array, values in zip((ready_s, gpus, times_s), lists, strict=True):
        array[:] = values
