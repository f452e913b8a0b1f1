"""Allocations by an interior-point method made for their shape.

An allocation problem has a small block of variables for each job (its time on each GPU type), and the blocks meet only
in the capacities of the few types and in one common level. A general solver does not know that: HiGHS needs 0.1 s for
1,024 jobs and 4 s for 10,000. Here a Newton step costs a handful of array operations: the blocks are eliminated to two
numbers per job, and a system with as many equations as there are types is left.

Many allocations may be equally good. The answer is a single one: *the point of the central path whose duality gap is
`GAP`*. It treats equal jobs equally, does not depend on their order or on where the search began, and its multipliers
tell which levels can rise no further. Mehrotra's predictor-corrector method goes near it; Newton's method, with the
equations evaluated in twice the precision, then finds it to the last digits. Last, all its numbers are rounded to a
grid that is far coarser than what is left of an error. So a rounding that goes another way on the way changes nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats
from fairway.core.portable import dot, dots, eliminated, rounded
from fairway.solvers.allocation import GRID, Allocation, Solution, nothing_found, proof_of
from fairway.solvers.twice import (
    Twice,
    added,
    added_up,
    high,
    numbers,
    stacked,
    two_product,
    two_sum,
    with_diagonal,
)
from fairway.solvers.vertex import solve_at_vertex

GAP = 1e-8
"""The duality gap of the answer, as a part of what the optimum can be at most."""
NEAR = 100.0
"""A point whose gap is at most so many times that of the answer is led to it by Newton's method alone."""
CLOSE, SETTLED = 1e-3, 1e-8
"""A step that moves every number by less than this part is the last: the next would move them by its square."""
PATIENCE, STUCK = 8, 0.1
"""More care is taken after so many last steps, or when a small one is hardly shorter than the one before: Newton's
method squares what is left."""
FLOATS, EXACT, TWICE = 0, 1, 2
"""How much care: floats; what is left of the equations in twice the precision; their solution, too."""
MOST_STEPS, MOST_LAST_STEPS = 60, 30
BACK_OFF, LAST_BACK_OFF = 0.99, 0.9
NEARNESS = 0.05
"""How far a start from a known solution keeps from the limits, as a part of the usual start."""


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
    gap: float
    row_unit: Floats
    level_unit: float
    gain_unit: float
    types: Bools
    free_level: bool


class _Vector:
    """Four groups of numbers in one array: by type and job, by job, by type, by job."""

    __slots__ = ("all", "by_job", "by_row", "by_type", "x")

    def __init__(self, types: int, jobs: int) -> None:
        size = types * jobs
        self.all: Floats = np.zeros(size + jobs + types + jobs)
        self.x: Floats = self.all[:size].reshape(types, jobs)
        self.by_job: Floats = self.all[size : size + jobs]
        self.by_type: Floats = self.all[size + jobs : size + jobs + types]
        self.by_row: Floats = self.all[size + jobs + types :]

    def twice(self, low: _Vector) -> _Parts:
        """The same with what is beyond the first floats."""
        return _parts(Twice(self.all, low.all), *self.x.shape)


class _Parts(NamedTuple):
    """The same groups of numbers of any kind."""

    all: Any
    x: Any
    by_job: Any
    by_type: Any
    by_row: Any


def _parts(values: Any, types: int, jobs: int) -> _Parts:
    size = types * jobs
    x = values[:size].reshape(types, jobs)
    return _Parts(values, x, values[size : size + jobs], values[size + jobs : -jobs], values[-jobs:])


