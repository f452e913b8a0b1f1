"""The Newton equations of an allocation problem: a point, its residuals, and the step that removes them.

Numbers are by type and job, by job, or by type. The blocks of jobs are eliminated. A system with one equation per type
and one for the level is left. Everything can be computed in floats or in numbers of twice the precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats
from fairway.core.portable import dot, dots, eliminated
from fairway.solvers.twice import Twice, added, added_up, blank, high, numbers, two_product, two_sum

GROUP = 1024
"""About how many jobs have their arrays processed together."""


class Scaled(NamedTuple):
    """The problem with types before jobs, types without GPUs left out, and rows, gains and level of about 1."""

    z: Floats
    cap: Floats
    use: Floats
    g: Floats
    c: Floats
    w: Floats
    b: Floats
    held: Floats
    gt: float
    gap: float
    row_unit: Floats
    level_unit: float
    gain_unit: float
    types: Bools
    free_level: bool


class Vector:
    """Four groups of numbers in one array: by type and job, by job, by type, by job."""

    __slots__ = ("all", "by_job", "by_row", "by_type", "x")

    def __init__(self, types: int, jobs: int) -> None:
        size = types * jobs
        self.all: Floats = np.empty(size + jobs + types + jobs)
        self.x: Floats = self.all[:size].reshape(types, jobs)
        self.by_job: Floats = self.all[size : size + jobs]
        self.by_type: Floats = self.all[size + jobs : size + jobs + types]
        self.by_row: Floats = self.all[size + jobs + types :]

    def twice(self, low: Vector) -> Twice:
        """The numbers together with their low parts."""
        return Twice(self.all, low.all)


class _Parts(NamedTuple):
    """The same groups, for numbers of any kind."""

    x: Any
    by_job: Any
    by_type: Any
    by_row: Any


def _parts(values: Any, types: int, jobs: int) -> _Parts:
    size = types * jobs
    x = values[:size].reshape(types, jobs)
    return _Parts(x, values[size : size + jobs], values[size + jobs : -jobs], values[-jobs:])


class Point:
    """`primal`: x and the slacks of time, capacity and rows; `dual`: their multipliers; `t`: the level.

    Entries that do not exist (a type that a job cannot use, a row that is not held) are 0 beside a multiplier of 1, or
    the other way round, and never change; `pad` keeps them out of divisions. The `low` parts are the second floats of
    numbers of twice the precision.
    """

    __slots__ = ("count", "dual", "exists", "low_dual", "low_primal", "low_t", "pad_dual", "pad_primal", "primal", "t")

    def __init__(self, a: Scaled, start: float) -> None:
        types, jobs = a.use.shape
        self.t = self.low_t = 0.0
        self.primal, self.dual = Vector(types, jobs), Vector(types, jobs)
        self.low_primal, self.low_dual = Vector(types, jobs), Vector(types, jobs)
        self.low_primal.all[:] = self.low_dual.all[:] = 0.0
        room = float(np.add.reduce(a.cap)) / max(float(np.add.reduce(a.z)), 1e-9)
        each = 0.8 * min(1.0, room) / np.maximum(np.add.reduce(a.use), 1.0)
        self.primal.x[:] = a.use * each
        self.primal.by_job[:] = 0.5
        self.primal.by_type[:] = np.maximum(0.5 * a.cap, 1e-3)
        over = np.add.reduce(a.c * self.primal.x) - a.b
        self.primal.by_row[:] = np.where(a.held > 0, np.maximum(over, 0.1), 1.0)
        self.dual.all[:] = start
        self.dual.by_row *= a.held
        self.dual.x[a.use == 0] = 1.0
        self.pad_primal = (self.primal.all == 0).astype(np.float64)
        self.pad_dual = (self.dual.all == 0).astype(np.float64)
        self.exists = 1.0 - self.pad_primal - self.pad_dual
        self.count = float(np.add.reduce(self.exists))

    def move(self, step: Vector, step_dual: Vector, step_t: float, *, exact: bool = False) -> None:
        """Take a step. With `exact`, no digit of it is lost."""
        if not exact:
            self.primal.all += step.all
            self.dual.all += step_dual.all
            self.t += step_t
            return
        for at, low, by in ((self.primal, self.low_primal, step), (self.dual, self.low_dual, step_dual)):
            high, lost = two_sum(at.all, by.all)
            at.all[:], low.all[:] = two_sum(high, low.all + lost)
        level, less = two_sum(self.t, step_t)
        self.t, self.low_t = two_sum(level, self.low_t + less)


class Residuals(NamedTuple):
    """How far a point is from keeping each equation."""

    d: Floats
    u: Floats
    v: Floats
    q: Floats
    t: float

    def worst(self, a: Scaled) -> float:
        """The largest breach."""
        return max(
            float(np.abs(self.u).max(initial=0.0)),
            float((np.abs(self.v) / np.maximum(a.cap, 1.0)).max(initial=0.0)),
            float((np.abs(self.q) / (1.0 + np.abs(a.b))).max(initial=0.0)),
            float(np.abs(self.d).max(initial=0.0)),
            abs(self.t),
        )


def residuals_of(a: Scaled, o: Point) -> Residuals:
    x, l = o.primal.x, o.dual.by_row  # noqa: E741
    d = (a.g + l * a.c - o.dual.by_job - o.dual.by_type[:, None] * a.z + o.dual.x) * a.use
    u = 1.0 - np.add.reduce(x) - o.primal.by_job
    v = a.cap - dots(x, a.z) - o.primal.by_type
    q = (np.add.reduce(a.c * x) - a.w * o.t - a.b - o.primal.by_row) * a.held
    return Residuals(d, u, v, q, a.gt - dot(a.w, l) if a.free_level else 0.0)


def exact_residuals_of(a: Scaled, o: Point) -> Residuals:
    """The same in twice the precision: near the end, large terms cancel and only their small rest matters."""
    primal, dual, low, low_dual = o.primal, o.dual, o.low_primal, o.low_dual
    gained, gained_low = two_product(dual.by_row, a.c)
    paid, paid_low = two_product(dual.by_type[:, None], a.z)
    rest = gained_low - paid_low + low_dual.by_row * a.c - low_dual.by_job - low_dual.by_type[:, None] * a.z
    d = added((a.g, gained, -paid, -dual.by_job[None], dual.x), rest + low_dual.x) * a.use
    time = np.ones(len(a.z))
    u = added((time, *(-primal.x), -primal.by_job), -np.add.reduce(low.x) - low.by_job)
    gpus, gpus_low = two_product(primal.x, a.z)
    used, used_low = added_up(gpus, gpus_low + low.x * a.z)
    v = added((a.cap, -used, -primal.by_type), -used_low - low.by_type)
    made, made_low = two_product(a.c, primal.x)
    # The weights are 0 or 1, so their products with the level are exact.
    rest = np.add.reduce(made_low + a.c * low.x) - a.w * o.low_t - low.by_row
    q = added((*made, -a.w * o.t, -a.b, -primal.by_row), rest) * a.held
    if not a.free_level:
        return Residuals(d, u, v, q, 0.0)
    weighed, weighed_low = added_up(a.w * dual.by_row, a.w * low_dual.by_row)
    return Residuals(d, u, v, q, added((a.gt, -float(weighed)), -float(weighed_low)))


class Newton:
    """The Newton equations at a point. Everything is eliminated but the prices of the types and the level.

    Numbers are floats, or `Twice` where floats cannot tell the prices of the types apart. Jobs are taken in groups
    whose arrays fit into a cache.
    """

    def __init__(self, a: Scaled, o: Point, groups: Groups) -> None:
        primal: Any = o.primal.twice(o.low_primal) if groups.twice else o.primal.all
        dual: Any = o.dual.twice(o.low_dual) if groups.twice else o.dual.all
        self.a, self.groups = a, groups.all
        self.by_dual = 1.0 / (dual + o.pad_dual)
        self.by_primal = 1.0 / (o.primal.all + o.pad_primal)
        ratios = _parts(primal * self.by_dual, *a.use.shape)
        self.d, self.time, self.gpus, self.row = ratios.x * a.use, ratios.by_job, ratios.by_type, ratios.by_row
        for group in self.groups:
            group.move_to(self.d[:, group.jobs], self.time[group.jobs], self.row[group.jobs])
        self.matrix = self._matrix()

    def _matrix(self) -> list[list[Any]]:
        parts, gpus = [group.matrix() for group in self.groups], numbers(self.gpus)
        rows = [[_total(entries) for entries in zip(*each, strict=True)] for each in zip(*parts, strict=True)]
        for j, each in enumerate(gpus):
            rows[j][j] -= each
        if not self.a.free_level:
            rows[-1][-1] = 1
        return rows

    def direction(self, r: Residuals, aims: Floats) -> tuple[Vector, Vector, float]:
        """The step that keeps the equations and changes the complementary products by `aims`."""
        a, types = self.a, len(self.a.cap)
        want = _parts(aims * self.by_dual, *a.use.shape)
        e, of_time, of_row = want.x + self.d * r.d, want.by_job - r.u, want.by_row - r.q
        answers = [group.answers(of_time, of_row, e) for group in self.groups]
        used = zip(*(group.used(e, each) for group, each in zip(self.groups, answers, strict=True)), strict=True)
        *taken, bent = (_total(each) for each in used)
        right = [every - gone for every, gone in zip(numbers(r.v - want.by_type), taken, strict=True)]
        right.append(r.t - bent if a.free_level else 0)
        found = eliminated([[*row, end] for row, end in zip(self.matrix, right, strict=True)])
        prices = np.array([float(each) for each in found or [np.nan] * (types + 1)])
        step, step_dual = Vector(*a.use.shape), Vector(*a.use.shape)
        step.by_type[:], step_dual.by_type[:] = high(want.by_type - self.gpus * prices[:types]), prices[:types]
        for group, given in zip(self.groups, answers, strict=True):
            given += _summed(group.to_all, prices)
            jobs, push = group.jobs, given[:types]
            step.x[:, jobs] = high(group.left * e[:, jobs] + self.d[:, jobs] * push)
            step_dual.x[:, jobs] = high(group.own * want.x[:, jobs] - group.left * r.d[:, jobs] - push)
            step_dual.by_job[jobs], step_dual.by_row[jobs] = high(given[types]), high(given[types + 1])
        step_dual.x *= a.use
        step.by_job[:] = high(want.by_job - self.time * step_dual.by_job)
        step.by_row[:] = high(want.by_row - self.row * step_dual.by_row)
        return step, step_dual, float(prices[types])

    def reach(self, step: Vector, step_dual: Vector) -> tuple[float, float]:
        """How far the primal and the dual part can go before a number becomes negative, at most 1."""
        least, least_dual = float((step.all * self.by_primal).min()), float((step_dual.all * high(self.by_dual)).min())
        return 1.0 / max(-least, 1.0), 1.0 / max(-least_dual, 1.0)

    def moved(self, step: Vector, step_dual: Vector) -> float:
        """The largest relative change of a number in a step."""
        part, part_dual = np.abs(step.all * self.by_primal).max(), np.abs(step_dual.all * high(self.by_dual)).max()
        return float(max(part, part_dual))


class _Group:
    """The blocks of some jobs. How a job reacts to a change is a sum of answers.

    It answers with the reduced gain of each type and with the multipliers of its time and its row. `to_job[k]` are its
    answers to a residual in its time (k = 0), in its row (1) or on a type (k - 2). `to_all[k]` are its answers to the
    price of a type, or (last) to the level. On the type itself `own` and `left` stand for the answer: they add up to 1.

    Near the optimum most blocks are almost singular: one entry of `d` is huge, the slacks are tiny. What would be a
    difference of large numbers is therefore written as differences of the rows' entries (c_j - c_i), in which the huge
    entry cancels exactly.
    """

    def __init__(self, a: Scaled, jobs: slice, twice: bool) -> None:
        self.jobs, self.z, self.w, types = jobs, a.z[jobs], a.w[jobs], len(a.cap)
        self.c: Any = Twice.of(a.c[:, jobs]) if twice else a.c[:, jobs]
        self.gap, self.square = self.c[None] - self.c[:, None], self.c[:, None] * self.c[None]
        self.gap_2 = {(i, k): self.gap[i, k] * self.gap[i, k] for i in range(types) for k in range(i)}
        self.left = blank((types, len(self.z)), twice)
        self.to_job = blank((types + 2, types + 2, len(self.z)), twice)
        self.to_all = blank((types + 1, types + 2, len(self.z)), twice)

    def move_to(self, d: Any, time: Any, row: Any) -> None:
        """Work out the answers at a point."""
        c, gap, answers, types, each = self.c, self.gap, self.to_job, len(self.c), np.arange(len(self.c))
        cd, cross, det = c * d, *self._blocks(d, time, row)
        answers[0, :types] = _over_first(gap * cd[:, None]) - row
        answers[1, :types] = _over_first(gap * d[:, None]) + time * c
        answers[2:, :types] = -cross
        answers[2 + each, each] = 0.0
        answers[2:, types] = -answers[0, :types]
        answers[2:, types + 1] = -answers[1, :types]
        answers[0, types] = _over_first(c * cd) + row
        answers[0, types + 1] = answers[1, types] = _over_first(cd)
        answers[1, types + 1] = _over_first(d) + time
        unit = 1.0 / det
        answers *= unit
        self.left *= unit
        self.own, self.d, self.zd, self.to_job = cross[each, each] * unit, d, d * self.z, answers
        self.to_all[:types] = answers[2:] * -self.zd[:, None]
        self.to_all[each, each] = self.left * -self.z
        self.to_all[types] = answers[1] * self.w

    def _blocks(self, d: Any, time: Any, row: Any) -> tuple[Any, Any]:
        """How the types affect one another, and the determinants of the blocks. `left` are those without one type."""
        types, c, gap = len(self.c), self.c, self.gap
        cross = time * self.square
        cross += row
        for k in range(types):
            cross += (gap[k] * d[k])[:, None] * gap[k][None]
        alone = d * (row + time * (c * c))
        pairs = {(i, k): d[i] * d[k] * gap_2 for (i, k), gap_2 in self.gap_2.items()}
        for j in range(types):
            without = time * row
            for i in range(types):
                if i != j:
                    without += alone[i]
                    for k in range(i):
                        if k != j:
                            without += pairs[i, k]
            self.left[j] = without
        return cross, self.left[0] + d[0] * cross[0, 0]

    def matrix(self) -> list[list[Any]]:
        """What these jobs add to the equations of prices and level."""
        types = len(self.zd)
        *rows, edge = numbers(_over_last(self.to_all[:, :types] * self.zd))
        corner = numbers(_over_last(self.to_all[types, types + 1] * self.w))
        return [*([*row, end] for row, end in zip(rows, edge, strict=True)), [*edge, corner]]

    def answers(self, of_time: Any, of_row: Any, e: Any) -> Any:
        """How these jobs answer to the residuals, before prices and level move."""
        return _summed(self.to_job, [of_time[self.jobs], of_row[self.jobs], *(each[self.jobs] for each in e)])

    def used(self, e: Any, answers: Any) -> list[Any]:
        """The GPUs of each type that they then take, and the sum of the answers of jobs that have a weight."""
        types = len(answers) - 2
        gpus = _over_last((self.left * e[:, self.jobs] + self.d * answers[:types]) * self.z)
        return [*numbers(gpus), numbers(_over_last(answers[types + 1] * self.w))]


class Groups:
    """All jobs in groups."""

    def __init__(self, a: Scaled, twice: bool) -> None:
        self.twice = twice
        jobs = len(a.z)
        count = max(round(jobs / GROUP), 1)
        ends = [jobs * number // count for number in range(count + 1)]
        self.all = [_Group(a, slice(*bounds), twice) for bounds in pairwise(ends)]


def _total(entries: Iterable[Any]) -> Any:
    """The sum of numbers, added from the first on."""
    total: Any = 0
    for entry in entries:
        total = total + entry
    return total


def _summed(tables: Any, by: Any) -> Any:
    """The sum of tables, each times a number (for each job), added from the first on."""
    total = tables[0] * by[0]
    for k in range(1, len(tables)):
        total += tables[k] * by[k]
    return total


def _over_first(values: Any) -> Any:
    return values.over_first() if isinstance(values, Twice) else np.add.reduce(values)


def _over_last(values: Any) -> Any:
    return values.over_last() if isinstance(values, Twice) else np.add.reduce(values, axis=-1)
