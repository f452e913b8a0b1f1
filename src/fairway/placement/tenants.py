"""Virtual clusters: each tenant's reservation as a cluster of its own, made of cells of the real one.

A set of reservations that the cluster cannot hold at the same time is refused here, when it is configured. Jobs that no
tenant claims, and jobs of negative priority, are opportunistic: they use what is idle and are evicted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Ints
from fairway.core.cluster import Cluster, Node
from fairway.core.errors import InputError
from fairway.core.job import JobSpec
from fairway.core.occupancy import Occupancy
from fairway.core.snapshot import Snapshot
from fairway.core.tenant import CellSpec, TenantSpec
from fairway.placement.cells import Cells
from fairway.placement.hierarchy import Layout

OPPORTUNISTIC = -1
"""The owner of jobs that belong to no tenant, and the priority that they get."""


class Claimed(Protocol):
    """What decides whose a job is, and whether it fits: a `JobSpec`, or the request of a live job."""

    @property
    def user(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def priority(self) -> int: ...

    @property
    def gpus(self) -> int: ...


class VirtualCell(NamedTuple):
    """A part of a virtual cluster: any cell of this chain and level. It is a node, or the nodes of a rack or a pod."""

    chain: int
    level: int
    gpus: int


@dataclass(frozen=True)
class VirtualCluster:
    """A tenant's reservation as a cluster whose nodes are its cells, or parts of them.

    `kinds` are the real numbers of its GPU types.
    """

    name: str
    cluster: Cluster
    cells: tuple[VirtualCell, ...]
    kinds: tuple[int, ...]

    @cached_property
    def empty(self) -> Occupancy:
        """The virtual cluster with nobody in it. Copy it before use."""
        return Occupancy(self.cluster)

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The first GPU of each cell."""
        return tuple(accumulate((cell.gpus for cell in self.cells[:-1]), initial=0))

    @cached_property
    def cell_of_gpu(self) -> tuple[int, ...]:
        """The cell of each GPU."""
        return tuple(number for number, cell in enumerate(self.cells) for _ in range(cell.gpus))

    def nodes_of(self, cells: Iterable[int]) -> frozenset[int]:
        """The nodes of some cells."""
        lost = set(cells)
        firsts = enumerate(self.cluster.first_gpu)
        return frozenset(node for node, gpu in firsts if self.cell_of_gpu[gpu] in lost) if lost else frozenset()

    def counted(self, cells: Iterable[int], gpus: Iterable[int]) -> Ints:
        """How many GPUs there are of each type, without those of some cells and without some GPUs."""
        cluster, counts = self.cluster, self.cluster.gpus_by_type.copy()
        for number in cells:
            counts[cluster.node_type[cluster.node_of_gpu[self.first[number]]]] -= self.cells[number].gpus
        for gpu in gpus:
            counts[cluster.node_type[cluster.node_of_gpu[gpu]]] -= 1
        return counts


class Tenants:
    """All virtual clusters of a cluster, and the tenant of each job."""

    def __init__(self, cluster: Cluster, specs: Sequence[TenantSpec]) -> None:
        if not specs:
            raise InputError("there are no tenants")
        self.cluster = cluster
        self.specs = tuple(specs)
        self.layout = Layout(cluster, racks=_above_nodes(cluster, specs))
        self.empty = Occupancy(cluster)
        names = [spec.name for spec in specs]
        self._queues = _owners("queue", names, [spec.queues for spec in specs])
        self._users = _owners("user", names, [spec.users for spec in specs])
        if len(set(names)) != len(names):
            raise InputError("two tenants have the same name")
        cells = _reserved(cluster, self.layout, specs)
        self.parts = tuple(
            _virtual(cluster, self.layout, spec.name, mine) for spec, mine in zip(specs, cells, strict=True)
        )

    @cached_property
    def reserved(self) -> list[list[int]]:
        """How many cells of each chain and level are reserved. Copy it before use."""
        counts = [[0] * len(chain.sizes) for chain in self.layout.chains]
        for part in self.parts:
            for cell in part.cells:
                counts[cell.chain][cell.level] += 1
        return counts

    @cached_property
    def text(self) -> str:
        """All cells in one line. Bindings mean the same as long as this is the same."""
        sizes = [f"{chain.kind}:{chain.sizes}x{len(chain.tops)}" for chain in self.layout.chains]
        cells = [f"{part.name} {sorted(Counter(part.cells).items())}" for part in self.parts]
        return f"{sizes} {cells}"

    @property
    def claims_users(self) -> bool:
        """Whether jobs of one queue may be of several tenants, because of their users."""
        return bool(self._users)

    def owner_of(self, job: Claimed) -> int:
        """The number of the tenant in whose virtual cluster a job runs, or `OPPORTUNISTIC`."""
        return OPPORTUNISTIC if job.priority < 0 else self.claimant(job)

    def claimant(self, job: Claimed) -> int:
        """The number of the tenant that claims a job, whatever its priority, or `OPPORTUNISTIC`."""
        return self._queues.get(job.queue, self._users.get(job.user, OPPORTUNISTIC))

    def owners(self, snapshot: Snapshot) -> Ints:
        """The same for each row."""
        codes = snapshot.ints
        owner = _coded(self._queues, snapshot.names.queues)[codes[c.QUEUE]]
        if self._users:
            by_user = _coded(self._users, snapshot.names.users)[codes[c.USER]]
            owner = np.where(owner >= 0, owner, by_user)
        return np.where(codes[c.PRIORITY] < 0, OPPORTUNISTIC, owner)

    def marked(self, job: JobSpec) -> JobSpec:
        """The job with a negative priority if no tenant claims it: such a job may be evicted at any time."""
        mine = self.owner_of(job) >= 0 or job.priority < 0
        return job if mine else replace(job, priority=OPPORTUNISTIC)

    def impossible(self, job: Claimed, speeds: Sequence[float]) -> str | None:
        """Why a job can never run in its tenant's virtual cluster, or None. `speeds` are by GPU type."""
        owner = self.owner_of(job)
        if owner < 0:
            return None
        part = self.parts[owner]
        counts = dict(zip(part.kinds, part.cluster.gpus_by_type.tolist(), strict=True))
        if any(speeds[kind] > 0 and job.gpus <= count for kind, count in counts.items()):
            return None
        usable = max((count for kind, count in counts.items() if speeds[kind] > 0), default=0)
        if not usable:
            return f"tenant {part.name!r} has reserved no GPUs of a type that it can use"
        return f"its gang of {job.gpus} GPUs is larger than the {usable} that tenant {part.name!r} has reserved"


