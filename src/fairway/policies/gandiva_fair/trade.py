"""Users trade fast GPUs for slow ones, so that both sides gain.

A user whose jobs are `s` times as fast on a fast GPU values it at `s` slow ones. A user with a small `s` sells, one
with a large `s` buys, at a price between the two. The price is what the next bidder would pay (a second-price rule), so
that overstating one's speed-up does not pay. Without another bidder the two meet at the geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints

LEAST_RATIO = 1.05
"""Buyer and seller trade only if their speed-ups differ by this factor: smaller gains are lost in moving jobs."""
LEAST_GAIN = 0.1
"""Each side gets at least this part of the gap between the two speed-ups (in logarithms), so that both gain."""
_NOTHING = 1e-9


class Deal(NamedTuple):
    """`seller` hands `fast` GPUs to `buyer` for `price` slow GPUs each."""

    seller: int
    buyer: int
    price: float
    fast: float


class UsefulGpus(NamedTuple):
    """The most fast GPUs, slow GPUs and GPUs in all that each user can use."""

    fast: Floats
    slow: Floats
    total: Floats


def price_of(seller: float, buyer: float, bids: Sequence[float]) -> float:
    """The price of a fast GPU in slow ones, between the speed-ups of the two; `bids` are those of the other buyers.

    >>> price_of(1.2, 5.0, [3.0])
    3.0
    >>> round(price_of(1.2, 5.0, []), 3)
    2.449
    """
    others = [bid for bid in bids if bid > seller]
    if not others:
        return math.sqrt(seller * buyer)
    gap = portable.power(buyer / seller, LEAST_GAIN)
    return min(max(max(others), seller * gap), buyer / gap)


def trade(fast: Floats, slow: Floats, speedup: Floats, limits: UsefulGpus) -> tuple[Floats, Floats, list[Deal]]:
    """Deals between the highest bidder and the cheapest seller until no pair gains; NaN speed-ups do not trade.

    A deal ends when the seller's fast GPUs or the buyer's slow ones run out, or when either can use no more. So each
    deal exhausts one side, and there are at most a few per user.
    """
    market, deals = TypeMarket(fast, slow, limits), list[Deal]()
    gains: list[float] = speedup.tolist()
    sellers = [user for user in portable.order(portable.rounded(speedup)).tolist() if gains[user] > 0]
    buyers = sellers[::-1]
    at_buyer = at_seller = 0
    while at_buyer < len(buyers) and at_seller < len(sellers):
        buyer, seller = buyers[at_buyer], sellers[at_seller]
        if gains[buyer] <= gains[seller] * LEAST_RATIO:
            break
        if not market.can_buy(buyer):
            at_buyer += 1
            continue
        rivals = (user for user in buyers[at_buyer + 1 :] if user != seller and market.can_buy(user))
        rival = next(rivals, None)
        price = price_of(gains[seller], gains[buyer], [] if rival is None else [gains[rival]])
        offered, wanted = market.sellable(seller, price), market.buyable(buyer, price)
        if offered <= _NOTHING:
            at_seller += 1
        elif wanted <= _NOTHING:
            at_buyer += 1
        else:
            deals.append(Deal(seller, buyer, price, min(offered, wanted)))
            market.exchange(deals[-1])
    return np.maximum(market.fast, 0.0), np.maximum(market.slow, 0.0), deals


class TypeMarket:
    """What users have of a fast and a slow type, and what they can use."""

    def __init__(self, fast: Floats, slow: Floats, limits: UsefulGpus) -> None:
        self.fast: list[float] = fast.tolist()
        self.slow: list[float] = slow.tolist()
        self.most_fast: list[float] = limits.fast.tolist()
        self.most_slow: list[float] = limits.slow.tolist()
        self.most: list[float] = limits.total.tolist()

    def exchange(self, deal: Deal) -> None:
        """Carry out a deal."""
        seller, buyer, price, fast = deal
        self.fast[seller] -= fast
        self.fast[buyer] += fast
        self.slow[seller] += fast * price
        self.slow[buyer] -= fast * price

    def can_buy(self, user: int) -> bool:
        """Whether a user has something to pay with, and can use more fast GPUs."""
        return self.slow[user] > _NOTHING and self.most_fast[user] - self.fast[user] > _NOTHING

    def sellable(self, user: int, price: float) -> float:
        """How many fast GPUs a user can sell and still use all slow ones that it is paid."""
        amount = min(self.fast[user], (self.most_slow[user] - self.slow[user]) / price)
        return amount if price <= 1 else min(amount, self._room(user) / (price - 1))

    def buyable(self, user: int, price: float) -> float:
        """How many fast GPUs a user can pay for and use."""
        amount = min(self.slow[user] / price, self.most_fast[user] - self.fast[user])
        return amount if price >= 1 else min(amount, self._room(user) / (1 - price))

    def _room(self, user: int) -> float:
        return self.most[user] - self.fast[user] - self.slow[user]


def trade_all(shares: Floats, worth: Floats, limits: Floats, order: Sequence[int]) -> Floats:
    """Entitlements after trades between every two GPU types, the most unlike first.

    `worth` is the speed of each user's jobs by type. 0 means that not all of them can run there, which keeps a user out
    of trades in that type. `limits` are the GPUs that each user could use, by type and (last row) in all.
    """
    shares, kinds = shares.copy(), len(order)
    pairs = [(order[a], order[b]) for a in range(kinds) for b in range(kinds - 1, a, -1)]
    for fast, slow in pairs:
        usable = (worth[fast] > 0) & (worth[slow] > 0)
        speedup = np.full(shares.shape[1], np.nan)
        np.divide(worth[fast], worth[slow], out=speedup, where=usable)
        others = shares.sum(axis=0) - shares[fast] - shares[slow]
        use = UsefulGpus(limits[fast], limits[slow], np.maximum(limits[-1] - others, 0.0))
        shares[fast], shares[slow], _ = trade(shares[fast], shares[slow], speedup, use)
    return shares


def values_of(speeds: Floats, gpus: Ints, user: Ints, users: int) -> Floats:
    """The mean speed of each user's jobs on each type, relative to each job's best type and weighted by gangs."""
    best = speeds.max(axis=0)
    demand = np.maximum(np.bincount(user, gpus, minlength=users), 1e-9)
    relative = np.divide(speeds, best, out=np.zeros(speeds.shape), where=best > 0) * gpus
    return np.array([np.bincount(user, column, minlength=users) for column in relative]) / demand


def worth_of(speeds: Floats, gpus: Ints, user: Ints, users: int) -> Floats:
    """The same, but 0 where some job of the user cannot run: such a user must keep what it has of that type."""
    worth = values_of(speeds, gpus, user, users)
    for kind, speed in enumerate(speeds):
        unable: Bools = np.bincount(user, speed <= 0, minlength=users) > 0
        worth[kind][unable] = 0.0
    return worth
