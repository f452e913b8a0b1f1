"""Allocations by the self-dual embedding: the interior-point method of ECOS, for the shape of allocation problems.

If many allocations are equally good, the solver's choice decides what a schedule looks like, and the runs of Gavel and
Shockwave were published with ECOS. So this is its method (Domahidi, Chu and Boyd, "ECOS: an SOCP solver for embedded
systems", ECC 2013) for linear programs: scaled rows and columns, a start from two least-squares problems, predictor and
corrector on the homogeneous embedding. Only the linear algebra is our own: blocks of jobs are eliminated to two numbers
each, so that a step costs a handful of array operations (see `solvers.interior` for the shape).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.portable import dot, rounded, solve, solve_stack
from fairway.solvers.allocation import Allocation, Solution, proof_of

TOLERANCE = 1e-8
LOOSE = 1e-4
"""A point is accepted if it and its proof are at least this good. ECOS itself accepts this if it cannot go on."""
MOST_STEPS = 100
SCALINGS = 3
REFINEMENTS = 1
SMALLEST_STEP, LARGEST_STEP, BACK_OFF = 1e-6, 0.999, 0.99
LEAST_CENTRING = 1e-4
BITS = 20
"""Binary digits that are kept of a time. The order of tiny times also decides when a job gains nothing, so times are
not put on a grid."""


class _Rows:
    """One number for each inequality: x >= 0 by type and job, the capacity of a type, the time and row of a job."""

    __slots__ = ("all", "capacity", "row", "time", "x")

    def __init__(self, types: int, jobs: int) -> None:
        size = types * jobs
        self.all: Floats = np.zeros(size + types + 2 * jobs)
        self.x: Floats = self.all[:size].reshape(types, jobs)
        self.capacity: Floats = self.all[size : size + types]
        self.time: Floats = self.all[size + types : size + types + jobs]
        self.row: Floats = self.all[size + types + jobs :]

    def like(self, values: Floats | None = None) -> _Rows:
        other = _Rows(*self.x.shape)
        if values is not None:
            other.all[:] = values
        return other


class _Columns(NamedTuple):
    """One number for each variable: x by type and job, and the level."""

    x: Floats
    t: float

    def plus(self, other: _Columns, times: float) -> _Columns:
        return _Columns(self.x + times * other.x, self.t + times * other.t)

    def dot(self, other: _Columns) -> float:
        return float(np.add.reduce((self.x * other.x).ravel())) + self.t * other.t

    def norm(self) -> float:
        return math.sqrt(self.dot(self))


class _Program:
    """Minimise c'(x, t) where G (x, t) + s = h, s >= 0, with rows and columns scaled to about 1.

    The entries of G: `gx` of -x, `gc` in the capacity of a type, `gt` in a job's time, `gr` and `gl` of x and the level
    in a job's row. Variables and rows that do not exist are zero everywhere.
    """

    def __init__(self, problem: Allocation) -> None:
        self.types = problem.capacity > 0
        use = np.ascontiguousarray((problem.usable & self.types).T[self.types], dtype=np.float64)
        held = problem.held.astype(np.float64)
        weighs = problem.held & (problem.weights > 0)
        self.has_level = bool(problem.level_gain > 0 and weighs.any())
        rows = np.where(problem.usable, problem.rows, 0.0).T[self.types]
        self.use, self.held = use, held
        self.gx, self.gt = use.copy(), use.copy()
        self.gc = use * problem.gangs
        self.gr = np.ascontiguousarray(rows) * use * held
        self.gl = weighs * problem.weights * self.has_level
        self.h = _Rows(*use.shape)
        self.h.capacity[:] = problem.capacity[self.types]
        self.h.time[:] = 1.0
        self.h.row[:] = -problem.floors * held
        gain = np.ascontiguousarray(np.where(problem.usable, problem.gain, 0.0).T[self.types]) * use
        self.c = _Columns(-gain, -problem.level_gain if self.has_level else 0.0)
        self.exists = self.h.like()
        self.exists.x[:] = use
        self.exists.capacity[:] = self.exists.time[:] = 1.0
        self.exists.row[:] = held
        self.missing = 1.0 - self.exists.all
        self.count = float(self.exists.all.sum())
        self._scale()

    def _scale(self) -> None:
        """Divide rows and columns by the roots of their largest entries, a few times (Ruiz)."""
        self.col_x, self.col_t = np.ones_like(self.gx), 1.0
        self.row_units = self.h.like(np.ones_like(self.h.all))
        for _ in range(SCALINGS):
            top = self.h.like()
            top.x[:] = self.gx
            top.capacity[:] = self.gc.max(axis=1, initial=0.0)
            top.time[:] = self.gt.max(axis=0, initial=0.0)
            top.row[:] = np.maximum(np.abs(self.gr).max(axis=0, initial=0.0), self.gl)
            column = _root(np.maximum(np.maximum(self.gx, self.gc), np.maximum(self.gt, np.abs(self.gr))))
            column_t = float(_root(self.gl.max(initial=0.0)))
            top.all[:] = _root(top.all)
            self.gx /= top.x * column
            self.gc /= top.capacity[:, None] * column
            self.gt /= top.time * column
            self.gr /= top.row * column
            self.gl /= top.row * column_t
            self.col_x *= column
            self.col_t *= column_t
            self.row_units.all *= top.all
        self.h.all /= self.row_units.all
        self.c = _Columns(self.c.x / self.col_x, self.c.t / self.col_t)

    def down(self, z: _Rows) -> _Columns:
        """G' z."""
        x = self.gt * z.time - self.gr * z.row + self.gc * z.capacity[:, None] - self.gx * z.x
        return _Columns(x, dot(self.gl, z.row))

    def up(self, v: _Columns) -> _Rows:
        """G (x, t)."""
        out = self.h.like()
        out.x[:] = -self.gx * v.x
        out.capacity[:] = (self.gc * v.x).sum(axis=1)
        out.time[:] = (self.gt * v.x).sum(axis=0)
        out.row[:] = self.gl * v.t - (self.gr * v.x).sum(axis=0)
        return out


