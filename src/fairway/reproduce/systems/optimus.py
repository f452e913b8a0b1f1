"""Optimus: its example, its runs in the simulator of the Pollux artifact, and elastic jobs against fair sharing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairway.core.job import Workload
from fairway.core.policy import Policy
from fairway.models.profile import load_profile
from fairway.policies.optimus.greedy import grow
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.curves import completion_chart, shares_done
from fairway.reproduce.data import POLLUX_PROFILES, POLLUX_WORKLOADS
from fairway.reproduce.watching import EvenShares
from fairway.simulator.run import simulate
from fairway.traces import gavel_like

SYSTEM, PAGE, PAPER = "Optimus", "optimus.md", "Peng et al., EuroSys'18"
PUBLISHED_S = (4087.1, 6913.9, 3944.0, 5967.8, 5656.2, 5301.9)
"""Mean completion times of Optimus+Oracle that the Pollux artifact publishes, workloads 1 to 6."""
POLICIES: dict[str, str | Policy] = {
    "`optimus`": "optimus",
    "`optimus:estimates=oracle`": "optimus:estimates=oracle",
    "`optimus:interval_s=120`": "optimus:interval_s=120",
    "even shares": EvenShares(600.0),
    "`proportional`": "proportional",
    "`backfill`": "backfill",
    "`srtf`": "srtf",
    "`tiresias`": "tiresias",
    "`fifo`": "fifo",
}
JCT_GAIN, MAKESPAN_GAIN = 2.39, 1.63
"""The paper: 139 % better mean JCT and 63 % better makespan than a fair scheduler."""


def example(_: Setting) -> Findings:
    """Four more GPUs for jobs with 100 and 200 steps left."""
    steps = np.array([[100.0], [200.0]])
    gpus = grow([1, 1], [8, 8], 4, lambda jobs, counts: steps[jobs] / counts)
    shares = zip("AB", gpus, strict=True)
    return Findings(tuple(Figure(f"GPUs of job {job}", 3, got, Yardstick.equal(0), decimals=0) for job, got in shares))


def artifact(setting: Setting) -> Findings:
    """160 jobs on 16 nodes of 4 GPUs, six workloads; quick: the first."""
    profile = load_profile(str(setting.file(POLLUX_PROFILES)))
    figures = []
    for number, published in enumerate(PUBLISHED_S[: 1 if setting.quick else None], 1):
        path = setting.file(POLLUX_WORKLOADS) / f"workload-{number}.csv"
        result = simulate(path, cluster="aws:16x4", policy="optimus", rules="pollux", profile=profile)
        mean_s = float(result.jct_s.mean())
        figures.append(
            Figure(f"workload {number}: mean JCT", published, mean_s, Yardstick.equal(1), "s", headline=number == 1)
        )
    return Findings(tuple(figures))


def elastic_jobs(setting: Setting) -> Findings:
    """200 generated jobs that can use 1 to 16 GPUs, on 8 nodes of 4."""
    rigid = gavel_like(200, seed=1, mean_interarrival_s=600.0, durations="uniform-hours", max_h=4.0, multi_gpu=True)
    jobs = Workload.of([replace(job, gpus_min=1, gpus_max=16) for job in rigid.jobs])
    rows, found, lines = [], {}, {}
    for name, policy in POLICIES.items():
        result = simulate(jobs, cluster="v100:8x4", policy=policy)
        told = result.figures()
        jct = told["jct_s"]
        found[name] = jct["mean"], told["makespan_s"]
        hours = (f"{jct['mean'] / 3600:.2f}", f"{jct['p95'] / 3600:.2f}", f"{told['makespan_s'] / 3600:.1f}")
        rows.append((name, *hours, f"{100 * told['utilisation']:.1f} %", f"{told['restarts']:,}"))
        lines[name.strip("`")] = shares_done(result.jct_s)
    near = Yardstick.within(0.05, good="higher")
    reasons = {
        "even shares": "these shares are elastic, too: every job grows as others end",
        "`proportional`": "the paper's testbed and jobs are not public",
    }
    (jct_s, makespan_s), figures = found["`optimus`"], []
    for name, why in reasons.items():
        base_jct_s, base_makespan_s = found[name]
        figures.append(Figure(f"mean JCT of {name} ÷ `optimus`", JCT_GAIN, base_jct_s / jct_s, near, "×", 2, why, True))
        span = "arrivals last for 33 hours, so that little can be gained at the end"
        figures.append(
            Figure(f"makespan of {name} ÷ `optimus`", MAKESPAN_GAIN, base_makespan_s / makespan_s, near, "×", 2, span)
        )
    heads = ("policy", "mean JCT, h", "p95, h", "makespan, h", "utilisation", "restarts")
    chosen = {name: lines[name] for name in ("optimus", "even shares", "proportional", "fifo")}
    picture = completion_chart("200 elastic jobs, 32 GPUs", chosen)
    return Findings(tuple(figures), {"policies": ResultTable(heads, tuple(rows))}, {"cdf": picture})


CASES = (
    Case("optimus-example", SYSTEM, "four GPUs by hand", f"{PAPER}, derived", PAGE, example, 0.1, 0.1),
    Case(
        "optimus-artifact",
        SYSTEM,
        "Optimus+Oracle in the simulator of Pollux",
        "Qiao et al., OSDI'21, published results",
        PAGE,
        artifact,
        4.0,
        1.5,
        (POLLUX_WORKLOADS, POLLUX_PROFILES),
    ),
    Case(
        "optimus-elastic",
        SYSTEM,
        "elastic jobs against fair sharing",
        f"{PAPER}, abstract; generated jobs",
        PAGE,
        elastic_jobs,
        3.0,
        3.0,
    ),
)
