"""Tiresias: the example of the talk, and the runs of the authors' simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairway.core.job import JobSpec, Workload
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Verdicts, Yardstick
from fairway.reproduce.curves import completion_chart, shares_done
from fairway.reproduce.data import MURI_TRACE3, TIRESIAS_60_JOBS
from fairway.simulator.rules import NATIVE
from fairway.simulator.run import simulate

SYSTEM, PAGE = "Tiresias", "tiresias.md"
PAPER = "Gu et al., NSDI'19"
# What the published simulator computes, by policy: mean JCT, median, p95, makespan (s), preemptions.
SIXTEEN_GPUS = {
    "fifo": (200.82, 149.5, 366.1, 3335, 0),
    "backfill": (190.68, 130.0, 366.1, 3271, 0),
    "smallest": (198.20, 126.5, 463.9, 3271, 8),
    "srtf": (192.12, 126.5, 386.8, 3271, 4),
    "srsf": (195.90, 126.5, 461.9, 3315, 7),
    "tiresias:metric=time": (190.68, 130.0, 366.1, 3271, 0),
    "tiresias": (190.68, 130.0, 366.1, 3271, 0),
}
EIGHT_GPUS = {
    "fifo": (1556.48, 1415.5, 3897.7, 5747, 0),
    "backfill": (715.27, 150.5, 3388.1, 4806, 0),
    "smallest": (725.70, 146.5, 3388.1, 4806, 8),
    "srtf": (519.87, 142.0, 2832.6, 4901, 7),
    "srsf": (563.38, 146.5, 2994.3, 4962, 13),
    "tiresias:metric=time": (715.27, 150.5, 3388.1, 4806, 0),
    "tiresias": (715.27, 150.5, 3388.1, 4806, 0),
}
TRACE3 = {
    "fifo": (991167.02, 1143149.0, 1478461.0, 8171961, 0),
    "backfill": (480104.77, 376568.5, 1129484.7, 8171961, 0),
    "smallest": (408105.81, 43180.5, 3049432.6, 8171961, 126),
    "srtf": (180116.35, 3586.5, 765499.2, 8171961, 1037),
    "srsf": (172683.74, 3586.5, 585736.1, 8171961, 749),
    "tiresias:metric=time": (276829.67, 4257.5, 944840.3, 8171961, 1362),
    "tiresias": (312869.59, 9355.5, 1841993.6, 8171961, 1303),
}
PUBLISHED_NAMES = {
    "fifo": "fifo",
    "backfill": "fjf",
    "smallest": "sjf",
    "srtf": "shortest",
    "srsf": "shortest-gpu",
    "tiresias:metric=time": "dlas",
    "tiresias": "dlas-gpu",
}
DECIMALS = (2, 1, 1, 0, 0)
EXAMPLE = {
    "`srsf` (knows everything)": ("srsf", 0.0, 9.33),
    "`tiresias:gittins=exact,service=4/8/12`": ("tiresias:gittins=exact,service=4/8/12", 0.0, 9.33),
    "`tiresias:queues=4,within=first_start`": ("tiresias:queues=4,within=first_start", 0.0, 10.0),
    "the same with `gittins=within`": ("tiresias:queues=4,within=first_start,gittins=within,service=4/8/12", 0.0, 10.0),
    "`tiresias:within=first_start,queues=1/2/…/11`, rounds of 1": (
        "tiresias:within=first_start,queues=1/2/3/4/5/6/7/8/9/10/11",
        1.0,
        11.67,
    ),
}
"""The talk's example: policy, length of a round, published mean."""