def _owners(what: str, names: Sequence[str], claims: Iterable[Sequence[str]]) -> dict[str, int]:
    """The tenant that claims each queue or user; none may be claimed twice."""
    owner: dict[str, int] = {}
    for number, claimed in enumerate(claims):
        for name in claimed:
            if owner.get(name, number) != number:
                raise InputError(
                    f"{what} {name!r} is claimed by two tenants, {names[owner[name]]!r} and {names[number]!r}"
                )
            owner[name] = number
    return owner


def _coded(owner: Mapping[str, int], names: Sequence[str]) -> Ints:
    """The owner for each code of a queue or user; never empty, so that it can be indexed."""
    return np.array([owner.get(name, OPPORTUNISTIC) for name in names] or [OPPORTUNISTIC], dtype=np.int64)


def _reserved(cluster: Cluster, layout: Layout, specs: Sequence[TenantSpec]) -> list[list[VirtualCell]]:
    """The cells of each tenant, found by taking all of them from the empty cluster, the largest first.

    That order leaves over as much as possible, so if it fails, no order succeeds.
    """
    wanted = [(_kind(cluster, spec, cell), cell, number) for number, spec in enumerate(specs) for cell in spec.cells]
    wanted.sort(key=lambda want: -want[1].gpus)
    cells, mine = Cells(layout), [list[VirtualCell]() for _ in specs]
    for kind, cell, number in wanted:
        fits = [n for n, chain in enumerate(layout.chains) if chain.kind == kind and cell.gpus in chain.sizes]
        if not fits:
            raise InputError(_no_such_cell(cluster, layout, specs[number], cell, kind))
        for done in range(cell.count):
            for chain in fits:
                level = layout.chains[chain].sizes.index(cell.gpus)
                if cells.take(chain, level) is not None:
                    mine[number].append(VirtualCell(chain, level, cell.gpus))
                    break
            else:
                raise InputError(_no_room(cluster, specs[number], cell, kind, cell.count - done, cells.count(kind)))
    return mine


def _above_nodes(cluster: Cluster, specs: Sequence[TenantSpec]) -> bool:
    """Whether any cell is larger than every node."""
    largest = max(node.gpus for node in cluster.nodes)
    return any(cell.gpus > largest for spec in specs for cell in spec.cells)


def _kind(cluster: Cluster, spec: TenantSpec, cell: CellSpec) -> int:
    if not cell.gpu_type and len(cluster.types) == 1:
        return 0
    if cell.gpu_type in cluster.type_index:
        return cluster.type_index[cell.gpu_type]
    have = ", ".join(cluster.type_index)
    if not cell.gpu_type:
        raise InputError(
            f"tenant {spec.name!r}: cells {cell} need a GPU type, like {cluster.types[0].name}:{cell}; here: {have}"
        )
    raise InputError(f"tenant {spec.name!r}: the cluster has no {cell.gpu_type}; it has {have}")


def _no_such_cell(cluster: Cluster, layout: Layout, spec: TenantSpec, cell: CellSpec, kind: int) -> str:
    chains = [", ".join(map(str, chain.sizes)) for chain in layout.chains if chain.kind == kind]
    name, sizes = cluster.types[kind].name, " or ".join(chains)
    return f"tenant {spec.name!r}: {name} nodes have no cells of {cell.gpus} GPUs; they split into {sizes}"


def _no_room(cluster: Cluster, spec: TenantSpec, cell: CellSpec, kind: int, short: int, left: int) -> str:
    name, plural = cluster.types[kind].name, "" if cell.gpus == 1 else "s"
    which = "its cell" if cell.count == 1 else f"{short} of its {cell.count} cells"
    total = int(cluster.gpus_by_type[kind])
    what = f"{which} of {cell.gpus} {name} GPU{plural}"
    return f"tenant {spec.name!r}: {what} cannot be reserved: other cells leave {left} of {total} GPUs"


def _virtual(cluster: Cluster, layout: Layout, name: str, cells: list[VirtualCell]) -> VirtualCluster:
    """The cluster whose nodes are these cells, in the order of the real GPU types. A rack has several nodes."""
    ordered = tuple(sorted(cells, key=lambda cell: (layout.chains[cell.chain].kind, -cell.gpus, cell.chain)))
    nodes: list[Node] = []
    for number, cell in enumerate(ordered):
        chain = layout.chains[cell.chain]
        size = min(cell.gpus, chain.sizes[chain.node_level])
        rack = f"{name}-{number}" if size < cell.gpus else ""
        for _ in range(cell.gpus // size):
            nodes.append(Node(f"{name}-{len(nodes)}", cluster.types[chain.kind].name, size, rack))
    kinds = tuple(dict.fromkeys(layout.chains[cell.chain].kind for cell in ordered))
    virtual = Cluster.of(nodes, [cluster.types[kind] for kind in kinds], name)
    return VirtualCluster(name, virtual, ordered, kinds)
