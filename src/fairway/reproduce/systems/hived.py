"""HiveD: cells that are never refused, and the sharing anomaly with and without virtual clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairway.core.cluster import Cluster, Node
from fairway.core.decision import Decision
from fairway.core.job import JobSpec, Workload
from fairway.core.policy import Layer
from fairway.core.snapshot import Snapshot
from fairway.core.tenant import TenantSpec
from fairway.placement.cells import Cells
from fairway.placement.hierarchy import Layout
from fairway.placement.tenants import Tenants, VirtualCell, VirtualCluster
from fairway.placement.virtual import tenant_view
from fairway.policies import make_policy
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.result import Result
from fairway.simulator.run import simulate
from fairway.traces import read_cluster

SYSTEM, PAGE, PAPER = "HiveD", "hived.md", "Zhao et al., OSDI'20"
POLICIES, SEEDS, JOBS = ("fifo", "srtf", "tiresias"), 3, 300
TOGETHER = "skew:threshold=0.5,patience_s=1e9"
"""Every gang insists on as few nodes as possible."""
TENANTS = tuple(TenantSpec.of(name, "2x8") for name in ("large", "small-1", "small-2", "small-3"))
SHARED, PRIVATE = "v100:8x8", "v100:2x8"


@dataclass(frozen=True)
class QuotaOnly(Layer):
    """The same tenants with a quota of GPUs each and no cells: a policy for each, but anybody's GPUs will do."""

    tenants: Tenants

    def decide(self, snapshot: Snapshot) -> Decision:
        """Ask the policy for each tenant, as if its quota were one large node."""
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


def anomaly_trace(seed: int, jobs: int) -> Workload:
    """One tenant with gangs of 8, three with gangs of 1 to 4; each offers four fifths of its 16 GPUs."""
    random = np.random.default_rng(seed)
    specs = []
    for tenant in TENANTS:
        sizes = [8] if tenant.name == "large" else [1, 1, 1, 2, 3, 4]
        gangs = random.choice(sizes, jobs).tolist()
        lasts = random.lognormal(7.5, 1.0, jobs).round().tolist()
        gaps = random.exponential(float(np.mean(sizes)) * float(np.mean(lasts)) / (0.8 * 16), jobs)
        for number, (gang, last_s, at_s) in enumerate(zip(gangs, lasts, np.cumsum(gaps).round().tolist(), strict=True)):
            name = f"{tenant.name}/{number}"
            specs.append(JobSpec(name, at_s, gang, duration_s=last_s, queue=tenant.name, skew=1.0))
    return Workload.of(specs)


def extra_queueing_min(policy: str, seed: int, jobs: int = JOBS) -> list[tuple[float, float]]:
    """Mean and largest extra queueing of the tenant with large gangs, without and with cells."""
    trace = anomaly_trace(seed, jobs)
    mine = Workload.of([job for job in trace.jobs if job.queue == "large"])
    alone = _queueing_s(simulate(mine, cluster=PRIVATE, policy=policy, placement=TOGETHER))
    quota = QuotaOnly(make_policy(policy), Tenants(read_cluster(SHARED), TENANTS))
    runs = (
        simulate(trace, cluster=SHARED, policy=quota, placement=TOGETHER),
        simulate(trace, cluster=SHARED, policy=policy, placement=TOGETHER, tenants=TENANTS),
    )
    found = []
    for result in runs:
        shared = _queueing_s(result)
        extra = np.array([shared[job] - queue_s for job, queue_s in alone.items()]) / 60
        found.append((float(extra.mean()), float(extra.max())))
    return found


def _queueing_s(result: Result) -> dict[str, float]:
    return {job.id: wait for job, wait in zip(result.specs, result.queue_s.tolist(), strict=True)}


def anomaly(setting: Setting) -> Findings:
    """Four tenants with two nodes each share 8 nodes of 8 GPUs."""
    policies, seeds = (("fifo",), 1) if setting.quick else (POLICIES, SEEDS)
    runs = {(policy, seed): extra_queueing_min(policy, seed) for policy in policies for seed in range(seeds)}
    rows = tuple(
        (f"`{policy}`", str(seed), *(f"{value:,.1f}" for pair in found for value in pair))
        for (policy, seed), found in runs.items()
    )
    heads = ("policy", "seed", "quota only: mean", "largest", "virtual clusters: mean", "largest")
    largest = [max(found[kind][1] for found in runs.values()) for kind in (0, 1)]
    why = "the paper's trace has two months, and its jobs are longer; ours last half an hour"
    figures = (
        Figure(
            "most that a job waits longer than alone, virtual clusters",
            0.0,
            largest[1],
            Yardstick.equal(6),
            "min",
            headline=True,
        ),
        Figure("the same with quotas only", 1000.0, largest[0], Yardstick.within(0.1, good="higher"), "min", why=why),
    )
    return Findings(figures, {"queueing": ResultTable(heads, rows)})


def refusals(seed: int, steps: int) -> int:
    """Take and give back reserved cells at random on 4 nodes of 8 GPUs; how many were refused."""
    random, layout = np.random.default_rng(seed), Layout(read_cluster("v100:4x8"))
    cells, idle = Cells(layout), []
    for _ in range(int(random.integers(1, 40))):
        level = int(random.integers(len(layout.chains[0].sizes)))
        if cells.take(0, level) is not None:
            idle.append(level)
    cells, taken, refused = Cells(layout), list[tuple[int, int]](), 0
    for choice in random.random(steps).tolist():
        if idle and (not taken or choice < 0.5):
            level = idle.pop(int(choice * 2 * len(idle)) % len(idle))
            start = cells.take(0, level)
            if start is None:
                refused += 1
                idle.append(level)
            else:
                taken.append((level, start))
        elif taken:
            level, start = taken.pop(int(choice * len(taken)))
            cells.give(0, level, start)
            idle.append(level)
    return refused


def safety(setting: Setting) -> Findings:
    """Random reservations that fit into the empty cluster together."""
    times, steps = (30, 500) if setting.quick else (300, 2000)
    refused = sum(refusals(seed, steps) for seed in range(times))
    what = f"refusals of reserved cells, {times} reservations × {steps:,} steps"
    return Findings((Figure(what, 0, refused, Yardstick.equal(0), decimals=0, headline=True),))


CASES = (
    Case("hived-safety", SYSTEM, "no reserved cell is refused", f"{PAPER}, the safety theorem", PAGE, safety, 1.0, 0.1),
    Case(
        "hived-anomaly", SYSTEM, "the sharing anomaly", f"{PAPER}, abstract; generated jobs", PAGE, anomaly, 15.0, 1.5
    ),
)
