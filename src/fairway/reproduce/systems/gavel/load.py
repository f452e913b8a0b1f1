"""How much load a cluster of mixed GPUs bears: mean completion time by arrivals per hour, as in Gavel's main figure.

Single-GPU jobs arrive for ever, with exponential gaps, at 36 V100, 36 P100 and 36 K80. On a V100 a job takes 60 s times
10^U(1.5, 3) with probability 0.8, else 60 s times 10^U(3, 4): 16.8 h on average. Its type is one of the 26 of Gavel's
table. Measured are the jobs that come between hour 160 and hour 320 (in the paper's size the 4,000th to the 5,000th),
while later ones keep coming until hour 380. Who has not ended by then is taken to go on at its mean pace.

Durations and types are drawn by strata, one from each hundredth of the durations in every hundred jobs: 800 jobs of
this distribution would otherwise differ by a tenth in their mean, which is the whole difference between two loads.
Every load has the same jobs, at other times.

A run *diverges* if its queue grows for good: more jobs are present at the end of the window than there are GPUs, and of
the work that came within the window more than a twentieth has been added to the backlog; or the jobs of the second half
take more than 1.5 times as long as those of the first, for the same work. Beside the runs stands what no queue can
exceed: the load at which an aware (or an agnostic) policy would need every GPU all the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.action import Action
from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import Profile, load_profile
from fairway.report.line_chart import Axis, line_chart
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.data import GAVEL_THROUGHPUTS
from fairway.simulator.run import simulate
from fairway.traces.generate import BATCH_SIZES

CLUSTER = "v100:36,p100:36,k80:36"
TYPES, GPUS_EACH = ("v100", "p100", "k80"), 36
GPUS = GPUS_EACH * len(TYPES)
AWARE, AGNOSTIC = "max_min_fairness", "max_min_fairness:heterogeneity=agnostic"
KINDS: tuple[tuple[str, int | None], ...] = (
    *((model, batch) for model, batches in BATCH_SIZES.items() for batch in batches),
    ("A3C", None),
    ("CycleGAN", None),
)
LOADS, QUICK_LOADS, PAPER_LOAD = (4.0, 4.8, 5.6), (4.0,), 5.6
"""Jobs per hour. Each run takes ten CPU seconds, one of the paper's size thirty-five; so the loads are few."""


class MeasuredHours(NamedTuple):
    """Which jobs are measured, in hours: those that come in a window after some time; others come for a while yet."""

    warm_h: float
    window_h: float
    tail_h: float

    def numbers(self, load: float) -> tuple[int, int, int]:
        """The first job that is measured, the first that is not any more, and how many there are in all."""
        begin, end = int(self.warm_h * load), int((self.warm_h + self.window_h) * load)
        return begin, end, end + int(self.tail_h * load)


USUAL, QUICK = MeasuredHours(160.0, 160.0, 60.0), MeasuredHours(60.0, 60.0, 40.0)
OF_THE_PAPER = (4000, 5000, 5500)
GROWS, SLOWS = 0.05, 1.5
STRATA = 100
NEAR_END_S = 3600.0
PUBLISHED_H: dict[float, tuple[float, float | None]] = {
    4.0: (16.82, 23.49),
    4.8: (18.97, 35.79),
    5.2: (22.02, 63.78),
    5.6: (28.96, 95.99),
    6.0: (41.23, None),
}
"""Mean JCT in hours of aware and agnostic LAS as printed in the notebooks of the Gavel artifact; None: diverges."""
SLACK = 0.1
WHY_STEADY = (
    "no agnostic policy has a steady state beyond {:.2f} jobs/h, so the mean rises with the length of the trace"
)


class _EnoughError(Exception):
    """All jobs of the window have ended, or the arrivals have."""


