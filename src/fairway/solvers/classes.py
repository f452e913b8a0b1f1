"""Jobs that an allocation problem cannot tell apart, planned together and taken apart again.

Swapping two jobs that are alike turns one optimum into another, and the mean over all swaps is an optimum that treats
them alike. So a program over *classes*, with total times, loses nothing. What it finds is divided so that every job of
a class has the same time alone and beside each other class, with few partners each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.portable import rounded
from fairway.solvers.allocation import Allocation, Solution
from fairway.solvers.interior import solve
from fairway.solvers.single import solve_single

ALIKE = 30
"""Jobs whose figures agree to this many binary digits are alike."""


class Classes(NamedTuple):
    """A problem over classes: one job of each class, the number of its jobs, its kind, and the class of each job."""

    one: Allocation
    sizes: Ints
    kinds: Ints
    of_job: Ints


class ClassPairs(NamedTuple):
    """Two classes (the smaller first) that share a GPU type, for each column of a program."""

    a: Ints
    b: Ints
    kind: Ints

    @staticmethod
    def none() -> ClassPairs:
        """No columns."""
        return ClassPairs(*np.zeros((3, 0), dtype=np.int64))

    @staticmethod
    def of(a: Ints, b: Ints, kind: Ints) -> ClassPairs:
        """Columns without doubles, in a fixed order."""
        columns = np.column_stack([np.minimum(a, b), np.maximum(a, b), kind]).astype(np.int64)
        columns = np.unique(columns, axis=0) if len(columns) else columns
        return ClassPairs(columns[:, 0], columns[:, 1], columns[:, 2])

    @staticmethod
    def joined(parts: list[ClassPairs]) -> ClassPairs:
        """The columns of all parts."""
        return ClassPairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def only(self, chosen: Ints | np.ndarray) -> ClassPairs:
        """Some of the columns."""
        return ClassPairs(self.a[chosen], self.b[chosen], self.kind[chosen])


def classes_of(a: Allocation, kinds: Ints) -> Classes:
    """Jobs that agree in everything the program knows about them, numbered in the order of their first ones."""
    columns = [
        kinds[:, None],
        a.gangs[:, None],
        a.usable,
        rounded(a.gain, ALIKE),
        rounded(a.rows, ALIKE),
        a.weights[:, None],
    ]
    columns += [rounded(a.floors, ALIKE)[:, None], a.held[:, None]]
    table = np.ascontiguousarray(np.column_stack(columns), dtype=np.float64) + 0.0
    keys = table.view(f"V{table.itemsize * table.shape[1]}").ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    of_job = number[inverse.ravel()]
    return Classes(_taken(a, first[order]), np.bincount(of_job), kinds[first[order]], of_job)


def grouped(classes: Classes, groups: int) -> Classes:
    """About `groups` larger classes of similar ones, with equal kind and gang and nearly the same need; means stand for
    all.

    `of_job` of the answer is the group of each class.
    """
    a, total = classes.one, len(classes.sizes)
    largest = a.rows.max(axis=1, initial=0.0)
    need = (a.weights + a.floors) / np.where(largest > 0, largest, 1.0)
    order = np.lexsort([need, a.gangs, classes.kinds])
    at = np.arange(total)
    fresh = np.ones(total, dtype=np.bool_)
    fresh[1:] = (np.diff(classes.kinds[order]) != 0) | (np.diff(a.gangs[order]) != 0)
    begin = np.maximum.accumulate(np.where(fresh, at, 0))
    starts = ((at - begin) % -(-total // groups) == 0).nonzero()[0]
    of_class = np.empty(total, dtype=np.int64)
    of_class[order] = np.searchsorted(starts, at, side="right") - 1
    count = np.bincount(of_class, classes.sizes)

    def mean(values: Floats) -> Floats:
        weighted = values[order] * classes.sizes[order].reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray(np.add.reduceat(weighted, starts) / count.reshape(-1, *[1] * (values.ndim - 1)))

    one = replace(_taken(a, order[starts]), gain=mean(a.gain), rows=mean(a.rows), floors=mean(a.floors))
    return Classes(one, count.astype(np.int64), classes.kinds[order[starts]], of_class)


def members(classes: Classes) -> list[Ints]:
    """The jobs of each class, in order."""
    order = np.argsort(classes.of_job, kind="stable")
    return np.split(order, np.cumsum(np.bincount(classes.of_job, minlength=len(classes.sizes)))[:-1])


def partners(one: Ints, other: Ints) -> tuple[Ints, Ints, Floats]:
    """Which members of two lists share, and what part of the total, when every member takes an equal part.

    Between two lists this is the north-west corner rule: both are laid out along one line, and members that overlap
    share. Inside one list neighbours share, two by two; three of an odd number take turns.
    """
    if one is not other:
        a, b = len(one), len(other)
        edges = np.unique(np.concatenate([np.arange(a + 1) * b, np.arange(b + 1) * a]))
        return one[edges[:-1] // b], other[edges[:-1] // a], np.diff(edges) / (a * b)
    count = len(one)
    if count < 2:
        return one[:0], one[:0], np.zeros(0)
    if count % 2 == 0:
        return one[0::2], one[1::2], np.full(count // 2, 2.0 / count)
    first, second = np.r_[0, 1, 0, 3:count:2], np.r_[1, 2, 2, 4:count:2]
    return one[first], one[second], np.r_[np.full(3, 1.0 / count), np.full((count - 3) // 2, 2.0 / count)]


def taken_apart(classes: Classes, together: ClassPairs, times: Floats) -> tuple[Ints, Floats]:
    """Pairs of jobs and their time on each type, from the total times of pairs of classes."""
    types = len(classes.one.capacity)
    jobs = members(classes)
    by_pair: dict[tuple[int, int], Floats] = {}
    for a, b, kind, time in zip(*(column.tolist() for column in together), times.tolist(), strict=True):
        by_pair.setdefault((a, b), np.zeros(types))[kind] += time
    pairs, shares = [np.zeros((0, 2), dtype=np.int64)], [np.zeros((0, types))]
    for (a, b), time_by_type in by_pair.items():
        first, second, part = partners(jobs[a], jobs[b])
        pairs.append(np.column_stack([np.minimum(first, second), np.maximum(first, second)]))
        shares.append(part[:, None] * time_by_type)
    return np.concatenate(pairs), np.concatenate(shares)


def _taken(a: Allocation, rows: Ints) -> Allocation:
    """The problem of some of its jobs."""
    return replace(
        a,
        gangs=a.gangs[rows],
        usable=a.usable[rows],
        gain=a.gain[rows],
        rows=a.rows[rows],
        weights=a.weights[rows],
        floors=a.floors[rows],
        held=a.held[rows],
    )


def solve_alike(problem: Allocation, near: Solution | None = None) -> Solution:
    """The best allocation of jobs alone: in closed form on one type, over classes where many jobs are alike."""
    if np.count_nonzero(problem.capacity) == 1:
        return solve_single(problem)
    jobs = len(problem.gangs)
    classes = classes_of(problem, np.zeros(jobs, dtype=np.int64))
    sizes, of_job = classes.sizes, classes.of_job
    if 2 * len(sizes) > jobs:
        return solve(problem, near=near)
    one = classes.one
    found = solve(replace(one, gangs=one.gangs * sizes, gain=one.gain * sizes[:, None]))
    return found._replace(x=found.x[of_job], multipliers=(found.multipliers / sizes)[of_job])
