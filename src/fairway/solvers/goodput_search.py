"""Fairway's own search for placements of adaptive jobs: counts first, then nodes.

The best number of GPUs for each job is known exactly as long as borders between nodes do not matter (`goodput_counts`).
Most of these plans can be placed as they are: jobs that keep their number keep their GPUs, larger jobs are placed
before smaller ones, and each goes where it leaves the least room unused. What finds no place is mended: a
job and those on a node are taken out and placed again, and idle GPUs go to whoever gains most. Small problems are
searched completely. There is no chance in it, and the count bound says how good a placement is.
"""

from __future__ import annotations

from itertools import product
from math import fsum, prod
from typing import NamedTuple, TypeAlias

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.solvers.goodput_counts import best_counts
from fairway.solvers.goodput_placement import Placing, distributed

Row: TypeAlias = tuple[tuple[int, int], ...]
"""Nodes and the replicas of a job on each."""

SMALL = 20_000
"""Problems with at most this many placements are searched completely."""
PRICES = 8
"""How many prices of nodes are tried."""
MENDED, PASSES = 24, 10
"""How many jobs that miss most are mended, and how often."""
PRICED = (1.0, 0.5, 2.0, 4.0)
"""Parts of the price with which a placement is begun."""
MOST_EFFORT = 6000
"""After so many rows were looked for, no more exchanges are tried; after half of them, no other beginning."""
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
    tables = _Tables(placing)
    counts, price, bound = _planned(tables)
    complete = _complete(placing)
    if complete is not None:
        return FoundPlacement(complete, float(np.add.reduce(_utilities(placing, complete))), bound)
    found: _Board | None = None
    for keeps, priced in product((True, False) if placing.held.any() else (False,), PRICED):
        board = _Board(tables, price * priced)
        board.place_all(counts.tolist(), keeps=keeps)
        board.improve(counts.tolist(), bound)
        if found is None or board.utility() > found.utility() + _BETTER * abs(found.utility()):
            found = board
        if found.utility() >= bound - _BETTER * abs(bound) or 2 * tables.effort > MOST_EFFORT:
            break
    assert found is not None
    return FoundPlacement(found.matrix(), found.utility(), bound)


def _planned(tables: _Tables) -> tuple[Ints, float, float]:
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
    jobs, replicas = np.arange(len(rows)), rows.sum(axis=1)
    moved = placing.moved[jobs, ((rows > 0).sum(axis=1) > 1).astype(np.int64), replicas]
    return np.where((rows != placing.held).any(axis=1), moved, placing.kept)


