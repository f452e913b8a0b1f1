"""Numbers of twice the precision: each is the sum of two floats, the second far smaller than the first.

The sum or product of two floats is exactly the sum of two floats (Knuth, "The Art of Computer Programming", volume 2;
Dekker, "A floating-point technique for extending the available precision", 1971). Where large terms cancel, as in the
equations of an interior-point method near its end, this keeps the digits that decide. Only exact operations are used,
so the bits are the same on every CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from fairway.core.arrays import Floats

_SPLITTER = 134217729.0
"""2^27 + 1 splits a float into two halves whose products are exact."""

_FEW = 64
"""Up to this many numbers are added one after the other, without any loss, by `math.fsum`."""

Pair = tuple[Floats, Floats]
Number = TypeVar("Number", float, Floats)


def two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """a + b as it is rounded, and the rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Floats, b: Floats) -> Pair:
    """a · b as it is rounded, and the rounding error."""
    total = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return total, ((a_high * b_high - total) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Floats) -> Pair:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def added(terms: Sequence[Number], low: Number) -> Number:
    """The sum of large terms that cancel and of a small rest, rounded once."""
    total, lost = terms[0], low
    for term in terms[1:]:
        total, more = two_sum(total, term)
        lost = lost + more
    return total + lost


def added_up(high: Floats, low: Floats) -> Pair:
    """The sums along the last axis: halves are added to each other until few numbers are left."""
    while (size := high.shape[-1]) > _FEW:
        half = size // 2
        total, lost = two_sum(high[..., :half], high[..., half : 2 * half])
        lost = lost + low[..., :half] + low[..., half : 2 * half]
        if size % 2:
            total, lost = np.append(total, high[..., -1:], axis=-1), np.append(lost, low[..., -1:], axis=-1)
        high, low = total, lost
    rows = high.reshape(-1, size).tolist()
    totals = [_exact_sum(row) for row in rows]
    lost = np.array([_exact_sum((*row, -total)) for row, total in zip(rows, totals, strict=True)])
    shape = high.shape[:-1]
    return np.array(totals).reshape(shape), lost.reshape(shape) + np.add.reduce(low, axis=-1)


def _exact_sum(values: Sequence[float]) -> float:
    """The sum, rounded once; NaN if it has no value or is too large."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


class Twice:
    """An array of numbers of twice the precision, for code that uses only `+ - * /` and indices."""

    __slots__ = ("high", "low")
    __array_ufunc__ = None

    def __init__(self, high: Floats, low: Floats | float = 0.0) -> None:
        total = high + low
        self.high: Floats = total
        self.low: Floats = low - (total - high)

    @staticmethod
    def of(value: Any) -> Twice:
        """Floats as such numbers. A `Twice` stays as it is."""
        return value if isinstance(value, Twice) else Twice(np.asarray(value, dtype=np.float64), 0.0)

    def __len__(self) -> int:
        return len(self.high)

    def __iter__(self) -> Iterator[Twice]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, at: Any) -> Twice:
        return Twice(self.high[at], self.low[at])

    def __setitem__(self, at: Any, value: Any) -> None:
        given = Twice.of(value)
        self.high[at], self.low[at] = given.high, given.low

    def __neg__(self) -> Twice:
        return Twice(-self.high, -self.low)

    def __add__(self, other: Any) -> Twice:
        by = Twice.of(other)
        total, lost = two_sum(self.high, by.high)
        return Twice(total, lost + (self.low + by.low))

    def __sub__(self, other: Any) -> Twice:
        return self + -Twice.of(other)

    def __rsub__(self, other: Any) -> Twice:
        return Twice.of(other) + -self

    def __mul__(self, other: Any) -> Twice:
        by = Twice.of(other)
        total, lost = two_product(self.high, by.high)
        return Twice(total, lost + (self.high * by.low + self.low * by.high))

    def __truediv__(self, other: Any) -> Twice:
        by = Twice.of(other)
        first = self.high / by.high
        left = self - by * first
        return Twice(first, (left.high + left.low) / by.high)

    def __rtruediv__(self, other: Any) -> Twice:
        return Twice.of(other) / self

    __radd__ = __add__
    __rmul__ = __mul__

    def over_first(self) -> Twice:
        """The sums along the first axis."""
        total = self[0]
        for at in range(1, len(self)):
            total = total + self[at]
        return total

    def over_last(self) -> Twice:
        """The sums along the last axis."""
        return Twice(*added_up(self.high, self.low))

    def reshape(self, *shape: int) -> Twice:
        """The same numbers in another shape."""
        return Twice(self.high.reshape(shape), self.low.reshape(shape))

    def fractions(self) -> Any:
        """The numbers without any rounding, as nested lists."""
        if not self.high.ndim:
            return Fraction(float(self.high)) + Fraction(float(self.low))
        return [each.fractions() for each in self]


def blank(shape: tuple[int, ...], twice: bool) -> Any:
    """An array to be filled, of floats or of such numbers."""
    return Twice(np.zeros(shape)) if twice else np.empty(shape)


def high(values: Any) -> Floats:
    """Numbers of either kind as floats."""
    return values.high if isinstance(values, Twice) else values


def numbers(values: Any) -> Any:
    """Numbers of either kind as nested lists for an elimination: floats, or exact fractions."""
    return values.fractions() if isinstance(values, Twice) else values.tolist()