def _root(values: Floats) -> Floats:
    return np.where(values < 1e-6, 1.0, np.sqrt(values))


class _Equations:
    """[0 G'; G -W] [v; z] = [b; r] for a diagonal W, by elimination down to the prices of the types and the level.

    The block of a job (its times and the multipliers of its time and row) is inverted with pivoting: near the optimum
    its entries differ by many orders of magnitude, and closed formulas lose all their digits.
    """

    def __init__(self, p: _Program, w: _Rows) -> None:
        self.p, self.w = p, w
        types, jobs = p.gx.shape
        self.stiff = p.gx / (w.x + (1.0 - p.use))
        block = np.zeros((jobs, types + 2, types + 2))
        at = range(types)
        block[:, at, at] = (p.gx * self.stiff + (1.0 - p.use)).T
        block[:, at, types] = block[:, types, at] = p.gt.T
        block[:, at, types + 1] = block[:, types + 1, at] = -p.gr.T
        block[:, types, types] = -w.time
        block[:, types + 1, types + 1] = -(w.row * p.held + (1.0 - p.held))
        self.inverse = _inverted(block)
        self.priced = self.inverse[:, :, :types] * p.gc.T[:, None, :]
        self.levelled = self.inverse[:, :, types + 1] * p.gl[:, None]
        matrix = np.zeros((types + 1, types + 1))
        matrix[:types, :types] = -np.add.reduce(p.gc.T[:, :, None] * self.priced[:, :types])
        matrix[at, at] -= w.capacity
        matrix[:types, types] = -np.add.reduce(p.gc.T * self.levelled[:, :types])
        matrix[types, :types] = -np.add.reduce(p.gl[:, None] * self.priced[:, types + 1])
        matrix[types, types] = -dot(p.gl, self.levelled[:, types + 1]) if p.has_level else 1.0
        self.matrix = matrix

    def solved(self, b: _Columns, r: _Rows) -> tuple[_Columns, _Rows]:
        """(v, z), refined by solving again for the residual of the first answer."""
        v, z = self._once(b, r)
        for _ in range(REFINEMENTS):
            down = self.p.down(z)
            left = _Columns((b.x - down.x) * self.p.use, b.t - down.t)
            over = r.like((r.all - self.p.up(v).all + self.w.all * z.all) * self.p.exists.all)
            dv, dz = self._once(left, over)
            v = v.plus(dv, 1.0)
            z.all += dz.all
        return v, z

    def _once(self, b: _Columns, r: _Rows) -> tuple[_Columns, _Rows]:
        p, types = self.p, len(self.p.gx)
        right = np.concatenate([(b.x - self.stiff * r.x) * p.use, r.time[None], (r.row * p.held)[None]])
        first = np.add.reduce(self.inverse * right.T[:, None, :], axis=2)
        rhs = np.zeros(types + 1)
        rhs[:types] = r.capacity - np.add.reduce(p.gc.T * first[:, :types])
        rhs[types] = b.t - dot(p.gl, first[:, types + 1]) if p.has_level else 0.0
        found = solve(self.matrix, rhs)
        level = float(found[types]) if p.has_level else 0.0
        block = first - np.add.reduce(self.priced * found[:types], axis=2) - self.levelled * level
        z = r.like()
        z.capacity[:] = found[:types]
        z.time[:] = block[:, types]
        z.row[:] = block[:, types + 1] * p.held
        x = block[:, :types].T * p.use
        z.x[:] = -(p.gx * x + r.x) / (self.w.x + (1.0 - p.use)) * p.use
        return _Columns(x, level), z


