"""What virtual clusters cost in CPU time.

    python benchmarks/hived.py

A decision about 2,000 active jobs of 11 tenants on 2,232 GPUs (the size of the cluster in the paper), and taking and
giving back a cell among 65,536 GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway import JobSpec, Workload, make_policy, simulate
from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.core.tenant import TenantSpec
from fairway.placement import placement
from fairway.placement.cells import Cells, free_of_charge
from fairway.placement.hierarchy import Layout
from fairway.placement.tenanted import Tenanted
from fairway.placement.tenants import Tenants
from fairway.traces import read_cluster

POLICIES = ("fifo", "srtf", "tiresias")


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
    """Print the table."""
    console = Console()
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
