"""The GPUs as AlloX sees them: which are idle, when the others will be, which jobs have started, what is kept free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.snapshot import Snapshot


class Kept(NamedTuple):
    """GPUs of one type that a gang waits for: it can start at `at_s`, and `spare` of them are then left over."""

    at_s: float
    spare: int


class GpuTimeline:
    """One decision in the making. Times are counted from now."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.gpus = snapshot.held.copy()
        self.kinds = np.where(self.gpus > 0, snapshot.gpu_type, -1)
        self.gangs = snapshot.gpus
        self.capacity = snapshot.capacity
        speeds, left_s = snapshot.speeds, snapshot.oracle.remaining_s
        usable = (speeds > 0) & (self.gangs[None, :] <= self.capacity[:, None])
        self.times_s: Floats = np.full(speeds.shape, np.inf)
        np.divide(left_s * snapshot.best_speed, speeds, out=self.times_s, where=usable)
        # Times that are equal but for rounding tie, and so do their products with gangs, which are then exact.
        self.times_s = portable.rounded(self.times_s)
        self.possible: Bools = usable.any(axis=0)
        self.waiting: Ints = ((self.gpus == 0) & self.possible).nonzero()[0]
        self.free: Ints = self.capacity.copy()
        self.ends: list[list[tuple[float, int]]] = [[] for _ in self.capacity]
        rows = snapshot.running_rows
        for row, left in zip(rows.tolist(), _ends(snapshot, rows, left_s).tolist(), strict=True):
            self._hold(int(self.kinds[row]), left, int(self.gpus[row]))
        self.kept: dict[int, Kept] = {}

    def _hold(self, kind: int, left_s: float, gpus: int) -> None:
        self.free[kind] -= gpus
        self.ends[kind].append((left_s, gpus))

    def free_at_s(self, kind: int) -> Floats:
        """When each GPU of a type is free."""
        idle = np.zeros(max(int(self.free[kind]), 0))
        if not self.ends[kind]:
            return idle
        ends_s, gpus = zip(*self.ends[kind], strict=True)
        return np.concatenate([idle, np.repeat(np.array(ends_s), np.array(gpus))])

    def has_room(self, rows: Ints) -> bool:
        """Whether a gang of these rows fits into the free GPUs of a type that it can use."""
        fits = (self.gangs[rows] <= self.free[:, None]) & np.isfinite(self.times_s[:, rows])
        return bool(fits.any())

    def start_in_order(self, kinds: Mapping[int, int]) -> list[int]:
        """Start the jobs that are first in line on their types: those that take the fewest GPU-seconds.

        GPUs are kept for the first gang of a type that does not fit; other jobs may pass it if they do not delay it.
        """
        started = []
        rows, types = np.array(list(kinds)), np.array(list(kinds.values()))
        area = self.times_s[types, rows] * self.gangs[rows]
        for row in rows[np.lexsort((rows, area))].tolist():
            kind = kinds[row]
            if self.free[kind] == 0:
                if not self.free.any():
                    break
                continue
            if self._may_start(row, kind):
                self._start(row, kind)
                started.append(row)
            elif kind not in self.kept:
                self.kept[kind] = self._when_free(kind, int(self.gangs[row]))
        if started:
            self.waiting = self.waiting[self.gpus[self.waiting] == 0]
        return started

    def start_or_reserve(self, row: int) -> bool:
        """Start a job on the type on which it ends soonest, or keep free the GPUs that it waits for there."""
        gang = int(self.gangs[row])
        usable = np.isfinite(self.times_s[:, row]).nonzero()[0].tolist()
        when = {kind: self._when_free(kind, gang) for kind in usable}
        kind = min(usable, key=lambda kind: (portable.rounded(when[kind].at_s + float(self.times_s[kind, row])), kind))
        if self.free[kind] < gang:
            self.kept[kind] = when[kind]
            return False
        self._start(row, kind)
        self.waiting = self.waiting[self.waiting != row]
        return True

    def fill(self) -> None:
        """Start jobs that still fit somewhere, the fewest GPU-seconds first, each on its fastest type with room."""
        if not self.has_room(self.waiting):
            return
        area = (self.times_s * self.gangs).min(axis=0)
        for row in self.waiting[portable.order(area[self.waiting])].tolist():
            room = (self.free >= self.gangs[row]) & np.isfinite(self.times_s[:, row])
            if room.any():
                self._start(row, int(np.where(room, self.times_s[:, row], np.inf).argmin()))
        self.waiting = self.waiting[self.gpus[self.waiting] == 0]

    def _may_start(self, row: int, kind: int) -> bool:
        gang = int(self.gangs[row])
        if gang > self.free[kind]:
            return False
        kept = self.kept.get(kind)
        if kept is None or self.times_s[kind, row] <= kept.at_s:
            return True
        if gang > kept.spare:
            return False
        self.kept[kind] = kept._replace(spare=kept.spare - gang)
        return True

    def _start(self, row: int, kind: int) -> None:
        self.gpus[row], self.kinds[row] = self.gangs[row], kind
        self._hold(kind, float(self.times_s[kind, row]), int(self.gangs[row]))

    def _when_free(self, kind: int, gang: int) -> Kept:
        """When `gang` GPUs of a type will be free, if no other job starts there, and how many are then left over."""
        free, at_s = int(self.free[kind]), 0.0
        for end_s, gpus in sorted(self.ends[kind]):
            if free >= gang:
                break
            free, at_s = free + gpus, end_s
        return Kept(at_s, free - gang)


def _ends(snapshot: Snapshot, rows: Ints, left_s: Floats) -> Floats:
    """How long the running jobs will still hold their GPUs, at the speed that they have now."""
    starting_s = np.maximum(snapshot.idle_since_s[rows] - snapshot.now_s, 0.0)
    rate = snapshot.rate[rows]
    slower = np.divide(snapshot.best_speed[rows], rate, out=np.ones(len(rows)), where=rate > 0)
    return portable.rounded(starting_s + np.maximum(left_s[rows] - starting_s, 0.0) * slower)