class _Point:
    """`primal`: x and the slacks of time, capacity and rows; `dual`: their multipliers; `t`: the level.

    Entries that do not exist (a type that a job cannot use, a row that is not held) are 0 beside a multiplier of 1, or
    the other way round, and never change; `pad` keeps them out of divisions. The `low` parts are what a number of twice
    the precision has beyond its first float.
    """

    __slots__ = ("count", "dual", "exists", "low_dual", "low_primal", "low_t", "pad_dual", "pad_primal", "primal", "t")

    def __init__(self, a: _Scaled, start: float) -> None:
        types, jobs = a.use.shape
        self.t = self.low_t = 0.0
        self.primal, self.dual = _Vector(types, jobs), _Vector(types, jobs)
        self.low_primal, self.low_dual = _Vector(types, jobs), _Vector(types, jobs)
        room = float(np.add.reduce(a.cap)) / max(float(np.add.reduce(a.z)), 1e-9)
        each = 0.5 * min(1.0, room) / np.maximum(np.add.reduce(a.use), 1.0)
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

    def move(self, step: _Vector, step_dual: _Vector, step_t: float) -> None:
        """Take a step, without losing a digit of it."""
        for at, low, by in ((self.primal, self.low_primal, step), (self.dual, self.low_dual, step_dual)):
            high, lost = two_sum(at.all, by.all)
            at.all[:], low.all[:] = two_sum(high, low.all + lost)
        level, less = two_sum(self.t, step_t)
        self.t, self.low_t = two_sum(level, self.low_t + less)


def _move_near(point: _Point, a: _Scaled, near: Solution) -> None:
    """Move a starting point to a known solution, but keep clear of the limits: a corner is a bad place to start."""
    primal, dual, least = point.primal, point.dual, NEARNESS / len(a.z)
    primal.x[:] = (1.0 - NEARNESS) * np.maximum(near.x.T[a.types], 0.0) * a.use + NEARNESS * primal.x
    point.t = (1.0 - NEARNESS) * near.level / a.level_unit
    primal.by_job[:] = np.maximum(1.0 - np.add.reduce(primal.x), 0.1 * NEARNESS)
    primal.by_type[:] = np.maximum(a.cap - dots(primal.x, a.z), 0.1 * NEARNESS * a.cap)
    over = np.add.reduce(a.c * primal.x) - a.w * point.t - a.b
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
        """The largest breach."""
        return max(
            float(np.abs(self.u).max(initial=0.0)),
            float((np.abs(self.v) / np.maximum(a.cap, 1.0)).max(initial=0.0)),
            float((np.abs(self.q) / (1.0 + np.abs(a.b))).max(initial=0.0)),
            float(np.abs(self.d).max(initial=0.0)),
            abs(self.t),
        )


@np.errstate(all="ignore")
def solve(problem: Allocation, *, near: Solution | None = None) -> Solution:
    """The best allocation. `optimal` is False where the floors cannot be kept.

    `near` is the solution of a problem that differs little, such as that without the last job to come: from there it
    takes fewer steps to the same point. Where the method gets stuck, the simplex method of HiGHS answers.
    """
    a, steps = _scaled(problem), 0
    for start in (near, None):
        if start is None or problem.level_gain > 0:
            point, taken, there = _searched(a, start)
            steps += taken
            found = _unscaled(problem, a, point, steps)
            if there and found.optimal:
                return found
    return nothing_found(problem, steps) if _is_impossible(a, point) else solve_at_vertex(problem)


def _searched(a: _Scaled, near: Solution | None) -> tuple[_Point, int, bool]:
    """The point of the central path, the steps taken, and whether it was reached."""
    point = _Point(a, 1.0 / max(float(np.add.reduce(a.held)), 1.0) if a.gt > 0 else 1.0)
    if near is not None:
        _move_near(point, a, near)
    best = np.inf
    for steps in range(MOST_STEPS):
        residuals = _residuals(a, point)
        total = dot(point.primal.all, point.dual.all)
        error = max(residuals.worst(a), total)
        best = min(best, error)
        if total <= NEAR * a.gap and residuals.worst(a) <= NEAR * a.gap:
            taken, there = _settled(a, point)
            return point, steps + taken, there
        if not error < 1e4 * max(best, 1e-2) or not _improve(a, point, residuals, total):
            break
    return point, steps, False


