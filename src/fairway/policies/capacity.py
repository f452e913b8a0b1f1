"""Capacity scheduling, as Hadoop YARN's CapacityScheduler does it: queues with shares, first come first served inside.

Each queue (a team, a virtual cluster) is entitled to a part of the cluster. The queue that is furthest below its part
goes first, jobs of one queue run strictly in the order of submission, and a queue may use more than its part while
GPUs would idle otherwise. No job is stopped, so a queue gets its part back only as jobs of other queues end. This is
what Microsoft's Philly clusters ran, and the baseline that Tiresias (NSDI'19) is measured against.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.decision import Decision, Reason, reason_text
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class Capacity:
    """The queue furthest below its share first; strictly in the order of submission inside a queue.

    Knows: queues, submit times, gang sizes, GPUs held; weights if `shares=weight`. Never preempts.

    `shares` entitles the queues that have jobs to equal parts, to parts by the mean weight of their jobs, or to parts
    by the GPUs that their jobs ask for. `quotas` gives parts by name instead (`quotas=vision:3/speech:1`); a queue that
    is not named counts 1. `reserve_after_s` > 0: once the head of a queue has waited this long and does not fit, it
    keeps all GPUs that become free until it fits. Otherwise a large gang may wait for as long as other queues have
    smaller jobs.
    """

    shares: Literal["equal", "weight", "demand"] = "equal"
    quotas: tuple[str, ...] = ()
    reserve_after_s: float = 0.0

    name: ClassVar[str] = "capacity"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    @property
    def heeds(self) -> frozenset[str]:
        """Weights, where they give the parts of queues."""
        return frozenset({"weight"} if self.shares == "weight" and not self.quotas else ())

    def __post_init__(self) -> None:
        _parts(self.quotas)
        if not (math.isfinite(self.reserve_after_s) and self.reserve_after_s >= 0):
            raise ValueError(f"reserve_after_s must be a finite number of at least 0, not {self.reserve_after_s:g}")

    def decide(self, snapshot: Snapshot) -> Decision:
        held = snapshot.held
        gpus, reasons, kinds = held.copy(), np.zeros(len(held), dtype=np.int8), None
        if len(snapshot.capacity) > 1:
            kinds = np.where(held > 0, snapshot.gpu_type, -1)
        elif snapshot.demand <= snapshot.capacity[0]:
            np.copyto(gpus, snapshot.gpus, where=held == 0)
            return Decision(gpus, reasons)
        waiting = (held == 0).nonzero()[0]
        if not len(waiting):
            return Decision(gpus, reasons, kinds)
        parts = self._parts_of(snapshot)
        reasons[waiting] = int(Reason.BEHIND if snapshot.free else Reason.NO_FREE_GPUS)
        if snapshot.free:
            overdue_s = snapshot.now_s - self.reserve_after_s if self.reserve_after_s else -math.inf
            started, heads = _served(snapshot, waiting, parts, overdue_s)
            reasons[heads] = int(Reason.NO_FREE_GPUS)
            rows = np.array(list(started), dtype=np.int64)
            gpus[rows], reasons[rows] = snapshot.gpus[rows], int(Reason.RUNS)
            if kinds is not None:
                kinds[rows] = list(started.values())
        return Decision(gpus, reasons, kinds, texts=_texts(snapshot, gpus, parts))

    def _parts_of(self, snapshot: Snapshot) -> Floats:
        """What each queue is entitled to, by its code. Only ratios matter."""
        names = snapshot.names.queues
        if self.quotas:
            given = _parts(self.quotas)
            return np.array([given.get(name, 1.0) for name in names])
        if self.shares == "equal":
            return np.ones(len(names))
        column = snapshot.gpus if self.shares == "demand" else snapshot.weight
        parts: Floats = np.bincount(snapshot.queue, column, minlength=len(names)).astype(np.float64)
        if self.shares == "weight":
            parts /= np.maximum(np.bincount(snapshot.queue, minlength=len(names)), 1)
        return np.maximum(parts, 1e-9)


def _served(snapshot: Snapshot, waiting: Ints, parts: Floats, overdue_s: float) -> tuple[dict[int, int], list[int]]:
    """Start the heads of the queues until none fits. The head of the queue furthest below its part goes first.

    Heads that have waited since `overdue_s` or longer go before all others, and free GPUs are kept for the first of
    them that does not fit. Returns the GPU type of each row that starts, and the heads that wait.
    """
    started: dict[int, int] = {}
    gpus, waits_since_s = snapshot.gpus, snapshot.idle_since_s
    free, used = _free_by_type(snapshot), _used(snapshot, len(parts))
    left = sum(free)
    lines = _Lines(waiting, snapshot.queue[waiting], len(parts), left)
    heads = lines.heads

    def turn(code: int) -> tuple[bool, float, int]:
        return bool(waits_since_s[heads[code]] > overdue_s), used[code] / parts[code], heads[code]

    fit = [row >= 0 and (gpus[row] <= left or waits_since_s[row] <= overdue_s) for row in heads]
    queues = [code for code, may_start in enumerate(fit) if may_start]
    while queues:
        code = min(queues, key=turn)
        row = heads[code]
        kind = _type_with_room(snapshot, row, free)
        if kind < 0:
            queues.remove(code)
            if waits_since_s[row] <= overdue_s and _may_run(snapshot, row):
                break
            continue
        need = int(gpus[row])
        started[row] = kind
        free[kind] -= need
        used[code] += need
        if lines.advance(code) < 0:
            queues.remove(code)
    return started, [row for row in heads if row >= 0]


def _may_run(snapshot: Snapshot, row: int) -> bool:
    """Whether some type that the job can use has as many GPUs up as its gang needs."""
    return bool(((snapshot.speeds[:, row] > 0) & (snapshot.capacity >= snapshot.gpus[row])).any())


def _used(snapshot: Snapshot, queues: int) -> list[float]:
    """GPUs that each queue holds."""
    rows = snapshot.running_rows
    used: list[float] = np.bincount(snapshot.queue[rows], snapshot.held[rows], minlength=queues).tolist()
    return used


def _free_by_type(snapshot: Snapshot) -> list[int]:
    if len(snapshot.capacity) == 1:
        return [snapshot.free]
    rows = snapshot.running_rows
    taken = np.bincount(snapshot.gpu_type[rows], snapshot.held[rows], minlength=len(snapshot.capacity))
    free: list[int] = (snapshot.capacity - taken.astype(np.int64)).tolist()
    return free


def _type_with_room(snapshot: Snapshot, row: int, free: list[int]) -> int:
    """The fastest type with room for a whole gang, or -1."""
    need = int(snapshot.gpus[row])
    if len(free) == 1:
        return 0 if need <= free[0] else -1
    speeds = snapshot.speeds[:, row].tolist()
    fits = [kind for kind, speed in enumerate(speeds) if speed > 0 and free[kind] >= need]
    return max(fits, key=lambda kind: (speeds[kind], -kind), default=-1)


class _Lines:
    """The waiting rows by queue: the head of each line, and the next one when a head has been served.

    At most `most` rows of a queue are ever served.
    """

    def __init__(self, rows: Ints, queue: Ints, queues: int, most: int) -> None:
        self._rows, self._queue, self._most = rows, queue, most
        heads = np.full(queues, -1, dtype=np.int64)
        # Of several values for one index the last one is kept. So, from the back, the first row of each queue stays.
        heads[queue[::-1]] = rows[::-1]
        self.heads: list[int] = heads.tolist()
        self._line: dict[int, Iterator[int]] = {}

    def advance(self, code: int) -> int:
        """Go to the next row of a queue; -1 when there is none."""
        if code not in self._line:
            # Every start takes at least one GPU, so no row beyond the first `most` is needed.
            mine = (self._queue == code).nonzero()[0][1 : self._most + 1]
            self._line[code] = iter(self._rows[mine].tolist())
        self.heads[code] = next(self._line[code], -1)
        return self.heads[code]


def _texts(snapshot: Snapshot, grants: Ints, parts: Floats) -> Texts:
    """Why each row waits."""
    queue, jobs, gangs = snapshot.queue.copy(), snapshot.jobs.copy(), snapshot.gpus.copy()
    capacity = sum(snapshot.capacity.tolist())

    def say(row: int) -> str:
        code = int(queue[row])
        mine = queue == code
        head = int((mine & (grants == 0)).argmax())
        name = snapshot.names.queues[code]
        line = f"queue {name!r}" if name else "the queue without a name"
        if row != head:
            return f"waits behind job {snapshot.job_id(int(jobs[head]))}, the first of {line} that does not fit yet"
        share = capacity * parts[code] / parts[np.unique(queue)].sum()
        free, held = capacity - int(grants.sum()), int(grants[mine].sum())
        wait = reason_text(Reason.NO_FREE_GPUS, int(gangs[row]), free, "")
        return f"{wait}; {line} holds {held} and is entitled to {share:.1f}"

    return Texts((grants == 0).nonzero()[0], say)


@lru_cache
def _parts(quotas: tuple[str, ...]) -> Mapping[str, float]:
    """Parts by queue from `name:part` texts."""
    parts: dict[str, float] = {}
    for text in quotas:
        name, colon, number = text.rpartition(":")
        try:
            part = float(number)
        except ValueError:
            part = math.nan
        if not colon or not (math.isfinite(part) and part > 0):
            raise ValueError(f"quotas must be queue:part with a positive part, not {text!r}")
        if name in parts:
            raise ValueError(f"quotas name the queue {name!r} twice")
        parts[name] = part
    return parts
