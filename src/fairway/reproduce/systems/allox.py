"""AlloX: the example of the talk, twelve users on three GPU types, and the ports of two published simulators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.builtin import BuiltinProfile
from fairway.models.profile import load_profile
from fairway.reproduce.case import Case, DataFile, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.curves import completion_chart, shares_done
from fairway.reproduce.data import (
    GAVEL_SINGLE,
    GAVEL_SMALL,
    GAVEL_THROUGHPUTS,
    TACC_THROUGHPUTS,
    TACC_TRACE,
)
from fairway.simulator.run import simulate

SYSTEM, PAGE, PAPER = "AlloX", "allox.md", "Le et al., EuroSys'20"
MODELS = ("ResNet-50", "VGG19", "A3C", "Recommendation", "LM")
USERS, JOBS, SEEDS = 12, 300, 2
CLUSTER = "v100:2x4,p100:2x4,k80:2x4"
ALPHAS = ("0.05", "0.1", "0.2", "0.3", "0.5", "1")
LONGEST_DRAWN_S = 90 * 3600.0
POLICIES = (*(f"allox:alpha={alpha}" for alpha in ALPHAS), "allox:idle=fill", "allox:score=cumulative", "sjf", "fifo")
SLIDE = {"ResNet-18": (10.0, 20.0), "ResNet-50": (15.0, 25.0), "VGG19": (20.0, 100.0), "LM": (20.0, 90.0)}
"""Run times of the talk's four jobs on fast and slow machines; the models stand for the jobs."""


class _Slide(BuiltinProfile):
    """Every job is one step, which takes as long as the talk says."""

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        fast_s, slow_s = SLIDE[model]
        return 1.0 / (fast_s if gpu_type == "v100" else slow_s)


class _ScoreSpread:
    """The time average of how far apart the progress of waiting users is: standard deviation over mean."""

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


def example(_: Setting) -> Findings:
    """Two fast and two slow machines, four jobs."""
    jobs = Workload.of([JobSpec(model, 0.0, 1, steps=1.0, model=model) for model in SLIDE])
    found = {}
    for policy in ("allox:alpha=1", "sjf"):
        result = simulate(jobs, cluster="v100:2x1,k80:2x1", policy=policy, profile=_Slide())
        found[policy] = float(result.jct_s.mean()), float(result.makespan_s or 0.0)
    (ours, ends), (shortest, late) = found.values()
    equal = Yardstick.equal
    figures = (
        Figure("mean completion time", 21.25, ours, equal(2), decimals=2, headline=True),
        Figure("mean completion time, shortest first", 53.75, shortest, equal(2), decimals=2),
        Figure("makespan", 25.0, ends, equal(2)),
        Figure("makespan, shortest first", 100.0, late, equal(2)),
    )
    return Findings(figures)


def users_jobs(seed: int, jobs: int, gap_s: float, *, gangs: bool) -> Workload:
    """Jobs of users with habits: how many they send, how long they are, and which model they like."""
    random, profile = np.random.default_rng([seed, 7]), load_profile(None)
    taste = random.integers(len(MODELS), size=USERS)
    share = 1.0 / np.arange(1, USERS + 1)
    users = random.choice(USERS, size=jobs, p=share / share.sum())
    arrivals_s = np.cumsum(random.exponential(gap_s, jobs))
    specs = []
    for number, (user, at_s) in enumerate(zip(users.tolist(), arrivals_s.tolist(), strict=True)):
        length_s = float(np.clip(random.lognormal(np.log(1200.0 + 600.0 * user), 1.0), 60.0, 36_000.0))
        model = MODELS[taste[user]] if random.random() < 0.7 else str(random.choice(MODELS))
        gpus = int(random.choice([1, 1, 1, 2, 4, 8])) if gangs else 1
        steps = profile.rate(model, None, "v100", gpus) * length_s
        specs.append(JobSpec(f"job-{number}", at_s, gpus, steps=steps, model=model, user=f"user-{user}"))
    return Workload.of(specs, source="twelve users")


def _measured(policy: str, gap_s: float, seeds: int, *, gangs: bool) -> tuple[list[float], list[tuple[float, float]]]:
    """Means over the seeds: mean JCT, makespan, longest JCT (hours), spread, worst user's slowdown; a distribution."""
    rows, line = [], list[tuple[float, float]]()
    for seed in range(seeds):
        spread = _ScoreSpread()
        jobs = users_jobs(seed, JOBS, gap_s, gangs=gangs)
        result = simulate(jobs, cluster=CLUSTER, policy=policy, seed=seed, observer=spread)
        slowdown = result.jct_s / result.ledger.exclusive_s
        users = np.array([spec.user for spec in result.specs])
        worst = max(float(slowdown[users == user].mean()) for user in np.unique(users))
        jct = result.figures()["jct_s"]
        rows.append((jct["mean"] / 3600, (result.makespan_s or 0.0) / 3600, jct["max"] / 3600, spread.mean, worst))
        line = line or shares_done(result.jct_s)
    return np.mean(rows, axis=0).tolist(), line


