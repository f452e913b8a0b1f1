"""What AlloX's matching and its fairness cost: CPU seconds of one solve, and alpha against completion times.

    python benchmarks/allox.py [--seeds N] [--repeats N] [--jobs N] [--json]

The solves are those of jobs with random speeds on three GPU types, all GPUs busy for a while, matrix building included.
The workload has twelve users who send jobs of five models, some users many and short ones, some few and long ones, to
fast and slow GPUs that they keep busy. Spread is how far apart the users' progress scores are while they wait: the
standard deviation over the mean of the users that have jobs waiting, averaged over time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway import JobSpec, Workload, simulate
from fairway.core.action import Action
from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import load_profile
from fairway.solvers.matching import least_completion

SIZES = ((128, (32, 32, 32)), (1000, (34, 33, 33)))
MODELS = ("ResNet-50", "VGG19", "A3C", "Recommendation", "LM")
USERS = 12
CLUSTER = "v100:2x4,p100:2x4,k80:2x4"
ALPHAS = ("0.05", "0.1", "0.2", "0.3", "0.5", "1")
OTHERS = ("allox:idle=fill", "allox:score=cumulative", "sjf", "fifo")


def instance(jobs: int, machines: Sequence[int], seed: int) -> tuple[Floats, list[Floats]]:
    """Run times by type and job, and when each machine is free."""
    random = np.random.default_rng(seed)
    slower = np.stack([np.ones(jobs), random.uniform(1.2, 3, jobs), random.uniform(2, 10, jobs)])
    return random.lognormal(7, 1.3, jobs) * slower, [random.uniform(0, 5000, count) for count in machines]


def solve_cpu_s(jobs: int, machines: Sequence[int], repeats: int) -> float:
    """The median CPU time of one solve."""
    taken = []
    for seed in range(repeats):
        times_s, free_at_s = instance(jobs, machines, seed)
        before = time.process_time()
        least_completion(times_s, free_at_s)
        taken.append(time.process_time() - before)
    return float(np.median(taken))


class Spread:
    """The time average of how far apart the progress of waiting users is, and the worst that a user fared."""

    def __init__(self) -> None:
        self.sum, self.span_s = 0.0, 0.0
        self._value, self._since_s = np.nan, 0.0

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Add up what held until now."""
        if np.isfinite(self._value):
            self.sum += self._value * (state.now_s - self._since_s)
            self.span_s += state.now_s - self._since_s
        self._since_s = state.now_s

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Note the spread that holds from now on."""
        runs, speeds = decision.gpus > 0, snapshot.speeds
        best = speeds.argmax(axis=0)
        kinds = np.where(runs, decision.gpu_types, 0) if decision.gpu_types is not None else np.zeros_like(best)
        ratio = speeds[kinds, np.arange(len(best))] / speeds.max(axis=0)
        worth = np.where(runs, ratio * decision.gpus / snapshot.cluster.gpus_by_type[best], 0.0)
        scores = np.bincount(snapshot.user, worth, minlength=len(snapshot.names.users))
        waiting = np.unique(snapshot.user[~runs])
        mean = scores[waiting].mean() if len(waiting) > 1 else 0.0
        self._value = scores[waiting].std() / mean if mean > 0 else np.nan

    @property
    def mean(self) -> float:
        """The time average."""
        return self.sum / self.span_s if self.span_s else 0.0


def workload(seed: int, jobs: int, *, gangs: bool) -> Workload:
    """Jobs of users with habits: how many they send, how long they are, and which model they like."""
    random, profile = np.random.default_rng([seed, 7]), load_profile(None)
    taste = random.integers(len(MODELS), size=USERS)
    share = 1.0 / np.arange(1, USERS + 1)
    users = random.choice(USERS, size=jobs, p=share / share.sum())
    arrivals_s = np.cumsum(random.exponential(200.0 if not gangs else 420.0, jobs))
    specs = []
    for number, (user, at_s) in enumerate(zip(users.tolist(), arrivals_s.tolist(), strict=True)):
        length_s = float(np.clip(random.lognormal(np.log(1200.0 + 600.0 * user), 1.0), 60.0, 36_000.0))
        model = MODELS[taste[user]] if random.random() < 0.7 else str(random.choice(MODELS))
        gpus = int(random.choice([1, 1, 1, 2, 4, 8])) if gangs else 1
        steps = profile.rate(model, None, "v100", gpus) * length_s
        specs.append(JobSpec(f"job-{number}", at_s, gpus, steps=steps, model=model, user=f"user-{user}"))
    return Workload.of(specs, source="twelve users")


def measure(policy: str, given: argparse.Namespace, *, gangs: bool) -> dict[str, Any]:
    """The means over the seeds."""
    rows = []
    for seed in range(given.seeds):
        spread = Spread()
        result = simulate(
            workload(seed, given.jobs, gangs=gangs), cluster=CLUSTER, policy=policy, seed=seed, observer=spread
        )
        slowdown = result.jct_s / result.ledger.exclusive_s
        users = np.array([spec.user for spec in result.specs])
        worst = max(float(slowdown[users == user].mean()) for user in np.unique(users))
        figures = result.figures()
        decide_ms = 1e3 * result.costs.decide_cpu_s / max(result.costs.rounds, 1)
        rows.append(
            (
                figures["jct_s"]["mean"] / 3600,
                result.makespan_s / 3600,
                figures["jct_s"]["max"] / 3600,
                spread.mean,
                worst,
                decide_ms,
            )
        )
    names = ("mean_jct_h", "makespan_h", "max_jct_h", "spread", "worst_user_slowdown", "decide_ms")
    return {"policy": policy} | dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """A table with one row per policy."""
    table = Table(title=title)
    table.add_column("policy")
    for heading in ("mean JCT h", "makespan h", "max JCT h", "spread", "worst user's slowdown", "CPU ms a decision"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row["policy"], *(f"{value:.2f}" for key, value in row.items() if key != "policy"))
    console.print(table)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    console = Console(width=150)
    solves = {f"{jobs} x {'+'.join(map(str, m))}": solve_cpu_s(jobs, m, given.repeats) for jobs, m in SIZES}
    policies = (*(f"allox:alpha={alpha}" for alpha in ALPHAS), *OTHERS)
    tables = {
        name: [measure(policy, given, gangs=name == "gangs") for policy in policies] for name in ("single", "gangs")
    }
    if given.json:
        print(json.dumps({"solve_cpu_s": solves, **tables}, indent=1))
        return
    for name, seconds in solves.items():
        console.print(f"one solve, {name} GPUs: {seconds:.4f} CPU s")
    for name, rows in tables.items():
        show(console, f"{CLUSTER}, {given.jobs} jobs, {name}, mean of {given.seeds} seeds", rows)


if __name__ == "__main__":
    main()
