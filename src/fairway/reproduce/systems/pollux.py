"""Pollux: its formulas by hand, the runs of its simulator, and generated jobs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.job import Workload
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.goodput import efficiency
from fairway.models.profile import Profile, load_profile
from fairway.models.step_time import overlapped
from fairway.report.line_chart import Axis, line_chart, staircase
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.curves import completion_chart, shares_done
from fairway.reproduce.data import POLLUX_JOBS, POLLUX_LOADS, POLLUX_PROFILES, POLLUX_WORKLOADS
from fairway.simulator.result import Result
from fairway.simulator.run import simulate
from fairway.solvers.goodput_placement import power_mean
from fairway.traces import pollux_like

SYSTEM, PAGE = "Pollux", "pollux.md"
PAPER = "Qiao et al., OSDI'21"
WORKLOADS = range(1, 7)
# Published mean completion times in seconds, by policy and load: workloads 1 to 6 on 16 nodes of 4 GPUs.
PUBLISHED = {
    ("pollux", "0.5"): (1059.5, 1826.3, 1310.5, 1497.8, 976.8, 1287.8),
    ("pollux", "1.0"): (2088.8, 3322.9, 2188.5, 2721.0, 2673.7, 2446.1),
    ("pollux", "1.5"): (3855.8, 3380.6, 3299.9, 3902.7, 4007.3, 3474.3),
    ("pollux", "2.0"): (6186.3, 4190.8, 5131.8, 5262.4, 6590.8, 5105.3),
}
RIGID = ("tiresias", "optimus")
"""Policies that cannot adapt; their runs have no chance in them."""
LOADS = ("0.5", "1.0", "1.5", "2.0")
AT_LOADS = 3
"""The workload that Pollux itself is run on at several loads, and with other knobs. All six would take minutes."""
JOBS, SEED, SPAN_H, CLUSTER = 60, 5, 4.0, "t4:8x4"
SLACK = 0.01
SHOWN_S = 8 * 3600.0
WHY_RANDOM = "the published search is random: single workloads differ by 1 or 2 % either way"


def examples(_: Setting) -> Findings:
    """Efficiency, overlap and fitness of the page's example."""
    exact = Yardstick.equal(4)
    made = {
        "efficiency, φ = 128, first batch 32, batch 128": (0.625, float(efficiency(128, 32, 128))),
        "step of 0.3 s and 0.4 s, no overlap": (0.7, float(overlapped(0.3, 0.4, 1))),
        "the same, overlap 2": (0.5, float(overlapped(0.3, 0.4, 2))),
        "the same, overlap 10": (0.4022, float(overlapped(0.3, 0.4, 10))),
        "mean of speedups 2 and 0.5, p = 1": (1.25, _fitness(1.0)),
        "the same, p = -1": (0.8, _fitness(-1.0)),
        "the same, p = -inf": (0.5, _fitness(-math.inf)),
    }
    return Findings(tuple(Figure(what, wanted, got, exact, decimals=4) for what, (wanted, got) in made.items()))


def _fitness(p: float) -> float:
    return float(power_mean(np.array([2.0, 0.5]), p))


@cache
def _profile(path: Path) -> Profile:
    return load_profile(str(path))


def _run(setting: Setting, policy: str, load: str, number: int) -> Result:
    folder = setting.file(POLLUX_WORKLOADS if load == "1.0" else POLLUX_LOADS[("0.5", "1.5", "2.0").index(load)])
    profile = _profile(setting.file(POLLUX_PROFILES))
    path = folder / f"workload-{number}.csv"
    return simulate(path, cluster="aws:16x4", policy=policy, rules="pollux", profile=profile)