class QueueWatch:
    """Notes when jobs end and how many are present, and ends the run when the window is complete."""

    def __init__(self, window: range, last_s: float, steps: Floats, length_s: Floats) -> None:
        self.finished_s: dict[int, float] = {}
        self.present: list[tuple[float, int, float]] = []
        self.part_done: dict[int, float] = {}
        self._waiting, self._last_s = set(window), last_s
        self._steps, self._length_s = steps, length_s

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Note the ends."""
        for event in events:
            if isinstance(event, JobFinished):
                self.finished_s[event.job] = event.time_s
                self._waiting.discard(event.job)
        if not self._waiting or state.now_s > self._last_s:
            raise _EnoughError

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Note the queue and the work in it, and at the end how far everybody has come."""
        part = snapshot.progress / self._steps[snapshot.jobs]
        backlog_s = portable.dot(self._length_s[snapshot.jobs], 1.0 - part)
        self.present.append((snapshot.now_s, len(snapshot), backlog_s))
        if snapshot.now_s > self._last_s - NEAR_END_S:
            self.part_done = dict(zip(snapshot.jobs.tolist(), part.tolist(), strict=True))

    def means(self, from_s: float, to_s: float) -> tuple[float, float]:
        """How many jobs were present on average, and how many seconds on a V100 they had still to run."""
        at_s, count, backlog_s = np.array(self.present).T
        inside = (at_s >= from_s) & (at_s < to_s)
        return float(count[inside].mean()), float(backlog_s[inside].mean())


class LoadRun(NamedTuple):
    """A run: mean JCT of the window, jobs present at its two ends, work added to the backlog, and the verdict."""

    mean_h: float
    present: tuple[float, float]
    left_over: float
    diverges: bool

    def __str__(self) -> str:
        mean = f"*{self.mean_h:.1f}*" if self.diverges else f"{self.mean_h:.1f}"
        return f"{mean} ({self.present[0]:.0f}–{self.present[1]:.0f}, {100 * self.left_over:+.0f} %)"


def _kinds_of(profile: Profile) -> tuple[list[tuple[str, int | None]], Floats]:
    """The job types of the table that the profile knows, and their speeds by GPU type."""
    known, rates = [], []
    for model, batch in KINDS:
        if model in profile.models:
            speeds = [profile.rate(model, batch, kind, 1) for kind in TYPES]
            if speeds[0] > 0:
                known.append((model, batch))
                rates.append(speeds)
    return known, np.array(rates)