def _inverted(blocks: Floats) -> Floats:
    """The inverses of symmetric blocks, each scaled to a diagonal of 1 first."""
    scale = 1.0 / np.sqrt(np.abs(np.diagonal(blocks, axis1=1, axis2=2)))
    both = scale[:, :, None] * scale[:, None, :]
    units = np.broadcast_to(np.eye(blocks.shape[1]), blocks.shape)
    return np.asarray(solve_stack(blocks * both, units) * both)


class _Point:
    """A point of the embedding: variables v, slacks s, multipliers z, and the two scalars tau and kappa."""

    def __init__(self, p: _Program) -> None:
        w = p.h.like(np.ones_like(p.h.all))
        start = _Equations(p, w)
        none = _Columns(np.zeros_like(p.gx), 0.0)
        self.v, minus_slack = start.solved(none, p.h)
        self.s = _into_the_cone(p, minus_slack.like(-minus_slack.all))
        minus_c = _Columns(-p.c.x, -p.c.t)
        _, z = start.solved(minus_c, p.h.like())
        self.z = _into_the_cone(p, z)
        self.tau = self.kappa = 1.0


def _into_the_cone(p: _Program, values: _Rows) -> _Rows:
    """Values moved up together until all are positive; 1 where a row does not exist."""
    real = values.all[p.exists.all > 0]
    shift = max(-BACK_OFF, float((-real).max(initial=-np.inf))) + 1.0
    values.all[:] = np.where(p.exists.all > 0, values.all + shift, 1.0)
    return values


class _Breach(NamedTuple):
    """How far a point is from the equations of the embedding, and the figures by which it is judged."""

    x: _Columns
    z: _Rows
    tau: float
    gap: float
    cost: float
    bound: float
    error: float
    relative: float
    infeasible: bool


def _breach(p: _Program, o: _Point) -> _Breach:
    down = p.down(o.z)
    rx = _Columns(-down.x - p.c.x * o.tau, -down.t - p.c.t * o.tau)
    rz = o.s.like((o.s.all + p.up(o.v).all - p.h.all * o.tau) * p.exists.all)
    cost, bound = p.c.dot(o.v), dot(p.h.all, o.z.all * p.exists.all)
    gap = dot(o.s.all * o.z.all, p.exists.all)
    size_s, size_z = (_length(part.all * p.exists.all) for part in (o.s, o.z))
    primal = _length(rz.all) / max(max(1.0, _length(p.h.all)) + o.v.norm() + size_s, 1.0)
    dual = rx.norm() / max(max(1.0, p.c.norm()) + size_z, 1.0)
    relative = gap / -(cost / o.tau) if cost < 0 else (gap / (-bound / o.tau) if bound < 0 else np.inf)
    infeasible = bound < -1e-12 and down.norm() / -bound < TOLERANCE and o.tau < o.kappa
    error = max(primal, dual) / o.tau
    return _Breach(rx, rz, o.kappa + cost + bound, gap, cost, bound, error, min(gap, relative), infeasible)


def _length(values: Floats) -> float:
    return math.sqrt(dot(values, values))


