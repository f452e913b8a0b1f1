"""Optimus' allocation: GPUs go, one after another, to the job whose remaining time each of them shortens most."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot

LeftS = Callable[[Ints, Ints], Floats]
"""The time that jobs still need, in seconds: for the numbers of some jobs, and consecutive gang sizes for each."""

_DECIMALS = 9
"""Gains are compared to a billionth of a second, so that equal ones tie whatever the rounding of their terms."""
_AHEAD = 32
"""For this many sizes of each gang the times are looked up in advance, for all jobs at once."""
_MANY = 64
"""From this many jobs on it pays to work out the steps of all of them at once."""


def grow(
    gpus: Sequence[int],
    most: Sequence[int],
    free: int,
    left_s: LeftS,
    *,
    factors: Sequence[float] | None = None,
    doubling: bool = False,
) -> list[int]:
    """Hand out free GPUs by the greatest gain; ties go to the first job.

    The gain of a step is the time that it saves per GPU, times the job's factor. A step is one GPU, or, with
    `doubling`, as many as the job has: otherwise the greedy choice would stop where one more GPU does not help but two
    would.
    """
    growth = _Growth(gpus, most, free, left_s, factors, doubling)
    if len(gpus) >= _MANY:
        with np.errstate(invalid="ignore"):
            growth.many_steps()
    growth.step_by_step()
    return growth.gpus


class _Growth:
    """Gangs that grow. `_table` has the remaining times of each job, from its first size on."""

    def __init__(
        self,
        gpus: Sequence[int],
        most: Sequence[int],
        free: int,
        left_s: LeftS,
        factors: Sequence[float] | None,
        doubling: bool,
    ) -> None:
        self.gpus, self._first, self._most, self._free = list(gpus), list(gpus), list(most), free
        self._left_s, self._doubling = left_s, doubling
        self._factors = [1.0] * len(gpus) if factors is None else factors
        first: Ints = np.array(gpus, dtype=np.int64)
        widest = int((np.array(most, dtype=np.int64) - first).max(initial=0)) + 1
        self._table = left_s(np.arange(len(first)), first[:, None] + np.arange(min(widest, free + 1, _AHEAD)))
        self._longer: dict[int, list[float]] = {}

    def many_steps(self) -> None:
        """Take the first steps of all jobs, as far as they are known in advance and GPUs last.

        A step that is better than the one before it is taken right after that one. So the steps are taken in the order
        of the smallest gain that their job has had so far, and need not be handed out one by one.
        """
        gains, steps = self._doubling_steps() if self._doubling else self._single_steps()
        keys = np.minimum.accumulate(np.round(gains * np.array(self._factors)[:, None], _DECIMALS), axis=1)
        known = (keys > 0) & (steps > 0)
        jobs, at = self._foremost(keys, known)
        steps_taken = steps[jobs, at]
        unknown = np.logical_and.accumulate(known, axis=1).sum(axis=1)
        ends = np.minimum(unknown, steps.shape[1] - 1)
        open_ended = (unknown == steps.shape[1]) | (steps[np.arange(len(steps)), ends] < 0)
        fits = np.cumsum(steps_taken) <= self._free
        # After the last known step of a job that could go on, the next best step is not known.
        last = open_ended[jobs] & (at == unknown[jobs] - 1)
        stop = int(min(fits.sum(), (last.argmax() + 1) if last.any() else len(fits)))
        if (open_ended & (unknown == 0)).any():
            stop = 0
        taken = np.bincount(jobs[:stop], steps_taken[:stop], minlength=len(self.gpus)).astype(np.int64)
        self.gpus = (np.array(self.gpus, dtype=np.int64) + taken).tolist()
        self._free -= int(taken.sum())

    def _foremost(self, keys: Floats, known: Bools) -> tuple[Ints, Ints]:
        """The job and the index of the steps that could come next, in order. Each takes at least one GPU."""
        values = keys[known]
        if len(values) > 2 * self._free:
            limit = -np.partition(-values, self._free)[self._free]
            known = known & (keys >= limit)
            values = keys[known]
        jobs, at = known.nonzero()
        order = np.argsort(-values, kind="stable")
        return jobs[order], at[order]

    def _single_steps(self) -> tuple[Floats, Ints]:
        """The gains of one more GPU, and the steps: 1, 0 if there is none, -1 if it is not known in advance."""
        gains = self._table[:, :-1] - self._table[:, 1:]
        room = np.array(self._most, dtype=np.int64) - np.array(self.gpus, dtype=np.int64)
        steps = np.where(np.arange(gains.shape[1]) < room[:, None], 1, 0)
        beyond = np.where(room > gains.shape[1], -1, 0)[:, None]
        gains = np.where(gains > 0, gains, 0.0)
        return np.pad(gains, ((0, 0), (0, 1)), constant_values=1.0), np.concatenate([steps, beyond], axis=1)

    def _doubling_steps(self) -> tuple[Floats, Ints]:
        """The gains per GPU of the better steps, one after another, and these steps; -1: not known in advance."""
        first, most = np.array(self._first, dtype=np.int64), np.array(self._most, dtype=np.int64)
        width, times, has = self._table.shape[1], self._table.ravel(), first.copy()
        start, end = np.arange(len(first)) * width - first, np.arange(1, len(first) + 1) * width - 1
        gains, steps = np.zeros((width, len(first))), np.zeros((width, len(first)), dtype=np.int64)
        for turn in range(width):
            double = np.where(2 * has <= most, has, 1)
            room = has < most
            unknown = room & (start + has + double > end)
            now_s = times[start + has]
            one = now_s - times[np.minimum(start + has + 1, end)]
            two = (now_s - times[np.minimum(start + has + double, end)]) / double
            better = two > np.fmax(one, 0.0)
            gain = np.where(better, two, one)
            step = np.where(better, double, 1) * (room & (gain > 0))
            gains[turn], steps[turn] = np.where(unknown, 1.0, gain), np.where(unknown, -1, step)
            has += np.where(unknown, 0, step)
            if not (steps[turn] > 0).any():
                break
        return gains.T, steps.T

    def step_by_step(self) -> None:
        """Take the best step of all, again and again, until there is none."""
        heap: list[tuple[float, int, int]] = []
        for job in range(len(self.gpus) if self._free else 0):
            self._offer(heap, job)
        while self._free and heap:
            _, job, step = heapq.heappop(heap)
            if step <= self._free:
                self.gpus[job] += step
                self._free -= step
            self._offer(heap, job)

    def _offer(self, heap: list[tuple[float, int, int]], job: int) -> None:
        """Put the best next step of a job into the queue, if it gains anything."""
        has, first = self.gpus[job], self._first[job]
        room = min(self._most[job] - has, self._free)
        if room <= 0:
            return
        double = has if self._doubling and 1 < has <= room else 1
        times = self._times(job, has + double - first)
        now_s, best, chosen = times[has - first], 0.0, 0
        gain = now_s - times[has + 1 - first]
        if gain > 0:
            best, chosen = gain, 1
        if double > 1:
            gain = (now_s - times[has + double - first]) / double
            if gain > best:
                best, chosen = gain, double
        best = round(best * self._factors[job], _DECIMALS)
        if best > 0:
            heapq.heappush(heap, (-best, job, chosen))

    def _times(self, job: int, at: int) -> list[float]:
        """The remaining times of a job from its first size on, at least up to index `at`."""
        times = self._longer.get(job)
        if times is None:
            times = self._longer[job] = self._table[job].tolist()
        if at >= len(times):
            sizes = self._first[job] + np.arange(max(2 * len(times), at + 1))
            times = self._longer[job] = self._left_s(np.array([job]), sizes[None, :])[0].tolist()
        return times


def start_smallest(snapshot: Snapshot, keeps: Bools) -> tuple[Decision, list[int]]:
    """Leave some running jobs as they are and give the others, in the order of submission, their smallest gang.

    Also returns how many GPUs of each type are left. A job goes to the type that it holds, else the fastest with room.
    """
    grants, types = np.where(keeps, snapshot.held, 0).tolist(), np.where(keeps, snapshot.gpu_type, -1).tolist()
    free = [int(count) for count in snapshot.capacity]
    for row in keeps.nonzero()[0].tolist():
        free[types[row]] -= grants[row]
    mixed, usable = len(free) > 1, (snapshot.speeds[0] > 0).tolist()
    for row, need in enumerate(snapshot.gpus_min.tolist()):
        if grants[row]:
            continue
        kind = _type_for(snapshot, row, need, free) if mixed else 0 if free[0] >= need and usable[row] else -1
        if kind >= 0:
            grants[row], types[row] = need, kind
            free[kind] -= need
            if not any(free):
                break
    gpus, why = np.array(grants, dtype=np.int64), Reason.TYPE_FULL if mixed else Reason.NO_FREE_GPUS
    reasons = np.multiply(gpus == 0, int(why), dtype=np.int8)
    return Decision(gpus, reasons, np.array(types, dtype=np.int64) if mixed else None), free


def _type_for(snapshot: Snapshot, row: int, need: int, free: Sequence[int]) -> int:
    speeds = snapshot.speeds[:, row].tolist()
    choices = sorted(range(len(speeds)), key=lambda kind: -speeds[kind])
    if snapshot.held[row]:
        choices.insert(0, int(snapshot.gpu_type[row]))
    return next((kind for kind in choices if free[kind] >= need and speeds[kind] > 0), -1)
