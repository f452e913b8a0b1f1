"""Gandiva against no sharing on an over-subscribed cluster: work done, and time to the first 100 mini-batches.

    python benchmarks/gandiva.py [--seeds 3] [--load 1.5] [--hours 6] [--cluster v100:45x4] [--json FILE]

Jobs as of a hyper-parameter search come as a Poisson process for some hours: models of the built-in profile drawn
alike, gangs of 1, 2, 4 and 8 GPUs, run times alone log-normal. `load` is the GPU time that they take alone over the GPU
time that there is while they come, so more than 1 over-subscribes. Throughput is work done per second and GPU, each
job's work counted as the GPU time that it takes alone, from the end of the first hour (when all GPUs are busy) until
the last arrival. Feedback is over all jobs. The runs go on until every job has ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import fairway
from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished, JobSubmitted
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import Profile, load_profile

POLICIES = ("fifo", "backfill", "gandiva:pack=1", "gandiva", "gandiva:pack=3")
GANGS, SHARES = (1, 2, 4, 8), (0.70, 0.12, 0.13, 0.05)
MEDIAN_S, SIGMA = 1800.0, 1.0
WARM_UP_S = 3600.0
PAPER = {"throughput": 1.26, "feedback": 4.5}


def workload(profile: Profile, gpu: str, gpus: int, load: float, hours: float, seed: int) -> fairway.Workload:
    """Jobs for `hours` hours at a given load."""
    random = np.random.default_rng([seed, 180])
    mean_gpu_s = MEDIAN_S * float(np.exp(SIGMA**2 / 2)) * float(np.dot(GANGS, SHARES))
    count = round(load * gpus * hours * 3600.0 / mean_gpu_s)
    arrivals = np.sort(random.uniform(0.0, hours * 3600.0, count)).tolist()
    specs = []
    for number, at_s in enumerate(arrivals):
        gang = int(random.choice(GANGS, p=SHARES))
        model = str(random.choice(profile.models))
        alone_s = float(np.clip(random.lognormal(np.log(MEDIAN_S), SIGMA), 120.0, 36_000.0))
        steps = alone_s * profile.rate(model, None, gpu, gang)
        specs.append(fairway.JobSpec(f"job-{number}", at_s, gang, steps=steps, model=model))
    return fairway.Workload.of(specs, source=f"search of {count} jobs, seed {seed}")


class Meter:
    """Notes how much work has been done at two instants, in GPU-seconds that the jobs take alone."""

    def __init__(self, instants_s: Sequence[float]) -> None:
        self.instants_s = list(instants_s)
        self.done_gpu_s: list[float] = []
        self._alone_gpu_s: dict[int, float] = {}
        self._ended_gpu_s = 0.0

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, JobSubmitted):
                self._alone_gpu_s[event.job] = event.spec.gpus * event.work / max(event.speeds)
            elif isinstance(event, JobFinished):
                self._ended_gpu_s += self._alone_gpu_s[event.job]
        while len(self.done_gpu_s) < len(self.instants_s) and state.now_s >= self.instants_s[len(self.done_gpu_s)]:
            self.instants_s[len(self.done_gpu_s)] = state.now_s
            self.done_gpu_s.append(self._ended_gpu_s + self._under_way_gpu_s(state.snapshot()))

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Part of the observer's protocol."""

    def _under_way_gpu_s(self, snapshot: Snapshot) -> float:
        """The work of the active jobs, all of which have the same speed from start to end."""
        return float((snapshot.gpus * snapshot.progress / snapshot.best_speed).sum())

    def throughput(self, gpus: int) -> float:
        """Work per second and GPU between the instants."""
        return (self.done_gpu_s[1] - self.done_gpu_s[0]) / (gpus * (self.instants_s[1] - self.instants_s[0]))


