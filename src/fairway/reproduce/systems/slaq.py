"""SLAQ: its example, and how soon losses fall against fair sharing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.job import JobSpec, LossCurve, Workload
from fairway.core.policy import Policy
from fairway.models.convergence import drawn_curve
from fairway.policies.slaq import Pool, hand_out
from fairway.report.line_chart import Axis, line_chart
from fairway.reproduce.case import Case, Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.watching import EvenShares, ProgressCourse
from fairway.simulator.run import simulate

SYSTEM, PAGE, PAPER = "SLAQ", "slaq.md", "Zhang et al., SoCC'17"
CLUSTER, JOBS, SEEDS = "v100:32x4", 100, 3
REACHED = 0.9
STEP_S = 10.0
RESTART_S = 30.0
POLICIES: dict[str, tuple[str | Policy, float]] = {
    "`slaq`": ("slaq", RESTART_S),
    "even shares": (EvenShares(), RESTART_S),
    "`proportional`": ("proportional", RESTART_S),
    "`slaq`, resizes cost nothing": ("slaq", 0.0),
    "even shares, resizes cost nothing": (EvenShares(), 0.0),
}
"""Policies, and what a resize or restart costs."""


def example(_: Setting) -> Findings:
    """Four units for two jobs, by the falls of their losses."""
    falls: Sequence[Sequence[float]] = ((0.30, 0.42, 0.47), (0.10, 0.19, 0.27))
    pool = Pool([4], [0, 0], [1, 1], [9, 9], [0, 0], [0, 0])
    for row in (0, 1):
        pool.take(row, 1)
    hand_out(pool, [0, 1], lambda row, gpus: falls[row][min(gpus, 3) - 1])
    units = zip("AB", pool.gpus, strict=True)
    return Findings(tuple(Figure(f"units of job {job}", 2, got, Yardstick.equal(0), decimals=0) for job, got in units))


def learners(jobs: int, seed: int) -> Workload:
    """Elastic jobs with loss curves, which come a minute apart."""
    random = np.random.default_rng([seed, 11])
    at_s = np.round(np.cumsum(random.exponential(60.0, jobs)), 3)
    lasts_s = np.round(random.uniform(1800.0, 10800.0, jobs), 3)
    specs = [
        JobSpec(f"job-{i}", at_s[i], 2, 1, 16, duration_s=lasts_s[i], loss=drawn_curve(seed, i)) for i in range(jobs)
    ]
    return Workload.of(specs, source=f"learners, seed {seed}")


def _normal(curve: LossCurve, done: Floats) -> Floats:
    """The loss after parts of the training: 1 at its start, 0 at its end."""
    first, last = curve.at(0.0), curve.at(1.0)
    loss: Floats = (1.0 / (curve.b0 * curve.epochs * done + curve.b1) + curve.b2 - last) / (first - last)
    return loss


def _losses(
    workload: Workload, policy: str | Policy, seed: int, restart_s: float, grid_s: Floats
) -> tuple[list[float], Floats]:
    """Loss over time, delay to nine tenths, mean JCT and restarts; and the mean loss of submitted jobs on a grid."""
    course = ProgressCourse(len(workload))
    result = simulate(workload, cluster=CLUSTER, policy=policy, seed=seed, restart_cost_s=restart_s, observer=course)
    end_s = np.array(result.ledger.finished_s)
    areas_s: list[float] = []
    delays_s: list[float] = []
    sums, present = np.zeros(len(grid_s)), np.zeros(len(grid_s))
    for number, spec in enumerate(workload.jobs):
        curve, work = spec.loss, spec.duration_s
        assert curve is not None
        assert work is not None
        first, last = curve.at(0.0), curve.at(1.0)
        times_s = np.arange(spec.submitted_s, end_s[number] + STEP_S, STEP_S)
        done = np.minimum(course.at(number, times_s) / work, 1.0)
        areas_s.append(float(_normal(curve, done).sum() * STEP_S))
        target = (1.0 / (first - REACHED * (first - last) - curve.b2) - curve.b1) / (curve.b0 * curve.epochs)
        delays_s.append(STEP_S * float((done >= target).argmax()))
        here = (grid_s >= spec.submitted_s) & (grid_s <= end_s[number])
        sums[here] += _normal(curve, np.minimum(course.at(number, grid_s[here]) / work, 1.0))
        present += here
    restarts = float(result.ledger.starts.sum() - len(workload))
    mean = np.divide(sums, present, out=np.zeros(len(grid_s)), where=present > 0)
    return [float(np.mean(areas_s)), float(np.mean(delays_s)), result.figures()["jct_s"]["mean"], restarts], mean


def against_fair_sharing(setting: Setting) -> Findings:
    """100 elastic jobs on 128 GPUs, under SLAQ, even shares and turns."""
    grid_s = np.arange(0.0, 7200.0, 60.0)
    found, lines = {}, {}
    seeds = range(1 if setting.quick else SEEDS)
    for name, (policy, restart_s) in POLICIES.items():
        runs = [_losses(learners(JOBS, seed), policy, seed, restart_s, grid_s) for seed in seeds]
        found[name] = np.mean([figures for figures, _ in runs], axis=0).tolist()
        if restart_s:
            lines[name.strip("`")] = list(zip(grid_s.tolist(), runs[0][1].tolist(), strict=True))
    rows = tuple((name, *(f"{value:,.0f}" for value in values)) for name, values in found.items())
    table = ResultTable(("policy", "loss, s", "90 %, s", "mean JCT, s", "resizes and restarts"), rows)
    near, figures = Yardstick.within(0.05, good="higher"), []
    why = "the paper's jobs and its measure of quality are not public"
    for more in ("", ", resizes cost nothing"):
        ours, fair = found[f"`slaq`{more}"], found[f"even shares{more}"]
        sooner, lower = (100 * (1 - mine / other) for mine, other in zip(ours[1::-1], fair[1::-1], strict=True))
        what = f"90 % of the fall of a loss sooner than by fair shares{more}"
        figures.append(Figure(what, 44.0, sooner, near, "%", headline=not more))
        what = f"losses over time lower than by fair shares{more}"
        figures.append(Figure(what, 73.0, lower, near, "%", why=why, headline=not more))
    axes = Axis("time", " h", 1 / 3600), Axis("mean normalised loss of the jobs in the cluster")
    return Findings(tuple(figures), {"losses": table}, {"losses": line_chart("Losses over time, seed 0", lines, *axes)})


CASES = (
    Case("slaq-example", SYSTEM, "four units by hand", f"{PAPER}, derived", PAGE, example, 0.1, 0.1),
    Case(
        "slaq-fair",
        SYSTEM,
        "quality against fair sharing",
        f"{PAPER}, abstract; generated jobs",
        PAGE,
        against_fair_sharing,
        4.0,
        1.5,
    ),
)
