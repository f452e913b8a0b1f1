"""Allocations in which two jobs may share GPUs: the optimum over all pairs, of which few are ever looked at.

A pair is one more column for each GPU type: it takes time of both jobs, takes GPUs once, and gives each job what it
keeps of its speed beside the other. There are too many pairs to write down (100,000 for 256 jobs on three types). So
jobs that are alike are planned together (`solvers.classes`), and columns are generated: the prices of an optimum over
some pairs show which others would improve it and how far it is from the optimum over all. Those are added, and HiGHS
goes on from its last basis. If hundreds of classes are left, a coarse program over groups of similar ones proposes the
first pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.portable import dot, dots, rounded
from fairway.solvers.allocation import BITS, GRID, TOLERANCE, UNPROVEN, Allocation, Proof
from fairway.solvers.classes import Classes, ClassPairs, classes_of, grouped, members, partners, taken_apart
from fairway.solvers.highs import ColumnProgram, Columns, LpPoint

PROVEN = 1e-7
"""The fraction of the optimum that may be missing when the search for pairs ends."""
NEW_PARTNERS = 8
"""How many partners a class may get in one turn of the search."""
MANY, GROUPS = 160, 96
"""With more classes than `MANY`, a program over `GROUPS` groups of them proposes the first pairs."""
POOR = 0.01
"""A start that misses more than this fraction of the optimum is helped by the coarse program, too."""
MOST_TURNS = 60


@dataclass(frozen=True)
class Effort:
    """How long to search: with `classes` or more, only until `missing` of the optimum is missing, or for `turns`."""

    classes: int = 400
    missing: float = 1e-3
    turns: int = 3


USUAL = Effort()


@dataclass(frozen=True)
class Paired:
    """A problem over jobs alone, and what jobs keep beside others: `factors[kind, kind, type]` by the two jobs' kinds.

    While a job shares, its rows and gains are multiplied by that factor. Zeros mean that two kinds do not share a type.
    Jobs of unequal gangs never share.
    """

    alone: Allocation
    kinds: Ints
    factors: Floats


class Start(NamedTuple):
    """The basis in which a search ended, as plain numbers, so that a similar search can start there.

    `basic` are the columns in it: a job, its partner (or -1) and a type; the level is (-1, -1, -1). `full` are the jobs
    whose time is used up, `held` those on their floors, `spent` the types whose GPUs are used up. A class is named by
    its first job.
    """

    basic: Ints
    full: Ints
    held: Ints
    spent: Ints

    def plain(self, names: Ints) -> list[list[int]]:
        """The same as lists, with the names of jobs (numbers that stay) instead of their rows."""
        columns = self.basic.copy()
        columns[:, :2] = np.where(columns[:, :2] >= 0, names[columns[:, :2]], -1)
        return [columns.ravel().tolist(), names[self.full].tolist(), names[self.held].tolist(), self.spent.tolist()]

    @staticmethod
    def from_plain(values: Sequence[Sequence[int]], names: Ints, types: int) -> Start:
        """Read what `plain` gave, without jobs that have ended. `names` are in rising order."""

        def rows(numbers: Ints) -> Ints:
            at = np.minimum(np.searchsorted(names, numbers), max(len(names) - 1, 0))
            return np.where(numbers < 0, -1, np.where(names[at] == numbers, at, -2))

        basic, full, held, spent = (np.array(part, dtype=np.int64) for part in values)
        columns = basic.reshape(-1, 3)
        columns[:, :2] = rows(columns[:, :2])
        full, held = rows(full), rows(held)
        stays = (columns > -2).all(axis=1) & (columns[:, 2] < types)
        return Start(columns[stays], full[full >= 0], held[held >= 0], spent[spent < types])


class PairedSolution(NamedTuple):
    """Time alone and in pairs, the level, the multipliers of the rows, whether it is optimal, and its proof.

    The gap of `proof` bounds what a plan over all pairs could gain, as a fraction of what this one gains. `start` is
    where the search ended, after this many `iterations` of the simplex method.
    """

    x: Floats
    pairs: Ints
    pair_x: Floats
    level: float
    multipliers: Floats
    optimal: bool
    proof: Proof = UNPROVEN
    start: Start | None = None
    iterations: int = 0


def solve_paired(problem: Paired, start: Start | None = None, effort: Effort = USUAL) -> PairedSolution:
    """The best allocation with pairs; `start` is where the search for a similar one ended."""
    a = problem.alone
    scaled, unit = _scaled(a)
    classes, factors = classes_of(scaled, problem.kinds), _useful(problem.factors)
    if start is not None:
        search = Search(classes, factors, _started(start, classes))
        search.begin_at(start)
    else:
        search = Search(
            classes, factors, _proposed(classes, factors) if len(classes.sizes) > MANY else ClassPairs.none()
        )
    if not search.run(effort):
        jobs, types = a.usable.shape
        none = np.zeros((0, 2), dtype=np.int64)
        return PairedSolution(np.zeros((jobs, types)), none, np.zeros((0, types)), 0.0, np.zeros(jobs), False)
    x = (search.x() / classes.sizes[:, None])[classes.of_job]
    pairs, pair_x = taken_apart(classes, *search.together())
    x, pair_x = _within_limits(a, x, pairs, pair_x)
    multipliers = rounded(np.maximum(search.worth_of_rows, 0.0), BITS)[classes.of_job]
    level = rounded(search.level, BITS) * unit
    proof = Proof(_breach(problem, x, pairs, pair_x, level), search.missing)
    kept = proof.breach <= TOLERANCE
    return PairedSolution(x, pairs, pair_x, level, multipliers, kept, proof, search.end(), search.iterations)


def _scaled(a: Allocation) -> tuple[Allocation, float]:
    """The problem with rows, gains and level of about 1, because HiGHS' limits are absolute; and the level's unit."""
    usable = a.usable & (a.capacity > 0)
    rows = np.where(usable, a.rows, 0.0) * a.held[:, None]
    largest = rows.max(axis=1, initial=0.0)
    weighs = a.held & (a.weights > 0)
    reach = largest[weighs] / a.weights[weighs]
    unit = float(reach[reach > 0].min(initial=np.inf))
    unit = unit if np.isfinite(unit) else 1.0
    divisor = np.where(weighs, a.weights * unit, np.where(largest > 0, largest, 1.0))
    gain = np.where(usable, a.gain, 0.0)
    top = max(float(np.abs(gain).max(initial=0.0)), abs(a.level_gain) * unit) or 1.0
    scaled = Allocation(
        gangs=a.gangs,
        capacity=a.capacity,
        usable=usable,
        gain=gain / top,
        rows=rows / divisor[:, None],
        weights=weighs.astype(np.float64),
        floors=np.where(a.held, a.floors / divisor, 0.0),
        held=a.held,
        level_gain=a.level_gain * unit / top,
    )
    return scaled, unit


def _useful(factors: Floats) -> Floats:
    """What the first job keeps (by type, kind, kind); 0 where sharing gives no more than taking turns."""
    both = (factors.min(axis=3) > 0) & (factors.sum(axis=3) > 1.0)
    return np.ascontiguousarray(np.where(both, factors[..., 0], 0.0).transpose(2, 0, 1))


def _started(start: Start, classes: Classes) -> ClassPairs:
    """The pairs of a start."""
    pairs = start.basic[start.basic[:, 1] >= 0]
    return ClassPairs.of(classes.of_job[pairs[:, 0]], classes.of_job[pairs[:, 1]], pairs[:, 2])


def _proposed(classes: Classes, factors: Floats) -> ClassPairs:
    """The first pairs: those of classes whose groups share GPUs in a coarse plan."""
    groups = grouped(classes, GROUPS)
    search = Search(groups, factors, ClassPairs.none())
    if not search.run(Effort(classes=0, missing=1e-4, turns=20)):
        return ClassPairs.none()
    found, inside = [ClassPairs.none()], members(groups)
    columns, _ = search.together()
    for a, b, kind in zip(*(column.tolist() for column in columns), strict=True):
        first, second, _ = partners(inside[a], inside[b])
        found.append(ClassPairs(first, second, np.full(len(first), kind)))
    return ClassPairs.of(*ClassPairs.joined(found))


def _within_limits(a: Allocation, x: Floats, pairs: Ints, pair_x: Floats) -> tuple[Floats, Floats]:
    """The times, cut where rounding has left them above the limits."""
    load, time = dots(x.T, a.gangs), np.add.reduce(x, axis=1)
    if len(pairs):
        load = load + dots(pair_x.T, a.gangs[pairs[:, 0]])
        for side in (0, 1):
            time += np.bincount(pairs[:, side], np.add.reduce(pair_x, axis=1), minlength=len(time))
    over = float((load / np.where(a.capacity > 0, a.capacity, 1.0)).max(initial=1.0))
    over = max(over, float(time.max(initial=1.0)))
    return x / over, pair_x / over


def _breach(problem: Paired, x: Floats, pairs: Ints, pair_x: Floats, level: float) -> float:
    """The largest shortage of a row, as the time that would make it up."""
    a, kinds = problem.alone, problem.kinds
    made = np.add.reduce(a.rows * x, axis=1)
    keeps = problem.factors[kinds[pairs[:, 0]], kinds[pairs[:, 1]]]
    for side in (0, 1):
        rows = pairs[:, side]
        made += np.bincount(rows, np.add.reduce(a.rows[rows] * keeps[..., side] * pair_x, axis=1), len(made))
    most = a.rows.max(axis=1, initial=0.0)
    lacks = a.floors + a.weights * level - made
    return float((lacks / np.where(most > 0, most, 1.0)).max(initial=0.0, where=a.held))


class Search:
    """A program over classes that adds pairs until no other pair would improve it.

    Rows: the time of each class, the GPUs of each type, the floor of each class. Columns: classes alone, the level,
    pairs of classes. A pair inside a class takes two shares of its time.
    """

    def __init__(self, classes: Classes, factors: Floats, first: ClassPairs) -> None:
        one, count = classes.one, classes.sizes
        self.classes, self.factors = classes, factors
        self.number, self.types = number, types = one.usable.shape
        self.point: LpPoint | None = None
        self.missing = np.inf
        self._begun = False
        floors = np.where(one.held, count * one.floors, -np.inf)
        self._program = ColumnProgram(
            np.concatenate([np.full(number + types, -np.inf), floors]),
            np.concatenate([count, one.capacity, np.full(number, np.inf)]),
        )
        self._alone = alone, kind = one.usable.nonzero()
        rows = np.column_stack([alone, number + kind, number + types + alone])
        values = np.column_stack([np.ones(len(alone)), one.gangs[alone], one.rows[alone, kind]])
        self._program.add(Columns(rows, values, one.gain[alone, kind]))
        weighs = (one.weights > 0).nonzero()[0]
        level = -count[weighs].astype(np.float64)[None, :]
        self._program.add(Columns((number + types + weighs)[None, :], level, np.array([one.level_gain])))
        self._singles = len(alone) + 1
        self._added = [ClassPairs.none()]
        self._add(self._allowed(first))

    def run(self, effort: Effort) -> bool:
        """Solve, add what improves the optimum, and repeat; False if the floors cannot be kept."""
        in_short = self.number > effort.classes
        for turn in range(MOST_TURNS):
            self.point = self._program.solve()
            if self.point is None:
                return False
            better = self._improving(self.point)
            enough = self.missing < (effort.missing if in_short else PROVEN)
            if enough or not len(better.a) or (in_short and turn >= effort.turns):
                break
            if self._begun and turn == 0 and self.number > MANY and self.missing > POOR:
                better = ClassPairs.joined([better, _proposed(self.classes, self.factors)])
            self._add(self._allowed(ClassPairs.of(*better)))
        return True

    def begin_at(self, start: Start) -> None:
        """Begin at the basis where another search ended, as far as it fits."""
        self._begun = True
        of_job, tight = self.classes.of_job, np.zeros(2 * self.number + self.types, dtype=np.bool_)
        tight[of_job[start.full]] = True
        tight[self.number + start.spent] = True
        tight[self.number + self.types + of_job[start.held]] = True
        names = {
            (int(of_job[a]) if a >= 0 else -1, int(of_job[b]) if b >= 0 else -1, kind)
            for a, b, kind in start.basic.tolist()
        }
        known = names | {(b, a, kind) for a, b, kind in names if b >= 0}
        basic = [tuple(column) in known for column in self._columns().tolist()]
        self._program.begin_at(np.array(basic, dtype=np.bool_), ~tight)

    def end(self) -> Start:
        """Where the search has ended."""
        columns, rows = self._program.basis()
        first = np.array([jobs[0] for jobs in members(self.classes)], dtype=np.int64)
        basic = self._columns()[columns]
        basic[:, :2] = np.where(basic[:, :2] >= 0, first[basic[:, :2]], -1)
        full, spent, held = np.split(~rows, [self.number, self.number + self.types])
        return Start(basic, first[full], first[held], spent.nonzero()[0])

    def _columns(self) -> Ints:
        """What each column of the program is: a class, its partner or -1, a type. The level is all -1."""
        alone, kind = self._alone
        singles = np.column_stack([alone, np.full(len(alone), -1), kind])
        return np.concatenate([singles, np.full((1, 3), -1), np.column_stack(ClassPairs.joined(self._added))])

    @property
    def iterations(self) -> int:
        """How many steps of the simplex method the search has taken."""
        return self._program.iterations

    @property
    def level(self) -> float:
        """The common level."""
        return float(self._found.columns[self._singles - 1])

    @property
    def worth_of_rows(self) -> Floats:
        """What a lower floor would gain, by class."""
        return -self._found.multipliers[self.number + self.types :]

    def x(self) -> Floats:
        """The time of each class alone."""
        x = np.zeros((self.number, self.types))
        x[self._alone] = np.rint(self._found.columns[: self._singles - 1] / GRID) * GRID
        return x

    def together(self) -> tuple[ClassPairs, Floats]:
        """The pairs that have time, and how much."""
        times = np.rint(self._found.columns[self._singles :] / GRID) * GRID
        used = times > 0
        return ClassPairs.joined(self._added).only(used), times[used]

    @property
    def _found(self) -> LpPoint:
        assert self.point is not None
        return self.point

    def _allowed(self, columns: ClassPairs) -> ClassPairs:
        """The columns without pairs of a job with itself, of unequal gangs, or on types where they do not fit."""
        one, (a, b, kind) = self.classes.one, columns
        good = ((a != b) | (self.classes.sizes[a] > 1)) & (one.gangs[a] == one.gangs[b])
        good &= one.usable[a, kind] & one.usable[b, kind]
        return columns.only(good & (self.factors[kind, self.classes.kinds[a], self.classes.kinds[b]] > 0))

    def _add(self, columns: ClassPairs) -> None:
        one, kinds, floor = self.classes.one, self.classes.kinds, self.number + self.types
        for same in (False, True):
            part = columns.only((columns.a == columns.b) == same)
            a, b, kind = part
            keeps, other = self.factors[kind, kinds[a], kinds[b]], self.factors[kind, kinds[b], kinds[a]]
            gain = one.gain[a, kind] * keeps + one.gain[b, kind] * other
            ones, first, second = np.ones(len(a)), one.rows[a, kind] * keeps, one.rows[b, kind] * other
            if same:
                rows, values = [a, self.number + kind, floor + a], [2 * ones, one.gangs[a], first + second]
            else:
                rows = [a, b, self.number + kind, floor + a, floor + b]
                values = [ones, ones, one.gangs[a], first, second]
            self._program.add(Columns(np.column_stack(rows), np.column_stack(values), gain))
            self._added.append(part)

    def _bound(self, point: LpPoint) -> float:
        """The limits at the prices of a point: no plan over its columns is worth more."""
        one, count = self.classes.one, self.classes.sizes.astype(np.float64)
        time, gpus, rows = np.split(point.multipliers, [self.number, self.number + self.types])
        floors = np.where(one.held, count * one.floors, 0.0)
        return dot(time, count) + dot(gpus, one.capacity) + dot(rows, floors)

    def _improving(self, point: LpPoint) -> ClassPairs:
        """The pairs whose columns would improve the optimum most, some for each class. Notes what is missing.

        A pair improves it by what its time is worth to both jobs, less the cost of both times and of its GPUs. Half the
        best improvement of a class, added to the price of its time, makes the prices feasible for all pairs. So they
        bound the optimum.
        """
        one, kinds = self.classes.one, self.classes.kinds
        worth = one.gain + self.worth_of_rows[:, None] * one.rows
        time_cost, gpu_cost = point.multipliers[: self.number], point.multipliers[self.number :][: self.types]
        found, bound = [ClassPairs.none()], 0.0
        for gang in np.unique(one.gangs):
            rows = (one.gangs == gang).nonzero()[0]
            best, on = np.full((len(rows), len(rows)), -np.inf), np.zeros((len(rows), len(rows)), dtype=np.int64)
            for kind in range(self.types):
                gain = worth[rows, kind, None] * self.factors[kind][np.ix_(kinds[rows], kinds[rows])]
                gain -= time_cost[rows, None] + gang * gpu_cost[kind] / 2
                gain += gain.T
                gain = np.rint(gain / GRID) * GRID
                on[gain > best] = kind
                np.maximum(best, gain, out=best)
            np.fill_diagonal(best, np.where(self.classes.sizes[rows] > 1, np.diagonal(best), -np.inf))
            top = best.max(axis=1)
            bound += dot(np.maximum(top, 0.0), self.classes.sizes[rows].astype(np.float64)) / 2
            new = min(NEW_PARTNERS, len(rows))
            second = np.argsort(-best, axis=1, kind="stable")[:, :new].ravel()
            first = np.repeat(np.arange(len(rows)), new)
            good = best[first, second] > 1e-9
            first, second = first[good], second[good]
            found.append(ClassPairs(rows[first], rows[second], on[first, second]))
        self.missing = max(self._bound(point) + bound - point.value, 0.0) / max(abs(point.value), 1e-12)
        return ClassPairs.of(*ClassPairs.joined(found))
