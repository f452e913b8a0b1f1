"""What Optimus (Peng et al., EuroSys 2018) learns from a running job: how its loss falls, and how its speed grows.

Both fits are non-negative least squares, for all jobs at once. The loss after k epochs is 1 / (b0·k + b1) + b2. The
time of a unit of work on n GPUs is a/n + t1 + t2·(n-1)/n + t3·log2(n), the all-reduce form of the paper's model of
workers and parameter servers. Arrays have one row per job; NaN and 0 fill rows that have fewer observations.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.models.convergence import CONVERGED_EPOCHS, CONVERGED_FALL

MOST_EPOCHS = 100.0
LEAST_POINTS = 3
"""With fewer losses than this the curve is not fitted."""
THIRD_WEIGHTS = np.array([1.0, 4.0, 16.0])
"""The weight of each third of the losses: the second counts this many times the first, the last as many times the
second.
"""

_FLOORS = np.linspace(0.0, 0.98, 15)
_AT_ONCE = 256
"""This many jobs are fitted at a time, because their tables stay in the cache of a processor."""
_LARGE_LOSS = 1e30
_SPEED_TERMS = 4
# With a fixed batch, 1/n, 1 and (n-1)/n are dependent, so no best fit needs all three.
_SUBSETS = [
    subset
    for size in range(1, _SPEED_TERMS + 1)
    for subset in combinations(range(_SPEED_TERMS), size)
    if not {0, 1, 2} <= set(subset)
]
_ALLOWED = (set[int](), {0}, {0, 1}, {0, 1, 3}, {0, 1, 2, 3})
"""The terms that this many different gang sizes can tell apart; before that, scaling is assumed to be perfect."""


def fit_losses(epochs: Floats, losses: Floats) -> Floats:
    """The b0, b1 and b2 of every job, from its losses in the order of the epochs; NaN with fewer than three."""
    known = np.isfinite(epochs) & np.isfinite(losses)
    count = known.sum(axis=1)
    fitted = np.full((len(epochs), 3), np.nan)
    rows = (count >= LEAST_POINTS).nonzero()[0]
    if not len(rows):
        return fitted
    for some in np.array_split(rows, -(-len(rows) // _AT_ONCE)):
        fitted[some] = _fit_some(epochs[some], losses[some], known[some])
    return fitted


def _fit_some(epochs: Floats, losses: Floats, mask: Bools) -> Floats:
    """The fits of a few jobs: first with b2 on a coarse grid, then around the best one."""
    place, count = np.cumsum(mask, axis=1) - 1, mask.sum(axis=1)
    weights = np.where(mask, THIRD_WEIGHTS[place * 3 // count[:, None]], 0.0)
    k, loss = np.where(mask, epochs, 0.0), np.where(mask, losses, 1.0)
    largest = np.abs(loss).max(axis=1)
    # The fourth power of a loss is needed, so a loss that has diverged is fitted in units of itself.
    unit = np.where(largest > _LARGE_LOSS, largest, 1.0)
    loss = loss / unit[:, None]
    least = np.where(mask, loss, np.inf).min(axis=1)
    best = _best_floor(k, loss, weights, least, least[:, None] * _FLOORS)
    step = least * (_FLOORS[1] - _FLOORS[0])
    near = best[:, 2:] + step[:, None] * np.linspace(-1.0, 1.0, 15)
    best = _best_floor(k, loss, weights, least, np.clip(near, 0.0, least[:, None] * 0.999))
    best *= np.stack([1.0 / unit, 1.0 / unit, unit], axis=1)
    return best


def _best_floor(k: Floats, loss: Floats, weights: Floats, least: Floats, floors: Floats) -> Floats:
    """The b0 and b1 with which each candidate b2 fits best, and of these the candidate that fits best.

    For a given b2 the curve is a line, 1 / (loss - b2) = b0·k + b1. Errors are weighted as errors of the loss, that is
    by (loss - b2)⁴. So the sums that the line needs are polynomials of the gap between b2 and the smallest loss.
    """
    gap = np.maximum(least[:, None] - floors, 1e-12)
    over = np.where(weights > 0, loss - least[:, None], 0.0)
    powers = np.empty((len(k), 5, k.shape[1]))
    powers[:, 0] = weights * weights
    for power in range(4):
        np.multiply(powers[:, power], over, out=powers[:, power + 1])
    by_k = powers * k[:, None, :]
    sums, sums_k = np.add.reduce(powers, axis=2), np.add.reduce(by_k, axis=2)
    sums_kk = np.add.reduce(np.multiply(by_k, k[:, None, :], out=by_k), axis=2)
    total, wk, wkk = (_moment(each, gap, (1, 4, 6, 4, 1)) for each in (sums, sums_k, sums_kk))
    wy, wky = (_moment(each, gap, (1, 3, 3, 1)) for each in (sums, sums_k))
    spread = total * wkk - wk * wk
    b0 = np.divide(total * wky - wk * wy, spread, out=np.zeros_like(spread), where=spread > 1e-12 * total * wkk)
    b0 = np.maximum(b0, 0.0)
    b1 = (wy - b0 * wk) / total
    through_zero = np.divide(wky, wkk, out=b0.copy(), where=wkk > 0)
    b0, b1 = np.where(b1 > 0, b0, through_zero), np.maximum(b1, 1e-9)
    off = b0[:, :, None] * k[:, None, :]
    off += b1[:, :, None]
    np.divide(1.0, off, out=off)
    off -= gap[:, :, None]
    off -= over[:, None, :]
    off *= weights[:, None, :]
    off *= off
    choice = np.add.reduce(off, axis=2).argmin(axis=1)
    rows = np.arange(len(k))
    return np.stack([b0[rows, choice], b1[rows, choice], floors[rows, choice]], axis=1)


def _moment(sums: Floats, gap: Floats, binomials: tuple[int, ...]) -> Floats:
    """The sum of (gap + over) to a power, from the sums of the powers of `over`; all terms are positive."""
    value = np.full_like(gap, binomials[0]) * sums[:, :1]
    for power, factor in enumerate(binomials[1:], start=1):
        value *= gap
        value += factor * sums[:, power : power + 1]
    return value


def epochs_to_converge(curves: Floats) -> Floats:
    """After how many epochs ten more would lower the loss by less than 0.05: when Optimus calls a job converged."""
    b0, b1 = np.maximum(curves[:, 0], 1e-12), curves[:, 1]
    run = CONVERGED_EPOCHS * b0
    # With x = b0·k + b1 ten epochs before the end: 1/x - 1/(x + run) = the fall.
    x = (-run + np.sqrt(run * run + 4.0 * run / CONVERGED_FALL)) / 2.0
    epochs: Floats = np.clip((x - b1) / b0 + CONVERGED_EPOCHS, CONVERGED_EPOCHS, MOST_EPOCHS)
    return epochs


def fit_speeds(gangs: Floats, rates: Floats) -> Floats:
    """The a, t1, t2 and t3 of every job, from rates seen on gangs of different sizes (0: none).

    Exact non-negative least squares of relative errors: each set of terms is solved, and the best of those without a
    negative term is kept.
    """
    seen = (gangs > 0) & (rates > 0)
    n = np.where(seen, gangs, 1.0)
    terms = np.stack([1.0 / n, np.ones_like(n), (n - 1.0) / n, _log2(n.astype(np.int64))], axis=2)
    terms *= np.where(seen, rates, 0.0)[:, :, None]
    normal, target = portable.product(terms.transpose(0, 2, 1), terms), terms.sum(axis=1)
    sizes = np.minimum(seen.sum(axis=1), _SPEED_TERMS)
    best, least = np.zeros((len(gangs), _SPEED_TERMS)), np.full(len(gangs), np.inf)
    for subset in _SUBSETS:
        enough = np.array([set(subset) <= allowed for allowed in _ALLOWED])[sizes]
        rows, at = enough.nonzero()[0], list(subset)
        if len(rows):
            part = normal[np.ix_(rows, at, at)]
            ridge = 1e-9 * np.trace(part, axis1=1, axis2=2)[:, None, None] * np.eye(len(at))
            aim = target[np.ix_(rows, at)]
            x = portable.solve_stack(part + ridge, aim[:, :, None])[:, :, 0]
            error = portable.dots(x, portable.dots(part, x[:, None, :]) - 2.0 * aim)
            better = (x >= 0).all(axis=1) & (error < least[rows] - 1e-9)
            chosen = rows[better]
            best[chosen] = 0.0
            best[np.ix_(chosen, at)] = x[better]
            least[chosen] = error[better]
    return best


def unit_s(terms: Floats, gpus: Ints | int) -> Floats:
    """The time of a unit of work on this many GPUs, by the terms of a job in the last axis."""
    a, t1, t2, t3 = np.moveaxis(terms, -1, 0)
    time_s: Floats = a / gpus + t1 + t2 * (gpus - 1) / gpus + t3 * _log2(gpus)
    return time_s


def _log2(numbers: Ints | int) -> Floats:
    table: Floats = _logs(int(np.max(numbers, initial=1)).bit_length())
    return np.asarray(table[numbers])


@cache
def _logs(bits: int) -> Floats:
    """The logarithms of the whole numbers of this many bits; that of 0 stands for nothing."""
    return np.array([0.0, *(portable.log2(number) for number in range(1, 1 << bits))])