def _settled(a: _Scaled, o: _Point) -> tuple[int, bool]:
    """Newton's method towards the point where all products of a number and its multiplier are the same.

    It begins with floats. Close to the point, what is left of the equations is evaluated in twice the precision. Where
    that does not help, because types are so alike that floats cannot tell their prices apart, they are solved so, too.
    """
    aim, moved, care = a.gap / o.count, np.inf, FLOATS
    for steps in range(1, MOST_LAST_STEPS + 1):
        aims = (aim - o.primal.all * o.dual.all) * o.exists
        residuals = _residuals(a, o) if care == FLOATS else _exact_residuals(a, o)
        step, step_dual, step_t = _Newton(a, o, care == TWICE).direction(residuals, aims)
        before, moved = moved, max(_part(step, o.primal, o.pad_primal), _part(step_dual, o.dual, o.pad_dual))
        if not np.isfinite(moved):
            if care == TWICE:
                break
            care = TWICE
            continue
        ahead, ahead_dual = _reach(o, step, step_dual)
        ahead, ahead_dual = (each if each == 1.0 else LAST_BACK_OFF * each for each in (ahead, ahead_dual))
        step.all *= ahead
        step_dual.all *= ahead_dual
        o.move(step, step_dual, ahead * step_t)
        if moved < SETTLED and care != FLOATS:
            return steps, True
        if STUCK * before < moved < STUCK or (care == FLOATS and moved < CLOSE):
            care = min(care + 1, TWICE)
        if steps >= PATIENCE:
            care = TWICE
    return steps, False


def _part(step: _Vector, of: _Vector, pad: Floats) -> float:
    return float((np.abs(step.all) / (of.all + pad)).max())


def _is_impossible(a: _Scaled, o: _Point) -> bool:
    """Whether the multipliers, which grow without limit then, prove that the floors cannot be kept together."""
    rows, prices = o.dual.by_row, o.dual.by_type
    worth = (rows * a.c - prices[:, None] * a.z) * a.use
    most = float(np.add.reduce(worth.max(axis=0, initial=0.0))) + dot(prices, a.cap)
    asked = dot(rows, a.b)
    return bool(asked > most * (1.0 + 1e-9) and not dot(rows, a.w) > 1e-6 * asked)


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
        gap=GAP * max(_most_gained(gain / top, problem), 1.0),
        row_unit=divisor,
        level_unit=unit,
        gain_unit=top,
        types=types,
        free_level=bool(weighs.any()),
    )


def _most_gained(gain: Floats, problem: Allocation) -> float:
    """A bound of every sum of gains: all jobs have all the time, or all GPUs are with whom they gain most."""
    by_job = float(np.add.reduce(gain.max(axis=1, initial=0.0)))
    by_type = (gain / problem.gangs[:, None]).max(axis=0, initial=0.0)
    return min(by_job, dot(by_type, problem.capacity))


def _unscaled(problem: Allocation, a: _Scaled, o: _Point, steps: int) -> Solution:
    """The point as an allocation on the grid, within the limits, with its proof."""
    x, prices = np.zeros(problem.usable.shape), np.zeros(len(a.types))
    x[:, a.types] = (np.floor(o.primal.x / GRID + 0.5) * GRID * a.use).T
    x /= np.maximum(np.add.reduce(x, axis=1)[:, None], 1.0)
    x /= np.maximum(dots(x.T, problem.gangs) / np.where(problem.capacity > 0, problem.capacity, 1.0), 1.0)
    prices[a.types] = rounded(o.dual.by_type)
    level, rows = rounded(o.t) * a.level_unit, rounded(o.dual.by_row)
    proof = proof_of(problem, x, level, rows * a.gain_unit / a.row_unit, prices * a.gain_unit)
    return Solution(x, level, rows, proof.holds, steps, prices, proof)


def _residuals(a: _Scaled, o: _Point) -> _Residuals:
    x, l = o.primal.x, o.dual.by_row  # noqa: E741
    d = (a.g + l * a.c - o.dual.by_job - o.dual.by_type[:, None] * a.z + o.dual.x) * a.use
    u = 1.0 - np.add.reduce(x) - o.primal.by_job
    v = a.cap - dots(x, a.z) - o.primal.by_type
    q = (np.add.reduce(a.c * x) - a.w * o.t - a.b - o.primal.by_row) * a.held
    return _Residuals(d, u, v, q, a.gt - dot(a.w, l) if a.free_level else 0.0)


