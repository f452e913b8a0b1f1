"""The cells of a cluster: what nodes split into, and which cells are exchangeable.

A node is a cell. It splits into halves while its size is even, then into single GPUs: 8, 4, 2, 1, or 6, 3, 1. Above the
node, racks are cells whose nodes have equal sizes, and pods are cells whose racks have. The label of a node's rack says
where it is: `rack3`, or `pod1/rack3` with as many levels as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairway.core.cluster import Cluster


def sizes_of(gpus: int) -> tuple[int, ...]:
    """The sizes of the cells that a node splits into, the node first.

    >>> sizes_of(8), sizes_of(6)
    ((8, 4, 2, 1), (6, 3, 1))
    """
    sizes = [gpus]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2 if sizes[-1] % 2 == 0 else 1)
    return tuple(sizes)


class Top(NamedTuple):
    """A cell that is part of no other: a node, a rack or a pod. Its nodes are in the order of its parts."""

    sizes: tuple[int, ...]
    nodes: tuple[int, ...]


class Chain(NamedTuple):
    """Cells of one GPU type that are exchangeable: their sizes, falling, and the largest ones.

    A top may be smaller than the largest cell: a node of 4 GPUs is as good as half a node of 8. `sizes[node_level]` is
    the size of a node; cells above it have several.
    """

    kind: int
    sizes: tuple[int, ...]
    tops: tuple[Top, ...]
    node_level: int = 0

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes, in the order of the cluster."""
        return tuple(sorted(node for top in self.tops for node in top.nodes))


def chains_of(cluster: Cluster, *, racks: bool = False) -> tuple[Chain, ...]:
    """The cluster as chains, in the order of GPU types; within a type, the largest cells first.

    Without `racks`, nodes are the largest cells. A rack that fits into no chain of larger ones counts as its nodes.
    """
    found: list[tuple[int, tuple[int, ...], list[Top]]] = []
    for kind in range(len(cluster.types)):
        nodes = [node for node, its in enumerate(cluster.node_type) if its == kind]
        tops = _tops(cluster, nodes, 0) if racks else [_alone(cluster, node) for node in nodes]
        tops.sort(key=lambda top: (-top.sizes[0], top.nodes))
        mine: list[tuple[int, tuple[int, ...], list[Top]]] = []
        while tops:
            top = tops.pop(0)
            chain = next((one for one in mine if _belongs(top, one[1])), None)
            single = _alone(cluster, top.nodes[0])
            if chain is not None:
                chain[2].append(top)
            elif len(top.nodes) > 1 and any(_belongs(single, one[1]) for one in mine):
                tops = [*(_alone(cluster, node) for node in top.nodes), *tops]
            else:
                mine.append((kind, top.sizes, [top]))
        found += mine
    return tuple(
        Chain(kind, sizes, tuple(tops), sizes.index(cluster.nodes[tops[0].nodes[0]].gpus))
        for kind, sizes, tops in found
    )


def _alone(cluster: Cluster, node: int) -> Top:
    return Top(sizes_of(cluster.nodes[node].gpus), (node,))


def _belongs(top: Top, sizes: Sequence[int]) -> bool:
    """Whether a top is as good as one of the cells of a chain."""
    size = top.sizes[0]
    return size in sizes and tuple(sizes[sizes.index(size) :]) == top.sizes


def _tops(cluster: Cluster, nodes: Sequence[int], depth: int) -> list[Top]:
    """The largest cells of some nodes whose labels agree in their first `depth` parts."""
    tops: list[Top] = []
    groups: dict[str, list[int]] = {}
    for node in nodes:
        path = [part for part in cluster.nodes[node].rack.split("/") if part]
        if depth < len(path):
            groups.setdefault(path[depth], []).append(node)
        else:
            tops.append(_alone(cluster, node))
    for members in groups.values():
        parts = _tops(cluster, members, depth + 1)
        tops += [_joined(parts)] if len({part.sizes for part in parts}) == 1 else parts
    return tops


def _joined(parts: Sequence[Top]) -> Top:
    """Equal cells as one; a rack of one node is that node."""
    if len(parts) == 1:
        return parts[0]
    sizes = parts[0].sizes
    return Top((len(parts) * sizes[0], *sizes), tuple(node for part in parts for node in part.nodes))


class Layout:
    """What never changes about the cells of a cluster.

    Cells are (start, size) on *places*: the numbers of GPUs in an order in which every cell is in one piece. Without
    racks, places are the numbers of GPUs. By place: `gpu_at`, and `top_of`, the number of the top around it. By the
    number of a top: `first`, its first place, `top_gpus`, its size, and `chain_of`. `place_of` is by GPU, and
    `chain_tops` has the tops of each chain.
    """

    __slots__ = ("chain_of", "chain_tops", "chains", "first", "gpu_at", "place_of", "top_gpus", "top_of")

    def __init__(self, cluster: Cluster, *, racks: bool = False) -> None:
        self.chains = chains_of(cluster, racks=racks)
        tops = sorted((min(top.nodes), number, top) for number, chain in enumerate(self.chains) for top in chain.tops)
        self.chain_of = tuple(number for _, number, _ in tops)
        self.top_gpus = tuple(top.sizes[0] for _, _, top in tops)
        self.chain_tops: list[list[int]] = [[] for _ in self.chains]
        gpu_at: list[int] = []
        first: list[int] = []
        for at, (_, number, top) in enumerate(tops):
            self.chain_tops[number].append(at)
            first.append(len(gpu_at))
            for node in top.nodes:
                gpu_at.extend(range(cluster.first_gpu[node], cluster.first_gpu[node] + cluster.nodes[node].gpus))
        self.first, self.gpu_at = tuple(first), tuple(gpu_at)
        self.top_of = tuple(at for at, gpus in enumerate(self.top_gpus) for _ in range(gpus))
        places = [0] * len(gpu_at)
        for place, gpu in enumerate(gpu_at):
            places[gpu] = place
        self.place_of = tuple(places)

    def around(self, place: int, size: int) -> int:
        """The start of the cell of a size around a place."""
        first = self.first[self.top_of[place]]
        return first + (place - first) // size * size
