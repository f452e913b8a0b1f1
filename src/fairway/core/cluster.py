"""The machines: nodes of GPUs, each of one type, in racks.

GPUs are numbered 0..n-1 across the cluster, node by node. Everything that varies at run time (which job holds a GPU,
which node is down) is in `core.state`; a `Cluster` never changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairway.core.arrays import Ints, frozen
from fairway.core.errors import InputError
from fairway.core.hardware import known_gpu, known_names

MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True)
class GpuType:
    """What a policy may know about a GPU type. `speed` is relative to a V100."""

    name: str
    memory_bytes: int
    price_per_h: float
    speed: float

    @staticmethod
    def named(name: str) -> GpuType:
        """The type from the built-in catalogue, under the name that the user gave it."""
        known = known_gpu(name)
        if known is None:
            raise InputError(f"unknown GPU type {name!r}; known: {known_names()}; others go in a cluster file")
        return GpuType(name.lower(), known.memory_bytes, known.price_per_h, known.speed)


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with `gpus` GPUs of one type."""

    name: str
    gpu_type: str
    gpus: int
    rack: str = ""


@dataclass(frozen=True)
class Cluster:
    """Nodes and the types of their GPUs, in the order in which they were given."""

    nodes: tuple[Node, ...]
    types: tuple[GpuType, ...]
    text: str = ""

    @staticmethod
    def of(nodes: Iterable[Node], types: Iterable[GpuType] | None = None, text: str = "") -> Cluster:
        """Check and build a cluster; types that are not given are taken from the catalogue."""
        nodes = tuple(nodes)
        given = {t.name: t for t in (types or ())}
        order = dict.fromkeys(node.gpu_type for node in nodes)
        cluster = Cluster(nodes, tuple(given.get(name) or GpuType.named(name) for name in order), text)
        cluster._validate()
        return cluster

    def _validate(self) -> None:
        if not self.nodes:
            raise InputError("the cluster has no nodes with GPUs")
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"two nodes are called {twice!r}")
        for node in self.nodes:
            if node.gpus < 1:
                raise InputError(f"node {node.name!r} has {node.gpus} GPUs; at least 1 is needed")
        for gpu in self.types:
            if not (math.isfinite(gpu.speed) and gpu.speed > 0):
                raise InputError(f"GPU type {gpu.name!r}: speed {gpu.speed} is not a positive number")
            if not (math.isfinite(gpu.price_per_h) and gpu.price_per_h >= 0):
                raise InputError(f"GPU type {gpu.name!r}: price {gpu.price_per_h} is not a number of at least 0")
            if gpu.memory_bytes < 0:
                raise InputError(f"GPU type {gpu.name!r}: memory is negative")
        if self.gpu_count > MAX_GPUS:
            raise InputError(f"{self.gpu_count} GPUs are more than Fairway handles ({MAX_GPUS})")

    @cached_property
    def gpu_count(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def type_index(self) -> dict[str, int]:
        return {t.name: i for i, t in enumerate(self.types)}

    @cached_property
    def node_type(self) -> tuple[int, ...]:
        """The type index of each node."""
        return tuple(self.type_index[node.gpu_type] for node in self.nodes)

    @cached_property
    def first_gpu(self) -> tuple[int, ...]:
        """The number of the first GPU of each node."""
        starts, at = [], 0
        for node in self.nodes:
            starts.append(at)
            at += node.gpus
        return tuple(starts)

    @cached_property
    def node_of_gpu(self) -> tuple[int, ...]:
        return tuple(i for i, node in enumerate(self.nodes) for _ in range(node.gpus))

    @cached_property
    def gpus_by_type(self) -> Ints:
        """How many GPUs there are of each type (when every node is up)."""
        counts = np.zeros(len(self.types), dtype=np.int64)
        for node, kind in zip(self.nodes, self.node_type, strict=True):
            counts[kind] += node.gpus
        return frozen(counts)

    @cached_property
    def node_names_of_gpus(self) -> tuple[str, ...]:
        """A readable name for each GPU: node name, slash, index within the node."""
        return tuple(f"{node.name}/{k}" for node in self.nodes for k in range(node.gpus))

    def names_of(self, gpus: Iterable[int]) -> list[str]:
        """The names of the nodes of some GPUs, in their order."""
        return list(dict.fromkeys(self.nodes[self.node_of_gpu[gpu]].name for gpu in gpus))

    def goes_on_from(self, known: Cluster) -> bool:
        """Whether this is a known cluster with more nodes, or as many: those that are known come first."""
        sizes = [(node.gpu_type, node.gpus) for node in known.nodes]
        return [(node.gpu_type, node.gpus) for node in self.nodes[: len(sizes)]] == sizes

    def nodes_needed(self, kind: int, gpus: int) -> int:
        """The smallest number of nodes of a type that can hold a gang when all are empty."""
        sizes = self._sizes_by_type[kind]
        total = 0
        for count, size in enumerate(sizes, start=1):
            total += size
            if total >= gpus:
                return count
        return len(sizes) + 1

    @cached_property
    def _sizes_by_type(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(sorted((n.gpus for n, k in zip(self.nodes, self.node_type, strict=True) if k == kind), reverse=True))
            for kind in range(len(self.types))
        )
