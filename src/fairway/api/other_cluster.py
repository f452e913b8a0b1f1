"""The present on another number of GPUs, for forecasts: nodes are added, or the last GPUs go.

Nodes that are added are like those that are there. The jobs on GPUs that go are taken off them, as after the loss of a
node: they go on from their last checkpoints. A type that is not there is as fast as the catalogue says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

from fairway.api.live_copy import Present, conditions_of, stranded_jobs
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.core.event import JobEvicted
from fairway.core.state_from_snapshot import resumed
from fairway.placement.tenants import Tenants
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.estimates import grown_speeds, same_type, speeds_of
from fairway.runtime.jobs.request import JobRequest

ClusterGpus = int | Mapping[str, int]
"""How many GPUs a cluster would have: in all, or of each type. Types that are not named would be gone."""
GONE = "it would be gone"


class OtherCluster(NamedTuple):
    """A cluster that goes on from the present one, and those of its GPUs that are not there."""

    cluster: Cluster
    gone: frozenset[int]

    def counts(self) -> dict[str, int]:
        """The GPUs that are there, by type."""
        return gpus_by_name(self.cluster, self.gone)

    def without_gone(self) -> Cluster:
        """The cluster with only the GPUs that are there."""
        gone = Counter(self.cluster.node_of_gpu[gpu] for gpu in self.gone)
        left = [replace(node, gpus=node.gpus - gone[at]) for at, node in enumerate(self.cluster.nodes)]
        return Cluster.of([node for node in left if node.gpus], self.cluster.types)


def gpus_by_name(cluster: Cluster, gone: Iterable[int] = ()) -> dict[str, int]:
    """How many GPUs of each type a cluster has without some of them."""
    there = {gpu.name: int(count) for gpu, count in zip(cluster.types, cluster.gpus_by_type, strict=True)}
    for gpu in gone:
        there[cluster.nodes[cluster.node_of_gpu[gpu]].gpu_type] -= 1
    return {name: count for name, count in there.items() if count}


def other_cluster(cluster: Cluster, asked: ClusterGpus) -> OtherCluster:
    """The cluster with as many GPUs as asked for."""
    if isinstance(asked, int):
        more = asked - cluster.gpu_count
        gone = frozenset(range(asked, cluster.gpu_count))
        return OtherCluster(_with_nodes(cluster, _like(cluster.nodes, more)), gone)
    wanted = _by_type(cluster, asked)
    if not any(wanted.values()):
        raise InputError("the cluster would have no GPUs")
    added, lost = list[Node](), set[int]()
    for name in dict.fromkeys([*cluster.type_index, *wanted]):
        nodes = [node for node in cluster.nodes if node.gpu_type == name]
        own = [gpu for gpu, node in enumerate(cluster.node_of_gpu) if cluster.nodes[node].gpu_type == name]
        like = nodes or [Node("", name, max(node.gpus for node in cluster.nodes))]
        added += _like(like, wanted[name] - len(own))
        lost.update(own[wanted[name] :])
    return OtherCluster(_with_nodes(cluster, added), frozenset(lost))


def _by_type(cluster: Cluster, asked: Mapping[str, int]) -> Counter[str]:
    """What was asked for, under the names that the types have here."""
    wanted: Counter[str] = Counter()
    for said, count in asked.items():
        here = [name for name in cluster.type_index if name == said.lower()]
        here += [name for name in cluster.type_index if same_type(name, said)]
        name = here[0] if here else GpuType.named(said).name
        if name in wanted:
            raise InputError(f"the GPU type {name} is given twice")
        wanted[name] = count
    return wanted


def _like(nodes: Sequence[Node], gpus: int) -> list[Node]:
    """New nodes with this many GPUs in all, like those given, in their order; the last one may be smaller."""
    made: list[Node] = []
    for node in cycle(nodes):
        if gpus <= 0:
            break
        made.append(replace(node, gpus=min(node.gpus, gpus)))
        gpus -= node.gpus
    return made


def _with_nodes(cluster: Cluster, added: Sequence[Node]) -> Cluster:
    """The cluster with more nodes at its end."""
    if not added:
        return cluster
    taken = {node.name for node in cluster.nodes}
    names = (name for at in range(1, len(taken) + len(added) + 1) if (name := f"added-{at}") not in taken)
    named = [replace(node, name=name) for node, name in zip(added, names, strict=False)]
    return Cluster.of([*cluster.nodes, *named], cluster.types)


def moved_to(scheduler: Scheduler, present: Present, other: OtherCluster) -> Present:
    """The present as it would be on another cluster."""
    snapshot, now_s, cluster = present.snapshot, present.snapshot.now_s, other.cluster
    live = scheduler.state
    state = resumed(snapshot, present.specs, min_run_s=live.min_run_s, restarts_spared=live.restarts_spared)
    held = {job: gpus for job, gpus in snapshot.frame.held_gpus.items() if not other.gone.isdisjoint(gpus)}
    progress = dict(zip(snapshot.jobs.tolist(), snapshot.progress.tolist(), strict=True))
    for job in held:
        saved = scheduler.observations.saved(scheduler.store[job])
        state.apply(JobEvicted(now_s, job, min(saved, progress[job]), GONE))
    if cluster is not snapshot.cluster:
        speeds = {
            job: speeds_there(known, scheduler.store[job].request, cluster) for job, known in state.speeds().items()
        }
        state.grow(cluster, speeds)
        if len(cluster.types) > len(snapshot.cluster.types):
            # What a policy remembers is by GPU type.
            state.memory = {}
    then = state.snapshot(snapshot.knows).copy()
    outside = [scheduler.store[job] for job in present.outside]
    # On a smaller machine, jobs that are too large for it are not in the queue.
    too_large = stranded_jobs(then, other.gone, other.gone)
    conditions = conditions_of(scheduler, outside, then.frame.held_gpus, cluster)
    return present._replace(
        snapshot=then,
        outside={**present.outside, **too_large},
        conditions={job: condition for job, condition in conditions.items() if job not in too_large},
        blocked={**present.blocked, **dict.fromkeys(sorted(other.gone), GONE)},
        gone=other.gone,
        stranded={**stranded_jobs(then, {*present.blocked, *other.gone}, other.gone), **too_large},
        tenants=_on(cluster, present.tenants),
    )


def speeds_there(known: Sequence[float], request: JobRequest, cluster: Cluster) -> tuple[float, ...]:
    """The speeds of a job on a cluster that has grown. Its work is counted as where it is known, so that what runs goes
    on as fast as it does."""
    return grown_speeds(known, speeds_of(request, cluster), in_steps=True)


def _on(cluster: Cluster, tenants: Tenants | None) -> Tenants | None:
    """The virtual clusters on a cluster that has grown. Cells without a type are of the one that was there alone."""
    if tenants is None or tenants.cluster is cluster:
        return tenants
    usual = tenants.cluster.types[0].name if len(tenants.cluster.types) == 1 < len(cluster.types) else ""
    cells = [[replace(cell, gpu_type=cell.gpu_type or usual) for cell in spec.cells] for spec in tenants.specs]
    specs = [replace(spec, cells=tuple(mine)) for spec, mine in zip(tenants.specs, cells, strict=True)]
    return Tenants(cluster, specs)