def runs(setting: Setting) -> Findings:
    """Load 1: Pollux against Tiresias and Optimus, job by job where the published run has no chance in it."""
    numbers = (1,) if setting.quick else tuple(WORKLOADS)
    results = {policy: [_run(setting, policy, "1.0", number) for number in numbers] for policy in ("pollux", *RIGID)}
    means = {policy: [result.mean_jct_s or 0.0 for result in several] for policy, several in results.items()}
    theirs = [PUBLISHED["pollux", "1.0"][number - 1] for number in numbers]
    mean_s = {policy: sum(several) / len(numbers) for policy, several in means.items()}
    published_s, tiresias_s, optimus_s = sum(theirs) / len(numbers), mean_s["tiresias"], mean_s["optimus"]
    which = f"workload{'s' if len(numbers) > 1 else ''} {numbers[0]}" + (f" to {numbers[-1]}" if numbers[1:] else "")
    lower = Yardstick.within(SLACK, good="lower")
    figures = [Figure(f"{which}: mean JCT", published_s, mean_s["pollux"], lower, "s", headline=True)]
    # Tiresias and Optimus are equal to the second (below), so what Pollux saves is known for the published run as well.
    for name, other_s in (("Tiresias", tiresias_s), ("Optimus with oracle", optimus_s)):
        saved = 100 * (1 - published_s / other_s), 100 * (1 - mean_s["pollux"] / other_s)
        higher = Yardstick.within(0.03, good="higher")
        figures.append(Figure(f"{which}: less than {name}", *saved, higher, "%", headline=True))
    figures += [_equal_jobs(setting, policy, ("1.0",), numbers, results) for policy in RIGID]
    rows = [(f"`{policy}`", *(f"{s:,.1f}" for s in means[policy]), f"{mean_s[policy]:,.1f}") for policy in means]
    rows.insert(1, ("`pollux`, published", *(f"{s:,.1f}" for s in theirs), f"{published_s:,.1f}"))
    table = ResultTable(("policy", *map(str, numbers), "mean"), tuple(rows))
    jct_s = {policy: np.concatenate([run.jct_s for run in several]) for policy, several in results.items()}
    lines = {policy: shares_done(several) for policy, several in jct_s.items()}
    return Findings(tuple(figures), {"runs": table}, {"cdf": completion_chart(f"{which}, 64 GPUs", lines, SHOWN_S)})


def _equal_jobs(
    setting: Setting,
    policy: str,
    loads: Sequence[str],
    numbers: Sequence[int],
    known: dict[str, list[Result]] | None = None,
) -> Figure:
    """How many jobs take as long as in the published run, to the second."""
    published: dict[str, Any] = json.loads(setting.file(POLLUX_JOBS).read_text(encoding="utf-8"))
    equal = jobs = 0
    for load in loads:
        for at, number in enumerate(numbers):
            result = known[policy][at] if known else _run(setting, policy, load, number)
            theirs = published[f"results-jobload/{policy}-{load}"][f"workload-{number}"]
            jobs += len(theirs)
            took = zip(result.specs, result.jct_s.tolist(), strict=True)
            equal += sum(theirs.get(spec.id) == took_s for spec, took_s in took)
    what = f"{policy}, load{'s' if loads[1:] else ''} {', '.join(loads)}: jobs that take as long as published"
    return Figure(what, jobs, equal, Yardstick.equal(0), decimals=0, headline=len(loads) > 1)


def loads(setting: Setting) -> Findings:
    """Half to twice the load of the paper."""
    figures, rows, lines = [], [], dict[str, list[tuple[float, float]]]()
    for load in LOADS:
        ours, theirs = (
            _run(setting, "pollux", load, AT_LOADS).mean_jct_s or 0.0,
            PUBLISHED["pollux", load][AT_LOADS - 1],
        )
        what, rule = f"workload {AT_LOADS}, load {load}: mean JCT", Yardstick.within(0.02, good="lower")
        figures.append(Figure(what, theirs, ours, rule, "s", why=WHY_RANDOM, headline=load == "2.0"))
        rows.append((load, f"{ours:,.1f}", f"{theirs:,.1f}", f"{ours / theirs:.3f}"))
        for name, mean_s in (("here", ours), ("published", theirs)):
            lines.setdefault(name, []).append((float(load), mean_s))
    figures += [_equal_jobs(setting, policy, LOADS, WORKLOADS) for policy in RIGID]
    columns = ("load", "mean JCT, s", "published, s", "of the published")
    axes = Axis("load, relative to the paper's"), Axis("mean completion time", " h", 1 / 3600)
    chart = line_chart(f"Pollux by load, workload {AT_LOADS}, 16 nodes of 4 GPUs", lines, *axes)
    return Findings(tuple(figures), {"loads": ResultTable(columns, tuple(rows), 0)}, {"loads": chart})


