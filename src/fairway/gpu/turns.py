"""Whose iteration runs next on a GPU: FIFO, SRTF, PACK and FAIR at the granularity of iterations (Salus).

FIFO, SRTF and FAIR run one iteration at a time. FIFO goes on with a job until it ends, SRTF prefers the least remaining
time, FAIR the job with the least memory × seconds. PACK starts an iteration in every lane that is idle; jobs of one
lane take turns.

If a job that is first in the order cannot run, others do. After 50 of these, nothing else starts before it does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Order = Literal["fifo", "srtf", "pack", "fair"]
ORDERS: tuple[Order, ...] = get_args(Order)
MOST_BYPASSES = 50
"""How many iterations of others may start before one that is first in the order."""
_SMOOTHING = 0.3
"""The weight of the newest iteration in the mean of iteration times."""


@dataclass
class JobTurns:
    """What is known about the iterations of a job.

    `steps` is how many are left; None if nobody knows. `started` grows with each start of any job.
    """

    steps: float | None = None
    iteration_s: float | None = None
    service_byte_s: float = 0.0
    bypassed: int = 0
    started: int = 0

    @property
    def remaining_s(self) -> float:
        """Remaining iterations times the mean of their durations. A job that was never run goes first."""
        if self.iteration_s is None:
            return 0.0
        return math.inf if self.steps is None else self.steps * self.iteration_s


class IterationOrder:
    """The order in which the jobs of a GPU get their iterations."""

    def __init__(self, order: Order = "pack") -> None:
        self.order = order
        self.jobs: dict[str, JobTurns] = {}
        self._starts = 0

    def join(self, job: str, steps: float | None = None) -> None:
        """A job comes, behind the others. Under FAIR all begin to count again, or the newcomer would have the GPU to
        itself until it has caught up.
        """
        for one in self.jobs.values():
            one.service_byte_s = 0.0
        self.jobs[job] = JobTurns(steps)

    def leave(self, job: str) -> None:
        """A job is gone."""
        self.jobs.pop(job, None)

    def note(self, job: str, took_s: float, memory_bytes: int = 0) -> None:
        """An iteration has ended."""
        turns = self.jobs[job]
        before_s = turns.iteration_s
        turns.iteration_s = took_s if before_s is None else before_s + _SMOOTHING * (took_s - before_s)
        turns.steps = None if turns.steps is None else max(turns.steps - 1.0, 0.0)
        turns.service_byte_s += memory_bytes * took_s

    def sorted(self, jobs: Collection[str]) -> list[str]:
        """Jobs in the order in which they are served. Those of equal rank are served as they came."""
        among = list(self.jobs) if len(jobs) == len(self.jobs) else [job for job in self.jobs if job in jobs]
        if self.order == "srtf":
            return sorted(among, key=lambda job: self.jobs[job].remaining_s)
        if self.order == "fair":
            return sorted(among, key=lambda job: self.jobs[job].service_byte_s)
        if self.order == "pack":
            return sorted(among, key=lambda job: self.jobs[job].started)
        return among

    def next(self, wanting: Collection[str], lanes: Mapping[str, int], busy: Collection[int]) -> list[str]:
        """The jobs whose iterations start now.

        `wanting` would like to run, `lanes` has those of them that are admitted, `busy` are lanes in which an iteration
        runs.
        """
        if busy and self.order != "pack":
            return []
        taken, started = set(busy), list[str]()
        passed: JobTurns | None = None
        for job in self.sorted(wanting):
            lane, turns = lanes.get(job), self.jobs[job]
            if lane is None:
                if turns.bypassed >= MOST_BYPASSES:
                    break
                passed = passed or turns
            elif lane not in taken:
                taken.add(lane)
                started.append(job)
                self._starts += 1
                turns.bypassed, turns.started = 0, self._starts
                if passed is not None:
                    passed.bypassed += 1
                if self.order != "pack":
                    break
        return started
