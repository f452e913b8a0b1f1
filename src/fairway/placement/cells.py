"""Cells of GPUs and their buddy allocation, after HiveD (Zhao et al., OSDI'20).

A node is a cell. It splits into halves while its size is even, then into single GPUs: 8, 4, 2, 1, or 6, 3, 1. A cell is
cut only if no free one of the wanted size is left, or if taking one would disturb a job and the reservations that are
not in use can do without the larger cell. It is whole again as soon as all its parts are free. Then a set of
reservations that fits into the empty cluster can be met at any time, in whatever order cells were taken and given back:
reservations never fragment each other. Cells are (start, size) on the cluster-wide numbers of GPUs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from fairway.core.cluster import Cluster

Cost: TypeAlias = Callable[[int, int], int]
"""The cost of taking the cell (start, size); the cheapest is chosen. See `UNUSABLE` and `BLOCKED`."""

BLOCKED = 1 << 40
"""From this cost on a cell cannot be taken now, but will be: that is no reason to cut a larger one that is needed."""
UNUSABLE = 1 << 60
"""The cost of a cell that is out of order."""


def free_of_charge(start: int, size: int) -> int:
    """The cost if all cells are alike."""
    return 0


def sizes_of(gpus: int) -> tuple[int, ...]:
    """The sizes of the cells that a node splits into, the node first.

    >>> sizes_of(8), sizes_of(6)
    ((8, 4, 2, 1), (6, 3, 1))
    """
    sizes = [gpus]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2 if sizes[-1] % 2 == 0 else 1)
    return tuple(sizes)


class Chain(NamedTuple):
    """Nodes of one GPU type whose cells are exchangeable: the sizes of cells, falling, and the nodes.

    A node may be smaller than the largest cell: one of 4 GPUs is as good as half a node of 8.
    """

    kind: int
    sizes: tuple[int, ...]
    nodes: tuple[int, ...]


def chains_of(cluster: Cluster) -> tuple[Chain, ...]:
    """The cluster as chains, in the order of GPU types; within a type, the largest nodes first."""
    found: list[tuple[int, tuple[int, ...], list[int]]] = []
    order = sorted(range(len(cluster.nodes)), key=lambda n: (cluster.node_type[n], -cluster.nodes[n].gpus, n))
    for node in order:
        kind, gpus = cluster.node_type[node], cluster.nodes[node].gpus
        for known, sizes, nodes in found:
            if known == kind and gpus in sizes:
                nodes.append(node)
                break
        else:
            found.append((kind, sizes_of(gpus), [node]))
    return tuple(Chain(kind, sizes, tuple(sorted(nodes))) for kind, sizes, nodes in found)


class Layout:
    """What never changes about the cells of a cluster."""

    __slots__ = ("chains", "first_gpu", "node_gpus", "node_of_gpu")

    def __init__(self, cluster: Cluster) -> None:
        self.chains = chains_of(cluster)
        self.node_of_gpu = cluster.node_of_gpu
        self.first_gpu = cluster.first_gpu
        self.node_gpus = tuple(node.gpus for node in cluster.nodes)


class Cells:
    """The free cells of a cluster: sorted starts for each chain and level (0 is the largest size)."""

    __slots__ = ("_free", "_unused", "layout")

    def __init__(
        self,
        layout: Layout,
        free: Sequence[Sequence[Sequence[int]]] | None = None,
        unused: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """All cells are free, or those that `plain` listed.

        `unused` says how many cells of each chain and level are reserved and not taken. Larger cells that these do not
        need may be cut although smaller ones are free. Then only reserved cells may be taken.
        """
        self.layout = layout
        self._unused = [list(chain) for chain in unused] if unused is not None else None
        if free is not None:
            self._free = [[list(starts) for starts in chain] for chain in free]
            return
        self._free = [[[] for _ in chain.sizes] for chain in layout.chains]
        for number, chain in enumerate(layout.chains):
            for node in chain.nodes:
                level = chain.sizes.index(layout.node_gpus[node])
                self._free[number][level].append(layout.first_gpu[node])

    def copy(self) -> Cells:
        """An independent copy of the free cells."""
        return Cells(self.layout, self._free, self._unused)

    def plain(self) -> list[list[list[int]]]:
        """The free cells as JSON values. Not a copy."""
        return self._free

    def take(self, chain: int, level: int, cost: Cost = free_of_charge, home: int = -1) -> int | None:
        """Take a free cell and return its start: the cheapest, then the one at `home`, then the first.

        None if there is no free cell, or if the free ones cannot be taken yet.
        """
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        best, cut, limit = (UNUSABLE, -1, -1), level, -1
        for above in range(level, -1, -1):
            if above < limit:
                break
            found = self._cheapest(free[above], sizes[above], sizes[level], cost, home)
            if found[0] < best[0]:
                best, cut = found, above
            if not best[0]:
                break
            if best[0] < UNUSABLE and limit < 0:
                limit = self._limit(chain, level, cost)
        price, whole, start = best
        if price >= BLOCKED:
            return None
        self._cut(chain, cut, whole, level, start)
        if self._unused is not None:
            self._unused[chain][level] -= 1
        return start

    def _limit(self, chain: int, level: int, cost: Cost) -> int:
        """The level of the largest cells that may be cut, for one of `level`, while smaller ones are free.

        Cutting a cell costs each level from its own down to the one above `level` one cell. That cell must be to spare:
        left over when the reservations that are not in use have got theirs, from the largest down.
        """
        if self._unused is None:
            return level
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        spare, limit = 0, 0
        for above in range(level):
            sound = sum(cost(start, sizes[above]) < UNUSABLE for start in free[above])
            parts = sizes[above - 1] // sizes[above] if above else 0
            spare = spare * parts + sound - self._unused[chain][above]
            if spare < 1:
                limit = above + 1
        return limit

    def _cheapest(self, starts: list[int], whole: int, size: int, cost: Cost, home: int) -> tuple[int, int, int]:
        """The cheapest cell of `size` within free cells of size `whole`: its cost, the free cell around it, itself."""
        if home >= 0:
            node = self.layout.node_of_gpu[home]
            first = self.layout.first_gpu[node]
            around = home - (home - first) % whole
            if whole <= self.layout.node_gpus[node] and _holds(starts, around) and cost(home, size) == 0:
                return 0, around, home
        best = (UNUSABLE, -1, -1)
        for around in starts:
            for start in range(around, around + whole, size):
                price = cost(start, size)
                if price < best[0]:
                    best = (price, around, start)
                    if not price:
                        return best
        return best

    def _cut(self, chain: int, above: int, whole: int, level: int, start: int) -> None:
        """Take a cell out of a free one and leave the other parts free."""
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        del free[above][bisect_left(free[above], whole)]
        for below in range(above + 1, level + 1):
            size = sizes[below]
            part = whole + (start - whole) // size * size
            for other in range(whole, whole + sizes[below - 1], size):
                if other != part:
                    insort(free[below], other)
            whole = part

    def give(self, chain: int, level: int, start: int) -> None:
        """A taken cell is free again; with all its buddies free it becomes part of the larger cell again."""
        if self._unused is not None:
            self._unused[chain][level] += 1
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        node = self.layout.node_of_gpu[start]
        first, gpus = self.layout.first_gpu[node], self.layout.node_gpus[node]
        while sizes[level] < gpus:
            size, whole = sizes[level], sizes[level - 1]
            around = first + (start - first) // whole * whole
            buddies = [other for other in range(around, around + whole, size) if other != start]
            if not all(_holds(free[level], other) for other in buddies):
                break
            for other in buddies:
                del free[level][bisect_left(free[level], other)]
            level, start = level - 1, around
        insort(free[level], start)

    def count(self, kind: int) -> int:
        """How many GPUs of a type are in free cells."""
        pairs = zip(self.layout.chains, self._free, strict=True)
        return sum(
            len(starts) * size
            for chain, free in pairs
            if chain.kind == kind
            for size, starts in zip(chain.sizes, free, strict=True)
        )


def _holds(starts: list[int], start: int) -> bool:
    at = bisect_left(starts, start)
    return at < len(starts) and starts[at] == start
