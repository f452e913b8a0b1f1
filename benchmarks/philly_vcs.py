"""Tiresias against strict FIFO and YARN-style capacity scheduling, per virtual cluster (VC) of the Philly trace.

    python benchmarks/philly_vcs.py [PHILLY_CSV] [--part shared|private|both] [--json FILE]

`shared`: all VCs on one cluster, each VC a queue. `private`: each VC alone, on nodes in proportion to the GPU time that
its jobs ask for, as if the cluster were divided; a capacity scheduler with one queue is FIFO, so it is not run again.
Completion times are means; a restart costs a preempted job 30 s, or nothing. FIFO and capacity scheduling preempt no
job. `capacity` entitles all VCs to equal parts, `capacity, quotas` to parts by the GPU time that their jobs ask for.
Without a file a Philly-like trace of 4,000 jobs in six VCs on 64 GPUs is generated (seed 0).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fairway import Workload, read_trace, simulate
from fairway.simulator.result import Result
from fairway.traces import philly_like

NODE_GPUS, PHILLY_NODES, SMALL_NODES, SMALL_VCS = 8, 52, 8, 6
RESTART_S = 30.0
FIFO, EQUAL, QUOTAS = "fifo", "capacity", "capacity, quotas"
PAID, FREE = "tiresias, restart 30 s", "tiresias, restart 0 s"
RESTARTS = {FIFO: RESTART_S, EQUAL: RESTART_S, QUOTAS: RESTART_S, PAID: RESTART_S, FREE: 0.0}


def small_trace() -> Workload:
    """A made-up trace whose users belong to VCs."""
    half = SMALL_NODES * NODE_GPUS // 2  # no gang of more than half of the cluster
    made = philly_like(4000, seed=0, load=2.0, gpus=half, users=60, longest_h=48.0)
    number = {user: at for at, user in enumerate(sorted({spec.user for spec in made.jobs}))}
    jobs = tuple(replace(spec, queue=f"vc{number[spec.user] % SMALL_VCS}") for spec in made.jobs)
    return replace(made, jobs=jobs, source="philly-like seed 0")


def gpu_hours(jobs: Iterable[Any]) -> float:
    """What jobs ask for."""
    return float(sum(spec.gpus * (spec.duration_s or 0.0) for spec in jobs)) / 3600


def by_vc(trace: Workload) -> dict[str, Workload]:
    """The trace of each VC, the one with the most jobs first; times from its own first submission."""
    parts: dict[str, list[Any]] = {}
    for spec in trace.jobs:
        parts.setdefault(spec.queue, []).append(spec)
    out = {}
    for name in sorted(parts, key=lambda each: -len(parts[each])):
        start_s = parts[name][0].submitted_s
        jobs = [replace(spec, submitted_s=spec.submitted_s - start_s) for spec in parts[name]]
        out[name] = Workload.of(jobs, source=f"{trace.source} {name}")
    return out


def nodes_of(vcs: dict[str, Workload], nodes: int) -> dict[str, int]:
    """Nodes for each VC in proportion to its GPU time, and at least enough for its largest gang."""
    total = sum(gpu_hours(part.jobs) for part in vcs.values())
    out = {}
    for name, part in vcs.items():
        largest = math.ceil(max(spec.gpus for spec in part.jobs) / NODE_GPUS)
        out[name] = max(largest, round(nodes * gpu_hours(part.jobs) / total))
    return out


class Runs:
    """Simulations one after the other, under a progress bar."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def run(self, trace: Workload, nodes: int, setting: str, knobs: str = "") -> Result:
        task = self.progress.add_task(f"{setting} on {trace.source}", total=len(trace))
        result = simulate(
            trace,
            cluster=f"v100:{nodes}x{NODE_GPUS}",
            policy=setting.partition(",")[0] + knobs,
            restart_cost_s=RESTARTS[setting],
            progress=lambda done, _: self.progress.update(task, completed=done),
        )
        self.progress.remove_task(task)
        if result.finished < len(trace):
            raise SystemExit(f"{setting}: only {result.finished} of {len(trace)} jobs were finished")
        return result


