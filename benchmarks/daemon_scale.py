"""The live scheduler's own loop on a large site, in simulated time: 1,000 nodes of 8 GPUs with 10,000 running jobs.

    python benchmarks/daemon_scale.py [--nodes 1000] [--jobs 10000] [--hours 0.1] [--policies fifo,las] [--json FILE]

The scheduler, its journal and its policy are the real ones. Clock and site are simulated, so the figures are what the
scheduler itself computes: no processes, no disk that waits (the journal is in memory where the machine offers that).
A quarter of the GPUs is shared by two jobs of half a GPU each, the others have one job each. A twentieth as many jobs
wait as run. Half of the jobs report their steps twice a minute. Jobs take four hours on average, many only minutes.
When one ends, another comes: about 7,000 per hour. In the middle of the time the scheduler is killed and another one
goes on.

Every policy runs on a site of a hundredth of the size as well. CPU time is given, and its ratio to the small site.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fairway.core.cluster import Cluster, Node
from fairway.core.event import Event, JobFinished
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.recovery import collect_rarely
from fairway.testing.simulated_site import Behaviour, SimulatedTime
from fairway.testing.training_site import TrainingSite

GPUS = 8
SMALLER = 100
"""How many times smaller the other site is."""
WORK_S = 4 * 3600.0
REPORT_S = 30.0
WAITING = 0.05
"""How many more jobs there are than run, as a part of those that run."""
SHARED = 0.25
"""The part of the GPUs that two jobs share."""
MODELS = ("ResNet-50", "ResNet-18", "LM", "Transformer", "Recommendation")
POLICIES = "fifo,tiresias,max_min_fairness"


@dataclass
class Figures:
    """What was measured on one site under one policy. Times are CPU milliseconds unless their names say otherwise."""

    policy: str
    nodes: int
    running: int
    waiting: int
    ended: int = 0
    hours: float = 0.0
    fill_ms_per_job: float = 0.0
    steps: int = 0
    step_ms: dict[str, float] = field(default_factory=dict)
    decisions: int = 0
    decision_ms: dict[str, float] = field(default_factory=dict)
    cpu_s_per_hour: float = 0.0
    restart_s: float = 0.0
    memory_mb: float = 0.0
    memory_at_start_mb: float = 0.0
    journal_bytes_per_job: float = 0.0
    journal_mb: float = 0.0
    log_entries_per_job: float = 0.0
    written_mb_per_hour: float = 0.0


class BigSite:
    """A scheduler on a simulated site, and jobs that come as others end."""

    def __init__(self, folder: Path, policy: str, nodes: int, jobs: int) -> None:
        self.folder, self.policy = folder, policy
        self.random = random.Random(7)
        self.time = SimulatedTime()
        self.cluster = Cluster.of([Node(f"node-{number}", "v100", GPUS) for number in range(nodes)])
        self.site = TrainingSite(self.time, self.cluster, REPORT_S)
        self.jobs = jobs
        self.ended = 0
        self.decided_s: list[float] = []
        self.names = 0
        self.scheduler = self.made()

    def made(self) -> Scheduler:
        """A scheduler on what its predecessor has left."""
        scheduler = Scheduler(
            self.folder,
            self.cluster,
            make_policy(self.policy),
            placement("packed"),
            devices=[f"gpu-{number}" for number in range(self.cluster.gpu_count)],
            policy_text=self.policy,
            site=self.site,
            time=self.time,
        )
        scheduler.listeners.append(self._hear)
        decide = scheduler.guard.decide

        def timed(snapshot: Any) -> Any:
            began_s = time.process_time()
            decision = decide(snapshot)
            self.decided_s.append(time.process_time() - began_s)
            return decision

        scheduler.guard.decide = timed  # type: ignore[method-assign]
        scheduler.begin()
        return scheduler

    def fill(self) -> None:
        """Submit as many jobs as can run, and some more, and wait until all GPUs are taken."""
        shared = round(2 * SHARED * self.cluster.gpu_count * self.jobs / (self.cluster.gpu_count * (1 + SHARED)))
        extra = round(WAITING * self.jobs)
        kinds = [True] * shared + [False] * (self.jobs - shared)
        self.random.shuffle(kinds)
        kinds += [number % 4 == 0 for number in range(extra)]
        submitted = self.scheduler.submission([self._request(shares, new=False) for shares in kinds])
        while not submitted.done() or self.running() < self.jobs:
            self.scheduler.loop.step()
        submitted.result()

    def running(self) -> int:
        """How many attempts compute."""
        return len(self.scheduler.engine.attempts.live)

    def pass_time(self, seconds: float, told: Any) -> list[float]:
        """Let the scheduler take its steps for some seconds of simulated time. Returns the CPU time of each."""
        until_s, taken_s = self.time.monotonic() + seconds, list[float]()
        told_s = self.time.monotonic()
        while self.time.monotonic() < until_s:
            began_s = time.process_time()
            self.scheduler.loop.step()
            taken_s.append(time.process_time() - began_s)
            if self.time.monotonic() - told_s >= 60.0:
                told(self.time.monotonic() - told_s)
                told_s = self.time.monotonic()
        return taken_s

    def restart(self) -> float:
        """Kill the scheduler and start another one. Returns the CPU seconds until that one schedules."""
        self.scheduler.journal.close()
        self.scheduler.archive.close()
        began_s = time.process_time()
        self.scheduler = self.made()
        self.scheduler.loop.step()
        return time.process_time() - began_s

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) is JobFinished:
                self.ended += 1
                shares = self.scheduler.store[event.job].request.gpu_share < 1
                at_s = self.time.monotonic() + self.random.expovariate(1 / 30.0)
                self.site.at(at_s, partial(self._come, shares))

    def _come(self, shares: bool) -> None:
        self.scheduler.submission([self._request(shares, new=True)])

    def _request(self, shares: bool, *, new: bool) -> JobRequest:
        self.names += 1
        work_s = self.random.lognormvariate(0.0, 1.0) * WORK_S / np.exp(0.5)
        work_s = max(work_s if new else work_s * self.random.random(), 60.0)
        model = self.random.choice(MODELS)
        speeds = {"v100": 1.0} if self.names % 2 else {}
        return JobRequest(
            command=Behaviour(round(work_s, 1), speeds=speeds).command(),
            user=f"user-{self.random.randrange(50)}",
            cwd="/home/somebody/project",
            name=f"train {model}",
            model=model,
            gpu_share=0.5 if shares else 1.0,
            preempt="checkpoint",
        )


def measured(folder: Path, policy: str, nodes: int, jobs: int, hours: float, profile: str, told: Any) -> Figures:
    """Live through the hours, with a restart in the middle."""
    before_mb = _memory_mb()
    collect_rarely()
    began_s = time.process_time()
    site = BigSite(folder, policy, nodes, jobs)
    profiler = cProfile.Profile()
    if profile == "fill":
        profiler.enable()
    site.fill()
    fill_s, filled = time.process_time() - began_s, site.names
    told(0.0)
    site.pass_time(min(120.0, hours * 3600.0), lambda seconds: None)
    if profile == "run":
        profiler.enable()
    site.decided_s, site.ended, written = [], 0, _written_bytes()
    taken_s = site.pass_time(hours * 1800.0, told)
    if profile == "restart":
        profiler.enable()
    restart_s = site.restart()
    if profile == "restart":
        profiler.disable()
    taken_s += site.pass_time(hours * 1800.0, told)
    profiler.disable()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    written = _written_bytes() - written
    states = [record.state for record in site.scheduler.store]
    journal = site.scheduler.journal
    size = sum(one.stat().st_size for one in folder.iterdir() if one.name.startswith("journal.db"))
    known = len(journal.names())
    active = sum(not state.ended for state in states)
    memory_mb = _memory_mb()
    figures = Figures(policy, nodes, site.running(), states.count(JobState.PENDING), site.ended, hours)
    figures.fill_ms_per_job = 1e3 * fill_s / filled
    figures.steps, figures.step_ms = len(taken_s), _spread(taken_s)
    figures.decisions, figures.decision_ms = len(site.decided_s), _spread(site.decided_s)
    figures.cpu_s_per_hour = sum(taken_s) / hours
    figures.restart_s, figures.memory_mb, figures.memory_at_start_mb = restart_s, memory_mb, before_mb
    figures.journal_bytes_per_job, figures.journal_mb = size / known, size / 1e6
    figures.log_entries_per_job = journal.size() / max(active, 1)
    figures.written_mb_per_hour = written / 1e6 / hours
    site.scheduler.stop()
    return figures


def _spread(taken_s: Sequence[float]) -> dict[str, float]:
    ms = 1e3 * np.array(sorted(taken_s) or [0.0])
    return {name: float(np.quantile(ms, at)) for name, at in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))}


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def _written_bytes() -> int:
    """What this process has written so far, which is the journal."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar")))


