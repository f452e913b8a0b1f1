"""The comparisons of Hare's poster: by GPUs, by jobs, completion times; and jobs that come over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats
from fairway.report.line_chart import Axis, line_chart
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.systems.hare.workload import SEEDS, TaskRun, measured

PLAIN = {
    "hare": "Hare",
    "hare:assign=earliest_available": "as published",
    "sched_homo": "Sched_Homo",
    "allox:alpha=1": "AlloX",
    "srtf": "SRTF",
    "gavel_fifo": "Gavel FIFO",
}
POLICIES = {**PLAIN, "hare:clairvoyant=no": "unknown"}
"""The last plans after every round, so it takes longer than the others. The sweeps leave it out."""
BASELINES = ("sched_homo", "gavel_fifo", "srtf", "allox:alpha=1")
GPUS, JOBS = (40, 80, 160), (100, 200, 300)
"""Three points each, where the poster has five: the other two would take another CPU minute."""
SAVED, SAVED_OF_300 = (47.6, 75.3), (54.6, 80.5)
"""Per cent less weighted JCT than other schemes, in the poster."""
WITHIN = {"hare": 90.5, "allox:alpha=1": 66.7, "sched_homo": 56.5}
"""Per cent of the jobs that are complete within 25 minutes, in the poster."""
WITHIN_S = 1500.0
PROMISED = 120.0
"""The paper's α(2 + α) times the optimum, with the α of these jobs, 10: how much slower one of them is elsewhere."""
WHY = {
    "allox:alpha=1": "at most {:.0f} % could be saved, by a bound; it knows run times and speeds exactly here",
    "srtf": "it knows all run times here",
    "gavel_fifo": "it is near the best where GPUs are not scarce; at most {:.0f} % could be saved",
}
WHY_JOBS = "the poster's jobs are not public; ours weigh 1 to 5, and light ones wait"


class Compared(NamedTuple):
    """A policy over seeds, in means: weighted JCT, over the bound, saved by `hare`, what could be saved, all JCTs."""

    weighted_s: float
    of_bound: float
    saved: float
    possible: float
    jct_s: Floats


def _compared(runs: Sequence[TaskRun], policies: Sequence[str]) -> tuple[dict[str, Compared], float]:
    """Every policy over all seeds, and what no schedule is below; `runs` differ by their seed only."""
    own = [measured(run._replace(policy="hare")) for run in runs]
    least_s, found = np.array([row.least_s for row in own]), {}
    own_s = np.array([row.weighted_s for row in own])
    for policy in policies:
        rows = [measured(run._replace(policy=policy)) for run in runs]
        weighted_s = np.array([row.weighted_s for row in rows])
        saved, possible = float((1 - own_s / weighted_s).mean()), float((1 - least_s / weighted_s).mean())
        mean_s, of_bound = float(weighted_s.mean()), float((weighted_s / least_s).mean())
        jct_s = np.concatenate([row.jct_s for row in rows])
        found[policy] = Compared(mean_s, of_bound, saved, possible, jct_s)
    return found, float(least_s.mean())


def _seeds(setting: Setting) -> tuple[int, ...]:
    return SEEDS[:1] if setting.quick else SEEDS


def _sweep(
    points: Mapping[int, Sequence[TaskRun]], name: str, title: str
) -> tuple[dict[int, dict[str, Compared]], Findings]:
    """A comparison at each point, as a table and a picture."""
    found, least_s = dict[int, dict[str, Compared]](), dict[int, float]()
    for point, runs in points.items():
        found[point], least_s[point] = _compared(runs, list(PLAIN))
    rows, lines = [], dict[str, list[tuple[float, float]]]()
    for policy, label in PLAIN.items():
        cells = []
        for point in points:
            here = found[point][policy]
            about = (
                f"{100 * here.saved:.0f} of {100 * here.possible:.0f} %"
                if policy != "hare"
                else f"{here.of_bound:.2f}×"
            )
            cells.append(f"{here.weighted_s:,.0f} ({about})")
            lines.setdefault(label, []).append((float(point), here.weighted_s))
        rows.append((f"`{policy}`", *cells))
    rows.append(("no schedule is below", *(f"{each:,.0f}" for each in least_s.values())))
    lines["lower bound"] = [(float(point), each) for point, each in least_s.items()]
    table = ResultTable((name, *map(str, points)), tuple(rows))
    chart = line_chart(title, lines, Axis(name), Axis("mean weighted completion time, minutes", "", 1 / 60))
    return found, Findings((), {"sweep": table}, {"sweep": chart})


