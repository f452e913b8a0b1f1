"""Where a falling loss is going: weighted fits of loss curves, for many jobs at once.

There are two families, as in SLAQ (SoCC'17): 1 / (a·k² + b·k + c) + d for first-order methods, and m^(k - b) + d for
methods that converge faster. For a given limit d both become linear in their other parameters (in 1 / (loss - d) and in
the logarithm of loss - d), so each fit is a small weighted least-squares problem with a closed solution, tried for a
few limits; the fit with the smallest error wins. All jobs are fitted by the same few array operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints

Curve: TypeAlias = tuple[Floats, Floats, Floats]
"""Three parameters, one of each for every job and limit; NaN as the first if a curve is impossible."""
LEAST_POINTS = 3
"""Fewer points than parameters of the simplest curve say nothing about where it goes."""
LIMITS = (0.01, 0.04, 0.12, 0.3, 0.7, 1.6, 4.0, 10.0)
"""How far below the last losses their limit is tried, in units of how far they have fallen."""
BLOCK = 60
"""Rows that are fitted together: arrays of this size are reused by the allocator, which makes them twice as fast."""
FLAT, RECIPROCAL, EXPONENTIAL = 0, 1, 2
COLUMNS = 7
"""A fit is (family, first epoch, epochs, fall, limit, and two or three parameters) as a row of numbers, see `fall`."""


def fit_losses(epochs: Floats, losses: Floats, counts: Ints, decay: float = 0.95) -> Floats:
    """Fit one curve to each row of points and return the fits as rows of `COLUMNS` numbers.

    The latest point is in the last column, and the last `counts` columns hold points, of rising epochs; the weight of
    a point is `decay` to the power of its age in points. A row with fewer than `LEAST_POINTS` points, or one
    whose loss does not fall, gets a flat fit.
    """
    rows, width = epochs.shape
    fits = np.zeros((rows, COLUMNS))
    ages = np.arange(width)[::-1]
    there = ages < counts[:, None]
    weights = np.where(there, np.cumprod([1.0, *[decay] * width])[ages], 0.0)
    first = np.take_along_axis(epochs, np.maximum(width - counts, 0)[:, None].clip(max=width - 1), axis=1)[:, 0]
    span = epochs[:, -1] - first
    low = np.min(losses, axis=1, where=there, initial=np.inf)
    drop = np.max(losses, axis=1, where=there, initial=-np.inf) - low
    fit = (counts >= LEAST_POINTS) & (span > 0) & (drop > 1e-12 * np.abs(low)) & np.isfinite(drop)
    fitted = fit.nonzero()[0]
    for start in range(0, len(fitted), BLOCK):
        at = fitted[start : start + BLOCK]
        x = (epochs[at] - first[at, None]) / span[at, None] * there[at]
        y = np.where(there[at], (losses[at] - low[at, None]) / drop[at, None], 0.0)
        found = _best(x, y, weights[at], counts[at] > LEAST_POINTS)
        fits[at] = np.column_stack([found[:, 0], first[at], span[at], drop[at], found[:, 1:4]])
    return fits


def _best(x: Floats, y: Floats, weights: Floats, many: Bools) -> Floats:
    """The best curve for each row of scaled points: (family, p, q, r) with the smallest weighted squared error.

    Tables have one layer per point, of limits by rows, so that a sum over the points adds whole layers.
    """
    x, y, weights = (np.ascontiguousarray(each.T)[:, None, :] for each in (x, y, weights))
    above = y + np.array(LIMITS)[:, None]
    best, error = np.zeros((*above.shape[1:], 4)), np.full(above.shape[1:], np.inf)

    def try_curve(family: int, curve: Curve, guessed: Floats) -> None:
        guessed -= above
        guessed *= guessed
        guessed *= weights
        _keep_better(best, error, family, curve, np.add.reduce(guessed, axis=0))

    near = above * above * weights
    for curve in _reciprocals(_moments(x, 1.0 / above, near * above * above), many):
        a, b, c = curve
        try_curve(RECIPROCAL, curve, 1.0 / np.maximum((a * x + b) * x + c, 1e-9))
    slope, start = _moments(x, portable.log(above), near).line()
    curve = _if(slope < 0, slope, start, np.zeros_like(slope))
    try_curve(EXPONENTIAL, curve, portable.exp(curve[1] + np.minimum(slope, 0.0) * x))
    chosen: Floats = best[error.argmin(axis=0), np.arange(best.shape[1])]
    return chosen


def _keep_better(best: Floats, error: Floats, family: int, curve: Curve, missed: Floats) -> None:
    """Write a curve into `best` wherever it is possible (not NaN) and has a smaller error than what is there."""
    # It must be better by more than rounding; otherwise the last bit would decide which family wins.
    better = (missed < error * (1 - 1e-6) - 1e-15) & ~np.isnan(curve[0])
    error[better] = missed[better]
    best[better] = np.stack([np.full(error.shape, float(family)), *curve], axis=-1)[better]


class _Moments(NamedTuple):
    """Weighted sums of powers of x, and of those times z, from which least squares are solved."""

    x0: Floats
    x1: Floats
    x2: Floats
    x3: Floats
    x4: Floats
    z0: Floats
    z1: Floats
    z2: Floats

    def line(self) -> tuple[Floats, Floats]:
        """The slope and start of z = slope·x + start."""
        mean = self.x1 / self.x0
        slope = (self.z1 - mean * self.z0) / np.maximum(self.x2 - mean * self.x1, 1e-300)
        return slope, self.z0 / self.x0 - slope * mean

    def square(self) -> tuple[Floats, Floats]:
        """The slope and start of z = slope·x² + start."""
        mean = self.x2 / self.x0
        slope = (self.z2 - mean * self.z0) / np.maximum(self.x4 - mean * self.x2, 1e-300)
        return slope, self.z0 / self.x0 - slope * mean

    def parabola(self) -> Curve:
        """The a, b and c of z = a·x² + b·x + c, by polynomials that are orthogonal under the weights."""
        mean = self.x1 / self.x0
        n1 = np.maximum(self.x2 - mean * self.x1, 1e-300)
        along = (self.x3 - 2 * mean * self.x2 + mean * mean * self.x1) / n1
        off = n1 / self.x0
        # The second polynomial is x² - u·x + v.
        u, v = along + mean, along * mean - off
        n2 = np.maximum(self.x4 - u * self.x3 + v * self.x2, 1e-300)
        a = (self.z2 - u * self.z1 + v * self.z0) / n2
        b1 = (self.z1 - mean * self.z0) / n1
        return a, b1 - a * u, self.z0 / self.x0 - b1 * mean + a * v


def _moments(x: Floats, z: Floats, weight: Floats) -> _Moments:
    sums: list[Floats] = []
    for summand, powers in ((weight, 5), (weight * z, 3)):
        sums.append(np.add.reduce(summand, axis=0))
        for _ in range(1, powers):
            summand = summand * x
            sums.append(np.add.reduce(summand, axis=0))
    return _Moments(*sums)


def _reciprocals(moments: _Moments, many: Bools) -> list[Curve]:
    """Least-squares a·x² + b·x + c = z with a, b >= 0 and c > 0: the straight, the square and the full form."""
    b, c = moments.line()
    zero = np.zeros_like(b)
    straight = _if((b > 0) & (c > 0), zero, b, c)
    a2, c2 = moments.square()
    square = _if((a2 > 0) & (c2 > 0), a2, zero, c2)
    a3, b3, c3 = moments.parabola()
    return [straight, square, _if((a3 > 0) & (b3 > 0) & (c3 > 0) & many, a3, b3, c3)]


def _if(possible: Bools, a: Floats, b: Floats, c: Floats) -> Curve:
    """A curve with NaN as its first parameter, and harmless others, where it is impossible."""
    return np.where(possible, a, np.nan), np.where(possible, b, 0.0), np.where(possible, c, 1.0)


def fall(fit: Sequence[float], epoch: float, more: float) -> float:
    """How much the loss falls in the `more` epochs after `epoch`, by a fit."""
    family, first, span, drop, p, q, r = fit
    if family == FLAT or more <= 0:
        return 0.0
    x, x2 = (epoch - first) / span, (epoch + more - first) / span
    if family == EXPONENTIAL:
        return drop * (portable.exp(p * x + q) - portable.exp(p * x2 + q))
    return max(drop * (1.0 / ((p * x + q) * x + r) - 1.0 / ((p * x2 + q) * x2 + r)), 0.0)
