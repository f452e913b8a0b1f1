"""The Nash product over bids: one column of each table, so that the product of values is as large as possible.

A dynamic programme over the GPUs on offer is exact. In two sweeps it also gives the optimum without each single bidder:
what the first bidders reach with a number of GPUs, and what the last ones reach with the rest. If several GPU types
make its grid too large, prices per type guide the choice instead (feasible, not always the very best one).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.policies.themis.priced import PricedChoice

LARGEST_GRID = 2_000_000
"""With more cells (bidders times GPU counts) than this, the choice is by prices."""
LEAST_VALUE = 1e-9
"""Replaces a value of 0, which has no logarithm: first as many bidders as possible get something, then the product
counts, as usual for indivisible goods (Caragiannis et al., EC'16)."""
_GRID = float(1 << 36)
"""Gains are whole multiples of 1 / _GRID: their sums are then exact, so that the same gains in another order tie."""


class Bid(NamedTuple):
    """A table: GPUs by type, and what they are worth. The first column is "nothing"."""

    gpus: Sequence[tuple[int, ...]]
    values: Sequence[float]


class NashChoice(NamedTuple):
    """The column of each bid, and by how much the others gain (as a logarithm, at least 0) if one is left out."""

    columns: list[int]
    others_gain: Floats


def gains_of(bids: Sequence[Bid]) -> list[list[float]]:
    """By how much each column of each bid raises the logarithm of the product."""
    values = np.array([value for bid in bids for value in bid.values])
    logs: list[float] = (np.rint(portable.log(np.maximum(values, LEAST_VALUE)) * _GRID) / _GRID).tolist()
    gains, at = list[list[float]](), 0
    for bid in bids:
        gains.append([log - logs[at] for log in logs[at : at + len(bid.values)]])
        at += len(bid.values)
    return gains


def nash_product(bids: Sequence[Bid], capacity: Sequence[int], grid: int = LARGEST_GRID) -> NashChoice:
    """Choose a column of every bid within the GPUs on offer; earlier bidders win ties."""
    gains = gains_of(bids)
    best = [max(range(len(gain)), key=gain.__getitem__) for gain in gains]
    wanted = [sum(bid.gpus[column][kind] for bid, column in zip(bids, best, strict=True)) for kind in _kinds(capacity)]
    if all(want <= has for want, has in zip(wanted, capacity, strict=True)):
        return NashChoice(best, np.zeros(len(bids)))
    most = [sum(max(row[kind] for row in bid.gpus) for bid in bids) for kind in _kinds(capacity)]
    useful = tuple(min(has, top) for has, top in zip(capacity, most, strict=True))
    if (len(bids) + 1) * math.prod(size + 1 for size in useful) <= grid:
        return _exact(bids, gains, useful)
    priced = PricedChoice([bid.gpus for bid in bids], gains, useful)
    return NashChoice(priced.columns(), priced.others_gains())


def _kinds(capacity: Sequence[int]) -> range:
    return range(len(capacity))


def _exact(bids: Sequence[Bid], gains: Sequence[Sequence[float]], capacity: tuple[int, ...]) -> NashChoice:
    """Two sweeps of the dynamic programme, from the first bidder on and from the last one back."""
    count, shape = len(bids), tuple(size + 1 for size in capacity)
    ahead, behind = np.zeros((count + 1, *shape)), np.zeros((count + 1, *shape))
    for at in range(count):
        _extend(ahead[at], ahead[at + 1], bids[at], gains[at])
        back = count - 1 - at
        _extend(behind[back + 1], behind[back], bids[back], gains[back])
    turned = (slice(None), *(slice(None, None, -1) for _ in shape))
    without = (ahead[:-1] + behind[1:][turned]).reshape(count, -1).max(axis=1)
    columns, left = [0] * count, capacity
    for at in reversed(range(count)):
        columns[at] = _chosen(ahead[at], float(ahead[at + 1][left]), bids[at], gains[at], left)
        left = tuple(has - used for has, used in zip(left, bids[at].gpus[columns[at]], strict=True))
    own = np.array([gain[column] for gain, column in zip(gains, columns, strict=True)])
    return NashChoice(columns, np.maximum(without - (float(own.sum()) - own), 0.0))


def _extend(best: Floats, out: Floats, bid: Bid, gain: Sequence[float]) -> None:
    """The best with one more bidder: each of its columns, shifted by what it takes."""
    out[...] = best
    for used, more in zip(bid.gpus, gain, strict=True):
        if more > 0 and all(size > take for size, take in zip(best.shape, used, strict=True)):
            target = out[tuple(slice(take, None) for take in used)]
            source = best[tuple(slice(0, size - take) for size, take in zip(best.shape, used, strict=True))]
            np.maximum(target, source + more, out=target)


def _chosen(best: Floats, reached: float, bid: Bid, gain: Sequence[float], left: tuple[int, ...]) -> int:
    """The column that led to a value; "nothing" if that is as good."""
    if best[left] == reached:
        return 0
    for column, used in enumerate(bid.gpus):
        before = tuple(has - take for has, take in zip(left, used, strict=True))
        if gain[column] > 0 and min(before) >= 0 and best[before] + gain[column] == reached:
            return column
    raise AssertionError("no column leads to the optimum")
