"""Optimus' allocation: GPUs go, one after another, to the job whose remaining time each of them shortens most."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from fairway.core.arrays import Bools, Ints
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.snapshot import Snapshot

LeftS = Callable[[int], float]
"""The time that a job still needs on so many GPUs, in seconds."""

_DECIMALS = 9
"""Gains are compared to a billionth of a second, so that equal ones tie whatever the rounding of their terms."""


def grow(
    gpus: Sequence[int],
    most: Sequence[int],
    free: int,
    left_s: Sequence[LeftS],
    *,
    factors: Sequence[float] | None = None,
    doubling: bool = False,
) -> list[int]:
    """Hand out free GPUs by the greatest gain; ties go to the first job.

    The gain of a step is the time that it saves per GPU, times the job's factor. A step is one GPU, or, with
    `doubling`, as many as the job has: the greedy choice would else stop where one more does not help but two would.
    """
    gpus = list(gpus)
    heap: list[tuple[float, int, int]] = []

    def offer(job: int) -> None:
        has, room = gpus[job], min(most[job] - gpus[job], free)
        now_s, best, chosen = left_s[job](has), 0.0, 0
        for step in (1, has) if doubling and has > 1 else (1,):
            gain = (now_s - left_s[job](has + step)) / step if step <= room else 0.0
            if gain > best:
                best, chosen = gain, step
        best = round(best if factors is None else best * factors[job], _DECIMALS)
        if best > 0:
            heapq.heappush(heap, (-best, job, chosen))

    for job in range(len(gpus)):
        offer(job)
    while free and heap:
        _, job, step = heapq.heappop(heap)
        if step <= free:
            gpus[job] += step
            free -= step
        offer(job)
    return gpus


def start_smallest(snapshot: Snapshot, keeps: Bools) -> tuple[Decision, list[int]]:
    """Leave some running jobs as they are and give the others, in the order of submission, their smallest gang.

    Says how many GPUs of each type are left. A job goes to the type that it holds, else to the fastest with room.
    """
    decision = nothing_granted(len(snapshot), Reason.NO_FREE_GPUS)
    grants: Ints = np.where(keeps, snapshot.held, 0)
    types: Ints = np.where(keeps, snapshot.gpu_type, -1)
    free = [int(count) for count in snapshot.capacity]
    for row in keeps.nonzero()[0].tolist():
        free[types[row]] -= int(grants[row])
    mixed, speeds = len(free) > 1, snapshot.speeds
    for row, need in enumerate(snapshot.gpus_min.tolist()):
        if grants[row]:
            continue
        kind = _type_for(snapshot, row, need, free) if mixed else 0 if free[0] >= need and speeds[0, row] > 0 else -1
        if kind >= 0:
            grants[row], types[row] = need, kind
            free[kind] -= need
            if not any(free):
                break
    decision.gpus = grants
    decision.reasons[grants > 0] = int(Reason.RUNS)
    if mixed:
        decision.gpu_types = types
        decision.reasons[grants == 0] = int(Reason.TYPE_FULL)
    return decision, free


def _type_for(snapshot: Snapshot, row: int, need: int, free: Sequence[int]) -> int:
    speeds = snapshot.speeds[:, row].tolist()
    choices = sorted(range(len(speeds)), key=lambda kind: -speeds[kind])
    if snapshot.held[row]:
        choices.insert(0, int(snapshot.gpu_type[row]))
    return next((kind for kind in choices if free[kind] >= need and speeds[kind] > 0), -1)
