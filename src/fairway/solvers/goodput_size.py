"""How many nodes a set of adaptive jobs deserves (Pollux, OSDI 2021): those that keep the cluster well used.

The utility of a cluster is the sum of all speedups over one replica, per GPU. It is 1 if each GPU works as well as a
single one, and falls as nodes are added: what the jobs gain from more GPUs becomes less and less. A band of utilities
is therefore a range of sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Ints
from fairway.solvers.goodput_placement import Placing

LOW, HIGH = 0.35, 0.65


class Sizes(NamedTuple):
    """Numbers of nodes: the fewest and the most with a utility in the band, and the one nearest to its middle."""

    fewest: int
    nearest: int
    most: int


def utility(placing: Placing, rows: Ints) -> float:
    """The sum of speedups per GPU of the cluster, if speedups count from one replica; restarts are not counted."""
    replicas, apart = rows.sum(axis=1), ((rows > 0).sum(axis=1) > 1).astype(np.int64)
    gained = placing.speedups[np.arange(len(rows)), apart, replicas]
    return float(np.add.reduce(gained)) / max(int(placing.capacity.sum()), 1)


def sizes_in_band(utility_of: Callable[[int], float], most: int, low: float = LOW, high: float = HIGH) -> Sizes:
    """The sizes from 1 to `most` nodes whose utility is in a band, if utility falls with the number of nodes.

    If no size is in the band, all three are the size that comes nearest to it. Few sizes are tried, by bisection.
    """
    if most < 1 or not 0 <= low <= high:
        raise ValueError(f"need at least 1 node and 0 <= low <= high, not {most}, {low} and {high}")
    known = cache(utility_of)
    fewest = _first(lambda nodes: known(nodes) <= high, most)
    last = _first(lambda nodes: known(nodes) < low, most + 1) - 1
    middle = 0.5 * (low + high)
    crossing = _first(lambda nodes: known(nodes) <= middle, most)
    nearest = min((max(crossing - 1, 1), crossing), key=lambda nodes: abs(known(nodes) - middle))
    if fewest > last:
        return Sizes(nearest, nearest, nearest)
    return Sizes(fewest, min(max(nearest, fewest), last), last)


def _first(holds: Callable[[int], bool], most: int) -> int:
    """The smallest number from 1 on for which something holds that holds for all larger ones; `most` if for none."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