@np.errstate(all="ignore")
def solve_embedded(problem: Allocation) -> Solution:
    """The allocation that ECOS would return. `optimal` is False if the floors cannot be kept."""
    p = _Program(problem)
    o = _Point(p)
    steps, best, kept = 0, np.inf, o.v
    final = (o.z, 1.0)
    for steps in range(MOST_STEPS):  # noqa: B007
        r = _breach(p, o)
        merit = max(r.error, r.relative)
        if not np.isfinite(merit) or r.infeasible:
            break
        if merit < best:
            best, kept, final = merit, _Columns(o.v.x / o.tau, o.v.t / o.tau), (o.z.like(o.z.all), o.tau)
        if r.error < TOLERANCE and r.relative < TOLERANCE and (r.cost < 0 or -r.bound >= -TOLERANCE):
            break
        if not _step(p, o, r):
            break
    return _solution(problem, p, kept, final, best < LOOSE, steps)


def _step(p: _Program, o: _Point, r: _Breach) -> bool:
    """One step: predict, find how far that can go, centre accordingly, correct."""
    exists = p.exists.all
    w2 = o.s.all / o.z.all
    lam, w = np.sqrt(o.s.all * o.z.all), np.sqrt(w2)
    equations = _Equations(p, o.s.like(w2))
    minus_c = _Columns(-p.c.x, -p.c.t)
    v1, z1 = equations.solved(minus_c, p.h)
    denominator = o.kappa / o.tau - p.c.dot(v1) - dot(p.h.all, z1.all)

    def answers(b: _Columns, rz: Floats, rest: float) -> tuple[_Columns, Floats, float]:
        v2, z2 = equations.solved(b, o.s.like(rz))
        dtau = (rest + p.c.dot(v2) + dot(p.h.all, z2.all)) / denominator
        return v2.plus(v1, dtau), z2.all + dtau * z1.all, dtau

    def reach(ds: Floats, dz: Floats, dtau: float, dkappa: float) -> float:
        least = min(float((ds / lam * exists).min()), float((dz / lam * exists).min()))
        limits = [1.0 / -least if least < 0 else np.inf]
        limits += [-at / by for at, by in ((o.tau, dtau), (o.kappa, dkappa)) if by < 0]
        return float(min(max(min(limits), SMALLEST_STEP), LARGEST_STEP))

    _, dz, dtau = answers(r.x, (o.s.all - r.z.all) * exists, r.tau - o.kappa)
    dz_w = dz * w
    ds_w = -(dz_w + lam) * exists
    dkappa = -o.kappa - o.kappa / o.tau * dtau
    short = 1.0 - reach(ds_w, dz_w, dtau, dkappa)
    centring = min(max(short * short * short, LEAST_CENTRING), 1.0)
    mean = centring * (r.gap + o.kappa * o.tau) / (p.count + 1.0)
    back = (lam * lam + ds_w * dz_w - mean) / lam * exists
    both = o.kappa * o.tau + dkappa * dtau - mean
    rest = 1.0 - centring
    dv, dz, dtau = answers(
        _Columns(rest * r.x.x, rest * r.x.t), (w * back - rest * r.z.all) * exists, rest * r.tau - both / o.tau
    )
    dz_w = dz * w
    ds_w = -(back + dz_w) * exists
    dkappa = -(both + o.kappa * dtau) / o.tau
    ahead = reach(ds_w, dz_w, dtau, dkappa) * BACK_OFF
    if not (np.isfinite(dtau) and np.isfinite(ahead)):
        return False
    o.v = o.v.plus(dv, ahead)
    o.z.all += ahead * dz * exists
    o.s.all += ahead * ds_w * w * exists
    o.tau += ahead * dtau
    o.kappa += ahead * dkappa
    return True


def _solution(
    problem: Allocation, p: _Program, v: _Columns, final: tuple[_Rows, float], optimal: bool, steps: int
) -> Solution:
    x = np.zeros(problem.usable.shape)
    x[:, p.types] = (rounded(np.clip(v.x / p.col_x, 0.0, 1.0), BITS) * p.use).T
    z, tau = final
    multipliers = z.row * p.held / p.row_units.row / tau
    total = float(np.add.reduce(multipliers * (p.gl > 0)))
    prices = np.zeros(len(problem.capacity))
    prices[p.types] = z.capacity / p.row_units.capacity / tau
    level = v.t / p.col_t
    proof = proof_of(problem, x, level, multipliers, prices)
    if p.has_level and total > 0:
        multipliers, prices = multipliers / total, prices / total
    return Solution(
        x, level, multipliers, optimal and proof.breach <= LOOSE and proof.gap <= LOOSE, steps, prices, proof
    )
