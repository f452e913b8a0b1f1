"""How fair and how efficient Gandiva_fair is: shares of users against plain rotation, and what trading GPU types gains.

    python benchmarks/gandiva_fair.py [--seed N] [--json]

Two generated workloads. In the first, four users with 1, 1, 2 and 4 tickets share one cluster; two of them also send a
stream of short jobs. In the second, four users with one model each share fast and slow GPUs. Shares and work are
measured in a window in which every user wants more than its share; the runs go on to the end of the jobs.
"""

from __future__ import annotations

import argparse
import json
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

TICKETS = {"ann": 1.0, "bob": 1.0, "cid": 2.0, "dee": 4.0}
MODELS = {"ann": "VGG19", "bob": "A3C", "cid": "ResNet-50", "dee": "Recommendation"}
SHARED, MIXED = "v100:4x8", "v100:2x4,k80:2x4"
WINDOW_S = (1800.0, 3 * 3600.0)
HOUR_S = 3600.0


class Window:
    """What each user held and did between two instants: GPU-seconds, and work in GPU-seconds of its best GPU type."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s, self.until_s = from_s, until_s
        self.held_gpu_s: dict[str, float] = {}
        self.work_gpu_s: dict[str, float] = {}
        self._done: dict[int, float] = {}
        self._since_s, self._grants = 0.0, dict[str, int]()

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Book what was held until now, and the progress since the last instant."""
        span_s = min(state.now_s, self.until_s) - max(self._since_s, self.from_s)
        if span_s > 0:
            for user, gpus in self._grants.items():
                self.held_gpu_s[user] = self.held_gpu_s.get(user, 0.0) + gpus * span_s
        self._since_s = state.now_s

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Note who holds what from now on, and how far the jobs are."""
        inside = self.from_s <= snapshot.now_s <= self.until_s
        done = (snapshot.progress / snapshot.best_speed * snapshot.gpus).tolist()
        users = [snapshot.names.users[code] for code in snapshot.user.tolist()]
        for job, user, value in zip(snapshot.jobs.tolist(), users, done, strict=True):
            if inside:
                self.work_gpu_s[user] = self.work_gpu_s.get(user, 0.0) + value - self._done.get(job, 0.0)
            self._done[job] = value
        self._grants = {}
        for row in decision.gpus.nonzero()[0].tolist():
            self._grants[users[row]] = self._grants.get(users[row], 0) + int(decision.gpus[row])

    def means(self, gpu_s: dict[str, float]) -> dict[str, float]:
        """GPUs on average."""
        return {user: value / (self.until_s - self.from_s) for user, value in sorted(gpu_s.items())}


def shared_jobs(seed: int) -> Workload:
    """Twelve long jobs of odd gangs per user; bob and dee send a short job every two minutes, too."""
    random, jobs = np.random.default_rng([seed, 1]), list[JobSpec]()
    for user, weight in TICKETS.items():
        for at in range(12):
            gpus, hours = int(random.choice([1, 1, 1, 2, 2, 4, 8])), float(random.uniform(2, 4))
            jobs.append(
                JobSpec(
                    f"{user}-{at}",
                    float(random.integers(900)),
                    gpus,
                    duration_s=hours * HOUR_S,
                    user=user,
                    weight=weight,
                )
            )
        if user in ("bob", "dee"):
            arrivals_s: Floats = np.cumsum(random.exponential(120.0, 90))
            for at, at_s in enumerate(arrivals_s.tolist()):
                length_s = float(random.exponential(300.0)) + 1.0
                gpus = int(random.choice([1, 2]))
                jobs.append(JobSpec(f"{user}-short-{at}", at_s, gpus, duration_s=length_s, user=user, weight=weight))
    return Workload.of(jobs, source="four users")


def mixed_jobs(seed: int) -> Workload:
    """Ten trainings per user, each two to four hours on V100s, of one model per user."""
    random, profile, jobs = np.random.default_rng([seed, 2]), load_profile(None), list[JobSpec]()
    for user, model in MODELS.items():
        for at in range(10):
            gpus, hours = int(random.choice([1, 1, 2, 2, 4])), float(random.uniform(2, 4))
            steps = profile.rate(model, None, "v100", gpus) * hours * HOUR_S
            jobs.append(JobSpec(f"{user}-{at}", float(random.integers(600)), gpus, steps=steps, model=model, user=user))
    return Workload.of(jobs, source="four models")


def measure(workload: Workload, cluster: str, policy: str, seed: int) -> dict[str, Any]:
    """One run: shares and work in the window, and the usual figures of the whole run."""
    window = Window(*WINDOW_S)
    result = simulate(workload, cluster=cluster, policy=policy, seed=seed, observer=window)
    figures, gpus = result.figures(), window.means(window.held_gpu_s)
    total = sum(gpus.values())
    return {
        "policy": policy,
        "gpus": gpus,
        "work": window.means(window.work_gpu_s),
        "share_error": {user: gpus[user] / total * sum(TICKETS.values()) / TICKETS[user] - 1 for user in gpus},
        "lost_share": figures["lost_gpu_h"] / float(result.ledger.held_gpu_s.sum() / HOUR_S),
        "mean_jct_h": figures["jct_s"]["mean"] / HOUR_S,
        "makespan_h": figures["makespan_s"] / HOUR_S,
        "preemptions": figures["preemptions"],
    }


def show(console: Console, title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """A table with one row per policy."""
    table = Table(title=title)
    table.add_column("policy")
    for heading in (*columns.values(), "lost", "mean JCT h", "makespan h", "preemptions"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [" / ".join(f"{value:.2f}" for value in row[name].values()) for name in columns if name != "worst"]
        if "worst" in columns:
            cells.append(f"{max(abs(value) for value in row['share_error'].values()):.1%}")
        cells += [f"{row['lost_share']:.1%}", f"{row['mean_jct_h']:.2f}", f"{row['makespan_h']:.2f}"]
        table.add_row(row["policy"], *cells, f"{row['preemptions']:,}")
    console.print(table)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shared, mixed = shared_jobs(options.seed), mixed_jobs(options.seed)
    rotations = ("proportional:by=user,quantum_s=60", "proportional:by=user")
    shares = [measure(shared, SHARED, policy, options.seed) for policy in ("gandiva_fair", *rotations)]
    policies = ("gandiva_fair", "gandiva_fair:trade=off", "proportional:by=user")
    trades = [measure(mixed, MIXED, policy, options.seed) for policy in policies]
    for row in trades:
        row["gain"] = {user: work / trades[1]["work"][user] - 1 for user, work in row["work"].items()}
        row["total_gain"] = sum(row["work"].values()) / sum(trades[1]["work"].values()) - 1
    if options.json:
        print(json.dumps({"seed": options.seed, "shares": shares, "trades": trades}, indent=1))
        return
    console, names = Console(width=150), " / ".join(TICKETS)
    show(
        console, f"{SHARED}, tickets 1 / 1 / 2 / 4", shares, {"gpus": f"GPUs of {names}", "worst": "worst share error"}
    )
    show(console, MIXED, trades, {"gpus": f"GPUs of {names}", "work": "work, in V100s"})
    for row in trades[::2]:
        parts = ", ".join(f"{user} ({MODELS[user]}) {gain:+.1%}" for user, gain in row["gain"].items())
        console.print(f"{row['policy']} against no trade: {parts}; all together {row['total_gain']:+.1%}")


if __name__ == "__main__":
    main()
