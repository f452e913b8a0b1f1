"""Pollux against policies that cannot adapt, on published workloads or generated ones, and one job's life as a picture.

    python benchmarks/pollux.py [WORKLOAD.csv ... --profile DIR] [--policy NAME ...] [--picture FILE.svg]

Workloads of the Pollux artifact run under `--rules pollux` on `aws:16x4`. Without any, jobs are generated
(`pollux-like`) and run under native rules on `t4:8x4`. The picture is that of the generated job whose efficiency
changes most.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fairway import Result, Workload, simulate
from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.goodput import efficiency
from fairway.report.line_chart import Axis, line_chart
from fairway.traces import pollux_like

POLICIES = ("pollux", "tiresias", "optimus")
JOBS, SEED, SPAN_H = 60, 5, 4.0
CLUSTER = "t4:8x4"


class Diary:
    """Notes GPUs, batch and efficiency of every adapted job, round by round."""

    def __init__(self) -> None:
        self.lives: dict[str, list[tuple[float, int, int, float]]] = {}

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Nothing is noted."""

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Note what each job has from now on."""
        for row, split in decision.batches.items():
            facts, gpus = snapshot.facts(row), int(decision.gpus[row])
            batch, first = split.batch(gpus), facts.adaptive.limits.first if facts.adaptive else 1
            age_s = snapshot.now_s - float(snapshot.submitted_s[row])
            worth = float(efficiency(facts.noise_scale, first, batch))
            life = self.lives.setdefault(snapshot.job_id(int(snapshot.jobs[row])), [])
            life.append((age_s, gpus, batch, worth))


def life_of_one_job(workload: Workload) -> str:
    """GPUs, batch and efficiency of one job over its life, as a picture."""
    diary = Diary()
    simulate(workload, cluster=CLUSTER, policy="pollux", observer=diary)
    worths = {name: [worth for *_, worth in life if worth < 1.0] for name, life in diary.lives.items()}
    name = max(worths, key=lambda each: max(worths[each], default=0.0) - min(worths[each], default=0.0))
    spec = next(job for job in workload.jobs if job.id == name)
    life = diary.lives[name]
    most_gpus, most_batch = max(gpus for _, gpus, _, _ in life), max(batch for _, _, batch, _ in life)
    lines = {
        f"GPUs, of {most_gpus}": _steps([(age_s, gpus / most_gpus) for age_s, gpus, _, _ in life]),
        f"batch, of {most_batch:,}": _steps([(age_s, batch / most_batch) for age_s, _, batch, _ in life]),
        "efficiency": _steps([(age_s, worth) for age_s, _, _, worth in life]),
    }
    title = f"Under pollux: a job that trains {spec.model}, and asked for {spec.gpus} GPUs"
    minutes = Axis("time since its submission", " min", 1.0 / 60.0)
    share = Axis("part of the most that it had, and of full efficiency", " %", 100.0, 100.0)
    return line_chart(title, lines, minutes, share)


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points as a staircase."""
    found = [points[0]]
    for (_, before), (at, value) in pairwise(points):
        found += [(at, before), (at, value)]
    return found


def row_of(name: str, policy: str, result: Result) -> list[str]:
    """The figures of a run as cells."""
    restarts = float((result.ledger.starts - 1).clip(0).mean())
    jct = f"{result.mean_jct_s:,.1f}", f"{result.figures()['jct_s']['p99']:,.0f}", f"{result.makespan_s:,.0f}"
    return [name, policy, *jct, f"{restarts:.2f}", f"{len(result.ledger.batches):,}", f"{result.costs.cpu_s:.1f}"]


def main(argv: Sequence[str]) -> int:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD.csv")
    parser.add_argument("--profile", metavar="DIR")
    parser.add_argument("--policy", action="append", metavar="NAME")
    parser.add_argument("--picture", metavar="FILE.svg")
    args = parser.parse_args(argv)
    generated = pollux_like(JOBS, seed=SEED, span_h=SPAN_H)
    if args.picture:
        Path(args.picture).write_text(life_of_one_job(generated), encoding="utf-8")
    table = Table("workload", "policy", "mean JCT, s", "p99, s", "makespan, s", "restarts a job", "batches", "CPU s")
    for trace in args.workloads or [generated]:
        for policy in args.policy or POLICIES:
            if isinstance(trace, Workload):
                name, result = trace.source, simulate(trace, cluster=CLUSTER, policy=policy)
            else:
                name = "/".join(Path(trace).parts[-2:])
                result = simulate(trace, cluster="aws:16x4", policy=policy, rules="pollux", profile=args.profile)
            table.add_row(*row_of(name, policy, result))
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
