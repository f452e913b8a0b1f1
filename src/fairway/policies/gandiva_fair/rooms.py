"""Free GPUs, node by node, while a decision is made; and from counts to concrete GPUs.

Grants are first settled in counts. Concrete GPUs come last, so that a job that goes on keeps its GPUs, and a job that
resumes finds the GPUs that it left, where it is back within a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairway.core.cluster import Cluster
from fairway.core.occupancy import Occupancy
from fairway.core.snapshot import Snapshot

Parts = tuple[tuple[int, int], ...]
"""Where a gang is: (node, GPUs there)."""


class NodeGpus:
    """The nodes with usable GPUs, by type, and how many each has (0 on nodes that are down)."""

    def __init__(self, snapshot: Snapshot) -> None:
        cluster = snapshot.cluster
        self.cluster = cluster
        self.down = frozenset(snapshot.down_nodes)
        self.withheld = tuple(sorted(snapshot.withheld_gpus))
        self.sizes = snapshot.node_sizes
        self.of_type: list[list[int]] = [[] for _ in cluster.types]
        for node, kind in enumerate(cluster.node_type):
            if self.sizes[node]:
                self.of_type[kind].append(node)
        self.largest = [max((self.sizes[n] for n in nodes), default=0) for nodes in self.of_type]
        self.smallest = [min((self.sizes[n] for n in nodes), default=0) for nodes in self.of_type]


class Rooms:
    """How many GPUs are still free, by node and by type. `closed` nodes take only the row for which they are kept."""

    def __init__(self, nodes: NodeGpus, capacity: Iterable[int]) -> None:
        self.nodes = nodes
        self.free = nodes.sizes.copy()
        self.by_type = [int(count) for count in capacity]
        self.closed: dict[int, int] = {}

    def parts_of(self, gpus: tuple[int, ...]) -> Parts:
        """Where these GPUs are."""
        node_of_gpu, counts = self.nodes.cluster.node_of_gpu, dict[int, int]()
        for gpu in gpus:
            counts[node_of_gpu[gpu]] = counts.get(node_of_gpu[gpu], 0) + 1
        return tuple(counts.items())

    def take(self, kind: int, gpus: int, parts: Parts) -> None:
        """Book a gang."""
        self.by_type[kind] -= gpus
        for node, count in parts:
            self.free[node] -= count

    def has(self, kind: int, gpus: int, parts: Parts) -> bool:
        """Whether these places are still free."""
        if self.by_type[kind] < gpus:
            return False
        return all(self.free[node] >= count for node, count in parts)

    def open_to(self, node: int, row: int) -> bool:
        """Whether a row may begin to run on a node."""
        return self.closed.get(node, row) == row

    def on_one_node(self, kind: int, gpus: int, row: int) -> Parts | None:
        """The node of this type, open to the row, that a gang fits best."""
        best, least = -1, 1 << 60
        for node in self.nodes.of_type[kind]:
            room = self.free[node]
            if gpus <= room < least and self.open_to(node, row):
                best, least = node, room
        return None if best < 0 else ((best, gpus),)

    def on_few_nodes(self, kind: int, gpus: int, row: int) -> Parts | None:
        """As few nodes of this type, open to the row, as possible."""
        if self.by_type[kind] < gpus:
            return None
        free = self.free
        nodes = [node for node in self.nodes.of_type[kind] if free[node] and self.open_to(node, row)]
        nodes.sort(key=lambda node: -free[node])
        parts: list[tuple[int, int]] = []
        for at, node in enumerate(nodes):
            if free[node] >= gpus:
                last = [n for n in nodes[at:] if free[n] >= gpus][-1]
                return (*parts, (last, gpus))
            parts.append((node, free[node]))
            gpus -= free[node]
        return None


def concrete(
    rooms: Rooms, granted: Mapping[int, Parts], here: Mapping[int, Parts], last: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """GPUs for each granted row that does not stay where it is.

    `here` is where running rows are, `last` the GPUs that each row holds or held last.
    """
    nodes = rooms.nodes
    occupancy = Occupancy(nodes.cluster)
    for node in sorted(nodes.down):
        occupancy.lose(node)
    occupancy.take(nodes.withheld)
    places: dict[int, tuple[int, ...]] = {}
    moves: list[int] = []
    for row, parts in granted.items():
        if here.get(row) == parts:
            occupancy.take(last[row])
        elif parts:
            moves.append(row)
    others: list[int] = []
    for row in moves:
        old = last.get(row, ())
        if old and rooms.parts_of(old) == granted[row] and not any(occupancy.tenants(gpu) for gpu in old):
            occupancy.take(old)
            places[row] = old
        else:
            others.append(row)
    for row in others:
        places[row] = _lowest(occupancy, nodes.cluster, granted[row])
        occupancy.take(places[row])
    return places


def _lowest(occupancy: Occupancy, cluster: Cluster, parts: Parts) -> tuple[int, ...]:
    """The first free GPUs of each node."""
    gpus: list[int] = []
    for node, count in parts:
        mask, first = occupancy.free_mask[node], cluster.first_gpu[node]
        for _ in range(count):
            gpus.append(first + (mask & -mask).bit_length() - 1)
            mask &= mask - 1
    return tuple(gpus)
