"""Where jobs belong: GPU types by what their owners are owed, nodes by ticket load.

The ticket load of a node is the tickets of the jobs that belong to it, per GPU. If all nodes of a type carry the same
load, sharing each node fairly shares the cluster fairly, without moving jobs around.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats, Ints
from fairway.policies.gandiva_fair.rooms import NodeGpus

DIGITS = 9
"""Loads and dues are sums in different orders. Those that differ by less than this are equal."""


class Types:
    """Jobs by GPU type: the next GPUs of a type go to the user that is due most of it, to its job that gains most.

    So over time every user gets its entitlement of each type, even if it has a single job. `due_gpus` is what users
    (columns) are due by type (rows), `order` the types from the fastest to the slowest.
    """

    def __init__(
        self, kinds: Ints, tickets: Floats, user: Ints, speeds: Floats, due_gpus: Floats, capacity: Ints
    ) -> None:
        self.kinds, self.speeds, self.due = kinds, speeds, due_gpus.copy()
        self.tickets: list[float] = tickets.tolist()
        self.user: list[int] = user.tolist()
        self.capacity: list[int] = capacity.tolist()
        self.load = [0.0] * len(self.capacity)

    def assign(self, rows: Ints, order: Sequence[int]) -> None:
        """Give each of `rows` a type; the other rows keep theirs."""
        self.kinds[rows] = -1
        for row in (self.kinds >= 0).nonzero()[0].tolist():
            self._give(row, int(self.kinds[row]))
        able = self.speeds > 0
        for row in rows[able[:, rows].sum(axis=0) <= 1].tolist():
            self._give(row, int(able[:, row].argmax()))
        for at, kind in enumerate(order[:-1]):
            slower = self.speeds[order[at + 1 :]].max(axis=0)
            gain = np.divide(self.speeds[kind], slower, out=np.full(len(slower), np.inf), where=slower > 0)
            open_rows = rows[(self.kinds[rows] < 0) & able[kind, rows]]
            # The least gain first, because queues are popped from the end; of equals the last submitted.
            self._fill(open_rows[np.lexsort((-open_rows, portable.rounded(gain[open_rows])))].tolist(), kind)
        for row in rows[self.kinds[rows] < 0].tolist():
            usable = able[:, row].nonzero()[0].tolist()
            load = {kind: round(self.load[kind] / max(self.capacity[kind], 1e-9), DIGITS) for kind in usable}
            self._give(row, min(usable, key=load.__getitem__))

    def _fill(self, rows: list[int], kind: int) -> None:
        """Fill a type up to its capacity, from the end of the rows."""
        queues: dict[int, list[int]] = {}
        for row in rows:
            queues.setdefault(self.user[row], []).append(row)
        heap = [(-round(float(self.due[kind, owner]), DIGITS), owner) for owner in sorted(queues)]
        heapq.heapify(heap)
        while heap and self.load[kind] < self.capacity[kind]:
            _, owner = heapq.heappop(heap)
            row = queues[owner].pop()
            if self.load[kind] + self.tickets[row] / 2 <= self.capacity[kind]:
                self._give(row, kind)
            if queues[owner]:
                heapq.heappush(heap, (-round(float(self.due[kind, owner]), DIGITS), owner))

    def _give(self, row: int, kind: int) -> None:
        self.kinds[row] = kind
        self.load[kind] += self.tickets[row]
        self.due[kind, self.user[row]] -= self.tickets[row]


class Loads:
    """The ticket load of each node: tickets per GPU."""

    def __init__(self, nodes: NodeGpus, homes: Ints, tickets: Floats) -> None:
        self.nodes = nodes
        settled = homes >= 0
        total = np.bincount(homes[settled], tickets[settled], minlength=len(nodes.sizes))
        self.of: list[float] = np.round(total / np.maximum(nodes.sizes, 1), DIGITS).tolist()

    def move(self, tickets: float, source: int, target: int) -> None:
        """Move a job's tickets to another node; -1 stands for none."""
        if source >= 0:
            self.of[source] = round(self.of[source] - tickets / self.nodes.sizes[source], DIGITS)
        if target >= 0:
            self.of[target] = round(self.of[target] + tickets / self.nodes.sizes[target], DIGITS)

    def lightest(self, kind: int, gpus: int) -> int:
        """The node of this type with the lowest load among those that can hold the gang, or -1."""
        nodes, sizes = self.nodes.of_type[kind], self.nodes.sizes
        if gpus > self.nodes.smallest[kind]:
            nodes = [node for node in nodes if sizes[node] >= gpus]
        return min(nodes, key=self.of.__getitem__, default=-1)


def even_out(loads: Loads, homes: Ints, tickets: Floats, gpus: Ints, movable: Ints, most_gap: float) -> list[int]:
    """Move suspended jobs from the heaviest to the lightest node of a type while their loads differ by too much.

    Changes `homes` and returns the rows that were moved. A job moves only if the gap shrinks without changing sides.
    """
    moved: list[int] = []
    by_home: dict[int, list[int]] = {}
    for row in movable.tolist():
        by_home.setdefault(int(homes[row]), []).append(row)
    sizes = loads.nodes.sizes
    for nodes in loads.nodes.of_type:
        for _ in nodes if len(nodes) > 1 else ():
            heavy, light = max(nodes, key=loads.of.__getitem__), min(nodes, key=loads.of.__getitem__)
            gap = loads.of[heavy] - loads.of[light]
            if gap <= most_gap:
                break
            most = gap / (1 / sizes[heavy] + 1 / sizes[light])
            fitting = [row for row in by_home.get(heavy, ()) if tickets[row] <= most and gpus[row] <= sizes[light]]
            if not fitting:
                break
            row = max(fitting, key=lambda row: round(float(tickets[row]), DIGITS))
            loads.move(float(tickets[row]), heavy, light)
            homes[row] = light
            by_home[heavy].remove(row)
            moved.append(row)
    return moved
