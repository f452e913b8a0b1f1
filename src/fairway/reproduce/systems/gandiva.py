"""Gandiva: its examples, and an over-subscribed cluster of 180 GPUs with and without sharing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished, JobSubmitted
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import Profile, load_profile
from fairway.policies.gandiva.introspection import pays
from fairway.report.line_chart import Axis, line_chart
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.simulator.run import simulate

SYSTEM, PAGE, PAPER = "Gandiva", "gandiva.md", "Xiao et al., OSDI'18"
CLUSTER, GPUS = "v100:45x4", 180
BASELINE = "backfill"
POLICIES = {
    1.0: ("fifo", BASELINE, "gandiva:pack=1", "gandiva"),
    1.5: ("fifo", BASELINE, "gandiva:pack=1", "gandiva"),
    2.0: ("fifo", BASELINE, "gandiva:pack=1", "gandiva", "gandiva:pack=3"),
}
"""The policies that are run at each load."""
GANGS, SHARES = (1, 2, 4, 8), (0.70, 0.12, 0.13, 0.05)
MEDIAN_S, SIGMA = 1800.0, 1.0
WARM_UP_S, HOUR_S = 3600.0, 3600.0


class _Run(NamedTuple):
    """What is known of one run: work per GPU and second, mean seconds to 100 mini-batches, mean JCT."""

    work: float
    feedback_s: float
    jct_s: float


class _WorkMeter:
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


def example(_: Setting) -> Findings:
    """Six jobs of an hour on four GPUs, and two packs."""
    jobs = Workload.of([JobSpec(f"j{number}", 0.0, 1, duration_s=3600.0) for number in range(6)])
    turns = simulate(jobs, cluster="v100:4", policy="gandiva:pack=1", priorities=False)
    fifo = simulate(jobs, cluster="v100:4", policy="fifo", priorities=False)
    until_s = 2160.0
    held_s = [0.0] * 6
    for job, start_s, end_s, _gpus in turns.ledger.segments:
        held_s[job] += max(0.0, min(end_s, until_s) - start_s)
    equal = Yardstick.equal
    figures = (
        Figure("6 jobs on 4 GPUs: least share of a job", 0.667, min(held_s) / until_s, equal(3), decimals=3),
        Figure("the last job's first 100 mini-batches", 120.0, float(turns.feedback_s.max()), equal(0), "s", 0),
        Figure("the same under `fifo`: it starts at", 3600.0, float(fifo.started_s.max()), equal(0), "s", 0),
        Figure("a pack of 7/10 and 5/8 is kept (1: yes)", 1, pays(0.7 + 0.625, 1.0, 0.05), equal(0), decimals=0),
        Figure("a pack of 4/10 and 4/8 is kept (1: yes)", 0, pays(0.4 + 0.5, 1.0, 0.05), equal(0), decimals=0),
    )
    return Findings(figures)


def search_jobs(profile: Profile, load: float, hours: float, seed: int) -> Workload:
    """Jobs as of a hyper-parameter search for some hours; `load` is the GPU time they take over what there is."""
    random = np.random.default_rng([seed, 180])
    mean_gpu_s = MEDIAN_S * float(np.exp(SIGMA**2 / 2)) * float(np.dot(GANGS, SHARES))
    count = round(load * GPUS * hours * HOUR_S / mean_gpu_s)
    arrivals = np.sort(random.uniform(0.0, hours * HOUR_S, count)).tolist()
    specs = []
    for number, at_s in enumerate(arrivals):
        gang = int(random.choice(GANGS, p=SHARES))
        model = str(random.choice(profile.models))
        alone_s = float(np.clip(random.lognormal(np.log(MEDIAN_S), SIGMA), 120.0, 36_000.0))
        steps = alone_s * profile.rate(model, None, "v100", gang)
        specs.append(JobSpec(f"job-{number}", at_s, gang, steps=steps, model=model))
    return Workload.of(specs, source=f"search of {count} jobs, seed {seed}")


def _measured(jobs: Workload, policy: str, hours: float) -> _Run:
    meter = _WorkMeter((WARM_UP_S, hours * HOUR_S))
    figures = simulate(jobs, cluster=CLUSTER, policy=policy, observer=meter).figures()
    return _Run(meter.throughput(GPUS), figures["feedback_s"]["mean"], figures["jct_s"]["mean"])


def over_subscribed(setting: Setting) -> Findings:
    """Loads of 1, 1.5 and 2 on 180 GPUs, three seeds each; quick: one load, one seed."""
    profile = load_profile(None)
    hours, seeds, loads = (6.0, 1, (1.5,)) if setting.quick else (6.0, 3, tuple(POLICIES))
    found: dict[float, dict[str, list[_Run]]] = {}
    for load in loads:
        traces = [search_jobs(profile, load, hours, seed) for seed in range(seeds)]
        policies = (BASELINE, "gandiva") if setting.quick else POLICIES[load]
        found[load] = {policy: [_measured(jobs, policy, hours) for jobs in traces] for policy in policies}
    tables = {"loads": _table(found)}
    return Findings(tuple(_figures(found)), tables, {} if setting.quick else {"feedback": _picture(found)})


def _figures(found: Mapping[float, Mapping[str, Sequence[_Run]]]) -> list[Figure]:
    near = Yardstick.within(0.10, good="higher")
    figures = []
    for load, runs in found.items():
        ours, base = runs["gandiva"], runs[BASELINE]
        more = statistics.fmean(mine.work / other.work for mine, other in zip(ours, base, strict=True))
        sooner = statistics.fmean(other.feedback_s / mine.feedback_s for mine, other in zip(ours, base, strict=True))
        why = "without a queue there is nobody to pack" if load == 1.0 else ""
        where = f"load {load:g}, against `{BASELINE}`"
        figures.append(Figure(f"{where}: work per GPU", 1.26, more, near, "×", 2, why, headline=load > 1.0))
        figures.append(Figure(f"{where}: first 100 mini-batches sooner", 4.5, sooner, near, "×", 1, headline=True))
    return figures


def _table(found: Mapping[float, Mapping[str, Sequence[_Run]]]) -> ResultTable:
    rows = []
    for load, runs in found.items():
        base = runs[BASELINE]
        for at, (policy, mine) in enumerate(runs.items()):
            pairs = list(zip(mine, base, strict=True))
            more = " ".join(f"{run.work / other.work:.2f}" for run, other in pairs)
            sooner = " ".join(f"{other.feedback_s / run.feedback_s:.1f}" for run, other in pairs)
            means: Any = [statistics.fmean(values) for values in zip(*mine, strict=True)]
            ratios = (f" ({more})", f" ({sooner})") if policy != BASELINE else ("", "")
            load_text = "" if at else f"{load:g}"
            cells = (f"{means[0]:.3f}{ratios[0]}", f"{means[1]:,.0f}{ratios[1]}", f"{means[2]:,.0f}")
            rows.append((load_text, f"`{policy}`", *cells))
    return ResultTable(("load", "policy", "work per GPU", "mean feedback, s", "mean JCT, s"), tuple(rows), 2)


def _picture(found: Mapping[float, Mapping[str, Sequence[_Run]]]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for load, runs in found.items():
        for policy in ("fifo", BASELINE, "gandiva"):
            if policy in runs:
                mean_s = statistics.fmean(run.feedback_s for run in runs[policy])
                lines.setdefault(policy, []).append((load, mean_s))
    title = "Time to the first 100 mini-batches by load"
    return line_chart(title, lines, Axis("load"), Axis("mean over jobs", " h", 1 / HOUR_S))


CASES = (
    Case("gandiva-example", SYSTEM, "turns and packs by hand", f"{PAPER}, derived", PAGE, example, 0.1, 0.1),
    Case(
        "gandiva-180gpus",
        SYSTEM,
        "an over-subscribed cluster of 180 GPUs",
        f"{PAPER}, abstract and evaluation; its workload is not public, ours is generated",
        PAGE,
        over_subscribed,
        60.0,
        3.0,
    ),
)