def example(_: Setting) -> Findings:
    """Two GPUs and three jobs that wait for them."""
    asked = (("J1", 2, 2.0), ("J2", 1, 8.0), ("J3", 2, 6.0))
    jobs = Workload.of([JobSpec(name, 0.0, gpus, duration_s=lasts_s) for name, gpus, lasts_s in asked])
    rules = replace(NATIVE, restart_cost_s=0.0, min_run_s=0.0)
    figures, rows = [], []
    for what, (policy, round_s, published) in EXAMPLE.items():
        ends = simulate(jobs, cluster="v100:2", policy=policy, rules=rules, round_s=round_s).jct_s.tolist()
        mean = sum(ends) / len(ends)
        figures.append(Figure(f"{what}: mean end", published, mean, Yardstick.equal(2), decimals=2, headline=True))
        rows.append((what, ", ".join(f"{end:g}" for end in ends), f"{mean:.2f}"))
    return Findings(tuple(figures), {"ends": ResultTable(("policy", "J1, J2, J3 end at", "mean"), tuple(rows))})


def sixty_jobs(setting: Setting) -> Findings:
    """The trace that is part of the published simulator, on 16 and on 8 GPUs."""
    path = setting.file(TIRESIAS_60_JOBS)
    sixteen = _published_runs(path, "60_job, 16 GPUs", "v100:4x4", SIXTEEN_GPUS)
    eight = _published_runs(path, "60_job, 8 GPUs", "v100:2x4", EIGHT_GPUS)
    tables = {"gpus_16": sixteen.tables["runs"], "gpus_8": eight.tables["runs"]}
    return Findings((*sixteen.figures, *eight.figures), tables, eight.pictures)


def muri_trace3(setting: Setting) -> Findings:
    """A real virtual cluster, 992 jobs on 64 GPUs."""
    return _published_runs(setting.file(MURI_TRACE3), "Muri trace3, 64 GPUs", "v100:8x8", TRACE3)


def _published_runs(path: Path, where: str, cluster: str, published: Mapping[str, tuple[float, ...]]) -> Findings:
    figures, rows, lines, equal = [], [], {}, 0
    for policy, wanted in published.items():
        result = simulate(path, cluster=cluster, policy=policy, rules="tiresias", placement="count")
        told, name = result.figures(), PUBLISHED_NAMES[policy]
        jct = told["jct_s"]
        ours = (jct["mean"], jct["p50"], jct["p95"], told["makespan_s"], told["preemptions"])
        for theirs, here, decimals in zip(wanted, ours, DECIMALS, strict=True):
            equal += Yardstick.equal(decimals).judge(here, theirs) is Verdicts.MET
        if policy.startswith("tiresias"):
            what = f"{where}, {name}: mean JCT"
            figures.append(Figure(what, wanted[0], ours[0], Yardstick.equal(2), "s", 2, headline=policy == "tiresias"))
        cells = (f"{value:,.{decimals}f}" for value, decimals in zip(ours, DECIMALS, strict=True))
        rows.append((f"{name}: `{policy}`", *cells))
        lines[policy] = shares_done(result.jct_s)
    of = len(published) * len(DECIMALS)
    figures.append(
        Figure(f"{where}: figures of all policies that are equal", of, equal, Yardstick.equal(0), decimals=0)
    )
    table = ResultTable(("policy", "mean JCT, s", "median, s", "p95, s", "makespan, s", "preemptions"), tuple(rows))
    chosen = {name: lines[name] for name in ("fifo", "backfill", "srtf", "tiresias")}
    return Findings(tuple(figures), {"runs": table}, {"cdf": completion_chart(where, chosen)})


CASES = (
    Case("tiresias-example", SYSTEM, "2D-Gittins by hand", f"{PAPER}, the talk's example", PAGE, example, 0.5, 0.5),
    Case(
        "tiresias-60jobs",
        SYSTEM,
        "60 jobs in the authors' simulator",
        f"{PAPER}; measured with the published simulator",
        PAGE,
        sixty_jobs,
        3.0,
        3.0,
        (TIRESIAS_60_JOBS,),
    ),
    Case(
        "tiresias-trace3",
        SYSTEM,
        "Muri's trace3 in the authors' simulator",
        f"{PAPER}; measured with the published simulator",
        PAGE,
        muri_trace3,
        2.0,
        2.0,
        (MURI_TRACE3,),
    ),
)