def _saved(found: Mapping[int, Mapping[str, Compared]], where: str, published: tuple[float, float]) -> list[Figure]:
    """What Hare saves against each baseline, in the mean over all points."""
    figures = []
    for policy in BASELINES:
        here = [several[policy] for several in found.values()]
        saved, possible = (
            100 * sum(getattr(each, name) for each in here) / len(here) for name in ("saved", "possible")
        )
        what, why = f"{where}: less weighted JCT than {PLAIN[policy]}", WHY.get(policy, "").format(possible)
        rule = Yardstick.within(0.0, good="higher")
        figures.append(Figure(what, published, saved, rule, "%", why=why, headline=policy in BASELINES))
    return figures


def gpus(setting: Setting) -> Findings:
    """200 jobs, all there at the start, by GPUs."""
    points = GPUS[1:2] if setting.quick else GPUS
    runs = {at: [TaskRun("", 200, at, seed) for seed in _seeds(setting)] for at in points}
    where = f"200 jobs at the start, {points[0]} to {points[-1]} GPUs"
    found, made = _sweep(runs, "GPUs", where)
    return Findings(tuple(_saved(found, where.replace("80 to 80", "80"), SAVED)), made.tables, made.pictures)


def jobs(setting: Setting) -> Findings:
    """By jobs, all there at the start, on 160 GPUs."""
    runs = {at: [TaskRun("", at, 160, seed) for seed in _seeds(setting)] for at in JOBS}
    found, made = _sweep(runs, "jobs", f"{JOBS[0]} to {JOBS[-1]} jobs at the start, 160 GPUs")
    figures = _saved({300: found[300]}, "300 jobs, 160 GPUs", SAVED_OF_300)
    ratios = [several["hare"].of_bound for several in found.values()]
    figures.append(Figure("Hare over what no schedule is below", PROMISED, max(ratios), Yardstick.at_most(), "×", 2))
    return Findings(tuple(figures), made.tables, made.pictures)


def completion_times(setting: Setting) -> Findings:
    """200 jobs at the start on 160 GPUs: which part is complete by when."""
    found, _ = _compared([TaskRun("", 200, 160, seed) for seed in _seeds(setting)], list(POLICIES))
    within = {policy: 100 * float((here.jct_s <= WITHIN_S).mean()) for policy, here in found.items()}
    rule = Yardstick.within(0.1, good="higher")
    figures = [
        Figure(f"{POLICIES[policy]}: jobs complete within 25 min", theirs, within[policy], rule, "%", why=WHY_JOBS)
        for policy, theirs in WITHIN.items()
    ]
    rows = []
    for policy, here in found.items():
        part = (f"{float(np.percentile(here.jct_s, p)):,.0f}" for p in (50, 75, 95))
        rows.append((f"`{policy}`", f"{within[policy]:.1f} %", *part))
    lines = {
        POLICIES[policy]: [(float(s), float((here.jct_s <= s).mean())) for s in range(0, 46 * 60, 60)]
        for policy, here in found.items()
    }
    axes = Axis("minutes", "", 1 / 60), Axis("part of all jobs", " %", 100.0, 100.0)
    chart = line_chart("200 jobs at the start on 160 GPUs: jobs that are complete", lines, *axes)
    table = ResultTable(("policy", "within 25 min", "median, s", "p75, s", "p95, s"), tuple(rows))
    return Findings(tuple(figures), {"within": table}, {"times": chart})


def stream(setting: Setting) -> Findings:
    """Jobs that come over time."""
    found, least_s = _compared([TaskRun("", 100, 40, seed, stream=True) for seed in _seeds(setting)], list(POLICIES))
    rows = []
    for policy, here in found.items():
        saved = f"{100 * here.saved:.0f} % ({100 * here.possible:.0f} %)" if policy != "hare" else ""
        part = f"{100 * float((here.jct_s <= WITHIN_S).mean()):.0f} %"
        rows.append((f"`{policy}`", f"{here.weighted_s:,.0f}", f"{here.of_bound:.2f}×", saved, part))
    rows.append(("no schedule is below", f"{least_s:,.0f}", "1.00×", "", ""))
    columns = ("policy", "mean weighted JCT, s", "over the bound", "saved by `hare` (possible)", "within 25 min")
    return Findings(
        tuple(_saved({0: found}, "a stream of 100 jobs, 40 GPUs", SAVED)), {"stream": ResultTable(columns, tuple(rows))}
    )
