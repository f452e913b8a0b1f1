"""One auction: the bidders, the partial allocation among them, and what each pays by getting less.

Partial allocation is the mechanism of Cole, Gkatzelis and Goel (EC'13): from the allocation with the largest product of
values each bidder keeps a part c, the product of the others' values over what that product would be without it. No
money is paid. What is withheld is the payment, and it makes telling the truth the best strategy where values are
homogeneous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats, Ints
from fairway.policies.themis.nash import LARGEST_GRID, Bid, nash_product

_ROUNDING = 1e-9


class AuctionOutcome(NamedTuple):
    """For each bid: its column in the Nash product, the part that it keeps, and the column after rounding down."""

    won: list[int]
    kept: Floats
    columns: list[int]


def offered_to(rho: Floats, fairness: float) -> Ints:
    """The apps that take part: the worst-off 1 - f of all (at least one), the worst first; ties by position."""
    count = max(1, math.ceil((1.0 - fairness) * len(rho) - _ROUNDING))
    # New apps of one size are equally late, but their quotients end in other digits.
    return portable.order(-portable.rounded(rho))[:count]


def kept_parts(others_gain: Floats) -> Floats:
    """The parts that bidders keep, from the logarithm of what the others would gain without each of them."""
    return portable.exp(-np.maximum(others_gain, 0.0))


def partial_allocation(bids: Sequence[Bid], capacity: Sequence[int], grid: int = LARGEST_GRID) -> AuctionOutcome:
    """The Nash product, the hidden payments, and the columns that remain when gangs are whole."""
    if not bids:
        return AuctionOutcome([], np.zeros(0), [])
    choice = nash_product(bids, capacity, grid)
    kept = kept_parts(choice.others_gain)
    columns = [
        rounded_down(bid, column, float(part)) for bid, column, part in zip(bids, choice.columns, kept, strict=True)
    ]
    return AuctionOutcome(choice.columns, kept, columns)


def rounded_down(bid: Bid, column: int, part: float) -> int:
    """The most valuable column within a part of what was won; 0, which is nothing, if no gang fits."""
    if part >= 1.0 - _ROUNDING:
        return column
    limit = [math.floor(part * count + _ROUNDING) for count in bid.gpus[column]]
    if not any(limit):
        return 0
    within = [
        at for at, used in enumerate(bid.gpus) if all(take <= most for take, most in zip(used, limit, strict=True))
    ]
    return max(within, key=lambda at: (bid.values[at], -at))
