"""Attained service in levels, for policies that serve the least of it first: ranks, keys, and their next change.

The hot loops of `las` and `tiresias`; see `core.kernels` for how they are compiled.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from fairway.core.arrays import Floats, Ints, Ranks
from fairway.core.kernels import compiled, compiled_as

REACHED = 1 - 1e-9
"""Service this close to a limit has reached it; otherwise rounding would cause endless tiny steps."""
NEVER_S = 5e9
"""Stands for the first start of a job that was never started, in `queue_keys`."""
WAITING = 1e10
QUEUE = 2e10
"""Weights of waiting and of a queue in these keys: larger than any instant, and larger than a whole queue."""
MOST_RANKS = 64
"""`index_keys` does not tell more ranks than this apart inside a queue."""

Table: TypeAlias = tuple[Floats, Floats]
"""A step function: where its cells begin, and their ranks."""


def _level_ranks_loop(service: Floats, limits: Floats, held: Ints) -> Ranks:
    ranks = np.empty(len(service), dtype=np.int16)
    for row in range(len(service)):
        level = 0
        while level < len(limits) and service[row] >= limits[level] * REACHED:
            level += 1
        ranks[row] = 2 * level + (held[row] == 0)
    return ranks


@compiled_as(_level_ranks_loop)
def level_ranks(service: Floats, limits: Floats, held: Ints) -> Ranks:
    """Ranks by level, the number of rising limits that service has reached. Inside a level, running jobs come first."""
    ranks: Ranks = (held == 0).astype(np.int16)
    for limit in limits:
        ranks += (service >= limit * REACHED).astype(np.int16) << 1
    return ranks


@compiled
def queue_keys(service: Floats, limits: Floats, first_start_s: Floats, held: Ints) -> Floats:
    """Keys by queue, the number of rising limits that service has reached. Inside a queue, running jobs come first,
    then the jobs that were started first."""
    keys: Floats = np.minimum(first_start_s, NEVER_S) + (held == 0) * WAITING
    for limit in limits:
        keys += (service >= limit * REACHED) * QUEUE
    return keys


def _index_keys_loop(service: Floats, limits: Floats, table: Table, first_start_s: Floats, held: Ints) -> Floats:
    cells, ranks = table
    keys, last = np.empty(len(service)), len(limits)
    for row in range(len(service)):
        queue, mine = 0, 0.0
        while queue < last and service[row] >= limits[queue] * REACHED:
            queue += 1
        if queue < last or last == 0:
            mine = ranks[np.searchsorted(cells, service[row] / REACHED, side="right") - 1]
        if last > 0:
            mine = queue * MOST_RANKS + min(mine, MOST_RANKS - 1.0)
        keys[row] = min(first_start_s[row], NEVER_S) + (held[row] == 0) * WAITING + mine * QUEUE
    return keys


@compiled_as(_index_keys_loop)
def index_keys(service: Floats, limits: Floats, table: Table, first_start_s: Floats, held: Ints) -> Floats:
    """Like `queue_keys`, but inside a queue (all but the last; without limits, everywhere) by the rank of the service
    in a step function."""
    cells, ranks = table
    keys: Floats = np.minimum(first_start_s, NEVER_S) + (held == 0) * WAITING
    if len(limits) == 0:
        return keys + ranks[np.searchsorted(cells, service / REACHED, side="right") - 1] * QUEUE
    queue = np.searchsorted(limits * REACHED, service, side="right")
    ranked = (queue < len(limits)).nonzero()[0]
    mine = queue * float(MOST_RANKS)
    own = ranks[np.searchsorted(cells, service[ranked] / REACHED, side="right") - 1]
    mine[ranked] += np.minimum(own, MOST_RANKS - 1.0)
    return keys + mine * QUEUE


def _next_fall_loop(service: Floats, table: Table, speed: Ints) -> float:
    cells, ranks = table
    soonest_s = np.inf
    for row in range(len(service)):
        if speed[row] != 0:
            at = np.searchsorted(cells, service[row] / REACHED, side="right")
            if at < len(cells) and ranks[at] > ranks[at - 1]:
                soonest_s = min(soonest_s, (cells[at] - service[row]) / speed[row])
    return soonest_s


@compiled_as(_next_fall_loop)
def next_fall(service: Floats, table: Table, speed: Ints) -> float:
    """In how many seconds the first service enters a cell of higher rank. Each grows at its speed (0: not at all)."""
    cells, ranks = table
    rows = speed.nonzero()[0]
    at = np.searchsorted(cells, service[rows] / REACHED, side="right")
    inside = at < len(cells)
    rows, at = rows[inside], at[inside]
    falls = ranks[at] > ranks[at - 1]
    rows, at = rows[falls], at[falls]
    if len(rows) == 0:
        return np.inf
    return float(((cells[at] - service[rows]) / speed[rows]).min())


@compiled
def next_limit(service: Floats, limits: Floats, speed: Ints) -> float:
    """In how many seconds the first service reaches its next limit. Each grows at its speed (0: not at all)."""
    rows = (speed > 0).nonzero()[0]
    queue = np.searchsorted(limits * REACHED, service[rows], side="right")
    below = queue < len(limits)
    rows, queue = rows[below], queue[below]
    if len(rows) == 0:
        return np.inf
    return float(((limits[queue] - service[rows]) / speed[rows]).min())
