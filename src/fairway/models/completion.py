"""Matrix completion: the unmeasured entries of a table, from the measured ones.

A table of low rank is the product of two thin factors, and few entries are enough to find them. The factors are fitted
in turns, each by ridge regression on the known entries. This alternating least squares finds the most likely point of
the probabilistic factorisation of Salakhutdinov and Mnih (NIPS 2007), with which Gavel (OSDI 2020) completes tables of
throughputs. The offsets of rows and columns are subtracted first, so that a row with few known entries comes out as an
ordinary one and not as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats

OFFSET_TURNS = 20


@dataclass(frozen=True, slots=True)
class Completion:
    """How to complete: the rank of the factors, the ridge penalty, and how often each factor is fitted.

    `offsets` subtracts the mean and the deviations of rows and columns from it, each pulled to zero as if by that many
    more entries of zero; None fits the factors to the bare values. The factors start at random from `seed`, with
    `spread` as their standard deviation: small, so that unknown entries start near the offsets.
    """

    rank: int = 10
    penalty: float = 0.1
    turns: int = 20
    offsets: float | None = 1.0
    spread: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.turns < 0:
            raise ValueError("rank and turns must not be negative")
        if not self.spread > 0:
            raise ValueError("spread must be positive: factors of zero would stay there")
        if not self.penalty > 0 or (self.offsets is not None and not self.offsets > 0):
            raise ValueError("penalty and offsets must be positive: they keep rows with few entries in bounds")


def complete(values: Floats, known: Bools, how: Completion | None = None) -> Floats:
    """The table with its unknown entries estimated; known ones come back as they are.

    The entries of `values` where `known` is False do not matter, not even NaN.
    """
    how = how or Completion()
    if values.ndim != 2 or values.shape != known.shape:
        raise ValueError(f"values and known must be tables of one shape, not {values.shape} and {known.shape}")
    given: Floats = np.where(known, values, 0.0)
    if not known.any():
        return np.zeros_like(given)
    base = np.zeros_like(given) if how.offsets is None else _offsets(given, known, how.offsets)
    estimate = base
    if how.rank and how.turns:
        estimate = base + _product(np.where(known, given - base, 0.0), known, how)
    filled: Floats = np.where(known, given, estimate)
    return filled


def _offsets(values: Floats, known: Bools, pull: float) -> Floats:
    """The mean, plus the deviation of each row and each column from it."""
    mean = values.sum() / (np.count_nonzero(known) + pull)
    rest = np.where(known, values - mean, 0.0)
    by_row, by_column = known.sum(axis=1) + pull, known.sum(axis=0) + pull
    weights = known.astype(np.float64)
    row, column = np.zeros(len(rest)), np.zeros(rest.shape[1])
    row_sum, column_sum = rest.sum(axis=1), rest.sum(axis=0)
    for _ in range(OFFSET_TURNS):
        row = (row_sum - portable.dots(weights, column)) / by_row
        column = (column_sum - portable.dots(weights.T, row)) / by_column
    offsets: Floats = mean + row[:, None] + column[None, :]
    return offsets


def _product(values: Floats, known: Bools, how: Completion) -> Floats:
    """The product of the two factors that fits the known entries best, unknown ones being zero in `values`."""
    weights = known.astype(np.float64)
    random = np.random.default_rng(how.seed)
    # Rare large draws come from a logarithm of the C library, whose last digit is rounded off here.
    right: Floats = how.spread * np.round(random.standard_normal((values.shape[1], how.rank)), 12)
    left: Floats = np.zeros((len(values), how.rank))
    for _ in range(how.turns):
        left = _fitted(values, weights, right, how.penalty)
        right = _fitted(values.T, weights.T, left, how.penalty)
    return portable.product(left, right.T)


def _fitted(values: Floats, weights: Floats, other: Floats, penalty: float) -> Floats:
    """One factor by ridge regression on the other: a small system of equations for each row, all solved at once."""
    rank = other.shape[1]
    i, j = np.triu_indices(rank)
    squares = np.ascontiguousarray((other[:, i] * other[:, j]).T)
    systems = np.empty((rank, rank, len(values)))
    systems[i, j] = systems[j, i] = np.add.reduce(squares[:, None, :] * weights, axis=-1)
    systems[range(rank), range(rank)] += penalty
    return _solved(systems, np.add.reduce(np.ascontiguousarray(other.T)[:, None, :] * values, axis=-1)).T


def _solved(systems: Floats, right: Floats) -> Floats:
    """The solutions of equations whose rows are in the last axis, by elimination.

    They are positive definite, all the more with the penalty, so elimination needs no pivots.
    """
    rank = len(systems)
    for k in range(rank):
        factors = systems[k + 1 :, k] / systems[k, k]
        systems[k + 1 :, k + 1 :] -= factors[:, None] * systems[k, k + 1 :]
        right[k + 1 :] -= factors * right[k]
    for k in range(rank - 1, -1, -1):
        right[k] -= np.add.reduce(systems[k, k + 1 :] * right[k + 1 :], axis=0)
        right[k] /= systems[k, k]
    return right