def _exact_residuals(a: _Scaled, o: _Point) -> _Residuals:
    """The same in twice the precision: near the end, what is left of the large terms is all that counts."""
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
    # The weights are 0 or 1, so that their products with the level are exact.
    rest = np.add.reduce(made_low + a.c * low.x) - a.w * o.low_t - low.by_row
    q = added((*made, -a.w * o.t, -a.b, -primal.by_row), rest) * a.held
    if not a.free_level:
        return _Residuals(d, u, v, q, 0.0)
    weighed, weighed_low = added_up(a.w * dual.by_row, a.w * low_dual.by_row)
    return _Residuals(d, u, v, q, added((a.gt, -float(weighed)), -float(weighed_low)))


def _improve(a: _Scaled, o: _Point, residuals: _Residuals, total: float) -> bool:
    """One step of the predictor-corrector method; False where it cannot go on."""
    newton = _Newton(a, o)
    products = o.primal.all * o.dual.all
    guess, guess_dual, _ = newton.direction(residuals, -products)
    ahead, ahead_dual = _reach(o, guess, guess_dual)
    left = dot(o.primal.all + ahead * guess.all, o.dual.all + ahead_dual * guess_dual.all)
    part = max(left, 0.0) / max(total, 1e-300)
    centring = min(part * part * part, 1.0)
    aims = (max(centring * total, a.gap) / o.count - products - guess.all * guess_dual.all) * o.exists
    step, step_dual, step_t = newton.direction(residuals, aims)
    ahead, ahead_dual = _reach(o, step, step_dual)
    ahead, ahead_dual = min(1.0, BACK_OFF * ahead), min(1.0, BACK_OFF * ahead_dual)
    if not (np.isfinite(step_t) and max(ahead, ahead_dual) > 1e-10 and np.isfinite(step_dual.by_type).all()):
        return False
    o.primal.all += ahead * step.all
    o.t += ahead * step_t
    o.dual.all += ahead_dual * step_dual.all
    return True


def _reach(o: _Point, step: _Vector, step_dual: _Vector) -> tuple[float, float]:
    """How far the primal and the dual part can go before something becomes negative, at most 1."""
    most = float((-step.all / (o.primal.all + o.pad_primal)).max())
    most_dual = float((-step_dual.all / (o.dual.all + o.pad_dual)).max())
    return 1.0 / max(most, 1.0), 1.0 / max(most_dual, 1.0)


