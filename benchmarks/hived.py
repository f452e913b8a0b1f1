"""What virtual clusters are for, and what they cost: the sharing anomaly with and without cells, and CPU time.

    python benchmarks/hived.py

Anomaly: four tenants share 8 nodes of 8 GPUs, two nodes each. One trains on gangs of 8, the others on small ones; every
gang must sit on as few nodes as it can. Extra queueing is a job's queueing in the shared cluster less that on a private
cluster of two nodes: with a quota of 16 GPUs for each tenant and nothing else, and with virtual clusters.

Speed: a decision about 2,000 active jobs of 11 tenants on 2,232 GPUs (the size of the cluster in the paper), and taking
and giving back a cell among 65,536 GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway import JobSpec, Workload, make_policy, simulate
from fairway.core.action import Action
from fairway.core.cluster import Cluster, Node
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.policy import Layer
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.core.tenant import TenantSpec
from fairway.placement import placement
from fairway.placement.cells import Cells, free_of_charge
from fairway.placement.hierarchy import Layout
from fairway.placement.tenanted import Tenanted
from fairway.placement.tenants import Tenants, VirtualCell, VirtualCluster
from fairway.placement.virtual import tenant_view
from fairway.simulator.result import Result
from fairway.traces import read_cluster

POLICIES = ("fifo", "srtf", "tiresias")
TOGETHER = "skew:threshold=0.5,patience_s=1e9"
TENANTS = tuple(TenantSpec.of(name, "2x8") for name in ("large", "small-1", "small-2", "small-3"))


@dataclass(frozen=True)
class QuotaOnly(Layer):
    """The same tenants with a quota of GPUs each and no cells: a policy for each, but anybody's GPUs will do."""

    tenants: Tenants

    def decide(self, snapshot: Snapshot) -> Decision:
        owner = self.tenants.owners(snapshot)
        decided, memory = [], {}
        for number, part in enumerate(self.tenants.parts):
            mine = (owner == number).nonzero()[0]
            if not len(mine):
                continue
            past = snapshot.memory.get(part.name, {})
            pool, held = _pool(part), _counted(snapshot, mine.tolist())
            view = tenant_view(snapshot, pool, mine, held=held, lost=(), memory=past, round_number=snapshot.round)
            decision = self.inner.decide(view)
            decided.append((mine, Decision(decision.gpus, decision.reasons, wake_s=decision.wake_s)))
            memory[part.name] = decision.memory
        return Decision.composed(decided, len(snapshot)).remembering(memory)


def _pool(part: VirtualCluster) -> VirtualCluster:
    """A tenant's GPUs as one node: positions mean nothing."""
    total, kind = part.cluster.gpu_count, part.cluster.types[0]
    cluster = Cluster.of([Node(part.name, kind.name, total)], [kind])
    return VirtualCluster(part.name, cluster, (VirtualCell(0, 0, total),), (0,))