def _in_strata(random: np.random.Generator, jobs: int) -> Floats:
    """Uniform numbers of which every hundred in a row has one in each hundredth."""
    blocks = -(-jobs // STRATA)
    order = random.permuted(np.tile(np.arange(STRATA), (blocks, 1)), axis=1).ravel()[:jobs]
    return np.asarray((order + random.random(jobs)) / STRATA)


def _durations_s(random: np.random.Generator, jobs: int) -> Floats:
    """Hours on a V100, in seconds: four in five short, one in five long."""
    part = _in_strata(random, jobs)
    exponent = np.where(part < 0.8, 1.5 + 1.5 * part / 0.8, 3.0 + (part - 0.8) / 0.2)
    return np.asarray(60.0 * portable.exp(exponent * math.log(10.0)))


def _mean_duration_h() -> float:
    """The mean of the distribution."""
    short, long = (1000 - 10**1.5) / (1.5 * math.log(10)), 9000 / math.log(10)
    return (0.8 * short + 0.2 * long) / 60


def _stream(profile: Profile, load: float, jobs: int) -> tuple[Workload, Floats]:
    """Jobs that arrive at `load` per hour, and their durations on a V100."""
    random = np.random.default_rng([0, 36])
    kinds, rates = _kinds_of(profile)
    length_s = _durations_s(random, jobs)
    blocks = -(-jobs // len(kinds))
    kind = random.permuted(np.tile(np.arange(len(kinds)), (blocks, 1)), axis=1).ravel()[:jobs]
    at_s = np.round(np.cumsum(random.exponential(1.0, jobs)) * 3600.0 / load, 6)
    steps = np.maximum(np.floor(length_s * rates[kind, 0]), 1.0)
    specs = [
        JobSpec(f"job-{at}", float(at_s[at]), 1, steps=float(steps[at]), model=kinds[k][0], batch_size=kinds[k][1])
        for at, k in enumerate(kind.tolist())
    ]
    return Workload.of(specs, source=f"{load:g} jobs an hour"), length_s


def _bounds(profile: Profile) -> tuple[float, float]:
    """Jobs per hour at which every GPU is needed all the time: with the best assignment of types, and without any.

    The first is a linear program over the work of each job type done on each GPU type. For the second every job spends
    its time on all types alike.
    """
    from scipy.optimize import linprog

    _, rates = _kinds_of(profile)
    relative = rates / rates[:, :1]
    kinds, types = relative.shape
    per_kind_h = _mean_duration_h() / kinds
    time = np.zeros((types, kinds * types + 1))
    work = np.zeros((kinds, kinds * types + 1))
    for kind, speeds in enumerate(relative):
        for at, speed in enumerate(speeds):
            time[at, kind * types + at] = 1.0
            work[kind, kind * types + at] = speed
        work[kind, -1] = -per_kind_h
    goal = np.append(np.zeros(kinds * types), -1.0)
    found = linprog(goal, A_ub=time, b_ub=np.full(types, GPUS_EACH), A_eq=work, b_eq=np.zeros(kinds))
    spread = relative.sum(axis=1) / (relative > 0).sum(axis=1)
    return float(found.x[-1]), float(GPUS / (_mean_duration_h() * (1.0 / spread).mean()))


def _measured(
    profile: Profile, policy: str, load: float, numbers: tuple[int, int, int], rules: str = "gavel"
) -> LoadRun:
    """One run: the mean JCT of the window, and whether the queue grows."""
    begin, end, jobs = numbers
    workload, length_s = _stream(profile, load, jobs)
    at_s = np.array([job.submitted_s for job in workload.jobs])
    steps = np.array([job.steps for job in workload.jobs])
    watch = QueueWatch(range(begin, end), float(at_s[-1]), steps, length_s)
    try:
        result = simulate(workload, cluster=CLUSTER, policy=policy, profile=profile, rules=rules, observer=watch)
        last_s = float(result.finished_s.max())
    except _EnoughError:
        last_s = watch.present[-1][0]
    ends_s = np.array([watch.finished_s.get(job, np.nan) for job in range(begin, end)])
    done = [watch.part_done.get(job, 0.0) for job in range(begin, end)]
    at_pace_s = (last_s - at_s[begin:end]) / np.clip(done, 0.02, 1.0)
    jct_s = np.where(np.isnan(ends_s), at_pace_s, ends_s - at_s[begin:end])
    half, eighth_s = (end - begin) // 2, (at_s[end - 1] - at_s[begin]) / 8
    stretch = [jct_s[part].sum() / length_s[begin:end][part].sum() for part in (slice(half), slice(half, None))]
    first = watch.means(at_s[begin] - eighth_s, at_s[begin] + eighth_s)
    last = watch.means(at_s[end - 1] - eighth_s, at_s[end - 1] + eighth_s)
    left_over = (last[1] - first[1]) / float(length_s[begin:end].sum())
    diverges = bool((left_over > GROWS and last[0] > GPUS) or stretch[1] > SLOWS * stretch[0])
    return LoadRun(float(jct_s.mean()) / 3600, (first[0], last[0]), left_over, diverges)


def load_sweep(setting: Setting) -> Findings:
    """Some loads, by jobs of two weeks. A quick run has one load and fewer hours."""
    profile = load_profile(str(setting.file(GAVEL_THROUGHPUTS)))
    loads, stretch = (QUICK_LOADS, QUICK) if setting.quick else (LOADS, USUAL)
    runs = {
        load: tuple(_measured(profile, policy, load, stretch.numbers(load)) for policy in (AWARE, AGNOSTIC))
        for load in loads
    }
    least, limits = min(loads), _bounds(profile)
    aware, agnostic = runs[least]
    theirs = PUBLISHED_H[least]
    ratio = (theirs[1] or math.nan) / theirs[0], agnostic.mean_h / aware.mean_h
    what = f"{least:g} jobs/h: mean JCT of agnostic over aware max-min fairness"
    figures = [Figure(what, *ratio, Yardstick.within(SLACK), "×", 2, headline=True)]
    if not setting.quick:
        figures += [
            Figure(f"{least:g} jobs/h, aware: mean JCT", theirs[0], aware.mean_h, Yardstick.within(SLACK), "h"),
            Figure(
                f"{least:g} jobs/h, agnostic: mean JCT", theirs[1] or 0.0, agnostic.mean_h, Yardstick.within(SLACK), "h"
            ),
        ]
    rows = [
        ("`max_min_fairness`", *(str(runs[load][0]) for load in loads)),
        ("`…agnostic`", *(str(runs[load][1]) for load in loads)),
        ("agnostic / aware", *(f"{runs[load][1].mean_h / runs[load][0].mean_h:.2f}" for load in loads)),
        ("published: aware", *(f"{PUBLISHED_H[load][0]:.1f}" for load in loads)),
        ("published: agnostic", *(_hours(PUBLISHED_H[load][1]) for load in loads)),
    ]
    bounds = ResultTable(
        ("no queue bears more", "jobs/h"), (("aware", f"{limits[0]:.2f}"), ("agnostic", f"{limits[1]:.2f}"))
    )
    tables = {"loads": ResultTable(("jobs/h", *(f"{load:g}" for load in loads)), tuple(rows)), "bounds": bounds}
    lines = {
        "agnostic": [(load, runs[load][1].mean_h) for load in loads],
        "aware": [(load, runs[load][0].mean_h) for load in loads],
        "[agnostic]": [(load, PUBLISHED_H[load][1] or 0.0) for load in loads],
        "[aware]": [(load, PUBLISHED_H[load][0]) for load in loads],
    }
    axes = Axis("jobs an hour"), Axis("mean completion time, hours [published]")
    chart = line_chart("Max-min fairness by load", lines, *axes)
    return Findings(tuple(figures), tables, {"sweep": chart} if len(loads) > 1 else {})


def _hours(value: float | None) -> str:
    return "diverges" if value is None else f"{value:.1f}"


def load_of_the_paper(setting: Setting) -> Findings:
    """The size of the paper at the load at which the aware policy is still stable."""
    profile = load_profile(str(setting.file(GAVEL_THROUGHPUTS)))
    aware, agnostic = (_measured(profile, policy, PAPER_LOAD, OF_THE_PAPER) for policy in (AWARE, AGNOSTIC))
    theirs, rule = PUBLISHED_H[PAPER_LOAD], Yardstick.within(SLACK)
    why = WHY_STEADY.format(_bounds(profile)[1])
    published = theirs[0], theirs[1] or math.nan
    where, ratio = f"{PAPER_LOAD:g} jobs/h", agnostic.mean_h / aware.mean_h
    figures = (
        Figure(f"{where}, aware: mean JCT", published[0], aware.mean_h, rule, "h", headline=True),
        Figure(f"{where}, agnostic: mean JCT", published[1], agnostic.mean_h, rule, "h", why=why, headline=True),
        Figure(
            f"{where}: agnostic over aware", published[1] / published[0], ratio, rule, "×", 2, why=why, headline=True
        ),
    )
    rows = (
        ("`max_min_fairness`", str(aware), f"{published[0]:.1f}"),
        ("`…agnostic`", str(agnostic), f"{published[1]:.1f}"),
    )
    return Findings(figures, {"paper": ResultTable((where, "mean JCT, h", "published, h"), rows)})