def knobs(setting: Setting) -> Findings:
    """The exponent and the first allocation, on one workload at load 1."""
    rows, means = [], {}
    for policy in ("pollux", "pollux:begin_gpus=1", "pollux:p=1", "pollux:p=-inf"):
        means[policy] = _run(setting, policy, "1.0", AT_LOADS).mean_jct_s or 0.0
        rows.append((f"`{policy}`", f"{means[policy]:,.1f}"))
    theirs, rule = PUBLISHED["pollux", "1.0"][AT_LOADS - 1], Yardstick.within(0.02, good="lower")
    figure = Figure(
        "first GPUs as in the paper: mean JCT", theirs, means["pollux:begin_gpus=1"], rule, "s", why=WHY_RANDOM
    )
    return Findings((figure,), {"knobs": ResultTable(("policy", f"mean JCT, s, workload {AT_LOADS}"), tuple(rows))})


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


def generated(_: Setting) -> Findings:
    """Jobs of a generator, a fifth of them rigid, under native rules."""
    workload, diary = pollux_like(JOBS, seed=SEED, span_h=SPAN_H), Diary()
    rows, means = [], {}
    for policy in ("pollux", *RIGID):
        observer = diary if policy == "pollux" else None
        result = simulate(workload, cluster=CLUSTER, policy=policy, observer=observer)
        means[policy] = result.mean_jct_s or 0.0
        told, restarts = result.figures(), float((result.ledger.starts - 1).clip(0).mean())
        cells = (
            f"{means[policy]:,.1f}",
            f"{told['jct_s']['p99']:,.0f}",
            f"{told['makespan_s']:,.0f}",
            f"{restarts:.2f}",
        )
        rows.append((f"`{policy}`", *cells))
    figures = [
        Figure(f"generated jobs: less than {policy}", 0.0, 100 * (1 - means["pollux"] / means[policy]), rule, "%")
        for policy, rule in ((policy, Yardstick.at_least()) for policy in RIGID)
    ]
    table = ResultTable(("policy", "mean JCT, s", "p99, s", "makespan, s", "restarts a job"), tuple(rows))
    return Findings(tuple(figures), {"generated": table}, {"life": _life_of_one_job(workload, diary)})


def _life_of_one_job(workload: Workload, diary: Diary) -> str:
    """GPUs, batch and efficiency of the job whose efficiency changes most, as a picture."""
    worths = {name: [worth for *_, worth in life if worth < 1.0] for name, life in diary.lives.items()}
    name = max(worths, key=lambda each: max(worths[each], default=0.0) - min(worths[each], default=0.0))
    spec = next(job for job in workload.jobs if job.id == name)
    life = diary.lives[name]
    most_gpus, most_batch = max(gpus for _, gpus, _, _ in life), max(batch for _, _, batch, _ in life)
    lines = {
        f"GPUs, of {most_gpus}": staircase([(age_s, gpus / most_gpus) for age_s, gpus, _, _ in life]),
        f"batch, of {most_batch:,}": staircase([(age_s, batch / most_batch) for age_s, _, batch, _ in life]),
        "efficiency": staircase([(age_s, worth) for age_s, _, _, worth in life]),
    }
    title = f"Under pollux: a job that trains {spec.model}, and asked for {spec.gpus} GPUs"
    minutes = Axis("time since its submission", " min", 1.0 / 60.0)
    share = Axis("part of the most that it had, and of full efficiency", " %", 100.0, 100.0)
    return line_chart(title, lines, minutes, share)


_OWN = f"{PAPER}; result files of the artifact"
_NEEDS = (POLLUX_WORKLOADS, POLLUX_PROFILES, POLLUX_JOBS)
CASES = (
    Case("pollux-example", SYSTEM, "goodput by hand", PAPER, PAGE, examples, 0.1, 0.1),
    Case("pollux-runs", SYSTEM, "the published runs at load 1", _OWN, PAGE, runs, 45.0, 6.5, _NEEDS),
    Case("pollux-loads", SYSTEM, "half to twice the load", _OWN, PAGE, loads, 42.0, None, (*_NEEDS, *POLLUX_LOADS)),
    Case("pollux-knobs", SYSTEM, "knobs at load 1", _OWN, PAGE, knobs, 23.0, None, _NEEDS),
    Case("pollux-generated", SYSTEM, "generated jobs on 32 GPUs", f"after {PAPER}", PAGE, generated, 3.0, 3.0),
)