def _counted(snapshot: Snapshot, rows: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """GPU numbers for the jobs that run, one after the other."""
    held, at = {}, 0
    for row in rows:
        count = int(snapshot.held[row])
        if count:
            held[int(snapshot.jobs[row])] = tuple(range(at, at + count))
            at += count
    return held


def anomaly_trace(seed: int, jobs: int = 300) -> Workload:
    """One tenant with gangs of 8, three with gangs of 1 to 4; each offers four fifths of its 16 GPUs."""
    random = np.random.default_rng(seed)
    specs = []
    for tenant in TENANTS:
        sizes = [8] if tenant.name == "large" else [1, 1, 1, 2, 3, 4]
        gangs = random.choice(sizes, jobs).tolist()
        lasts = random.lognormal(7.5, 1.0, jobs).round().tolist()
        gaps = random.exponential(np.mean(sizes) * np.mean(lasts) / (0.8 * 16), jobs)
        for number, (gang, last_s, at_s) in enumerate(zip(gangs, lasts, np.cumsum(gaps).round().tolist(), strict=True)):
            about = {"gpus": gang, "duration_s": last_s, "queue": tenant.name, "skew": 1.0}
            specs.append(JobSpec(f"{tenant.name}/{number}", at_s, **about))
    return Workload.of(specs)


def extra_queueing(policy: str, seed: int, jobs: int = 300) -> dict[str, tuple[float, float]]:
    """Mean and largest extra queueing of the tenant with large gangs, in minutes, without and with cells."""
    trace = anomaly_trace(seed, jobs)
    mine = Workload.of([job for job in trace.jobs if job.queue == "large"])
    alone = _queueing(simulate(mine, cluster="v100:2x8", policy=policy, placement=TOGETHER))
    quota = QuotaOnly(make_policy(policy), Tenants(read_cluster("v100:8x8"), TENANTS))
    runs = {
        "quota only": simulate(trace, cluster="v100:8x8", policy=quota, placement=TOGETHER),
        "virtual clusters": simulate(trace, cluster="v100:8x8", policy=policy, placement=TOGETHER, tenants=TENANTS),
    }
    found = {}
    for name, result in runs.items():
        shared = _queueing(result)
        extra = np.array([shared[job] - queue_s for job, queue_s in alone.items()]) / 60
        found[name] = float(extra.mean()), float(extra.max())
    return found


def _queueing(result: Result) -> dict[str, float]:
    return {job.id: wait for job, wait in zip(result.specs, result.queue_s.tolist(), strict=True)}


class _FullError(Exception):
    """The cluster is as full as it is meant to be."""


class _Snap:
    """Keeps the first snapshot with so many active jobs."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.kept: Snapshot | None = None

    def after_events(self, state: State, events: Sequence[Event]) -> None: ...

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        if len(snapshot) >= self.jobs:
            self.kept = snapshot.copy()
            raise _FullError


def busy_snapshot(policy: str, jobs: int = 2000) -> tuple[Snapshot, Tenants]:
    """2,232 GPUs, 11 tenants, a tenth of the jobs opportunistic; more is asked for than there is."""
    specs = [TenantSpec.of(f"t{number}", "24x8", "2x4") for number in range(11)]
    random = np.random.default_rng(0)
    trace = [
        JobSpec(
            f"j{number}",
            float(number),
            int(random.choice([1, 1, 2, 4, 8])),
            duration_s=float(random.integers(2000, 90_000)),
            queue=f"t{random.integers(11)}" if random.random() < 0.9 else "",
        )
        for number in range(jobs + 400)
    ]
    keeper = _Snap(jobs)
    with suppress(_FullError):
        simulate(Workload.of(trace), cluster="v100:279x8", policy=policy, tenants=specs, observer=keeper)
    if keeper.kept is None:
        raise RuntimeError("the cluster never filled up")
    return keeper.kept, Tenants(keeper.kept.cluster, specs)


def cpu_ms(call: Callable[[], object], times: int = 20) -> float:
    """The CPU time of a call in milliseconds, the fastest of several."""
    best = float("inf")
    for _ in range(times):
        before_s = time.process_time()
        call()
        best = min(best, time.process_time() - before_s)
    return 1000 * best


def speed(policy: str) -> tuple[float, float]:
    """Milliseconds for a decision in which one tenant has to be asked, and for one in which all have."""
    snapshot, tenants = busy_snapshot(policy)
    inner, placer = make_policy(policy), placement("packed")
    one, everyone = Tenanted(inner, tenants, placer), Tenanted(inner, tenants, placer, in_rounds=True)
    return cpu_ms(lambda: one.decide(snapshot)), cpu_ms(lambda: everyone.decide(snapshot))


def buddy_ms(gpus: int = 65_536, *, crowded: bool = False) -> float:
    """Milliseconds to read the free cells, take one and give it back; half of the cluster is taken.

    `crowded`: opportunistic jobs are everywhere, so that all free cells have to be looked at.
    """
    layout = Layout(read_cluster(f"v100:{gpus // 8}x8"))
    cells = Cells(layout)
    for _ in range(gpus // 16):
        cells.take(0, 0)
    free = cells.plain()
    cost = (lambda start, size: 1 + start % 3) if crowded else free_of_charge

    def once() -> None:
        mine = Cells(layout, free)
        start = mine.take(0, 3, cost)
        assert start is not None
        mine.give(0, 3, start)

    return cpu_ms(once)


def main() -> None:
    """Print both tables."""
    console = Console()
    table = Table(title="extra queueing of the tenant with gangs of 8, minutes (mean, largest)")
    for heading in ("policy", "seed", "quota only", "virtual clusters"):
        table.add_column(heading, justify="right")
    for policy in POLICIES:
        for seed in range(3):
            found = extra_queueing(policy, seed)
            table.add_row(policy, str(seed), *(f"{mean:,.1f}   {most:,.1f}" for mean, most in found.values()))
    console.print(table)
    table = Table(title="CPU milliseconds for a decision: 2,000 jobs, 11 tenants, 2,232 GPUs")
    for heading in ("policy", "one tenant changed", "all asked"):
        table.add_column(heading, justify="right")
    for policy in POLICIES:
        table.add_row(policy, *(f"{ms:.2f}" for ms in speed(policy)))
    console.print(table)
    crowded = buddy_ms(crowded=True)
    console.print(f"take and give back a cell among 65,536 GPUs: {buddy_ms():.3f} ms; at worst {crowded:.3f} ms")


if __name__ == "__main__":
    main()
