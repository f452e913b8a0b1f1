"""Arithmetic that gives the same bits on every CPU.

IEEE 754 fixes the result of `+ - * /`, of square roots and of comparisons. It fixes neither the order in which a
library adds nor the last digit of `exp` and `log`: OpenBLAS, LAPACK, `einsum`, the SIMD loops of NumPy and the C
library each choose by the CPU. A plan that depends on them differs from machine to machine. So code that leads to a
decision calls these functions, which are fixed sequences of the exact operations. `tests/unit/test_portable.py` lists
the calls that are not allowed.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

import numpy as np

from fairway.core.arrays import Floats, Ints

Number = TypeVar("Number", float, Floats)

LN2 = 0.6931471805599453
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""The first 32 bits of ln 2, whose product with a small whole number is exact, and the rest."""
_ROOT_HALF = 0.7071067811865476
_EXP_TERMS = tuple(1.0 / math.factorial(n) for n in range(13, 1, -1))
_LOG_TERMS = tuple(2.0 / n for n in range(23, 1, -2))
_MOST_FACTORS = 64
"""Whole powers up to this one are computed as products."""


def dot(a: Floats, b: Floats) -> float:
    """The inner product of two vectors."""
    return float(np.add.reduce(a * b))


def dots(rows: Floats, by: Floats) -> Floats:
    """The inner product of each row with a vector."""
    return np.asarray(np.add.reduce(rows * by, axis=-1))


def product(a: Floats, b: Floats) -> Floats:
    """The product of two matrices, or of two stacks of them. The inner dimension is summed from its first entry on."""
    out = a[..., :, 0, None] * b[..., None, 0, :] if a.shape[-1] else np.zeros((*a.shape[:-1], b.shape[-1]))
    for k in range(1, a.shape[-1]):
        out += a[..., :, k, None] * b[..., None, k, :]
    return np.asarray(out)


def solve(matrix: Floats, right: Floats) -> Floats:
    """The solution of one small system; NaN where it is singular."""
    found = eliminated([[*row, last] for row, last in zip(matrix.tolist(), right.tolist(), strict=True)])
    return np.full(len(right), math.nan) if found is None else np.array(found)


def eliminated(rows: list[list[Any]]) -> list[Any] | None:
    """The solution of equations whose last entries are their right sides; None if there is none.

    Elimination with row pivots, the first of equals. The numbers may be floats, or fractions for an exact answer.
    """
    size = len(rows)
    for k in range(size):
        best = max(range(k, size), key=lambda i: abs(rows[i][k]))
        rows[k], rows[best] = rows[best], rows[k]
        pivot = rows[k]
        if not 0 < abs(pivot[k]) < math.inf:
            return None
        for row in rows[k + 1 :]:
            factor = row[k] / pivot[k]
            for j in range(k + 1, size + 1):
                row[j] -= factor * pivot[j]
    for k in range(size - 1, -1, -1):
        rest = rows[k][size]
        for j in range(k + 1, size):
            rest -= rows[k][j] * rows[j][size]
        rows[k][size] = rest / rows[k][k]
    return [row[size] for row in rows]


@np.errstate(all="ignore")
def solve_stack(matrices: Floats, right: Floats) -> Floats:
    """The solutions of many systems of one size at once: `right` is a stack of matrices; NaN where one is singular."""
    size = matrices.shape[-1]
    table = np.concatenate([matrices, right], axis=-1, dtype=np.float64)
    at = np.arange(len(table))
    for k in range(size):
        best = k + np.argmax(np.abs(table[:, k:, k]), axis=1)
        swapped = table[at, best]
        table[at, best] = table[:, k]
        table[:, k] = swapped
        factors = table[:, k + 1 :, k] / table[:, k, None, k]
        table[:, k + 1 :, k:] -= factors[:, :, None] * table[:, None, k, k:]
    found = np.empty((len(table), size, right.shape[-1]))
    for k in range(size - 1, -1, -1):
        rest = table[:, k, size:]
        for j in range(k + 1, size):
            rest = rest - table[:, k, j, None] * found[:, j]
        found[:, k] = rest / table[:, k, k, None]
    return found


@np.errstate(all="ignore")
def exp(x: Number) -> Number:
    """e to the power of x, to about a unit in the last place."""
    if isinstance(x, np.ndarray):
        x = np.minimum(np.maximum(x, -745.2), 709.8)
        whole = np.rint(x / LN2)
        return cast(Floats, np.ldexp(_exp_small(x - whole * _LN2_HIGH, whole * _LN2_LOW), whole.astype(np.int32)))
    if not -745.2 < x < 709.8:
        return math.inf if x > 0 else 0.0 if x < 0 else math.nan
    near = float(round(x / LN2))
    small = _exp_small(x - near * _LN2_HIGH, near * _LN2_LOW)
    half = int(near) // 2
    return math.ldexp(math.ldexp(small, half), int(near) - half)