class _Tables:
    """Utilities of a problem as lists, which plain loops read fastest."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.effort = 0
        width = placing.moved.shape[2]
        allowed = np.arange(width) <= placing.most[:, None]
        moved = np.where(allowed[:, None], placing.moved, -np.inf)
        largest = int(placing.capacity.max(initial=0))
        inside, across = moved[:, 0].copy(), moved[:, 1].copy()
        inside[:, largest + 1 :] = -np.inf
        across[:, :2] = -np.inf
        self.inside, self.across = inside, across
        replicas = np.arange(width)
        self.nodes = np.maximum(-(-replicas // max(largest, 1)), 2)
        self.held: list[Row] = [
            tuple((node, int(row[node])) for node in row.nonzero()[0].tolist()) for row in placing.held
        ]
        self.counts: list[int] = placing.held.sum(axis=1).tolist()
        self.kept: list[float] = placing.kept.tolist()
        self.moved = moved.tolist()
        self.most: list[int] = placing.most.tolist()
        self.best_inside = _best_up_to(inside)
        self.wanted = self.by_count(0.0).tolist()

    def by_count(self, price: float) -> Floats:
        """The utility of each job by its GPUs, less the price of the nodes that it needs if it is distributed."""
        found = np.maximum(self.inside, self.across - price * self.nodes)
        for job, row in enumerate(self.held):
            count = self.counts[job]
            if row and count <= self.most[job]:
                kept = self.kept[job] - (price * len(row) if len(row) > 1 else 0.0)
                found[job, count] = max(float(found[job, count]), kept)
        return found

    def nodes_needed(self, counts: Ints, price: float) -> int:
        """Nodes that distributed jobs need by a plan."""
        jobs = np.arange(len(counts))
        inside, across = self.inside[jobs, counts], self.across[jobs, counts] - price * self.nodes[counts]
        needed = np.where(across > inside, self.nodes[counts], 0)
        for job, row in enumerate(self.held):
            if row and self.counts[job] == counts[job]:
                kept = self.kept[job] - (price * len(row) if len(row) > 1 else 0.0)
                if kept >= max(inside[job], across[job]):
                    needed[job] = len(row) if len(row) > 1 else 0
        return int(needed.sum())

    def highest_price(self) -> float:
        """A price at which no job that fits on a node is distributed."""
        with np.errstate(invalid="ignore"):
            more = self.across - np.maximum.accumulate(self.inside, axis=1)
        return float(more[np.isfinite(more)].max(initial=0.0))


def _best_up_to(table: Floats) -> list[list[int]]:
    """For each job and number of GPUs, the best number that is not larger; the smallest of equals."""
    best = np.maximum.accumulate(table, axis=1)
    rises = np.concatenate([np.zeros((len(table), 1), dtype=bool), best[:, 1:] > best[:, :-1]], axis=1)
    numbers = np.where(rises, np.arange(table.shape[1]), 0)
    ups: list[list[int]] = np.maximum.accumulate(numbers, axis=1).tolist()
    return ups


class _Board:
    """A placement in the making."""

    def __init__(self, tables: _Tables, price: float) -> None:
        self.tables = tables
        self.price = price
        self.best_across = _best_up_to(tables.across - price * tables.nodes)
        self.free: list[int] = tables.placing.capacity.tolist()
        self.apart = [len(tables.held) if closed else -1 for closed in tables.placing.closed.tolist()]
        self.rows: list[Row] = [()] * len(tables.held)
        self.worth: list[float] = [0.0] * len(tables.held)
        for job in range(len(self.rows)):
            self.put(job, ())

    def put(self, job: int, row: Row) -> None:
        """Place a job that has no place."""
        self.rows[job] = row
        for node, gpus in row:
            self.free[node] -= gpus
            if len(row) > 1:
                self.apart[node] = job
        self.worth[job] = self.worth_of(job, row)

    def take(self, job: int) -> Row:
        """Take a job out, and say where it was."""
        row = self.rows[job]
        for node, gpus in row:
            self.free[node] += gpus
            if len(row) > 1:
                self.apart[node] = -1
        self.rows[job] = ()
        return row

    def worth_of(self, job: int, row: Row) -> float:
        """The utility of a job on a row."""
        if row == self.tables.held[job]:
            return float(self.tables.kept[job])
        return float(self.tables.moved[job][len(row) > 1][sum(gpus for _, gpus in row)])

    def utility(self) -> float:
        """The sum of all utilities."""
        return fsum(self.worth)

    def matrix(self) -> Ints:
        """The placement as jobs by nodes."""
        found = np.zeros((len(self.rows), len(self.free)), dtype=np.int64)
        for job, row in enumerate(self.rows):
            for node, gpus in row:
                found[job, node] = gpus
        return found

    def fits(self, row: Row) -> bool:
        """Whether there is room for a row."""
        single = len(row) == 1
        return all(self.free[node] >= gpus and (single or self.apart[node] < 0) for node, gpus in row)

    def best_row(self, job: int, limit: int, price: float) -> Row:
        """The best row for a job that has no place, with at most `limit` replicas."""
        tables, held = self.tables, self.tables.held[job]
        tables.effort += 1
        row: Row = ()
        best = self.worth_of(job, ())
        if held and tables.counts[job] <= limit and self.fits(held):
            kept = tables.kept[job] - (price * len(held) if len(held) > 1 else 0.0)
            if kept >= best:
                best, row = kept, held
        count = tables.best_inside[job][min(limit, max(self.free, default=0))]
        if count and tables.moved[job][0][count] > best:
            best, row = tables.moved[job][0][count], ((self._tightest(count), count),)
        if limit > 1:
            nodes = [node for node, gpus in enumerate(self.free) if gpus > 0 and self.apart[node] < 0]
            count = self.best_across[job][min(limit, sum(self.free[node] for node in nodes))]
            if count > 1 and len(nodes) > 1 and tables.moved[job][1][count] > best:
                spread = self._spread(nodes, count)
                if tables.moved[job][1][count] - price * len(spread) > best:
                    row = spread
        return row

    def _tightest(self, gpus: int) -> int:
        """The node with the least room that is enough."""
        return min((room, node) for node, room in enumerate(self.free) if room >= gpus)[1]

    def _spread(self, nodes: list[int], gpus: int, *, tight: bool = False) -> Row:
        """A row over the nodes with most room, or least; its rest goes where it leaves the least room unused."""
        found: list[tuple[int, int]] = []
        left = sorted(nodes, key=lambda node: self.free[node] if tight else -self.free[node])
        while gpus:
            enough = [node for node in left if self.free[node] >= gpus]
            node = min(enough, key=lambda each: self.free[each]) if enough and found else left[0]
            taken = min(self.free[node], gpus if found else gpus - 1)
            found.append((node, taken))
            left.remove(node)
            gpus -= taken
        return tuple(sorted(found))

    def place_all(self, counts: list[int], *, keeps: bool) -> None:
        """Place all jobs by their counts: first those that keep their row, if any do, then the larger ones."""
        tables = self.tables
        waiting: list[int] = []
        for job, row in enumerate(tables.held):
            if keeps and row and counts[job] == tables.counts[job] and self.fits(row):
                self.put(job, row)
            elif counts[job]:
                waiting.append(job)
        for job in sorted(waiting, key=lambda each: -counts[each]):
            self.put(job, self.best_row(job, counts[job], self.price))

    def improve(self, counts: list[int], bound: float) -> None:
        """Mend what the borders between nodes have spoiled."""
        for _ in range(PASSES):
            before = self.utility()
            if before >= bound - _BETTER * abs(bound):
                break
            self._fill()
            missing = [(self.worth[job] - self.tables.wanted[job][count], job) for job, count in enumerate(counts)]
            for gap, job in sorted(missing)[:MENDED]:
                if gap < -_BETTER * abs(self.tables.wanted[job][counts[job]]):
                    self._mend(job, counts)
            if self.utility() <= before + _BETTER * abs(before) and not self._exchange(counts):
                break

    def _exchange(self, counts: list[int]) -> bool:
        """Place pairs of jobs again, those that miss most first; whether that helped."""
        gaps = [self.worth[job] - self.tables.wanted[job][count] for job, count in enumerate(counts)]
        order = sorted((gap, job) for job, gap in enumerate(gaps) if gap < 0 or self.rows[job] != self.tables.held[job])
        helped = False
        for (_, one), other in product(order, range(len(counts))):
            if self.tables.effort > MOST_EFFORT:
                break
            if one != other and (self.rows[one] or self.rows[other]):
                helped |= self._exchanged(one, other)
        return helped

    def _exchanged(self, one: int, other: int) -> bool:
        """Place two jobs again, in all ways for the first and the best for the second, if that is better."""
        old = self.take(one), self.take(other)
        worth = self.worth[one] + self.worth[other]
        best, change = worth + _BETTER * abs(worth), old
        for row in self._choices(one):
            self.put(one, row)
            then = self.best_row(other, self.tables.most[other], 0.0)
            found = self.worth[one] + self.worth_of(other, then)
            if found > best:
                best, change = found, (row, then)
            self.take(one)
        self.put(one, change[0])
        self.put(other, change[1])
        return change is not old

    def _choices(self, job: int) -> list[Row]:
        """Rows for a job that has no place: by replicas, on one node or on several, with most or least room first."""
        held = self.tables.held[job]
        found: dict[Row, None] = {}
        if held and self.tables.counts[job] <= self.tables.most[job] and self.fits(held):
            found[held] = None
        nodes = [node for node, gpus in enumerate(self.free) if gpus > 0 and self.apart[node] < 0]
        largest, room = max(self.free, default=0), sum(self.free[node] for node in nodes)
        for gpus in range(1, min(self.tables.most[job], max(largest, room)) + 1):
            if gpus <= largest:
                found[((self._tightest(gpus), gpus),)] = None
                found[((self.free.index(largest), gpus),)] = None
            if 1 < gpus <= room and len(nodes) > 1:
                found[self._spread(nodes, gpus)] = None
                found[self._spread(nodes, gpus, tight=True)] = None
        return list(found)

    def _fill(self) -> None:
        """Give idle GPUs to whoever gains most, as long as anyone gains."""
        while any(self.free):
            best, chosen = 0.0, -1
            to: Row = ()
            for job, worth in enumerate(self.worth):
                if self.tables.most[job] <= sum(gpus for _, gpus in self.rows[job]) and worth >= self.tables.kept[job]:
                    continue
                row = self.take(job)
                better = self.best_row(job, self.tables.most[job], 0.0)
                found = self.worth_of(job, better)
                self.put(job, row)
                if found - worth > best + _BETTER * abs(worth):
                    best, chosen, to = found - worth, job, better
            if chosen < 0:
                return
            self.take(chosen)
            self.put(chosen, to)

    def _mend(self, job: int, counts: list[int]) -> None:
        """Place a job again together with those on one node, for the node where that gains most."""
        best, change = _BETTER, None
        for node in range(len(self.free)):
            group = [each for each, row in enumerate(self.rows) if each != job and any(at == node for at, _ in row)]
            group = [job, *sorted(group, key=lambda each: -counts[each])]
            old = {each: self.rows[each] for each in group}
            worth = fsum(self.worth[each] for each in group)
            for each in group:
                self.take(each)
            for each in group:
                limit = max(counts[each], sum(gpus for _, gpus in old[each]))
                self.put(each, self.best_row(each, min(limit, self.tables.most[each]), self.price))
            gain = fsum(self.worth[each] for each in group) - worth
            if gain > best * max(1.0, abs(worth)):
                best, change = gain, {each: self.rows[each] for each in group}
            for each in group:
                self.take(each)
            for each in group:
                self.put(each, old[each])
        if change is not None:
            for each in change:
                self.take(each)
            for each, row in change.items():
                self.put(each, row)


def _complete(placing: Placing) -> Ints | None:
    """The best of all placements, None if they are too many."""
    capacity, jobs = placing.capacity.tolist(), len(placing.held)
    if prod(gpus + 1 for gpus in capacity) > SMALL:
        return None
    every = np.array(list(product(*(range(gpus + 1) for gpus in capacity))), dtype=np.int64)
    found = np.zeros((1, 0, len(capacity)), dtype=np.int64)
    for job in range(jobs):
        rows = every[every.sum(axis=1) <= placing.most[job]]
        if len(found) * len(rows) > SMALL:
            return None
        found = np.concatenate([found.repeat(len(rows), axis=0), np.tile(rows, (len(found), 1))[:, None]], axis=1)
        found = found[(found.sum(axis=1) <= capacity).all(axis=1)]
        found = found[(distributed(found).sum(axis=1) <= ~placing.closed).all(axis=1)]
    sums = np.array([float(np.add.reduce(_utilities(placing, rows))) for rows in found])
    return np.asarray(found[int(sums.argmax())])
