"""Allocations by an interior-point method made for their shape.

An allocation problem has a small block of variables for each job (its time on each GPU type), and the blocks meet only
in the capacities of the few types and in one common level. A general solver does not know that: HiGHS needs 0.1 s for
1,024 jobs and 4 s for 10,000. Here a Newton step costs a handful of array operations: the blocks are eliminated to two
numbers per job, and a system with as many equations as there are types is left.

Many allocations may be equally good. The answer is a single one: *the point of the central path whose duality gap is
`GAP`*. It treats equal jobs equally, does not depend on their order or on where the search began, and its multipliers
show which levels can rise no further. Mehrotra's predictor-corrector method comes near it. Newton's method, with the
equations evaluated in twice the precision, then finds it to the last digits. Last, all its numbers are rounded to a
grid that is far coarser than the remaining error. So rounding differently on the way changes nothing.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.portable import dot, dots, rounded
from fairway.solvers.allocation import BITS, GRID, Allocation, Solution, nothing_found, nothing_to_give, proof_of
from fairway.solvers.newton import Groups, Newton, Point, Residuals, Scaled, exact_residuals_of, residuals_of
from fairway.solvers.vertex import solve_at_vertex

GAP = 1e-8
"""The duality gap of the answer, as a fraction of an upper bound of the optimum."""
NEAR = 100.0
"""From a point whose gap is at most this many times that of the answer, Newton's method goes on alone."""
CLOSE, SLIGHT, SETTLED = 0.03, 1e-4, 1e-14
"""Limits for the last steps, by how much a step moves a number at most, as a fraction. A step that moves less than
`CLOSE` is followed by one with more care. Once the steps have moved more than `SLIGHT` in all, new equations are
written down. What a step leaves to move is about what it moved times what has been moved since its equations were
written down; the last step leaves less than `SETTLED`."""
PATIENCE, SMALL, STUCK = 12, 0.01, 0.1
"""More care is taken after `PATIENCE` last steps, or when a small step is hardly shorter than the one before: Newton's
method squares the remaining error."""
FLOATS, EXACT, TWICE = 0, 1, 2
"""How much care: floats; the residuals in twice the precision; the solution of the equations in twice the precision."""
MOST_STEPS, MOST_LAST_STEPS = 60, 30
BACK_OFF, LATE_BACK_OFF, LAST_BACK_OFF = 0.99, 0.999, 0.9
"""What part of the way to the nearest limit a step goes: at first, near the optimum, and in the last steps."""
NEARNESS = 0.02
"""How far a start from a known solution stays from the limits, as a fraction of the usual start."""


def _move_near(point: Point, a: Scaled, near: Solution) -> None:
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


@np.errstate(all="ignore")
def solve(problem: Allocation, *, near: Solution | None = None) -> Solution:
    """The best allocation. `optimal` is False if the floors cannot be kept.

    `near` is the solution of a similar problem, such as the one without the last job that arrived: from there, the same
    point takes fewer steps. If the method gets stuck, the simplex method of HiGHS answers.
    """
    if not (problem.capacity > 0).any():
        return nothing_to_give(problem)
    a, steps = _scaled(problem), 0
    for start in (None,) if near is None else (near, None):
        point, taken, there = _searched(a, start)
        steps += taken
        found = _unscaled(problem, a, point, steps)
        if there and found.optimal:
            return found
    return nothing_found(problem, steps) if _is_impossible(a, point) else solve_at_vertex(problem)


def _searched(a: Scaled, near: Solution | None) -> tuple[Point, int, bool]:
    """The point of the central path, the steps taken, and whether it was reached."""
    point = Point(a, 1.0 / max(float(np.add.reduce(a.held)), 1.0) if a.gt > 0 else 1.0)
    if near is not None:
        _move_near(point, a, near)
    best, groups = np.inf, Groups(a, twice=False)
    for steps in range(MOST_STEPS):
        residuals = residuals_of(a, point)
        total = dot(point.primal.all, point.dual.all)
        error = max(residuals.worst(a), total)
        best = min(best, error)
        if error <= NEAR * a.gap:
            taken, there = _settled(a, point, groups)
            return point, steps + taken, there
        if not error < 1e4 * max(best, 1e-2) or not _improve(a, point, groups, residuals, total):
            break
    return point, steps, False