def _exp_small(high: Number, low: Number) -> Number:
    """e to the power of high - low, for a difference below 0.35."""
    r = high - low
    value = _EXP_TERMS[0] * r
    for term in _EXP_TERMS[1:]:
        value += term
        value *= r
    value *= r
    value -= low
    value += high
    value += 1.0
    return value


@np.errstate(all="ignore")
def log(x: Number) -> Number:
    """The natural logarithm, to about a unit in the last place. For 2 to the power of k it is k ln 2."""
    if isinstance(x, np.ndarray):
        part, power = np.frexp(x)
        low = part < _ROOT_HALF
        part, power = np.where(low, part + part, part), (power - low).astype(np.float64)
        found = power * _LN2_HIGH + (_log_near_1(part) + power * _LN2_LOW)
        found = np.where(x == math.inf, math.inf, found)
        return cast(Floats, np.where(x > 0.0, found, np.where(x == 0.0, -math.inf, math.nan)))
    if not 0.0 < x < math.inf:
        return x if x > 0 or x != x else -math.inf if x == 0 else math.nan
    mantissa, exponent = math.frexp(x)
    if mantissa < _ROOT_HALF:
        mantissa, exponent = mantissa + mantissa, exponent - 1
    return exponent * _LN2_HIGH + (_log_near_1(mantissa) + exponent * _LN2_LOW)


def _log_near_1(x: Number) -> Number:
    """The logarithm of a number between the roots of 1/2 and 2, by the series of the inverse hyperbolic tangent."""
    s = (x - 1.0) / (x + 1.0)
    square = s * s
    value = _LOG_TERMS[0] * square
    for term in _LOG_TERMS[1:]:
        value += term
        value *= square
    value *= s
    value += 2.0 * s
    return value


def log2(x: Number) -> Number:
    """The logarithm to base 2, exact for powers of 2."""
    if isinstance(x, np.ndarray):
        return cast(Floats, np.array([log2(float(each)) for each in x.ravel()]).reshape(x.shape))
    if not 0.0 < x < math.inf:
        return log(x)
    mantissa, exponent = math.frexp(x)
    if mantissa < _ROOT_HALF:
        mantissa, exponent = mantissa + mantissa, exponent - 1
    return exponent + _log_near_1(mantissa) / LN2


def power(base: float, exponent: float) -> float:
    """A positive base to any power, or any base to a small whole one."""
    if exponent == int(exponent) and abs(exponent) <= _MOST_FACTORS:
        value = 1.0
        for _ in range(abs(int(exponent))):
            value *= base
        return value if exponent >= 0 else 1.0 / value
    if exponent == 0.5:
        return math.sqrt(base)
    return exp(exponent * log(base)) if base > 0 else 0.0


def rounded(x: Number, bits: int = 40) -> Number:
    """A number rounded to this many binary digits.

    Numbers that are equal but for the order of their sums and quotients become equal. Ties then go to the first.
    """
    if isinstance(x, np.ndarray):
        part, power = np.frexp(x)
        return cast(Floats, np.ldexp(np.rint(np.ldexp(part, bits)), power - bits))
    if not math.isfinite(x):
        return x
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


def order(values: Floats | Ints) -> Ints:
    """The rows by rising value; equals keep their order (a quick sort orders them by the CPU's vector width)."""
    return np.argsort(values, kind="stable")


def interpolate(x: float, xs: Floats, ys: Floats) -> float:
    """The value at x of the line through points in rising order. Beyond its ends the line is level."""
    at = int(np.searchsorted(xs, x, side="right"))
    if at == 0:
        return float(ys[0])
    if at == len(xs):
        return float(ys[-1])
    left, right = float(xs[at - 1]), float(xs[at])
    slope = (float(ys[at]) - float(ys[at - 1])) / (right - left)
    return slope * (x - left) + float(ys[at - 1])


def interpolates(x: Floats, xs: Floats, ys: Floats) -> Floats:
    """`interpolate` for each entry of an array."""
    if len(xs) == 1:
        return np.full(x.shape, ys[0])
    at = np.searchsorted(xs, x, side="right").clip(1, len(xs) - 1)
    left = at - 1
    with np.errstate(all="ignore"):
        line = (ys[at] - ys[left]) / (xs[at] - xs[left]) * (x - xs[left]) + ys[left]
    return np.asarray(np.where(x < xs[0], ys[0], np.where(x >= xs[-1], ys[-1], line)))


def raised(base: Floats, exponent: float) -> Floats:
    """`power` for each entry of an array, to one exponent."""
    if exponent == int(exponent) and 0 <= exponent <= _MOST_FACTORS:
        value = np.ones_like(base)
        for _ in range(int(exponent)):
            value *= base
        return value
    if exponent == 0.5:
        return np.sqrt(base)
    return np.where(base > 0, exp(exponent * log(base)), 0.0)
