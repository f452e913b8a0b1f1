"""How fast the simulator is: CPU seconds and memory on a large trace, growth with its size, and start-up.

    python benchmarks/simulator.py [PHILLY_CSV]

Without a file a Philly-like trace of the same size is generated (seed 0). Each figure is measured in its own process; a
short fixed Python loop is timed beside it, because machines are shared and noisy: compare the column "per unit", CPU
seconds divided by those of the loop, between machines and days.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fairway import JobSpec, Workload, read_trace, write_trace
from fairway.traces import philly_like

CLUSTER = "v100:52x8"
LIMITS_CPU_S = {
    "fifo": 25.0,
    "backfill": 25.0,
    "srtf": 25.0,
    "las": 25.0,
    "tiresias": 30.0,
    "tiresias:gittins=within": 30.0,
    "tiresias:gittins=exact": 30.0,
}
POLICIES = tuple(LIMITS_CPU_S)
LIMIT_BYTES = 0.5e9
_RUN = """
import json, sys, time
import fairway
unit = time.process_time()
x = 0
for i in range(10_000_000):
    x += i
unit = time.process_time() - unit
result = fairway.simulate(sys.argv[1], cluster=sys.argv[2], policy=sys.argv[3])
figures = result.figures()
wanted = ("jobs", "finished", "rounds", "preemptions", "cpu_s", "decide_cpu_s", "wall_s", "peak_rss_bytes")
print(json.dumps({name: figures[name] for name in wanted} | {"unit_s": unit, "jct_s": figures["jct_s"]["mean"]}))
"""


def measure(trace: Path, policy: str) -> dict[str, float]:
    """One run in a fresh process."""
    command = [sys.executable, "-c", _RUN, str(trace), CLUSTER, policy]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def thinned(jobs: tuple[JobSpec, ...], keep: int) -> Workload:
    """The first jobs of the trace: fewer events at equal load on the same cluster."""
    first = jobs[:keep]
    start_s = first[0].submitted_s
    return Workload.of([replace(job, submitted_s=job.submitted_s - start_s) for job in first])


def busiest(jobs: tuple[JobSpec, ...], keep: int, gpus: int) -> Workload:
    """A stretch of the trace whose offered load is nearest to that of the whole."""

    def load(part: tuple[JobSpec, ...]) -> float:
        span_s = part[-1].submitted_s - part[0].submitted_s
        return sum(job.gpus * (job.duration_s or 0.0) for job in part) / (gpus * span_s)

    whole = load(jobs)
    starts = range(0, len(jobs) - keep, keep // 4)
    best = min(starts, key=lambda start: abs(load(jobs[start : start + keep]) - whole))
    return thinned(jobs[best:], keep)


def start_up() -> float:
    """CPU seconds of `fairway --help`, the best of five."""
    command = [str(Path(sys.executable).parent / "fairway"), "--help"]
    probe = (
        "import os, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "t = os.times(); print(t.children_user + t.children_system)"
    )
    runs = [subprocess.run([sys.executable, "-c", probe, *command], capture_output=True, text=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def main() -> None:
    """Measure and print the tables."""
    console = Console(width=110)
    began = time.monotonic()
    workload = read_trace(sys.argv[1]) if len(sys.argv) > 1 else philly_like(79_715, seed=0, load=1.05, gpus=416)
    with tempfile.TemporaryDirectory() as folder, Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=2 * len(POLICIES))
        whole, tenth = Path(folder) / "whole.jsonl", Path(folder) / "tenth.jsonl"
        write_trace(workload, whole)
        write_trace(busiest(workload.jobs, len(workload) // 10, 416), tenth)
        rows = []
        for policy in POLICIES:
            small = measure(tenth, policy)
            progress.advance(task)
            large = measure(whole, policy)
            progress.advance(task)
            rows.append((policy, small, large))
    table = Table(title=f"{len(workload):,} jobs on {CLUSTER}, packed placement, native rules")
    for column in (
        "policy",
        "CPU s",
        "limit",
        "per unit",
        "decide CPU s",
        "peak MB",
        "rounds",
        "growth ×10",
        "mean JCT s",
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for policy, small, large in rows:
        growth = (large["cpu_s"] / large["jobs"]) / (small["cpu_s"] / small["jobs"])
        limit_s = LIMITS_CPU_S[policy]
        ok = large["cpu_s"] <= limit_s and large["peak_rss_bytes"] <= LIMIT_BYTES and growth <= 1.5
        table.add_row(
            policy,
            f"{large['cpu_s']:.1f}",
            f"{limit_s:.0f}{'' if ok else ' !'}",
            f"{large['cpu_s'] / large['unit_s']:.1f}",
            f"{large['decide_cpu_s']:.1f}",
            f"{large['peak_rss_bytes'] / 1e6:.0f}",
            f"{large['rounds']:,}",
            f"{growth:.2f}",
            f"{large['jct_s']:,.0f}",
        )
    console.print(table)
    console.print("growth ×10: CPU per job on the whole trace over CPU per job on a tenth of it (limit 1.5)")
    console.print(f"fairway --help: {start_up():.2f} CPU s (limit 0.3)")
    console.print(f"wall {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