def shared(trace: Workload, vcs: dict[str, Workload], nodes: int, runs: Runs) -> list[dict[str, Any]]:
    """One row per VC and one for all: everybody on one cluster."""
    means: dict[str, dict[str, float]] = {}
    costs = {}
    quotas = "/".join(f"{name}:{max(gpu_hours(part.jobs), 1e-3):.3f}" for name, part in vcs.items())
    for setting in RESTARTS:
        result = runs.run(trace, nodes, setting, f":quotas={quotas}" if setting == QUOTAS else "")
        figures = result.figures()
        means[setting] = {name: float(group["jct_mean_s"]) for name, group in figures["per_queue"].items()}
        means[setting]["all"] = float(figures["jct_s"]["mean"])
        costs[setting] = {
            key: figures[key] for key in ("preemptions", "rounds", "cpu_s", "decide_cpu_s", "utilisation")
        }
    rows = [_row(name, vcs[name], {each: means[each][name] for each in RESTARTS}) for name in vcs]
    return [*rows, _row("all", trace, {each: means[each]["all"] for each in RESTARTS}) | {"runs": costs}]


def private(vcs: dict[str, Workload], nodes: int, runs: Runs) -> list[dict[str, Any]]:
    """One row per VC and one for all: each VC on nodes of its own."""
    rows, sums = [], dict.fromkeys((FIFO, PAID, FREE), 0.0)
    sizes = nodes_of(vcs, nodes)
    for name, part in vcs.items():
        means = {each: float(runs.run(part, sizes[name], each).jct_s.mean()) for each in sums}
        sums = {each: sums[each] + means[each] * len(part) for each in sums}
        rows.append(_row(name, part, means) | {"nodes": sizes[name]})
    jobs = sum(len(part) for part in vcs.values())
    everything = Workload(tuple(spec for part in vcs.values() for spec in part.jobs))
    means = {each: sums[each] / jobs for each in sums}
    return [*rows, _row("all", everything, means) | {"nodes": sum(sizes.values())}]


def _row(name: str, part: Workload, jct_s: dict[str, float]) -> dict[str, Any]:
    ratios = {
        f"{base}/{ours}": jct_s[base] / jct_s[ours]
        for base in (FIFO, EQUAL, QUOTAS)
        if base in jct_s
        for ours in (PAID, FREE)
    }
    return {"vc": name, "jobs": len(part), "gpu_h": gpu_hours(part.jobs), "jct_s": jct_s, "ratios": ratios}


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Mean completion times in hours, and what they are divided by those under Tiresias at each restart cost."""
    out = Table(title=title)
    ratios = [name.replace("/tiresias, restart", " ÷") for name in rows[0]["ratios"]]
    columns = ["VC", *(["nodes"] if "nodes" in rows[0] else []), "jobs", "GPU-h", *rows[0]["jct_s"], *ratios]
    for column in columns:
        out.add_column(column.replace("restart ", ""), justify="left" if column == "VC" else "right")
    for row in rows:
        nodes = [str(row["nodes"])] if "nodes" in row else []
        hours = [f"{value / 3600:,.2f}" for value in row["jct_s"].values()]
        factors = [f"{value:.2f}" for value in row["ratios"].values()]
        out.add_row(row["vc"], *nodes, f"{row['jobs']:,}", f"{row['gpu_h']:,.0f}", *hours, *factors)
    return out


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", nargs="?", metavar="PHILLY_CSV")
    parser.add_argument("--part", choices=("shared", "private", "both"), default="both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parser.parse_args()


def main() -> None:
    """Measure and print the tables."""
    told = _arguments()
    trace = read_trace(told.trace) if told.trace else small_trace()
    nodes = PHILLY_NODES if told.trace else SMALL_NODES
    console, found = Console(width=150), dict[str, list[dict[str, Any]]]()
    vcs = by_vc(trace)
    with Progress(console=console, transient=True) as progress:
        runs = Runs(progress)
        if told.part in ("shared", "both"):
            found["shared"] = shared(trace, vcs, nodes, runs)
        if told.part in ("private", "both"):
            found["private"] = private(vcs, nodes, runs)
    for part, rows in found.items():
        where = f"one cluster of {nodes} nodes" if part == "shared" else "each VC on nodes of its own"
        console.print(table(f"{len(trace):,} jobs, {where} of {NODE_GPUS} V100: mean JCT in hours, and ratios", rows))
    if told.json:
        told.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
