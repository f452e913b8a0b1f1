"""Where units live: the free GPUs and the load of every node, and the order in which places are tried.

A node has an *affinity*, the gang size of the first job that settled on it, in powers of two. Gangs of one size then
share a node and can take turns as a whole. Affinity is a preference: free GPUs are used whatever the affinity.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from fairway.core.cluster import Cluster
from fairway.policies.gandiva.units import Home, Unit

RELAX_LOAD = 1.0
"""A node of another affinity is shared if its load is lower by this much: a whole turn."""


def affinity_of(gang: int) -> int:
    """The class of a gang size: the next power of two."""
    return 1 << (gang - 1).bit_length()


class NodeLoads:
    """The nodes during one decision. `free` counts GPUs that no unit has claimed, `load` those of all homes."""

    def __init__(self, cluster: Cluster, sizes: Sequence[int], affinity: list[int]) -> None:
        self.cluster = cluster
        self.kind = cluster.node_type
        self.sizes = sizes
        self.free = list(sizes)
        self.load = [0] * len(self.sizes)
        self.affinity = affinity
        self.nodes: list[list[int]] = [[] for _ in cluster.types]
        for node, kind in enumerate(self.kind):
            if sizes[node]:
                self.nodes[kind].append(node)
        self.total = [sum(self.free[node] for node in nodes) for nodes in self.nodes]
        self.largest = [max((self.sizes[node] for node in nodes), default=0) for nodes in self.nodes]
        self._by_load: dict[tuple[int, int], list[tuple[float, int]]] = {}

    def take(self, home: Home) -> None:
        """Claim the GPUs of a home."""
        for node, count in home:
            self.free[node] -= count
            self.total[self.kind[node]] -= count

    def give(self, home: Home) -> None:
        """Give up the GPUs of a home again."""
        for node, count in home:
            self.free[node] += count
            self.total[self.kind[node]] += count

    def fits(self, home: Home) -> bool:
        """Whether the GPUs of a home are free to be claimed."""
        free = self.free
        return all(free[node] >= count for node, count in home)

    def settle_all(self, units: Iterable[Unit]) -> None:
        """Note all homes. Nodes that are in no home lose their affinity."""
        load, gang_on = self.load, dict[int, int]()
        for unit in units:
            for node, count in unit.home:
                load[node] += count
                if node not in gang_on:
                    gang_on[node] = unit.gang
        for node, own in enumerate(self.affinity):
            if not load[node]:
                self.affinity[node] = 0
            elif not own:
                self.affinity[node] = affinity_of(gang_on[node])

    def settle(self, home: Home, gang: int) -> None:
        """A unit makes these nodes its home."""
        for node, count in home:
            self.load[node] += count
            if not self.affinity[node]:
                self.affinity[node] = affinity_of(gang)
            if self._by_load:
                self._note(node)

    def leave(self, home: Home) -> None:
        """A unit has no home on these nodes any more."""
        for node, count in home:
            self.load[node] -= count
            if not self.load[node]:
                self.affinity[node] = 0
            if self._by_load:
                self._note(node)

    def is_spread(self, home: Home, size: int) -> bool:
        """Whether a gang uses more nodes than it needs."""
        return len(home) > 1 and len(home) > self.cluster.nodes_needed(self.kind[home[0][0]], size)

    def fit(self, gang: int, kind: int) -> Home:
        """Free GPUs on as few nodes as the gang needs: a node of its affinity with the lowest load, else one without
        affinity, else one of another; () if there is none."""
        if self.total[kind] < gang:
            return ()
        if gang > self.largest[kind]:
            home = self.spread(gang, kind)
            return () if self.is_spread(home, gang) else home
        free, load, affinity, wanted = self.free, self.load, self.affinity, affinity_of(gang)
        best, found = (3, 0.0), -1
        for node in self.nodes[kind]:
            if free[node] >= gang:
                own = affinity[node]
                step = 0 if own == wanted else 1 if own == 0 else 2
                rank = (step, load[node] / self.sizes[node] if step == 0 else free[node])
                if rank < best:
                    best, found = rank, node
        return ((found, gang),) if found >= 0 else ()

    def spread(self, gang: int, kind: int) -> Home:
        """Free GPUs of a type wherever they are, on few nodes; () if there are not enough."""
        if self.total[kind] < gang:
            return ()
        wanted, free, affinity = affinity_of(gang), self.free, self.affinity
        nodes = [node for node in self.nodes[kind] if free[node]]
        nodes.sort(key=lambda node: (-free[node], affinity[node] not in (0, wanted), node))
        return _portions(gang, nodes, free)

    def share(self, gang: int, kinds: Sequence[int]) -> Home:
        """A home on GPUs that others use as well: the lowest load, on nodes of its affinity if they are not much worse;
        () if the gang is too large for the nodes that are up."""
        best: tuple[float, Home] = (0.0, ())
        for kind in kinds:
            if gang > self.largest[kind]:
                home, load = self._share_many(gang, kind)
            else:
                home, load = self._share_one(gang, kind)
            if home and (not best[1] or load < best[0]):
                best = load, home
        return best[1]

    def _share_one(self, gang: int, kind: int) -> tuple[Home, float]:
        own, other = self._least(gang, kind, affinity_of(gang)), self._least(gang, kind, 0)
        node = other if own < 0 or self._ratio(own) >= self._ratio(other) + RELAX_LOAD else own
        return (((node, gang),), self._ratio(node)) if node >= 0 else ((), 0.0)

    def _share_many(self, gang: int, kind: int) -> tuple[Home, float]:
        wanted, nodes = affinity_of(gang), self.nodes[kind]
        if sum(self.sizes[node] for node in nodes) < gang:
            return (), 0.0
        order = sorted(nodes, key=lambda node: (self._ratio(node) - (self.affinity[node] == wanted), node))
        home = _portions(gang, order, self.sizes)
        return home, max(self._ratio(node) for node, _ in home)

    def _ratio(self, node: int) -> float:
        return self.load[node] / self.sizes[node]

    def _least(self, gang: int, kind: int, affinity: int) -> int:
        """The node of a type (and affinity, 0: any) with the lowest load that is large enough, or -1."""
        heap = self._by_load.get((kind, affinity))
        if heap is None:
            nodes = [n for n in self.nodes[kind] if affinity in (0, self.affinity[n])]
            heap = self._by_load[kind, affinity] = [(self._ratio(node), node) for node in nodes]
            heapq.heapify(heap)
        passed = []
        found = -1
        while heap:
            ratio, node = heap[0]
            current = ratio == self._ratio(node) and affinity in (0, self.affinity[node])
            if current and self.sizes[node] >= gang:
                found = node
                break
            heapq.heappop(heap)
            if current:
                passed.append((ratio, node))
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def _note(self, node: int) -> None:
        """Put the present load of a node into the heaps; entries with an old one are skipped."""
        kind = self.kind[node]
        for affinity in (0, self.affinity[node]):
            heap = self._by_load.get((kind, affinity))
            if heap is not None:
                heapq.heappush(heap, (self._ratio(node), node))

    def cleared(self, gang: int, kind: int, movable: Mapping[int, list[Unit]]) -> tuple[int, list[tuple[Unit, int]]]:
        """A node that a gang has to itself once a few units have moved off it, and these moves.

        The fewest moves win, then the last node, because the first ones fill up. (-1, []) if nothing helps.
        """
        best: tuple[int, list[tuple[Unit, int]]] = (-1, [])
        if self.total[kind] < gang:
            return best
        for node in self.nodes[kind]:
            if self.free[node] < gang <= self.sizes[node] and movable.get(node):
                moves = self._evacuate(node, gang - self.free[node], movable[node])
                if moves and (best[0] < 0 or len(moves) <= len(best[1])):
                    best = node, moves
        return best

    def _evacuate(self, node: int, need: int, units: Iterable[Unit]) -> list[tuple[Unit, int]]:
        """Moves of single-node units that free `need` GPUs of a node, the largest first; [] if that is impossible."""
        moves: list[tuple[Unit, int]] = []
        used: dict[int, int] = {}
        for unit in sorted(units, key=lambda unit: (-unit.size, unit.rows[0])):
            if need <= 0:
                break
            room = {n: self.free[n] - used.get(n, 0) for n in self.nodes[self.kind[node]] if n != node}
            fitting = [n for n, count in room.items() if count >= unit.size]
            if fitting:
                wanted = affinity_of(unit.gang)
                target = min(fitting, key=lambda n: (self.affinity[n] != wanted, room[n], n))
                used[target] = used.get(target, 0) + unit.size
                moves.append((unit, target))
                need -= unit.size
        return moves if need <= 0 else []


def _portions(gang: int, nodes: Iterable[int], counts: Sequence[int]) -> Home:
    """A gang spread over nodes in order, as much on each as it offers."""
    home = []
    for node in nodes:
        count = min(counts[node], gang)
        home.append((node, count))
        gang -= count
        if not gang:
            break
    return tuple(sorted(home))
