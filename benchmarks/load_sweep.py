"""How much load a cluster of mixed GPUs bears, by policy: mean completion time against arrivals per hour (after Gavel).

    python benchmarks/load_sweep.py [--profile FILE] [--loads 4,4.8,5.6] [--policies P+P] [--rules gavel,native]
                                    [--seeds N] [--workers N] [--full] [--json FILE]

Single-GPU jobs arrive for ever, with exponential gaps, at 36 V100, 36 P100 and 36 K80. On a V100 a job takes 60 s times
10^U(1.5, 3) with probability 0.8, else 60 s times 10^U(3, 4): 16.8 h on average. Its type is one of the 26 of Gavel's
table. Measured are the jobs that come between hour 160 and hour 320 (with --full the 4,000th to the 5,000th, as in the
paper), while later ones keep coming until hour 380. Who has not ended by then is taken to go on at its mean pace.

Durations and types are drawn by strata, one from each hundredth of the durations in every hundred jobs: 800 jobs of
this distribution would otherwise differ by a tenth in their mean, which is the whole difference between two loads.
Every load has the same jobs, at other times.

A run *diverges* if its queue grows for good: more jobs are present at the end of the window than there are GPUs, and of
the work that came within the window more than a twentieth has been added to the backlog; or the jobs of the second half
take more than 1.5 times as long as those of the first, for the same work. Beside the runs stands what no queue can
exceed: the load at which an aware (or an agnostic) policy would need every GPU all the time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fairway
from fairway import JobSpec, Workload
from fairway.core.action import Action
from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import Profile, load_profile
from fairway.traces.generate import BATCH_SIZES

CLUSTER = "v100:36,p100:36,k80:36"
TYPES, GPUS_EACH = ("v100", "p100", "k80"), 36
GPUS = GPUS_EACH * len(TYPES)
AWARE, AGNOSTIC = "max_min_fairness", "max_min_fairness:heterogeneity=agnostic"
LOADS = "4,4.8,5.2,5.6,6"
KINDS: tuple[tuple[str, int | None], ...] = (
    *((model, batch) for model, batches in BATCH_SIZES.items() for batch in batches),
    ("A3C", None),
    ("CycleGAN", None),
)
WARM_H, WINDOW_H, TAIL_H = 160.0, 160.0, 60.0
FULL = (4000, 5000, 5500)
GROWS, SLOWS = 0.05, 1.5
STRATA = 100
NEAR_END_S = 3600.0
PUBLISHED_H = {
    "2": (16.95, 23.47),
    "4": (16.82, 23.49),
    "4.8": (18.97, 35.79),
    "5.2": (22.02, 63.78),
    "5.6": (28.96, 95.99),
    "6": (41.23, None),
}
"""Mean JCT in hours of aware and agnostic LAS as printed in the notebooks of the Gavel artifact; None: diverges."""


class Case(NamedTuple):
    """One run of the sweep."""

    policy: str
    rules: str
    load: float
    seed: int
    profile: str | None
    full: bool

    @property
    def window(self) -> tuple[int, int, int]:
        """The first job that is measured, the first that is not any more, and how many there are in all."""
        if self.full:
            return FULL
        begin, end = int(WARM_H * self.load), int((WARM_H + WINDOW_H) * self.load)
        return begin, end, end + int(TAIL_H * self.load)


class EnoughError(Exception):
    """All jobs of the window have ended, or the arrivals have."""


class Watch:
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
            raise EnoughError

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Note the queue and the work in it, and at the end how far everybody has come."""
        part = snapshot.progress / self._steps[snapshot.jobs]
        backlog_s = float(self._length_s[snapshot.jobs] @ (1.0 - part))
        self.present.append((snapshot.now_s, len(snapshot), backlog_s))
        if snapshot.now_s > self._last_s - NEAR_END_S:
            self.part_done = dict(zip(snapshot.jobs.tolist(), part.tolist(), strict=True))

    def means(self, from_s: float, to_s: float) -> tuple[float, float]:
        """How many jobs were present on average, and how many seconds on a V100 they had still to run."""
        at_s, count, backlog_s = np.array(self.present).T
        inside = (at_s >= from_s) & (at_s < to_s)
        return float(count[inside].mean()), float(backlog_s[inside].mean())


def kinds_of(profile: Profile) -> tuple[list[tuple[str, int | None]], Floats]:
    """The job types of the table that the profile knows, and their speeds by GPU type."""
    known, rates = [], []
    for model, batch in KINDS:
        if model in profile.models:
            speeds = [profile.rate(model, batch, kind, 1) for kind in TYPES]
            if speeds[0] > 0:
                known.append((model, batch))
                rates.append(speeds)
    return known, np.array(rates)


