"""A nearly best Nash product for large offers of several GPU types: price the types, then let bidders choose.

The prices minimise the Lagrangian dual, in which every bidder takes the column with the largest surplus of gain over
cost. A little noise in that choice makes the dual smooth, so that Newton's method finds its minimum in a few steps; the
noise is then reduced. Bidders with a clear favourite choose first, and bidders that are nearly indifferent fill the
gaps. Then bidders whose GPUs are worth more to others make room for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints

_COOLINGS, _NEWTON_STEPS, _CLOSE_GPUS, _SWAPS = 6, 8, 0.05, 12
_NEVER = -50.0
"""The gain that stands for a column that does not fit at all."""


class Regained(NamedTuple):
    """What bidders gain from GPUs that another one gives up, and the columns that they then have."""

    gain: float
    has: Ints


class PricedChoice:
    """The tables of all bidders, column under column; `has` is the column that each bidder has."""

    def __init__(
        self, gpus: Sequence[Sequence[tuple[int, ...]]], gains: Sequence[Sequence[float]], capacity: Sequence[int]
    ) -> None:
        sizes = [len(gain) for gain in gains]
        self.capacity: Ints = np.array(capacity, dtype=np.int64)
        self.first: Ints = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self.owner: Ints = np.repeat(np.arange(len(sizes)), sizes)
        self.gpus: Ints = np.array([row for table in gpus for row in table], dtype=np.int64)
        self.sizes: Floats = np.ascontiguousarray(self.gpus.T, dtype=np.float64)
        self.gain: Floats = np.array([value for gain in gains for value in gain])
        fits = (self.gpus <= self.capacity).all(axis=1)
        self.possible: Floats = np.where(fits, self.gain, _NEVER)
        self.price = self._prices()
        self.has: Ints = self.first.copy()
        self._improve(self._serve())
        self._swap()

    def columns(self) -> list[int]:
        """The column of each bidder, counted in its own table."""
        columns: list[int] = (self.has - self.first).tolist()
        return columns

    def others_gains(self) -> Floats:
        """What the others gain (at least) if they get each bidder's GPUs."""
        gains, known = np.zeros(len(self.first)), dict[tuple[int, ...], Regained]()
        for bidder, offer in self._offers():
            gains[bidder] = self._without(bidder, offer, known).gain
        return gains

    def _offers(self) -> list[tuple[int, tuple[int, ...]]]:
        """The winners, and the GPUs that would be on offer without each."""
        winners = (self.has != self.first).nonzero()[0]
        offers = self._idle() + self.gpus[self.has[winners]]
        return list(zip(winners.tolist(), map(tuple, offers.tolist()), strict=True))

    def _idle(self) -> Ints:
        idle: Ints = self.capacity - self.gpus[self.has].sum(axis=0)
        return idle

    def _without(self, bidder: int, offer: tuple[int, ...], known: dict[tuple[int, ...], Regained]) -> Regained:
        """What the others gain from the GPUs of one bidder and idle ones. The same GPUs are looked at only once."""
        found = known.get(offer)
        if found is None:
            found = known[offer] = self._regained(np.array(offer, dtype=np.int64), -1)
        if found.has[bidder] != self.has[bidder]:
            return self._regained(np.array(offer, dtype=np.int64), bidder)
        return found

    def _swap(self) -> None:
        """Remove bidders whose GPUs are worth more to others, a few times at most."""
        for _ in range(_SWAPS):
            known: dict[tuple[int, ...], Regained] = {}
            for bidder, offer in self._offers():
                found = self._without(bidder, offer, known)
                if found.gain > self.gain[self.has[bidder]] + 1e-9:
                    self.has = found.has.copy()
                    self.has[bidder] = self.first[bidder]
                    self._improve(self._idle())
                    break
            else:
                return

    def _prices(self) -> Floats:
        """The prices per GPU at which bidders ask for about what there is; 0 for types that are not scarce."""
        price = np.zeros(len(self.capacity))
        noise = max(float(self.gain.max()), 1e-9) / 4.0
        for _ in range(_COOLINGS):
            value, chance = self._dual(price, noise)
            for _ in range(_NEWTON_STEPS):
                found = self._downhill(price, self._newton(price, chance, noise), value, noise)
                if found is None:
                    break
                price, value, chance = found
            noise /= 3.0
        return price

    def _downhill(self, price: Floats, step: Floats, value: float, noise: float) -> tuple[Floats, float, Floats] | None:
        """Prices with a lower dual, with its value and probabilities there; None at the minimum."""
        part = 1.0
        while part > 1e-3 and step.any():
            ahead = np.maximum(price + part * step, 0.0)
            lower, chance = self._dual(ahead, noise)
            if lower < value - 1e-12:
                return ahead, lower, chance
            part /= 2.0
        return None

    def _dual(self, price: Floats, noise: float) -> tuple[float, Floats]:
        """The smoothed dual at these prices, and the probability with which each column is chosen."""
        surplus = (self.possible - _cost(self.sizes, price)) / noise
        top = np.maximum.reduceat(surplus, self.first)
        weight = portable.exp(surplus - top[self.owner])
        total = np.add.reduceat(weight, self.first)
        value = float((price * self.capacity).sum()) + noise * (_log_of_product(total) + float(top.sum()))
        return value, weight / total[self.owner]

    def _newton(self, price: Floats, chance: Floats, noise: float) -> Floats:
        """A step towards the minimum, zero if it is reached. A price of 0 stays while there is enough."""
        wanted = chance * self.sizes
        mean = np.add.reduceat(wanted, self.first, axis=1)
        left = self.capacity - np.add.reduce(mean, axis=1)
        moves: Bools = (price > 0) | (left < 0)
        step = np.zeros(len(price))
        if moves.any() and np.abs(left[moves]).max() >= _CLOSE_GPUS:
            bend = (_crossed(wanted, self.sizes) - _crossed(mean, mean))[np.ix_(moves, moves)] / noise
            step[moves] = -portable.solve(bend + 1e-9 * np.eye(len(bend)), left[moves])
        return step

    def _serve(self) -> Ints:
        """Let each bidder take the column of largest surplus that still fits. Returns what stays free."""
        surplus = portable.rounded(self.gain - _cost(self.sizes, self.price))
        best = np.maximum.reduceat(surplus, self.first)
        second = np.maximum.reduceat(np.where(surplus == best[self.owner], -np.inf, surplus), self.first)
        by_surplus = np.lexsort((-surplus, self.owner)).tolist()
        gpus, free = self.gpus.tolist(), self.capacity.tolist()
        ends = [*self.first[1:].tolist(), len(by_surplus)]
        for bidder in portable.order(second - best).tolist():
            for column in by_surplus[self.first[bidder] : ends[bidder]]:
                if all(take <= left for take, left in zip(gpus[column], free, strict=True)):
                    self.has[bidder] = column
                    free = [left - take for take, left in zip(gpus[column], free, strict=True)]
                    break
        return np.array(free, dtype=np.int64)

    def _improve(self, free: Ints) -> None:
        """Move bidders to better columns while some fit. What they had becomes free again."""
        while (found := self._next(self.has, free, -1)) >= 0:
            bidder = self.owner[found]
            free += self.gpus[self.has[bidder]] - self.gpus[found]
            self.has[bidder] = found

    def _regained(self, offer: Ints, skip: int) -> Regained:
        """What bidders other than `skip` gain from GPUs that are given up."""
        now, free, total = self.has.copy(), offer.copy(), 0.0
        while (found := self._next(now, free, skip)) >= 0:
            bidder = int(self.owner[found])
            total += float(self.gain[found] - self.gain[now[bidder]])
            free += self.gpus[now[bidder]] - self.gpus[found]
            now[bidder] = found
        return Regained(total, now)

    def _next(self, has: Ints, free: Ints, skip: int) -> int:
        """The column that brings most for its price among those that still fit, or -1."""
        more = self.gain - self.gain[has][self.owner]
        extra = self.gpus - self.gpus[has][self.owner]
        fits = ((extra <= free).all(axis=1) & (more > 1e-12) & (self.owner != skip)).nonzero()[0]
        if not len(fits):
            return -1
        cost = np.maximum(_cost(extra[fits].T, self.price), 1e-12)
        return int(fits[portable.rounded(more[fits] / cost).argmax()])


def _cost(sizes: Floats | Ints, price: Floats) -> Floats:
    """What each column's GPUs of several types cost together."""
    return np.asarray(np.add.reduce(sizes * price[:, None]))


def _crossed(a: Floats, b: Floats) -> Floats:
    """The inner products of each row of one table with each of the other."""
    return portable.dots(a[:, None], b[None])


def _log_of_product(values: Floats) -> float:
    """The sum of the logarithms, as one logarithm of a product: of fractions, some hundreds at a time."""
    parts, exponents = np.frexp(values)
    total = portable.LN2 * float(np.add.reduce(exponents))
    for at in range(0, len(parts), 512):
        total += portable.log(float(np.multiply.accumulate(parts[at : at + 512])[-1]))
    return total
