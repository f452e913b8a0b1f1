"""Fairway's own search for placements of adaptive jobs: counts first, then nodes.

The best number of GPUs for each job is known exactly as long as borders between nodes do not matter (`goodput_counts`).
Most of these plans can be placed as they are: jobs that keep their number keep their GPUs, larger jobs are placed
before smaller ones, and each goes where it leaves the least room unused. What finds no place is mended: a
job and those on a node are taken out and placed again, and idle GPUs go to the job that gains most. Small problems are
searched completely. There is no chance in it, and the count bound says how good a placement is.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import fsum, prod
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints, frozen
from fairway.solvers.goodput_board import Board, Row, UtilityTables
from fairway.solvers.goodput_counts import best_counts
from fairway.solvers.goodput_placement import Placing, distributed

SMALL = 20_000
"""Problems with at most this many placements are searched completely."""
PRICES = 8
"""How many prices of nodes are tried."""
MENDED, PASSES = 24, 10
"""How many jobs that miss most are mended, and how often."""
PRICED = (1.0, 0.5, 2.0, 4.0)
"""Parts of the price with which a placement is begun."""
MOST_EFFORT = 2000
"""After this number of rows was looked for, no more exchanges are tried; after half of them, no other beginning."""
_BETTER = 1e-9
"""Gains below this part are rounding."""


class FoundPlacement(NamedTuple):
    """A placement, the sum of its utilities, and a bound on that of every placement."""

    rows: Ints
    utility: float
    bound: float


def search(placing: Placing) -> FoundPlacement:
    """A placement of a fitness that is large, and mostly the largest."""
    if not placing.held.size:
        return FoundPlacement(np.zeros_like(placing.held), 0.0, 0.0)
    tables = UtilityTables(placing)
    counts, price, bound = _planned(tables)
    found: Board | None = None
    for keeps, priced in product((True, False) if placing.held.any() else (False,), PRICED):
        board = Board(tables, price * priced)
        board.place_all(counts.tolist(), keeps=keeps)
        _improve(board, counts.tolist(), bound)
        if found is None or board.utility() > found.utility() + _BETTER * abs(found.utility()):
            found = board
        if found.utility() >= bound - _BETTER * abs(bound) or 2 * tables.effort > MOST_EFFORT:
            break
    assert found is not None
    utility, enough = found.utility(), bound - _BETTER * abs(bound)
    complete = _complete(placing) if utility < enough else None
    if complete is not None and float(_utilities(placing, complete)) > utility + _BETTER * abs(utility):
        return FoundPlacement(complete, float(_utilities(placing, complete)), bound)
    return FoundPlacement(found.matrix(), utility, bound)


def _planned(tables: UtilityTables) -> tuple[Ints, float, float]:
    """Counts, the price of a node for a distributed job, and a bound on the utility of every placement.

    The price is the smallest tried at which distributed jobs need no more nodes than there are.
    """
    placing = tables.placing
    nodes, gpus = int((~placing.closed).sum()), int(placing.capacity.sum())
    counts, bound = best_counts(tables.by_count(0.0), gpus)
    if tables.nodes_needed(counts, 0.0) <= nodes:
        return counts, 0.0, bound
    low, high = 0.0, tables.highest_price()
    found, price = counts, high
    for _ in range(PRICES):
        middle = 0.5 * (low + high)
        tried, total = best_counts(tables.by_count(middle), gpus)
        bound = min(bound, total + middle * nodes)
        if tables.nodes_needed(tried, middle) <= nodes:
            found, price, high = tried, middle, middle
        else:
            low = middle
    return found, price, bound


def _utilities(placing: Placing, rows: Ints) -> Floats:
    """The sums of utilities of placements."""
    jobs, apart = np.arange(rows.shape[-2]), ((rows > 0).sum(axis=-1) > 1).astype(np.int64)
    moved = placing.moved[jobs, apart, rows.sum(axis=-1)]
    return np.asarray(np.add.reduce(np.where((rows != placing.held).any(axis=-1), moved, placing.kept), axis=-1))


def _improve(board: Board, counts: list[int], bound: float) -> None:
    """Mend what the borders between nodes have spoiled."""
    for _ in range(PASSES):
        before = board.utility()
        if before >= bound - _BETTER * abs(bound):
            break
        _fill(board)
        missing = [(board.worth[job] - board.tables.wanted[job][count], job) for job, count in enumerate(counts)]
        for gap, job in sorted(missing)[:MENDED]:
            if gap < -_BETTER * abs(board.tables.wanted[job][counts[job]]):
                _mend(board, job, counts)
        if board.utility() <= before + _BETTER * abs(before) and not _exchange(board, counts):
            break


def _exchange(board: Board, counts: list[int]) -> bool:
    """Place pairs of jobs again, those that miss most first; whether that helped."""
    gaps = [board.worth[job] - board.tables.wanted[job][count] for job, count in enumerate(counts)]
    order = sorted((gap, job) for job, gap in enumerate(gaps) if gap < 0 or board.rows[job] != board.tables.held[job])
    helped = False
    for (_, one), other in product(order, range(len(counts))):
        if board.tables.effort > MOST_EFFORT:
            break
        if one != other and (board.rows[one] or board.rows[other]):
            helped |= _exchanged(board, one, other)
    return helped


def _exchanged(board: Board, one: int, other: int) -> bool:
    """Place two jobs again, in all ways for the first and the best for the second, if that is better."""
    worth, peak = board.worth[one] + board.worth[other], board.tables.peak
    best = worth + _BETTER * abs(worth)
    if peak[one] + peak[other] <= best:
        return False
    old = change = board.take(one), board.take(other)
    for row in board.choices(one, best - peak[other]):
        if board.worth_of(one, row) + peak[other] <= best:
            board.tables.effort += 1
            continue
        board.put(one, row)
        then = board.best_row(other, board.tables.most[other], 0.0)
        found = board.worth[one] + board.worth_of(other, then)
        if found > best:
            best, change = found, (row, then)
        board.take(one)
    board.put(one, change[0])
    board.put(other, change[1])
    return change is not old


def _fill(board: Board) -> None:
    """Give idle GPUs to the job that gains most, as long as one gains."""
    while any(board.free):
        best, chosen = 0.0, -1
        to: Row = ()
        for job, worth in enumerate(board.worth):
            if board.tables.most[job] <= sum(gpus for _, gpus in board.rows[job]) and worth >= board.tables.kept[job]:
                continue
            row = board.take(job)
            better = board.best_row(job, board.tables.most[job], 0.0)
            found = board.worth_of(job, better)
            board.put(job, row)
            if found - worth > best + _BETTER * abs(worth):
                best, chosen, to = found - worth, job, better
        if chosen < 0:
            return
        board.take(chosen)
        board.put(chosen, to)


def _mend(board: Board, job: int, counts: list[int]) -> None:
    """Place a job again together with those on one node, for the node where that gains most."""
    best, change = 0.0, None
    for node in range(len(board.free)):
        group = [each for each, row in enumerate(board.rows) if each != job and any(at == node for at, _ in row)]
        group = [job, *sorted(group, key=lambda each: -counts[each])]
        old = {each: board.rows[each] for each in group}
        worth = fsum(board.worth[each] for each in group)
        for each in group:
            board.take(each)
        for each in group:
            limit = max(counts[each], sum(gpus for _, gpus in old[each]))
            board.put(each, board.best_row(each, min(limit, board.tables.most[each]), board.price))
        gain = fsum(board.worth[each] for each in group) - worth
        if gain > best + _BETTER * abs(worth):
            best, change = gain, {each: board.rows[each] for each in group}
        for each in group:
            board.take(each)
        for each in group:
            board.put(each, old[each])
    if change is not None:
        for each in change:
            board.take(each)
        for each, row in change.items():
            board.put(each, row)


@lru_cache(maxsize=8)
def _every_row(capacity: tuple[int, ...]) -> Ints:
    """All rows that nodes of this capacity have room for."""
    return frozen(np.array(list(product(*(range(gpus + 1) for gpus in capacity))), dtype=np.int64))


def _complete(placing: Placing) -> Ints | None:
    """The best of all placements, None if they are too many."""
    capacity, jobs = placing.capacity.tolist(), len(placing.held)
    if prod(gpus + 1 for gpus in capacity) > SMALL:
        return None
    every = _every_row(tuple(capacity))
    found = np.zeros((1, 0, len(capacity)), dtype=np.int64)
    for job in range(jobs):
        rows = every[every.sum(axis=1) <= placing.most[job]]
        if len(found) * len(rows) > SMALL:
            return None
        found = np.concatenate([found.repeat(len(rows), axis=0), np.tile(rows, (len(found), 1))[:, None]], axis=1)
        found = found[(found.sum(axis=1) <= capacity).all(axis=1)]
        found = found[(distributed(found).sum(axis=1) <= ~placing.closed).all(axis=1)]
    return np.asarray(found[int(_utilities(placing, found).argmax())])