class _Newton:
    """The Newton equations at a point, with everything eliminated but the prices of the types and the level.

    Near the optimum the blocks of most jobs are almost singular: one entry of `d` is huge, the slacks are tiny. What
    would be a difference of large numbers is therefore written out in differences of the rows' entries (c_j - c_i), in
    which the huge entry cancels exactly.

    In units of the determinant of a job's block: `left[j]` is that of the block without type j, `own[j]` the rest;
    `felt[i, j]` is what type j feels of time on another type i, and `bends[i, j]` what it feels of a price of i;
    `moves` is how the multipliers of the job's time and row follow from either's breach, `follows` how from a type's.
    Numbers are floats, or `Twice` where floats cannot tell the prices of the types apart.
    """

    def __init__(self, a: _Scaled, o: _Point, twice: bool = False) -> None:
        primal: Any = o.primal.twice(o.low_primal) if twice else o.primal
        dual: Any = o.dual.twice(o.low_dual) if twice else o.dual
        c: Any = Twice.of(a.c) if twice else a.c
        self.a = a
        self.by_dual = 1.0 / (dual.all + o.pad_dual)
        self.d = d = primal.x * a.use / dual.x
        self.time, self.gpus = primal.by_job / dual.by_job, primal.by_type / dual.by_type
        self.row = primal.by_row / (dual.by_row + (1.0 - a.held))
        gap, cd = c[None] - c[:, None], c * d
        cross, left, det = _blocks(c, d, gap, self.time, self.row)
        each = np.arange(len(a.cap))
        self.left, self.own = left / det, cross[each, each] / det
        self.felt = with_diagonal(cross / det, 0.0)
        self.zd = d * a.z
        self.bends = with_diagonal(self.felt * self.zd[:, None], -self.left * a.z)
        fall, rise = _over_first(gap * cd[:, None]) - self.row, _over_first(gap * d[:, None]) + self.time * c
        self.follows = stacked([fall, rise]) / det
        edge = _over_first(cd)
        moves = [_over_first(c * cd) + self.row, edge, edge, _over_first(d) + self.time]
        self.moves = (stacked(moves) / det).reshape(2, 2, len(a.z))
        self.matrix = self._matrix()

    def _matrix(self) -> list[list[Any]]:
        a, every = self.a, range(len(self.a.cap))
        rows = numbers(_over_last(self.bends * self.zd))
        own = numbers(self.gpus)
        edge = numbers(_over_last(self.zd * self.follows[1] * a.w))
        corner = numbers(_over_last(self.moves[1, 1] * a.w)) if a.free_level else 1
        for j in every:
            rows[j][j] -= own[j]
        return [*([*rows[j], edge[j]] for j in every), [*edge, corner]]

    def direction(self, r: _Residuals, aims: Floats) -> tuple[_Vector, _Vector, float]:
        """The step that keeps the equations and changes the complementary products by `aims`."""
        a, types = self.a, len(self.a.cap)
        want = _parts(aims * self.by_dual, *a.use.shape)
        e, off = want.x + self.d * r.d, stacked([want.by_job - r.u, want.by_row - r.q])
        still = _over_first(self.follows * off[:, None]) - _over_first(self.felt * e[:, None])
        rest = self.left * e
        right = r.v - want.by_type - _over_last((rest + self.d * still) * a.z)
        both = _over_first(self.moves * off[:, None]) - _over_second(self.follows * e)
        last = numbers(r.t - _over_last(both[1] * a.w)) if a.free_level else 0
        found = eliminated([[*row, end] for row, end in zip(self.matrix, [*numbers(right), last], strict=True)])
        prices = np.array([float(each) for each in found or [np.nan] * (types + 1)])
        dp, dt = prices[:types, None], float(prices[types])
        lift = dt * a.w
        push = still + _over_first(self.bends * dp[:, None]) + self.follows[1] * lift
        both = both + self.moves[1] * lift + _over_second(self.follows * (self.zd * dp))
        step, step_dual = _Vector(*a.use.shape), _Vector(*a.use.shape)
        step.x[:] = high(rest + self.d * push)
        step.by_job[:] = high(want.by_job - self.time * both[0])
        step.by_type[:] = high(want.by_type - self.gpus * dp[:, 0])
        step.by_row[:] = high(want.by_row - self.row * both[1])
        step_dual.x[:] = high(self.own * want.x - self.left * r.d - push) * a.use
        step_dual.by_job[:], step_dual.by_type[:], step_dual.by_row[:] = high(both[0]), dp[:, 0], high(both[1])
        return step, step_dual, dt


def _blocks(c: Any, d: Any, gap: Any, time: Any, row: Any) -> tuple[Any, Any, Any]:
    """By how much types feel one another, the determinants of a job's block without each type, and of the whole."""
    types = c.shape[0]
    cross = row + time * (c[:, None] * c[None])
    for k in range(types):
        cross = cross + (gap[k] * d[k])[:, None] * gap[k][None]
    alone = d * (row + time * (c * c))
    pairs = d[:, None] * d[None] * (gap * gap)
    left = []
    for j in range(types):
        without = time * row
        for i in range(types):
            if i != j:
                without = without + alone[i]
                for k in range(i):
                    if k != j:
                        without = without + pairs[i, k]
        left.append(without)
    return cross, stacked(left), left[0] + d[0] * cross[0, 0]


def _over_first(values: Any) -> Any:
    return values.over_first() if isinstance(values, Twice) else np.add.reduce(values)


def _over_second(values: Any) -> Any:
    return values.swapaxes(0, 1).over_first() if isinstance(values, Twice) else np.add.reduce(values, axis=1)


def _over_last(values: Any) -> Any:
    return values.over_last() if isinstance(values, Twice) else np.add.reduce(values, axis=-1)