def _in_own_process(policy: str, nodes: int, jobs: int, hours: float, progress: Progress, task: Any) -> Figures:
    """Measure in a process of its own, so that its memory is that of one scheduler."""
    command = [sys.executable, __file__, "--one", policy, "--nodes", str(nodes), "--jobs", str(jobs)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([*command, "--hours", str(hours)], stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None
    last = ""
    for line in child.stdout:
        last = line
        if not line.startswith("{"):
            progress.advance(task, float(line))
    if child.wait() != 0:
        raise SystemExit(f"{policy} on {nodes} nodes failed")
    return Figures(**json.loads(last))


def shown(pairs: Sequence[tuple[Figures, Figures]]) -> Table:
    """The figures of large sites, with their ratios to small ones."""
    table = Table("policy", "", "step ms p50, p99, worst", "decision ms p50, p99", "CPU s per hour", "restart s", "MB")
    table.add_column("journal: bytes per job, MB per hour")
    for small, large in pairs:
        for one in (small, large):
            table.add_row(
                one.policy,
                f"{one.nodes} nodes, {one.running:,} jobs run",
                ", ".join(f"{one.step_ms[name]:.2f}" for name in ("p50", "p99", "worst")),
                ", ".join(f"{one.decision_ms[name]:.1f}" for name in ("p50", "p99")),
                f"{one.cpu_s_per_hour:.1f}",
                f"{one.restart_s:.2f}",
                f"{one.memory_mb:.0f} ({one.memory_at_start_mb:.0f} before)",
                f"{one.journal_bytes_per_job:,.0f}, {one.written_mb_per_hour:,.0f}",
            )
        table.add_row("", "ratio", *_ratios(small, large))
    return table


def _ratios(small: Figures, large: Figures) -> list[str]:
    def over(a: float, b: float) -> str:
        return f"{a / b:.1f}" if b else "-"

    return [
        ", ".join(over(large.step_ms[name], small.step_ms[name]) for name in ("p50", "p99", "worst")),
        ", ".join(over(large.decision_ms[name], small.decision_ms[name]) for name in ("p50", "p99")),
        over(large.cpu_s_per_hour, small.cpu_s_per_hour),
        over(large.restart_s, small.restart_s),
        over(large.memory_mb, small.memory_mb),
        over(large.journal_bytes_per_job, small.journal_bytes_per_job)
        + ", "
        + over(large.written_mb_per_hour, small.written_mb_per_hour),
    ]


def main() -> None:
    """Measure every policy on a small and on a large site, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of 8 GPUs; at least 100")
    parser.add_argument("--jobs", type=int, default=10_000, help="how many jobs run; at most 10 per node")
    parser.add_argument("--hours", type=float, default=0.1, help="simulated hours; one takes about 10 CPU minutes")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--profile", choices=("fill", "run", "restart"), default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        shared = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
            about = (options.one, options.nodes, options.jobs, options.hours, options.profile)
            figures = measured(Path(folder), *about, lambda seconds: print(seconds, flush=True))
        print(json.dumps(asdict(figures)), flush=True)
        return
    if options.nodes < SMALLER or not 0 < options.jobs <= 10 * options.nodes:
        parser.error(f"at least {SMALLER} nodes, and at most 10 jobs per node")
    policies, pairs = options.policies.split(","), list[tuple[Figures, Figures]]()
    with Progress(console=Console(stderr=True)) as progress:
        for policy in policies:
            made = []
            for nodes, jobs in ((options.nodes // SMALLER, options.jobs // SMALLER), (options.nodes, options.jobs)):
                task = progress.add_task(f"{policy} on {nodes} nodes", total=3600 * options.hours)
                made.append(_in_own_process(policy, nodes, jobs, options.hours, progress, task))
                progress.update(task, completed=3600 * options.hours)
            pairs.append((made[0], made[1]))
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(one) for pair in pairs for one in pair], indent=1) + "\n")
    Console(width=200).print(shown(pairs))


if __name__ == "__main__":
    main()
