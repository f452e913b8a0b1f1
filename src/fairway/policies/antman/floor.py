"""Which GPUs guaranteed gangs start on while opportunistic jobs run, and which of these jobs have to leave.

A gang gets as few nodes as if there were no opportunistic jobs. Among such nodes it takes those where opportunistic
jobs lose the fewest GPUs, then those with the youngest such jobs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.snapshot import Snapshot

Loss = tuple[int, int, tuple[int, ...]]
"""What an eviction costs: GPUs that opportunistic jobs lose, minus the row of the oldest of them, and their rows."""


class SpareGpus:
    """The GPUs that no guaranteed job holds, by node: `free` ones, and `open` ones, which include those of tenants.

    Here a tenant is the row of an opportunistic job with GPUs of its own; `evicted` are those that had to leave.
    """

    def __init__(self, snapshot: Snapshot, settled: Iterable[int], tenants: Iterable[int]) -> None:
        cluster = snapshot.cluster
        self._first_gpu, self._node_of_gpu = cluster.first_gpu, cluster.node_of_gpu
        self._rows, self._kinds = len(snapshot), np.array(cluster.node_type, dtype=np.int64)
        sizes = [0 if at in snapshot.down_nodes else node.gpus for at, node in enumerate(cluster.nodes)]
        self._masks = [(1 << size) - 1 for size in sizes]
        for node, mask in self._by_node(tuple(snapshot.withheld_gpus)).items():
            self._masks[node] &= ~mask
        self._tenants: list[dict[int, int]] = [{} for _ in sizes]
        self._parts: dict[int, dict[int, int]] = {}
        self.evicted: list[int] = []
        for row in settled:
            for node, mask in self._by_node(snapshot.gpus_held(row)).items():
                self._masks[node] &= ~mask
        self.open: Ints = np.array([mask.bit_count() for mask in self._masks], dtype=np.int64)
        for row in tenants:
            self._parts[row] = self._by_node(snapshot.gpus_held(row))
            for node, mask in self._parts[row].items():
                self._masks[node] &= ~mask
                self._tenants[node][row] = mask
        self.free: Ints = np.array([mask.bit_count() for mask in self._masks], dtype=np.int64)
        self._gangs = {row: sum(mask.bit_count() for mask in part.values()) for row, part in self._parts.items()}
        self._ranks: Ints = np.zeros((len(sizes), max(sizes, default=0) + 1), dtype=np.int64)
        self._losses: list[list[Loss]] = [[] for _ in sizes]
        self._stale = set(range(len(sizes)))
        self._nodes: dict[int, list[int]] = {}

    def _by_node(self, gpus: tuple[int, ...]) -> dict[int, int]:
        masks: dict[int, int] = {}
        for gpu in gpus:
            node = self._node_of_gpu[gpu]
            masks[node] = masks.get(node, 0) | 1 << (gpu - self._first_gpu[node])
        return masks

    def seat(self, need: int, kind: int) -> tuple[int, ...]:
        """GPUs of a type for a gang, () if there are not enough. Tenants in the way are evicted."""
        chosen: list[int] = []
        here = self._kinds == kind
        if need > int(self.open[here].sum()):
            return ()
        while need:
            part = min(need, int(self.open[here].max()))
            chosen += self._take(self._best_node(here & (self.open >= part), part), part)
            need -= part
        return tuple(chosen)

    def seat_quickly(self, need: int, kind: int) -> tuple[int, ...]:
        """The same without a search for the least loss: the fullest node with room, where the youngest leave."""
        if kind not in self._nodes:
            self._nodes[kind] = [0] * self._ranks.shape[1]
            for node in (self._kinds == kind).nonzero()[0].tolist():
                self._nodes[kind][self.open[node]] |= 1 << node
        nodes, chosen = self._nodes[kind], list[int]()
        while need:
            room = next((room for room in range(need, len(nodes)) if nodes[room]), 0)
            room = room or max((room for room, some in enumerate(nodes) if some), default=0)
            if not room:
                return ()
            bit, part = nodes[room] & -nodes[room], min(need, room)
            node = bit.bit_length() - 1
            for row in sorted(self._tenants[node], reverse=True) if self.free[node] < part else ():
                if self.free[node] < part:
                    self._evict(row)
            chosen += self._take(node, part)
            nodes[room] ^= bit
            nodes[room - part] |= bit
            need -= part
        return tuple(chosen)

    def close(self) -> None:
        """The remaining tenants stay: from now on only free GPUs are given."""
        self.open = self.free.copy()
        self._nodes.clear()

    def _best_node(self, fits: Ints, part: int) -> int:
        """The node where no tenant has to leave, else where least is lost; then the one with the fewest open GPUs."""
        nodes = (fits & (self.free >= part)).nonzero()[0]
        if len(nodes):
            return int(nodes[self.open[nodes].argmin()])
        nodes = fits.nonzero()[0]
        for node in self._stale:
            self._weigh(node)
        self._stale.clear()
        ranks = self._ranks[nodes, part] * self._ranks.shape[1] + self.open[nodes]
        return int(nodes[ranks.argmin()])

    def _take(self, node: int, part: int) -> list[int]:
        """Take the first free GPUs of a node, after the tenants that are in the way have left."""
        missing = part - int(self.free[node])
        if missing > 0:
            for row in self._losses[node][missing][2]:
                self._evict(row)
        mask, taken = self._masks[node], []
        for _ in range(part):
            taken.append(self._first_gpu[node] + (mask & -mask).bit_length() - 1)
            mask &= mask - 1
        self._masks[node] = mask
        self.free[node] -= part
        self.open[node] -= part
        self._stale.add(node)
        return taken

    def _evict(self, row: int) -> None:
        self.evicted.append(row)
        for node, mask in self._parts[row].items():
            self._masks[node] |= mask
            self.free[node] += mask.bit_count()
            del self._tenants[node][row]
            self._stale.add(node)

    def _weigh(self, node: int) -> None:
        """Work out the least loss by which each number of GPUs of a node becomes free, and rank the node by it."""
        losses = self._losses[node] = _least_losses(self._tenants[node], self._gangs)
        free = int(self.free[node])
        ranks = [lost * (self._rows + 1) + self._rows + age for lost, age, _ in losses]
        self._ranks[node, free : free + len(ranks)] = ranks


def _least_losses(tenants: dict[int, int], gangs: dict[int, int]) -> list[Loss]:
    """For 0, 1, 2, … GPUs of a node that shall become free: which tenants should leave. A small knapsack, exact."""
    youngest = sorted(tenants, reverse=True)
    if all(gangs[row] == 1 for row in youngest):
        return [(n, -youngest[n - 1] if n else 0, tuple(youngest[:n])) for n in range(len(youngest) + 1)]
    best: list[Loss | None] = [(0, 0, ())]
    for row in youngest:
        gain = tenants[row].bit_count()
        best += [None] * gain
        for freed in range(len(best) - 1, gain - 1, -1):
            before = best[freed - gain]
            if before is not None:
                loss = (before[0] + gangs[row], -row, (*before[2], row))
                now = best[freed]
                if now is None or loss[:2] < now[:2]:
                    best[freed] = loss
    losses: list[Loss] = []
    for exact in reversed(best):
        # More than needed may become free if that costs less.
        losses.append(exact if exact is not None and (not losses or exact[:2] <= losses[-1][:2]) else losses[-1])
    return losses[::-1]