def _settled(a: Scaled, o: Point, groups: Groups) -> tuple[int, bool]:
    """Newton's method towards the point where all products of a number and its multiplier are the same.

    It begins with floats. Close to the point, the residuals of the equations are evaluated in twice the precision. If
    that does not help, because types are so alike that floats cannot tell their prices apart, the equations are solved
    in twice the precision, too.
    """
    aim, moved, care, drift = a.gap / o.count, np.inf, FLOATS, np.inf
    for steps in range(1, MOST_LAST_STEPS + 1):
        aims = (aim - o.primal.all * o.dual.all) * o.exists
        residuals = residuals_of(a, o) if care == FLOATS else exact_residuals_of(a, o)
        if care == TWICE and not groups.twice:
            groups = Groups(a, twice=True)
        if drift > SLIGHT:
            newton, drift = Newton(a, o, groups), 0.0
        step, step_dual, step_t = newton.direction(residuals, aims)
        before, moved = moved, newton.moved(step, step_dual)
        if not np.isfinite(moved):
            if care == TWICE:
                break
            care, drift = TWICE, np.inf
            continue
        ahead, ahead_dual = newton.reach(step, step_dual)
        ahead, ahead_dual = (each if each == 1.0 else LAST_BACK_OFF * each for each in (ahead, ahead_dual))
        step.all *= ahead
        step_dual.all *= ahead_dual
        o.move(step, step_dual, ahead * step_t, exact=care != FLOATS)
        drift += moved
        if moved * drift < SETTLED and care != FLOATS:
            return steps, True
        if care < TWICE and (steps >= PATIENCE or STUCK * before < moved < SMALL):
            care, drift = care + 1, np.inf
        elif care == FLOATS and moved < CLOSE:
            care = EXACT
    return steps, False


def _is_impossible(a: Scaled, o: Point) -> bool:
    """Whether the multipliers, which then grow without limit, prove that the floors cannot be kept together."""
    rows, prices = o.dual.by_row, o.dual.by_type
    worth = (rows * a.c - prices[:, None] * a.z) * a.use
    most = float(np.add.reduce(worth.max(axis=0, initial=0.0))) + dot(prices, a.cap)
    asked = dot(rows, a.b)
    return bool(asked > most * (1.0 + 1e-9) and not dot(rows, a.w) > 1e-6 * asked)


def _scaled(problem: Allocation) -> Scaled:
    """Rows in units of their weights (or of their largest entry), the level in units of its upper bound."""
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
    return Scaled(
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
    """An upper bound of every sum of gains: all jobs have all the time, or the jobs that gain most have all GPUs."""
    if not gain.any():
        return 0.0
    by_job = float(np.add.reduce(gain.max(axis=1, initial=0.0)))
    by_type = (gain / problem.gangs[:, None]).max(axis=0, initial=0.0)
    return min(by_job, dot(by_type, problem.capacity))


def _unscaled(problem: Allocation, a: Scaled, o: Point, steps: int) -> Solution:
    """The point as an allocation on the grid, within the limits, with its proof."""
    x, prices = np.zeros(problem.usable.shape), np.zeros(len(a.types))
    x[:, a.types] = (np.floor(o.primal.x / GRID + 0.5) * GRID * a.use).T
    x /= np.maximum(np.add.reduce(x, axis=1)[:, None], 1.0)
    x /= np.maximum(dots(x.T, problem.gangs) / np.where(problem.capacity > 0, problem.capacity, 1.0), 1.0)
    prices[a.types] = rounded(o.dual.by_type, BITS)
    level, rows = rounded(o.t, BITS) * a.level_unit, rounded(o.dual.by_row, BITS)
    proof = proof_of(problem, x, level, rows * a.gain_unit / a.row_unit, prices * a.gain_unit)
    return Solution(x, level, rows, proof.holds, steps, prices, proof)


def _improve(a: Scaled, o: Point, groups: Groups, residuals: Residuals, total: float) -> bool:
    """One step of the predictor-corrector method; False if it cannot go on."""
    newton = Newton(a, o, groups)
    products = o.primal.all * o.dual.all
    guess, guess_dual, _ = newton.direction(residuals, -products)
    ahead, ahead_dual = newton.reach(guess, guess_dual)
    left = dot(o.primal.all + ahead * guess.all, o.dual.all + ahead_dual * guess_dual.all)
    part = max(left, 0.0) / max(total, 1e-300)
    centring = min(part * part * part, 1.0)
    aims = (max(centring * total, a.gap) / o.count - products - guess.all * guess_dual.all) * o.exists
    step, step_dual, step_t = newton.direction(residuals, aims)
    ahead, ahead_dual = newton.reach(step, step_dual)
    back_off = min(max(BACK_OFF, 1.0 - total), LATE_BACK_OFF)
    ahead, ahead_dual = back_off * ahead, back_off * ahead_dual
    if not (np.isfinite(step_t) and max(ahead, ahead_dual) > 1e-10 and np.isfinite(step_dual.by_type).all()):
        return False
    step.all *= ahead
    step_dual.all *= ahead_dual
    o.move(step, step_dual, ahead * step_t)
    return True