def _users(setting: Setting, gap_s: float, policies: Sequence[str], *, gangs: bool) -> Findings:
    seeds = 1 if setting.quick else SEEDS
    chosen = ("allox:alpha=1", "sjf", "fifo") if setting.quick else policies
    found = {policy: _measured(policy, gap_s, seeds, gangs=gangs) for policy in chosen}
    rows = []
    for policy, (means, _) in found.items():
        mean, makespan, longest, spread, worst = means
        rows.append(
            (f"`{policy}`", f"{mean:.2f}", f"{makespan:.1f}", f"{longest:.1f}", f"{spread:.2f}", f"{worst:.1f}")
        )
    heads = ("policy", "mean JCT, h", "makespan, h", "longest JCT, h", "spread", "worst user's mean slowdown")
    ours, fifo = found["allox:alpha=1"][0][0], found["fifo"][0][0]
    why = "the paper's 95 % is its best case, on clusters of CPUs and GPUs"
    near = Yardstick.within(0.05, good="higher")
    what = f"mean JCT below that of `fifo`, {'gangs' if gangs else 'one GPU each'}, a job every {gap_s:g} s"
    figure = Figure(what, 95.0, 100 * (1 - ours / fifo), near, "%", why=why, headline=True)
    lines = {policy: line for policy, (_, line) in found.items() if policy in ("allox:alpha=1", "sjf", "fifo")}
    picture = completion_chart("gangs" if gangs else f"one GPU each, a job every {gap_s:g} s", lines, LONGEST_DRAWN_S)
    return Findings((figure,), {"policies": ResultTable(heads, tuple(rows))}, {"cdf": picture})


def single_gpus(setting: Setting) -> Findings:
    """Jobs of one GPU, as AlloX knows them."""
    return _users(setting, 200.0, POLICIES, gangs=False)


def high_load(setting: Setting) -> Findings:
    """The same four times as often: the high load of the paper's best case."""
    return _users(setting, 50.0, ("allox:alpha=1", "allox:alpha=0.3", "sjf", "fifo"), gangs=False)


def gang_jobs(setting: Setting) -> Findings:
    """Gangs of 1 to 8 GPUs."""
    return _users(setting, 420.0, POLICIES, gangs=True)


class _Port(NamedTuple):
    """A run of a published simulator's AlloX: makespan and mean JCT that it computes."""

    where: str
    trace: DataFile
    profile: DataFile
    cluster: str
    rules: str
    round_s: float
    makespan_s: float
    jct_s: float
    off: float


PUBLISHED_S = 32488.6, 9926.3
"""What the authors of Shockwave published; the same code with a newer SciPy, which breaks ties differently, gives what
is in `PORTS`."""
PORTS = (
    _Port("Shockwave's 120 jobs", TACC_TRACE, TACC_THROUGHPUTS, "v100:32", "shockwave", 120.0, 32628.6, 9972.9, 0.0001),
    _Port(
        "Gavel, 200 jobs",
        GAVEL_SINGLE,
        GAVEL_THROUGHPUTS,
        "v100:36,p100:36,k80:36",
        "gavel",
        360.0,
        86340.3,
        25212.8,
        0.02,
    ),
    _Port(
        "Gavel, 120 jobs",
        GAVEL_SMALL,
        GAVEL_THROUGHPUTS,
        "v100:12,p100:12,k80:12",
        "gavel",
        360.0,
        125272.2,
        30161.0,
        0.02,
    ),
)


def ports(setting: Setting) -> Findings:
    """AlloX as Gavel's and Shockwave's simulators have it. Ties of the matching make the difference."""
    figures = []
    for port in PORTS:
        result = simulate(
            setting.file(port.trace),
            cluster=port.cluster,
            policy="allox",
            rules=port.rules,
            round_s=port.round_s,
            profile=load_profile(str(setting.file(port.profile))),
        )
        near = Yardstick.within(port.off)
        figures.append(Figure(f"{port.where}: makespan", port.makespan_s, result.makespan_s or 0.0, near, "s"))
        figures.append(
            Figure(f"{port.where}: mean JCT", port.jct_s, float(result.jct_s.mean()), near, "s", headline=True)
        )
    for what, published, figure in zip(("makespan", "mean JCT"), PUBLISHED_S, figures[:2], strict=True):
        name = f"Shockwave's 120 jobs: {what}, as published"
        figures.append(Figure(name, published, figure.ours, Yardstick.within(0.01), "s"))
    return Findings(tuple(figures))


USERS_SOURCE = f"{PAPER}, abstract: mean JCT up to 95 % lower under high load; generated jobs"
CASES = (
    Case(
        "allox-example",
        SYSTEM,
        "four jobs on two kinds of machines",
        f"{PAPER}, the talk's example",
        PAGE,
        example,
        0.1,
        0.1,
    ),
    Case("allox-single", SYSTEM, "twelve users, one GPU a job", USERS_SOURCE, PAGE, single_gpus, 7.0, 1.0),
    Case("allox-load", SYSTEM, "twelve users, four times the load", USERS_SOURCE, PAGE, high_load, 2.5, None),
    Case("allox-gangs", SYSTEM, "twelve users, gangs", USERS_SOURCE, PAGE, gang_jobs, 17.0, None),
    Case(
        "allox-ports",
        SYSTEM,
        "AlloX in the simulators of Gavel and Shockwave",
        "Narayanan et al., OSDI'20; Zheng et al., NSDI'23; measured with their simulators",
        PAGE,
        ports,
        1.0,
        1.0,
        (TACC_TRACE, TACC_THROUGHPUTS, GAVEL_SINGLE, GAVEL_SMALL, GAVEL_THROUGHPUTS),
    ),
)
