"""How long one decision takes with 2,000 active jobs, for every policy.

    python benchmarks/decisions.py [--jobs N] [--decisions N] [--priorities N] [--cluster C] [--json FILE]

All jobs come within ten minutes to a cluster of 416 GPUs, a quarter of them elastic, a tenth opportunistic, of ten
users; then each policy is asked for a number of decisions in the course of a simulation, class by class where jobs
differ in priority. CPU milliseconds of one decision: median, 95th percentile and worst, the first ones included. A live
queue is like `--jobs 10000 --cluster v100:8 --priorities 10`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fairway
from fairway import JobSpec, Workload
from fairway.core.decision import Decision
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.policies import make_policy, policies
from fairway.policies.priorities import by_priority

CLUSTER = "v100:52x8"
LIMIT_MS = 20.0
VARIANTS = ("tiresias:gittins=within", "tiresias:gittins=exact", "tiresias:promote=4")
MODELS = ("ResNet-50", "ResNet-18", "LM", "Transformer", "Recommendation")


class EnoughError(Exception):
    """The policy has been asked often enough."""


class Timed:
    """A policy that notes the CPU time of each decision, priorities included, and ends the run after enough of them."""

    ranks_priorities = True

    def __init__(self, policy: Policy, jobs: int, decisions: int) -> None:
        self.policy, self.jobs, self.decisions = by_priority(policy), jobs, decisions
        self.name, self.knows, self.round_s = policy.name, policy.knows, policy.round_s
        self.taken_ms: list[float] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        before = time.process_time()
        decision = self.policy.decide(snapshot)
        taken_ms = 1e3 * (time.process_time() - before)
        if len(snapshot) >= 0.95 * self.jobs:
            self.taken_ms.append(taken_ms)
        if len(self.taken_ms) >= self.decisions:
            raise EnoughError
        return decision


def burst(jobs: int, priorities: int = 0, seed: int = 0) -> Workload:
    """Jobs that all come within ten minutes and take days, of so many priorities, or a tenth of them opportunistic."""
    random = np.random.default_rng(seed)
    specs = []
    for number in range(jobs):
        gpus = int(random.choice([1, 1, 1, 2, 4, 8]))
        elastic = random.random() < 0.25
        specs.append(
            JobSpec(
                f"job-{number}",
                float(random.integers(0, 600)),
                gpus=gpus,
                gpus_min=1 if elastic else gpus,
                gpus_max=min(2 * gpus, 16) if elastic else gpus,
                duration_s=float(random.integers(100_000, 1_000_000)),
                model=str(random.choice(MODELS)),
                user=f"user-{random.integers(10)}",
                queue=f"queue-{random.integers(4)}",
                priority=int(random.integers(priorities)) if priorities else -1 if random.random() < 0.1 else 0,
            )
        )
    return Workload.of(specs)


def measured(policy: str, workload: Workload, cluster: str, decisions: int) -> dict[str, Any]:
    """The times of one policy."""
    timed = Timed(make_policy(policy), len(workload), decisions)
    with contextlib.suppress(EnoughError):
        fairway.simulate(workload, cluster=cluster, policy=timed)
    taken = np.array(timed.taken_ms) if timed.taken_ms else np.full(1, np.nan)
    p50, p95 = np.percentile(taken, [50, 95])
    return {"policy": policy, "p50_ms": p50, "p95_ms": p95, "max_ms": taken.max(), "decisions": len(timed.taken_ms)}


def main() -> int:
    """Measure, print, and say whether all medians keep the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", nargs="*", help="else all of them")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--decisions", type=int, default=60)
    parser.add_argument("--priorities", type=int, default=0, metavar="N", help="number of different priorities")
    parser.add_argument("--cluster", default=CLUSTER)
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    workload = burst(given.jobs, given.priorities)
    names = given.policies or sorted([*policies(), *VARIANTS])
    rows = [
        measured(name, workload, given.cluster, given.decisions)
        for name in track(names, "policies", console=Console(stderr=True))
    ]
    table = Table(title=f"CPU ms of one decision, {given.jobs} active jobs, {given.cluster} (limit {LIMIT_MS:g})")
    for heading in ("policy", "median", "p95", "worst"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        table.add_row(row["policy"], *(f"{row[key]:.2f}" for key in ("p50_ms", "p95_ms", "max_ms")))
    Console().print(table)
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(not row["p50_ms"] <= LIMIT_MS for row in rows))


if __name__ == "__main__":
    sys.exit(main())
