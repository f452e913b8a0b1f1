"""A placement of adaptive jobs in the making: what is free, and the best row for a job among what is free.

A row says on which nodes a job has how many replicas. Plain loops over lists are the fastest way here, because each
question is about one job.
"""

from __future__ import annotations

from math import fsum
from typing import TypeAlias

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.solvers.goodput_placement import Placing

Row: TypeAlias = tuple[tuple[int, int], ...]
"""Nodes and the replicas of a job on each."""


class UtilityTables:
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
        # No row of a job is worth more.
        self.peak: list[float] = np.maximum(moved.max(axis=(1, 2), initial=-np.inf), placing.kept).tolist()
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


class Board:
    """A placement in the making."""

    def __init__(self, tables: UtilityTables, price: float) -> None:
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

    def choices(self, job: int, above: float) -> list[Row]:
        """Rows for a job that has no place: by replicas, on one node or on several, with most or least room first.

        Only those whose utility is larger than `above` are listed.
        """
        held, (inside, across) = self.tables.held[job], self.tables.moved[job]
        found: dict[Row, None] = {}
        if held and self.tables.counts[job] <= self.tables.most[job] and self.fits(held):
            found[held] = None
        nodes = [node for node, gpus in enumerate(self.free) if gpus > 0 and self.apart[node] < 0]
        largest, room = max(self.free, default=0), sum(self.free[node] for node in nodes)
        for gpus in range(1, min(self.tables.most[job], max(largest, room)) + 1):
            if gpus <= largest and inside[gpus] > above:
                found[((self._tightest(gpus), gpus),)] = None
                found[((self.free.index(largest), gpus),)] = None
            if 1 < gpus <= room and len(nodes) > 1 and across[gpus] > above:
                found[self._spread(nodes, gpus)] = None
                found[self._spread(nodes, gpus, tight=True)] = None
        return list(found)