def measure(jobs: fairway.Workload, cluster: str, policy: str, hours: float) -> dict[str, Any]:
    """One run."""
    meter = Meter((WARM_UP_S, hours * 3600.0))
    result = fairway.simulate(jobs, cluster=cluster, policy=policy, observer=meter)
    figures = result.figures()
    return {
        "policy": policy,
        "finished": figures["finished"],
        "throughput": meter.throughput(figures["gpus"]),
        "feedback_mean_s": figures["feedback_s"]["mean"],
        "feedback_p95_s": figures["feedback_s"]["p95"],
        "jct_mean_s": figures["jct_s"]["mean"],
        "makespan_s": figures["makespan_s"],
        "preemptions": figures["preemptions"],
        "lost_gpu_h": figures["lost_gpu_h"],
        "decide_ms": 1e3 * figures["decide_cpu_s"] / max(figures["rounds"], 1),
    }


def table_of(runs: list[dict[str, Any]], baseline: str, title: str) -> Table:
    """Means over the seeds, and ratios to the policy without sharing, seed by seed."""
    table = Table(title=title)
    heads = ("policy", "work per GPU", f"× {baseline}", "feedback, s", "p95, s", f"{baseline} ÷", "mean JCT, s", "lost")
    for head in heads:
        table.add_column(head, justify="left" if head == "policy" else "right")
    base = [run for run in runs if run["policy"] == baseline]
    for policy in dict.fromkeys(run["policy"] for run in runs):
        mine = [run for run in runs if run["policy"] == policy]
        more = [run["throughput"] / other["throughput"] for run, other in zip(mine, base, strict=True)]
        sooner = [other["feedback_mean_s"] / run["feedback_mean_s"] for run, other in zip(mine, base, strict=True)]
        table.add_row(
            policy,
            f"{statistics.fmean(run['throughput'] for run in mine):.3f}",
            " ".join(f"{ratio:.2f}" for ratio in more),
            f"{statistics.fmean(run['feedback_mean_s'] for run in mine):,.0f}",
            f"{statistics.fmean(run['feedback_p95_s'] for run in mine):,.0f}",
            " ".join(f"{ratio:.1f}" for ratio in sooner),
            f"{statistics.fmean(run['jct_mean_s'] for run in mine):,.0f}",
            f"{statistics.fmean(run['lost_gpu_h'] for run in mine):,.0f} h",
        )
    return table


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Gandiva against no sharing.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--load", type=float, default=1.5)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--cluster", default="v100:45x4")
    parser.add_argument("--policies", default=";".join(POLICIES), help="separated by semicolons")
    parser.add_argument("--json", help="also write every run to this file")
    args = parser.parse_args()
    console, profile = Console(width=120), load_profile(None)
    machines = fairway.read_cluster(args.cluster)
    policies, runs = args.policies.split(";"), []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=args.seeds * len(policies))
        for seed in range(args.seeds):
            gpu = machines.types[0].name
            jobs = workload(profile, gpu, machines.gpu_count, args.load, args.hours, seed)
            for policy in policies:
                runs.append({"seed": seed, "jobs": len(jobs)} | measure(jobs, args.cluster, policy, args.hours))
                progress.advance(task)
    about = f"{machines.gpu_count} GPUs ({args.cluster}), load {args.load:g} for {args.hours:g} h, {args.seeds} seeds"
    console.print(table_of(runs, policies[0], f"{about}, native rules, built-in profile"))
    gangs = ", ".join(f"{share:.0%} of {gang}" for gang, share in zip(GANGS, SHARES, strict=True))
    console.print(f"gangs: {gangs}; run time alone log-normal, median {MEDIAN_S:g} s, sigma {SIGMA:g}")
    console.print(
        f"paper: {PAPER['throughput']:.2f} × the work, feedback {PAPER['feedback']:g} times sooner (180 GPUs)"
    )
    if args.json:
        settings = {key: value for key, value in vars(args).items() if key != "json"}
        Path(args.json).write_text(json.dumps({"settings": settings, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