def in_strata(random: np.random.Generator, jobs: int) -> Floats:
    """Uniform numbers of which every hundred in a row has one in each hundredth."""
    blocks = -(-jobs // STRATA)
    order = random.permuted(np.tile(np.arange(STRATA), (blocks, 1)), axis=1).ravel()[:jobs]
    return np.asarray((order + random.random(jobs)) / STRATA)


def durations_s(random: np.random.Generator, jobs: int) -> Floats:
    """Hours on a V100, in seconds: four in five short, one in five long."""
    part = in_strata(random, jobs)
    power = np.where(part < 0.8, 1.5 + 1.5 * part / 0.8, 3.0 + (part - 0.8) / 0.2)
    return np.asarray(60.0 * 10.0**power)


def mean_duration_h() -> float:
    """The mean of the distribution."""
    short, long = (1000 - 10**1.5) / (1.5 * np.log(10)), 9000 / np.log(10)
    return float(0.8 * short + 0.2 * long) / 60


def stream(profile: Profile, load: float, jobs: int, seed: int) -> tuple[Workload, Floats]:
    """Jobs that arrive at `load` per hour, and their durations on a V100."""
    random = np.random.default_rng([seed, 36])
    kinds, rates = kinds_of(profile)
    length_s = durations_s(random, jobs)
    blocks = -(-jobs // len(kinds))
    kind = random.permuted(np.tile(np.arange(len(kinds)), (blocks, 1)), axis=1).ravel()[:jobs]
    at_s = np.cumsum(random.exponential(1.0, jobs)) * 3600.0 / load
    steps = np.maximum(np.floor(length_s * rates[kind, 0]), 1.0)
    specs = [
        JobSpec(f"job-{at}", float(at_s[at]), 1, steps=float(steps[at]), model=kinds[k][0], batch_size=kinds[k][1])
        for at, k in enumerate(kind.tolist())
    ]
    return Workload.of(specs, source=f"{load:g} jobs an hour"), length_s


def bounds(profile: Profile) -> dict[str, float]:
    """Jobs per hour at which every GPU is needed all the time: with the best assignment of types, and without any.

    The first is a linear program over the work of each job type done on each GPU type. For the second every job spends
    its time on all types alike.
    """
    from scipy.optimize import linprog

    _, rates = kinds_of(profile)
    relative = rates / rates[:, :1]
    kinds, types = relative.shape
    per_kind_h = mean_duration_h() / kinds
    time = np.zeros((types, kinds * types + 1))
    work = np.zeros((kinds, kinds * types + 1))
    for kind, speeds in enumerate(relative):
        for at, speed in enumerate(speeds):
            time[at, kind * types + at] = 1.0
            work[kind, kind * types + at] = speed
        work[kind, -1] = -per_kind_h
    goal = np.append(np.zeros(kinds * types), -1.0)
    found = linprog(goal, A_ub=time, b_ub=np.full(types, GPUS_EACH), A_eq=work, b_eq=np.zeros(kinds))
    usable = relative > 0
    spread = relative.sum(axis=1) / usable.sum(axis=1)
    return {"aware": float(found.x[-1]), "agnostic": float(GPUS / (mean_duration_h() * (1.0 / spread).mean()))}


def measure(case: Case) -> dict[str, Any]:
    """One run: the mean JCT of the window, and whether the queue grows."""
    profile = load_profile(case.profile)
    begin, end, jobs = case.window
    workload, length_s = stream(profile, case.load, jobs, case.seed)
    at_s = np.array([job.submitted_s for job in workload.jobs])
    steps = np.array([job.steps for job in workload.jobs])
    watch = Watch(range(begin, end), float(at_s[-1]), steps, length_s)
    try:
        result = fairway.simulate(
            workload,
            cluster=CLUSTER,
            policy=case.policy,
            profile=profile,
            rules=case.rules,
            seed=case.seed,
            observer=watch,
        )
        last_s = float(result.finished_s.max())
    except EnoughError:
        last_s = watch.present[-1][0]
    ends_s = np.array([watch.finished_s.get(job, np.nan) for job in range(begin, end)])
    late = np.isnan(ends_s)
    done = [watch.part_done.get(job, 0.0) for job in range(begin, end)]
    jct_s = np.where(late, (last_s - at_s[begin:end]) / np.clip(done, 0.02, 1.0), ends_s - at_s[begin:end])
    half, eighth_s = (end - begin) // 2, (at_s[end - 1] - at_s[begin]) / 8
    stretch = [jct_s[part].sum() / length_s[begin:end][part].sum() for part in (slice(half), slice(half, None))]
    first = watch.means(at_s[begin] - eighth_s, at_s[begin] + eighth_s)
    last = watch.means(at_s[end - 1] - eighth_s, at_s[end - 1] + eighth_s)
    left_over = (last[1] - first[1]) / float(length_s[begin:end].sum())
    return {
        **case._asdict(),
        "mean_jct_h": float(jct_s.mean()) / 3600,
        "mean_v100_h": float(length_s[begin:end].mean()) / 3600,
        "unfinished": int(late.sum()),
        "present": [first[0], last[0]],
        "left_over": left_over,
        "stretch": [float(value) for value in stretch],
        "diverges": bool((left_over > GROWS and last[0] > GPUS) or stretch[1] > SLOWS * stretch[0]),
        "rounds": len(watch.present),
    }


def run_all(cases: Sequence[Case], workers: int, console: Console) -> list[dict[str, Any]]:
    """All runs, a few at a time."""
    if workers == 1:
        found: Iterable[dict[str, Any]] = map(measure, cases)
        return list(track(found, total=len(cases), description="runs", console=console))
    with ProcessPoolExecutor(workers) as pool:
        return list(track(pool.map(measure, cases), total=len(cases), description="runs", console=console))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over the seeds of each policy, rule set and load; it diverges if most of the seeds do."""
    keys = sorted({(row["rules"], row["policy"], row["load"]) for row in rows})
    out = []
    for rules, policy, load in keys:
        same = [row for row in rows if (row["rules"], row["policy"], row["load"]) == (rules, policy, load)]
        out.append(
            {
                "rules": rules,
                "policy": policy,
                "load": load,
                "mean_jct_h": float(np.mean([row["mean_jct_h"] for row in same])),
                "present": np.mean([row["present"] for row in same], axis=0).tolist(),
                "left_over": float(np.mean([row["left_over"] for row in same])),
                "unfinished": sum(row["unfinished"] for row in same),
                "diverges": sum(row["diverges"] for row in same) * 2 > len(same),
            }
        )
    return out


def highest_stable(means: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """By rules and policy, the highest load of the sweep below which nothing diverges."""
    found: dict[tuple[str, str], float] = {}
    for key in dict.fromkeys((row["rules"], row["policy"]) for row in means):
        stable = 0.0
        for row in sorted((row for row in means if (row["rules"], row["policy"]) == key), key=lambda row: row["load"]):
            if row["diverges"]:
                break
            stable = row["load"]
        found[key] = stable
    return found


def show(console: Console, means: list[dict[str, Any]], limit: dict[str, float]) -> None:
    """One table for each rule set, and what follows from it."""
    loads = sorted({row["load"] for row in means})
    stable = highest_stable(means)
    for rules in dict.fromkeys(row["rules"] for row in means):
        table = Table(
            title=f"mean JCT in hours, --rules {rules}; in brackets jobs present, and of the work what is left over"
        )
        table.add_column("jobs/h")
        for load in loads:
            table.add_column(f"{load:g}", justify="right")
        table.add_column("highest stable", justify="right")
        cells = {(row["policy"], row["load"]): row for row in means if row["rules"] == rules}
        for policy in dict.fromkeys(policy for policy, _ in cells):
            shown = [cell(cells[policy, load]) for load in loads]
            table.add_row(policy, *shown, f"{stable[rules, policy]:g}")
        console.print(table)
        ratios = [
            f"{load:g}: {cells[AGNOSTIC, load]['mean_jct_h'] / cells[AWARE, load]['mean_jct_h']:.2f}"
            for load in loads
            if (AWARE, load) in cells and (AGNOSTIC, load) in cells
        ]
        console.print(f"JCT of agnostic over aware max-min: {', '.join(ratios)}")
    console.print(
        "published, aware / agnostic:", {load: PUBLISHED_H[f"{load:g}"] for load in loads if f"{load:g}" in PUBLISHED_H}
    )
    console.print(f"no queue can bear more than {limit['aware']:.2f} jobs/h aware, {limit['agnostic']:.2f} agnostic")


def cell(row: dict[str, Any]) -> str:
    """A mean with the length of the queue at the ends of the window."""
    first, last = row["present"]
    mark = " diverges" if row["diverges"] else ""
    return f"{row['mean_jct_h']:.1f} ({first:.0f}-{last:.0f}, {row['left_over']:+.0%}){mark}"


def main() -> None:
    """Run the sweep and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--profile", help="a throughput file in Gavel's format; else the built-in estimates")
    parser.add_argument("--loads", default=LOADS, help="jobs per hour")
    parser.add_argument("--policies", default=f"{AWARE}+{AGNOSTIC}", help="joined by +")
    parser.add_argument("--rules", default="gavel")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="measure jobs 4,000 to 5,000, as the paper does")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    given = parser.parse_args()
    cases = [
        Case(policy, rules, float(load), seed, given.profile, given.full)
        for rules in given.rules.split(",")
        for load in given.loads.split(",")
        for policy in given.policies.split("+")
        for seed in range(given.seeds)
    ]
    console = Console(width=170)
    rows = run_all(cases, given.workers, Console(stderr=True))
    limit = bounds(load_profile(given.profile))
    means = summary(rows)
    if given.json:
        given.json.write_text(json.dumps({"bounds": limit, "runs": rows, "means": means}, indent=1))
    show(console, means, limit)


if __name__ == "__main__":
    main()
