"""Allocations by an interior-point method made for their shape.

An allocation problem has a small block of variables for each job (its time on each GPU type), and the blocks meet only
in the capacities of the few types and in one common level. A general solver does not know that: HiGHS needs 0.1 s for
1,024 jobs and 4 s for 10,000. Here a Newton step costs a handful of array operations: the blocks are eliminated to two
numbers per job, and a system with as many equations as there are types is left.

The method is Mehrotra's primal-dual predictor-corrector, started outside of the feasible set. Where many allocations
are equally good it ends near the analytic centre of them all and not in a corner: a point that treats equal jobs
equally, does not depend on their order, and tells by its multipliers which levels can rise no further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats

TOLERANCE = 1e-8
LOOSE = 1e-6
"""A point that the method cannot improve to `TOLERANCE` still counts as optimal when it is this good."""
PRIMAL_WEIGHT = 1e-3
MOST_STEPS = 100
PATIENCE = 3
"""After so many steps without an improvement a point that is good enough is taken."""
BACK_OFF = 0.99
NEARNESS = 0.05
"""How far a start from a known solution keeps from the limits, as a part of the usual start."""


@dataclass(frozen=True)
class Allocation:
    """An allocation problem over x[job, type] >= 0 and a level t.

    Maximise  sum(gain · x) + level_gain · t  subject to
      sum over types of x[m] <= 1                                      (a job has no more than all the time)
      sum over jobs of gangs[m] · x[m, j] <= capacity[j]               (a type has no more than its GPUs)
      sum over types of rows[m] · x[m] - weights[m] · t >= floors[m]   for the jobs of `held`
    Entries of x outside of `usable` are zero.
    """

    gangs: Floats
    capacity: Floats
    usable: Bools
    gain: Floats
    rows: Floats
    weights: Floats
    floors: Floats
    held: Bools
    level_gain: float = 0.0

    @staticmethod
    def over(gangs: Floats, capacity: Floats, usable: Bools) -> Allocation:
        """A problem with its capacities only, to be completed by `replace`."""
        jobs, none = len(gangs), np.zeros(usable.shape)
        zero, nobody = np.zeros(jobs), np.zeros(jobs, dtype=np.bool_)
        return Allocation(gangs, capacity, usable, none, none, zero, zero, nobody)


class Solution(NamedTuple):
    """A point; the multipliers of the rows, which sum to 1 over those that bind the level; whether it is optimal.

    `prices` are the multipliers of the types' capacities, in a unit of their own.
    """

    x: Floats
    level: float
    multipliers: Floats
    optimal: bool
    steps: int
    prices: Floats


class _Scaled(NamedTuple):
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
    level_unit: float
    types: Bools
    free_level: bool


class _Vector:
    """Four groups of numbers in one array: by type and job, by job, by type, by job."""

    __slots__ = ("all", "by_job", "by_row", "by_type", "x")

    def __init__(self, types: int, jobs: int) -> None:
        size = types * jobs
        self.all: Floats = np.empty(size + jobs + types + jobs)
        self.x: Floats = self.all[:size].reshape(types, jobs)
        self.by_job: Floats = self.all[size : size + jobs]
        self.by_type: Floats = self.all[size + jobs : size + jobs + types]
        self.by_row: Floats = self.all[size + jobs + types :]

    def like(self) -> _Vector:
        return _Vector(*self.x.shape)


class _Point:
    """`primal`: x and the slacks of time, capacity and rows; `dual`: their multipliers; `t`: the level.

    Entries that do not exist (a type that a job cannot use, a row that is not held) are 0 beside a multiplier of 1, or
    the other way round, and never change; `pad` keeps them out of divisions.
    """

    __slots__ = ("count", "dual", "pad_dual", "pad_primal", "primal", "t")

    def __init__(self, a: _Scaled, start: float) -> None:
        types, jobs = a.use.shape
        self.t = 0.0
        self.primal, self.dual = _Vector(types, jobs), _Vector(types, jobs)
        room = float(a.cap.sum()) / max(float(a.z.sum()), 1e-9)
        each = 0.5 * min(1.0, room) / np.maximum(a.use.sum(axis=0), 1.0)
        self.primal.x[:] = a.use * each
        self.primal.by_job[:] = 0.5
        self.primal.by_type[:] = np.maximum(0.5 * a.cap, 1e-3)
        over = (a.c * self.primal.x).sum(axis=0) - a.b
        self.primal.by_row[:] = np.where(a.held > 0, np.maximum(over, 0.1), 1.0)
        self.dual.all[:] = start
        self.dual.by_row *= a.held
        self.dual.x[a.use == 0] = 1.0
        self.pad_primal = (self.primal.all == 0).astype(np.float64)
        self.pad_dual = (self.dual.all == 0).astype(np.float64)
        self.count = float(a.use.sum() + jobs + types + a.held.sum())


def _move_near(point: _Point, a: _Scaled, near: Solution) -> None:
    """Move a starting point to a known solution, but keep clear of the limits: a corner is a bad place to start."""
    primal, dual, least = point.primal, point.dual, NEARNESS / len(a.z)
    primal.x[:] = (1.0 - NEARNESS) * np.maximum(near.x.T[a.types], 0.0) * a.use + NEARNESS * primal.x
    point.t = (1.0 - NEARNESS) * near.level / a.level_unit
    primal.by_job[:] = np.maximum(1.0 - primal.x.sum(axis=0), 0.1 * NEARNESS)
    primal.by_type[:] = np.maximum(a.cap - _dots(primal.x, a.z), 0.1 * NEARNESS * a.cap)
    over = (a.c * primal.x).sum(axis=0) - a.w * point.t - a.b
    primal.by_row[:] = np.where(a.held > 0, np.maximum(over, 0.1 * NEARNESS), 1.0)
    dual.by_row[:] = np.maximum(near.multipliers, least) * a.held
    dual.by_type[:] = np.maximum(near.prices[a.types], least)
    worth = a.g + dual.by_row * a.c - dual.by_type[:, None] * a.z
    dual.by_job[:] = (worth * a.use).max(axis=0, initial=0.0) + least
    dual.x[:] = np.where(a.use > 0, np.maximum(dual.by_job - worth, least), 1.0)


class _Residuals(NamedTuple):
    """How far a point is from keeping each equation."""

    d: Floats
    u: Floats
    v: Floats
    q: Floats
    t: float

    def worst(self, a: _Scaled) -> float:
        """The largest breach; the primal ones count a thousandth, because shares need no more than that."""
        primal = max(
            float(np.abs(self.u).max(initial=0.0)),
            float((np.abs(self.v) / np.maximum(a.cap, 1.0)).max(initial=0.0)),
            float((np.abs(self.q) / (1.0 + np.abs(a.b))).max(initial=0.0)),
        )
        return max(primal * PRIMAL_WEIGHT, float(np.abs(self.d).max(initial=0.0)), abs(self.t))


@np.errstate(all="ignore")
def solve(problem: Allocation, *, near: Solution | None = None, tolerance: float = TOLERANCE) -> Solution:
    """The best allocation. `optimal` is False where the floors cannot be kept or the method gets stuck.

    `near` is the solution of a problem that differs little, such as that without the last job to come: from there it
    takes a third of the steps. It changes how the method goes, not where to.
    """
    if near is not None and problem.level_gain > 0:
        found = _solved_from(problem, near, tolerance)
        if found.optimal:
            return found
    return _solved_from(problem, None, tolerance)


def _solved_from(problem: Allocation, near: Solution | None, tolerance: float) -> Solution:
    a = _scaled(problem)
    start = 1.0 / max(float(a.held.sum()), 1.0) if a.gt > 0 else 1.0
    point, best, kept, steps, idle = _Point(a, start), np.inf, None, 0, 0
    if near is not None:
        _move_near(point, a, near)
    for steps in range(MOST_STEPS):  # noqa: B007
        residuals = _residuals(a, point)
        total = _dot(point.primal.all, point.dual.all)
        value = abs(float((a.g * point.primal.x).sum()) + a.gt * point.t)
        error = max(residuals.worst(a), total / (1.0 + value))
        if error < best:
            best, kept, idle = error, _values(point), 0
        else:
            idle += 1
        if best < tolerance or (best < LOOSE and idle >= PATIENCE) or not error < 1e4 * max(best, 1e-2):
            break
        if not _improve(a, point, residuals, total):
            break
    return _unscaled(problem, a, kept, best < LOOSE, steps)


def _scaled(problem: Allocation) -> _Scaled:
    """Rows in units of their weights (or of their largest entry), the level in units of what it can at most be."""
    types = problem.capacity > 0
    usable = problem.usable & types
    rows = np.where(usable, problem.rows, 0.0)
    largest = rows.max(axis=1, initial=0.0)
    weighs = problem.held & (problem.weights > 0)
    unit = 1.0
    if weighs.any():
        reach = largest[weighs] / problem.weights[weighs]
        unit = float(reach[reach > 0].min(initial=np.inf))
        unit = unit if np.isfinite(unit) else 1.0
    divisor = np.where(weighs, problem.weights * unit, np.where(largest > 0, largest, 1.0))
    gain = np.where(usable, problem.gain, 0.0)
    top = max(float(np.abs(gain).max(initial=0.0)), abs(problem.level_gain) * unit) or 1.0
    return _Scaled(
        z=problem.gangs,
        cap=problem.capacity[types],
        use=np.ascontiguousarray(usable.T[types], dtype=np.float64),
        g=np.ascontiguousarray(gain.T[types] / top),
        c=np.ascontiguousarray((rows / divisor[:, None]).T[types] * problem.held),
        w=np.where(weighs, 1.0, 0.0),
        b=np.where(problem.held, problem.floors / divisor, 0.0),
        held=problem.held.astype(np.float64),
        gt=problem.level_gain * unit / top,
        level_unit=unit,
        types=types,
        free_level=bool(weighs.any()),
    )


class _Values(NamedTuple):
    """What is kept of the best point."""

    x: Floats
    level: float
    rows: Floats
    prices: Floats


def _values(point: _Point) -> _Values:
    return _Values(point.primal.x.copy(), point.t, point.dual.by_row.copy(), point.dual.by_type.copy())


def _unscaled(problem: Allocation, a: _Scaled, kept: _Values | None, optimal: bool, steps: int) -> Solution:
    """The point as an allocation, with what rounding has left over the limits taken off."""
    x = np.zeros(problem.usable.shape)
    if kept is None:
        return Solution(x, 0.0, np.zeros(len(x)), False, steps, np.zeros(len(a.types)))
    prices = np.zeros(len(a.types))
    prices[a.types] = kept.prices
    x[:, a.types] = (np.maximum(kept.x, 0.0) * a.use).T
    x /= np.maximum(x.sum(axis=1, keepdims=True), 1.0)
    x /= np.maximum(_dots(x.T, problem.gangs) / np.where(problem.capacity > 0, problem.capacity, 1.0), 1.0)
    return Solution(x, kept.level * a.level_unit, kept.rows, optimal, steps, prices)


def _residuals(a: _Scaled, o: _Point) -> _Residuals:
    x, l = o.primal.x, o.dual.by_row  # noqa: E741
    d = (a.g + l * a.c - o.dual.by_job - o.dual.by_type[:, None] * a.z + o.dual.x) * a.use
    u = 1.0 - x.sum(axis=0) - o.primal.by_job
    v = a.cap - _dots(x, a.z) - o.primal.by_type
    q = ((a.c * x).sum(axis=0) - a.w * o.t - a.b - o.primal.by_row) * a.held
    return _Residuals(d, u, v, q, a.gt - _dot(a.w, l) if a.free_level else 0.0)


def _improve(a: _Scaled, o: _Point, residuals: _Residuals, total: float) -> bool:
    """One step of the predictor-corrector method; False where it cannot go on."""
    newton = _Newton(a, o)
    products = o.primal.all * o.dual.all
    guess, guess_dual, _ = newton.direction(residuals, -products)
    ahead, ahead_dual = _reach(o, guess, guess_dual)
    left = _dot(o.primal.all + ahead * guess.all, o.dual.all + ahead_dual * guess_dual.all)
    centring = min((max(left, 0.0) / max(total, 1e-300)) ** 3, 1.0)
    aims = centring * total / o.count - products - guess.all * guess_dual.all
    return _move(o, *newton.direction(residuals, aims))


def _reach(o: _Point, step: _Vector, step_dual: _Vector) -> tuple[float, float]:
    """How far the primal and the dual part can go before something becomes negative, at most 1."""
    most = float((-step.all / (o.primal.all + o.pad_primal)).max())
    most_dual = float((-step_dual.all / (o.dual.all + o.pad_dual)).max())
    return 1.0 / max(most, 1.0), 1.0 / max(most_dual, 1.0)


def _move(o: _Point, step: _Vector, step_dual: _Vector, step_t: float) -> bool:
    ahead, ahead_dual = _reach(o, step, step_dual)
    ahead, ahead_dual = min(1.0, BACK_OFF * ahead), min(1.0, BACK_OFF * ahead_dual)
    if not (np.isfinite(step_t) and max(ahead, ahead_dual) > 1e-10 and np.isfinite(step_dual.by_type).all()):
        return False
    o.primal.all += ahead * step.all
    o.t += ahead * step_t
    o.dual.all += ahead_dual * step_dual.all
    return True


class _Newton:
    """The Newton equations at a point, with everything eliminated but the prices of the types and the level.

    Near the optimum the blocks of most jobs are almost singular: one entry of `d` is huge, the slacks are tiny. What
    would be a difference of large numbers is therefore written out in differences of the rows' entries (c_j - c_i), in
    which the huge entry cancels exactly.
    """

    def __init__(self, a: _Scaled, o: _Point) -> None:
        self.a, self.o = a, o
        self.d = d = o.primal.x * a.use / o.dual.x
        self.l = o.dual.by_row + (1.0 - a.held)
        time, row = o.primal.by_job / o.dual.by_job, o.primal.by_row / self.l
        cd = a.c * d
        self.c1 = cd.sum(axis=0)
        c2 = (a.c * cd).sum(axis=0)
        self.a11, self.a22 = d.sum(axis=0) + time, c2 + row
        gap = a.c[:, None] - a.c[None]
        self.rise = (gap * d).sum(axis=1) + time * a.c
        self.fall = (gap * cd).sum(axis=1) - row
        self.cross, det = _cross(a.c, d, gap, time, row)
        self.rise /= det
        self.fall /= det
        self.cross *= a.z / det
        self.det = det
        self.zd = a.z * d
        self.matrix = self._matrix()

    def _matrix(self) -> Floats:
        a, types = self.a, len(self.a.cap)
        m = np.empty((types + 1, types + 1))
        for i in range(types):
            m[i, :types] = _dots(self.cross[i] * self.d, self.zd[i])
            m[i, i] = _dot(self.cross[i, i], self.zd[i]) - self.o.primal.by_type[i] / self.o.dual.by_type[i]
        m[:types, types] = m[types, :types] = _dots(self.zd * self.rise, a.w)
        m[types, types] = _dot(self.a11 * a.w / self.det, a.w) if a.free_level else 1.0
        return m

    def direction(self, r: _Residuals, aims: Floats) -> tuple[_Vector, _Vector, float]:
        """The step that keeps the equations and changes the complementary products by `aims`."""
        a, primal, dual, types = self.a, self.o.primal, self.o.dual, len(self.a.cap)
        want, step, step_dual = primal.like(), primal.like(), primal.like()
        np.divide(aims, dual.all + self.o.pad_dual, out=want.all)
        want.x *= a.use
        want.by_row *= a.held
        e = want.x + self.d * r.d
        r1 = e.sum(axis=0) - r.u + want.by_job
        r2 = want.by_row - r.q - (a.c * e).sum(axis=0) * a.held
        l0 = (self.c1 * r1 + self.a11 * r2) / self.det
        push = self.fall * r1 + self.rise * r2
        rhs = np.empty(types + 1)
        rhs[:types] = r.v - want.by_type - _dots(e + self.d * push, a.z)
        rhs[types] = r.t - _dot(a.w, l0) if a.free_level else 0.0
        found = _solved(self.matrix, rhs)
        dp, dt = found[:types], float(found[types])
        r2 = r2 + dt * a.w
        for j in range(types):
            others = dp[:, None] * self.d
            others[j] = dp[j]
            push[j] += dt * a.w * self.rise[j] + (self.cross[j] * others).sum(axis=0)
        bent = _dots((self.zd * self.fall).T, dp), _dots((self.zd * self.rise).T, dp)
        step_dual.by_type[:] = dp
        step_dual.by_job[:] = (self.a22 * r1 + self.c1 * r2) / self.det + bent[0]
        step_dual.by_row[:] = ((self.c1 * r1 + self.a11 * r2) / self.det + bent[1]) * a.held
        force = (r.d + push) * a.use
        np.negative(force, out=step_dual.x)
        step.x[:] = want.x + self.d * force
        step.by_job[:] = want.by_job - primal.by_job / dual.by_job * step_dual.by_job
        step.by_type[:] = want.by_type - primal.by_type / dual.by_type * dp
        step.by_row[:] = (want.by_row - primal.by_row / self.l * step_dual.by_row) * a.held
        return step, step_dual, dt


def _cross(c: Floats, d: Floats, gap: Floats, time: Floats, row: Floats) -> tuple[Floats, Floats]:
    """By how much a price of one type moves the reduced gain of another, and the determinant of each job's block.

    Off the diagonal this is to be multiplied by the entry of `d` of the type whose price moves; on it, it is the whole.
    """
    types = len(c)
    cross = np.empty((types, types, c.shape[1]))
    square = time * row
    for j in range(types):
        cross[j] = time * c[j] * c + row
        for i in range(types):
            if i != j:
                cross[j] += d[i] * gap[j, i] * gap[:, i]
    det = square.copy()
    for j in range(types):
        det += d[j] * (row + time * c[j] ** 2)
        for i in range(j):
            det += d[i] * d[j] * gap[i, j] ** 2
    for j in range(types):
        left = square.copy()
        for i in range(types):
            if i != j:
                left += d[i] * (row + time * c[i] ** 2)
                for k in range(i):
                    if k != j:
                        left += d[i] * d[k] * gap[i, k] ** 2
        cross[j, j] = -left
    return cross, det


def _solved(matrix: Floats, rhs: Floats) -> Floats:
    try:
        return np.asarray(np.linalg.solve(matrix, rhs))
    except np.linalg.LinAlgError:
        return np.full(len(rhs), np.nan)


def _dot(a: Floats, b: Floats) -> float:
    """The inner product, without the threads of a linear-algebra library: they cost more than such products do."""
    return float(np.einsum("i,i->", a, b))


def _dots(rows: Floats, by: Floats) -> Floats:
    """The inner product of each row with a vector."""
    return np.asarray(np.einsum("ij,j->i", rows, by))
