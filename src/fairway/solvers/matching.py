"""Assigns jobs to machines so that the sum of completion times is least: a minimum-cost matching by groups of slots.

A job that is the k-th from the end on its machine delays k jobs, itself included, by its run time there. So the sum of
completion times is a sum of costs of pairs (job, slot), where a slot is a machine and a position from the end, and the
best schedule is a cheapest matching (Horn 1973; Bruno, Coffman and Sethi 1974). A plain solver needs a column for each
machine and position. But machines of one type differ only in when they become free, and the cost of waiting for that
does not depend on the job. So all slots of one type and position are one group, whose r-th seat costs what the r-th
earliest machine costs. Jobs join one by one along cheapest paths through these few groups, so the result is a true
optimum. The last group of each type stays empty, which proves that more positions would not help.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints

_LEVELS_AT_FIRST = 2
_BITS = 50
"""Costs are whole multiples of a unit; the largest has this many bits. Sums along paths are then exact: the same costs
in another order tie, and no path goes in a circle for a saving that is only rounding."""
_LATER_POSITION = 1e-9
"""What a position further from the end costs in addition to its delay, as a fraction of the mean run time. Among equal
schedules the one with the shorter queues is taken; its makespan is usually smaller."""


class Matching(NamedTuple):
    """For each job the type of its machine and its position from the end of the queue there (1: last); the total."""

    types: Ints
    positions: Ints
    total: float


def least_completion(times_s: Floats, free_at_s: Sequence[Floats], own_s: Floats | None = None) -> Matching:
    """Match jobs to machines and positions at the least sum of completion times.

    `times_s[t, j]` is what job j costs each job at or behind its place on a machine of type t, infinite where it cannot
    run. `free_at_s[t]` is when each machine of the type becomes free. `own_s[t, j]` is added once if the job goes to
    the type. Every job must be able to run on some type that has machines.
    """
    jobs = times_s.shape[1]
    if not jobs:
        return Matching(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.0)
    groups = _SlotGroups(times_s, free_at_s, own_s)
    # The longest first: a shorter job then usually goes in front of the others and moves none of them.
    for job in np.argsort(-times_s.min(axis=0), kind="stable").tolist():
        groups.add(job)
    return groups.matching()


class _SlotGroups:
    """The slots of each type and position as one node, and the jobs there."""

    def __init__(self, times_s: Floats, free_at_s: Sequence[Floats], own_s: Floats | None) -> None:
        self.times_s = times_s
        self.own_s = np.zeros_like(times_s) if own_s is None else own_s
        finite = times_s[np.isfinite(times_s)]
        self.later_s = _LATER_POSITION * float(finite.mean()) if len(finite) else 0.0
        far_s = max((float(free_s.max(initial=0.0)) for free_s in free_at_s), default=0.0)
        most_s = far_s + float(finite.max(initial=0.0)) * times_s.shape[1] + float(np.abs(self.own_s).max(initial=0.0))
        self.unit_s = math.ldexp(1.0, math.frexp(most_s)[1] - _BITS)
        self.seats: list[list[float]] = [self._whole(np.sort(free_s)).tolist() for free_s in free_at_s]
        self.type: list[int] = []
        self.position: list[int] = []
        self.members: list[list[int]] = []
        self.cost = np.empty((times_s.shape[1], 0))
        self.switch = np.empty((0, 0))
        self.next_seat_s = np.empty(0)
        self.levels = [0] * len(self.seats)
        for kind, seats in enumerate(self.seats):
            if seats and np.isfinite(times_s[kind]).any():
                self._deepen(kind, _LEVELS_AT_FIRST)

    def _whole(self, costs: Floats) -> Floats:
        return np.rint(costs / self.unit_s) * self.unit_s

    def _deepen(self, kind: int, count: int) -> None:
        """Append groups for further positions on a type."""
        first = self.levels[kind] + 1
        positions = np.arange(first, first + count)
        self.levels[kind] += count
        self.type += [kind] * count
        self.position += positions.tolist()
        self.members += [[] for _ in range(count)]
        added = positions * self.times_s[kind][:, None] + self.own_s[kind][:, None] + (positions - 1) * self.later_s
        self.cost = np.hstack([self.cost, self._whole(added)])
        self.next_seat_s = np.append(self.next_seat_s, [self.seats[kind][0]] * count)
        size = len(self.type)
        self.switch = np.full((size, size), np.inf)
        for group in range(size):
            self._recount(group)

    def _recount(self, group: int) -> None:
        """What the cheapest move out of a group into each other one costs."""
        members = self.members[group]
        if not members:
            self.switch[group] = np.inf
            return
        rows = self.cost[members]
        (rows - rows[:, group, None]).min(axis=0, out=self.switch[group])
        self.switch[group, group] = np.inf

    def _mover(self, here: int, there: int) -> int:
        """The job that moves from one group to another at the least cost."""
        members = self.members[here]
        return members[int((self.cost[members, there] - self.cost[members, here]).argmin())]

    def add(self, job: int) -> None:
        """Seat one more job, moving others along a cheapest path of groups."""
        reach, via = self._paths(job)
        group = int((reach + self.next_seat_s).argmin())
        path = [group]
        while via[path[-1]] >= 0:
            path.append(int(via[path[-1]]))
        path.reverse()
        moved = [job, *(self._mover(here, there) for here, there in pairwise(path))]
        for at, mover in zip(path, moved, strict=True):
            self.members[at].append(mover)
        for at, mover in zip(path, moved[1:], strict=False):
            self.members[at].remove(mover)
        kind, taken = self.type[group], len(self.members[group])
        self.next_seat_s[group] = self.seats[kind][taken] if taken < len(self.seats[kind]) else np.inf
        if self.position[group] == self.levels[kind]:
            self._deepen(kind, 1 + self.levels[kind] // 2)
        elif len(path) == 1:
            row = self.cost[job]
            np.minimum(self.switch[group], row - row[group], out=self.switch[group])
            self.switch[group, group] = np.inf
        else:
            for at in path:
                self._recount(at)

    def _paths(self, job: int) -> tuple[Floats, Ints]:
        """The cheapest way into each group for the job, and the group through which it leads (-1: directly)."""
        reach = self.cost[job]
        via = np.full(len(reach), -1)
        for _ in range(len(reach)):
            through = reach[:, None] + self.switch
            length = through.min(axis=0)
            better = length < reach
            if not better.any():
                break
            via[better] = through[:, better].argmin(axis=0)
            reach = np.where(better, length, reach)
        return reach, via

    def matching(self) -> Matching:
        """Where each job sits, and the sum of completion times."""
        types, positions = np.zeros((2, self.times_s.shape[1]), dtype=np.int64)
        total = 0.0
        for kind, position, members in zip(self.type, self.position, self.members, strict=True):
            types[members], positions[members] = kind, position
            total += math.fsum(self.seats[kind][: len(members)])
        jobs = np.arange(len(types))
        total += float((positions * self.times_s[types, jobs] + self.own_s[types, jobs]).sum())
        return Matching(types, positions, total)
