"""Which GPUs are free, as bit masks: one integer of GPUs per node, one integer of nodes per (type, free count).

Best fit, "which nodes are wholly free", and taking or giving back a gang are then a few integer operations each,
whatever the size of the cluster. A copy is cheap, so placement works on a scratch copy, and the state's own is never
half changed.
"""

from __future__ import annotations

from fairway.core.cluster import Cluster
from fairway.core.errors import EngineError


def lowest_bit(mask: int) -> int:
    """The number of the lowest set bit."""
    return (mask & -mask).bit_length() - 1


class Occupancy:
    """Free GPUs of a cluster. Jobs may share a GPU: `_extra` counts its jobs beyond the first."""

    __slots__ = ("_extra", "by_free", "cluster", "down", "free_by_type", "free_mask", "node_of_gpu")

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node_of_gpu = cluster.node_of_gpu
        self.free_mask = [(1 << node.gpus) - 1 for node in cluster.nodes]
        self.free_by_type = [int(count) for count in cluster.gpus_by_type]
        largest = max(node.gpus for node in cluster.nodes)
        self.by_free = [[0] * (largest + 1) for _ in cluster.types]
        for i, node in enumerate(cluster.nodes):
            self.by_free[cluster.node_type[i]][node.gpus] |= 1 << i
        self.down: set[int] = set()
        self._extra: dict[int, int] = {}

    def copy(self) -> Occupancy:
        other = object.__new__(Occupancy)
        other.cluster = self.cluster
        other.node_of_gpu = self.node_of_gpu
        other.free_mask = self.free_mask.copy()
        other.free_by_type = self.free_by_type.copy()
        other.by_free = [row.copy() for row in self.by_free]
        other.down = self.down.copy()
        other._extra = self._extra.copy()
        return other

    def take(self, gpus: tuple[int, ...]) -> None:
        """Book GPUs for a job. A GPU that is taken already gets one more job."""
        for node, mask in self._masks(gpus):
            free = self.free_mask[node]
            if mask & ~free:
                self._share(node, mask & ~free)
                mask &= free
            if mask:
                self._set_free(node, free & ~mask)

    def give(self, gpus: tuple[int, ...]) -> None:
        """Give GPUs back. A GPU that another job holds as well stays taken."""
        for node, mask in self._masks(gpus):
            if self._extra:
                mask = self._unshare(node, mask)
            if mask & self.free_mask[node]:
                raise EngineError(f"GPUs {gpus} are given back twice")
            if node not in self.down:
                self._set_free(node, self.free_mask[node] | mask)

    @property
    def shared(self) -> bool:
        """Whether any GPU has more than one job."""
        return bool(self._extra)

    def tenants(self, gpu: int) -> int:
        """How many jobs hold a GPU."""
        node = self.node_of_gpu[gpu]
        free = self.free_mask[node] >> (gpu - self.cluster.first_gpu[node]) & 1
        return 0 if free or node in self.down else 1 + self._extra.get(gpu, 0)

    def lose(self, node: int) -> None:
        """Mark a node as down. Its jobs must give their GPUs back afterwards; they do not become free."""
        self.down.add(node)
        self._set_free(node, 0)

    def restore(self, node: int) -> None:
        """Mark a node as up again and wholly free."""
        self.down.discard(node)
        self._set_free(node, (1 << self.cluster.nodes[node].gpus) - 1)

    def _masks(self, gpus: tuple[int, ...]) -> list[tuple[int, int]]:
        """The gang as (node, mask) pairs, in the order of its GPUs."""
        first_gpu, node_of_gpu = self.cluster.first_gpu, self.node_of_gpu
        if len(gpus) == 1:
            node = node_of_gpu[gpus[0]]
            return [(node, 1 << (gpus[0] - first_gpu[node]))]
        pairs: list[tuple[int, int]] = []
        current, mask = -1, 0
        for gpu in gpus:
            node = node_of_gpu[gpu]
            if node != current:
                if mask:
                    pairs.append((current, mask))
                current, mask = node, 0
            mask |= 1 << (gpu - first_gpu[node])
        if mask:
            pairs.append((current, mask))
        return pairs

    def _set_free(self, node: int, mask: int) -> None:
        old = self.free_mask[node]
        before, after = old.bit_count(), mask.bit_count()
        kind = self.cluster.node_type[node]
        row, bit = self.by_free[kind], 1 << node
        row[before] &= ~bit
        row[after] |= bit
        self.free_by_type[kind] += after - before
        self.free_mask[node] = mask

    def _share(self, node: int, mask: int) -> None:
        first = self.cluster.first_gpu[node]
        while mask:
            gpu = first + lowest_bit(mask)
            self._extra[gpu] = self._extra.get(gpu, 0) + 1
            mask &= mask - 1

    def _unshare(self, node: int, mask: int) -> int:
        """Take one job off each shared GPU in the mask. Returns the mask of those that become free."""
        first, left, bits = self.cluster.first_gpu[node], mask, mask
        while bits:
            gpu = first + lowest_bit(bits)
            if gpu in self._extra:
                self._extra[gpu] -= 1
                if not self._extra[gpu]:
                    del self._extra[gpu]
                left &= ~(1 << (gpu - first))
            bits &= bits - 1
        return left
