"""Gandiva_fair: its examples, shares of users by tickets, and what trading fast GPUs for slow ones gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairway.core.action import Action
from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import load_profile
from fairway.policies.gandiva_fair.tickets import water_fill
from fairway.report.line_chart import Axis, line_chart
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.rules import Rules
from fairway.simulator.run import simulate

SYSTEM, PAGE, PAPER = "Gandiva_fair", "gandiva_fair.md", "Chaudhary et al., EuroSys'20"
TICKETS = {"ann": 1.0, "bob": 1.0, "cid": 2.0, "dee": 4.0}
MODELS = {"ann": "VGG19", "bob": "A3C", "cid": "ResNet-50", "dee": "Recommendation"}
SHARED, MIXED = "v100:4x8", "v100:2x4,k80:2x4"
HOUR_S = 3600.0
WINDOW_S = (1800.0, 3 * HOUR_S)
SEEDS = 5


class _ShareMeter:
    """What each user held and did between two instants: GPU-seconds, and work in GPU-seconds of its best GPU type."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s, self.until_s = from_s, until_s
        self.held_gpu_s: dict[str, float] = {}
        self.work_gpu_s: dict[str, float] = {}
        self.course: dict[str, list[tuple[float, float]]] = {}
        self._done: dict[int, float] = {}
        self._since_s, self._grants = 0.0, dict[str, int]()

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Book what was held until now, and the progress since the last instant."""
        span_s = min(state.now_s, self.until_s) - max(self._since_s, self.from_s)
        if span_s > 0:
            for user, gpus in self._grants.items():
                self.held_gpu_s[user] = self.held_gpu_s.get(user, 0.0) + gpus * span_s
                mean = self.held_gpu_s[user] / (min(state.now_s, self.until_s) - self.from_s)
                self.course.setdefault(user, []).append((min(state.now_s, self.until_s), mean))
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


def example(_: Setting) -> Findings:
    """Stride with gangs, and water filling."""
    sizes = (("A", 2, 12_000.0), ("B", 2, 12_000.0), ("C", 4, 6_000.0))
    jobs = [JobSpec(name, 0.0, gpus, duration_s=lasts_s, user=name) for name, gpus, lasts_s in sizes]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy="gandiva_fair", rules=Rules("free"))
    quanta = (result.ledger.held_gpu_s / 60).tolist()
    cap, group = np.array([np.inf, np.inf, 2.0]), np.zeros(3, dtype=np.int64)
    filled = water_fill(np.array([8.0]), np.ones(3), cap, group).tolist()
    equal = Yardstick.equal
    figures = [
        Figure(f"stride, 300 quanta: GPU-quanta of job {name}", 400.0, had, equal(0), decimals=0)
        for (name, _gpus, _s), had in zip(sizes, quanta, strict=True)
    ]
    shares = zip((3.0, 3.0, 2.0), filled, (1, 2, 3), strict=True)
    figures += [Figure(f"8 GPUs for demands ∞, ∞, 2: user {at}", want, got, equal(2)) for want, got, at in shares]
    return Findings(tuple(figures))


def shared_jobs(seed: int) -> Workload:
    """Twelve long jobs of odd gangs per user; bob and dee send a short job every two minutes, too."""
    random, jobs = np.random.default_rng([seed, 1]), list[JobSpec]()
    for user, weight in TICKETS.items():
        for at in range(12):
            gpus, hours = int(random.choice([1, 1, 1, 2, 2, 4, 8])), float(random.uniform(2, 4))
            at_s, lasts_s = float(random.integers(900)), hours * HOUR_S
            jobs.append(JobSpec(f"{user}-{at}", at_s, gpus, duration_s=lasts_s, user=user, weight=weight))
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


def _measured(workload: Workload, cluster: str, policy: str, seed: int) -> dict[str, Any]:
    """One run: shares and work in the window, and the usual figures of the whole run."""
    meter = _ShareMeter(*WINDOW_S)
    result = simulate(workload, cluster=cluster, policy=policy, seed=seed, observer=meter)
    figures, gpus = result.figures(), meter.means(meter.held_gpu_s)
    total = sum(gpus.values())
    errors = [gpus[user] / total * sum(TICKETS.values()) / TICKETS[user] - 1 for user in gpus]
    return {
        "gpus": gpus,
        "work": meter.means(meter.work_gpu_s),
        "course": meter.course,
        "worst": max(abs(error) for error in errors),
        "lost": figures["lost_gpu_h"] / float(result.ledger.held_gpu_s.sum() / HOUR_S),
        "jct_h": figures["jct_s"]["mean"] / HOUR_S,
        "makespan_h": figures["makespan_s"] / HOUR_S,
    }


def shares(setting: Setting) -> Findings:
    """Four users with 1, 1, 2 and 4 tickets, who all want more than their share."""
    policies = ("gandiva_fair", "proportional:by=user,quantum_s=60", "proportional:by=user")
    first = {policy: _measured(shared_jobs(0), SHARED, policy, 0) for policy in policies}
    seeds = range(1, 1 if setting.quick else SEEDS)
    others = [_measured(shared_jobs(seed), SHARED, policies[0], seed)["worst"] for seed in seeds]
    worst = max([first["gandiva_fair"]["worst"], *others])
    rows = tuple(
        (
            f"`{policy}`",
            " / ".join(f"{gpus:.2f}" for gpus in run["gpus"].values()),
            f"{100 * run['worst']:.1f} %",
            f"{100 * run['lost']:.1f} %",
            f"{run['jct_h']:.2f}",
            f"{run['makespan_h']:.2f}",
        )
        for policy, run in first.items()
    )
    heads = ("policy", "GPUs for 1 / 1 / 2 / 4 tickets", "worst share error", "lost to restarts", "mean JCT, h")
    what = f"largest error of a user's share by tickets, {len(others) + 1} seeds"
    lines = {f"{TICKETS[user]:g}: {user}": points for user, points in first["gandiva_fair"]["course"].items()}
    axes = Axis("time", " h", 1 / HOUR_S), Axis("GPUs on average since 0:30 h")
    return Findings(
        (Figure(what, 2.0, 100 * worst, Yardstick.at_most(), "%", headline=True),),
        {"shares": ResultTable((*heads, "makespan, h"), rows)},
        {"shares": line_chart("GPUs of four users with 1, 1, 2 and 4 tickets", lines, *axes)},
    )


def trades(setting: Setting) -> Findings:
    """Four users with one model each on fast and slow GPUs, with and without trade."""
    policies = ("gandiva_fair", "gandiva_fair:trade=off", "proportional:by=user")
    runs = {policy: _measured(mixed_jobs(0), MIXED, policy, 0) for policy in policies}
    gains: list[float] = []
    totals: list[float] = []
    for seed in range(1 if setting.quick else SEEDS):
        on, off = (
            (runs[policy] if seed == 0 else _measured(mixed_jobs(seed), MIXED, policy, seed))["work"]
            for policy in policies[:2]
        )
        gains += (100 * (on[user] / off[user] - 1) for user in on)
        totals.append(100 * (sum(on.values()) / sum(off.values()) - 1))
    rows = tuple(
        (
            f"`{policy}`",
            *(f"{work:.2f}" for work in run["work"].values()),
            f"{sum(run['work'].values()):.2f}",
            f"{run['jct_h']:.2f}",
            f"{run['makespan_h']:.2f}",
        )
        for policy, run in runs.items()
    )
    heads = ("policy", *MODELS.values(), "all", "mean JCT, h", "makespan, h")
    figures = (
        Figure(f"least that a user gains by trading, {len(totals)} seeds", 0.0, min(gains), Yardstick.at_least(), "%"),
        Figure("more work by trading, least of the seeds", 10.0, min(totals), Yardstick.at_least(), "%", headline=True),
    )
    return Findings(figures, {"trade": ResultTable(heads, rows)})


CASES = (
    Case(
        "gandiva_fair-example", SYSTEM, "stride and water filling by hand", f"{PAPER}, derived", PAGE, example, 0.1, 0.1
    ),
    Case(
        "gandiva_fair-shares",
        SYSTEM,
        "shares by tickets",
        f"{PAPER}: shares within a few per cent (read as 2); generated jobs",
        PAGE,
        shares,
        4.0,
        1.5,
    ),
    Case(
        "gandiva_fair-trade",
        SYSTEM,
        "fast GPUs for slow ones",
        f"{PAPER}: tens of per cent more work (read as 10), nobody loses; generated jobs",
        PAGE,
        trades,
        9.0,
        1.5,
    ),
)
