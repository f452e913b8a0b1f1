"""What switches cost, and how good Hare's plans are."""

from __future__ import annotations

import numpy as np

from fairway.core import portable
from fairway.report.line_chart import Axis, line_chart
from fairway.reproduce.case import Figure, Findings, ResultTable, Setting, Yardstick
from fairway.reproduce.systems.hare.workload import TaskRun, measured
from fairway.solvers.task_bound import lower_bound
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_plan import plan
from fairway.solvers.task_schedule import ASSIGNS

COSTS = {"0": 0.0, "5ms": 0.005, "1s": 1.0, "5s": 5.0, "10s": 10.0}
"""Costs of a switch as options, in seconds."""
SHORT = (10.0 / 60.0, 3.0)
LENGTHS_S = (1, 60, 600)
SEED = 1
KINDS = {
    "hare:group_s={}": "Hare, {} s",
    "hare:assign=earliest_available,group_s={}": "paper, {} s",
    "hare:clairvoyant=no,group_s={}": "unknown, {} s",
}
GANGS = {"sched_homo:types=aware": "gangs, aware", "srtf": "SRTF"}

SLOWER = np.array([1.0, 2.0, 3.2, 7.0])
"""How much slower than a V100 the types are on average, for single plans: V100, T4, M60, K80."""
ROUNDS = 8
SIZES = ((200, 40), (200, 160))


def switching(_: Setting) -> Findings:
    """40 short jobs on 32 GPUs by the cost of a switch."""
    policies = {kind.format(s): label.format(s) for kind, label in KINDS.items() for s in LENGTHS_S} | GANGS
    rows, lines, found = [], {}, dict[str, dict[str, float]]()
    for policy, label in policies.items():
        run = TaskRun(policy, 40, 32, SEED, minutes=SHORT)
        several = {cost: measured(run._replace(switching=cost)) for cost in (*COSTS, "restart")}
        found[policy] = {cost: row.weighted_s for cost, row in several.items()}
        cells = (f"{weighted_s:,.0f}" for weighted_s in found[policy].values())
        rows.append((f"`{policy}`", *cells, f"{several['0'].switches:,}"))
        if "600" not in label:
            lines[label] = [(seconds, found[policy][cost]) for cost, seconds in COSTS.items()]
    fine, whole = found["hare:clairvoyant=no,group_s=1"], found["hare:clairvoyant=no,group_s=600"]
    what = "rounds of 1 s over one round a job, lengths unknown, a switch costs"
    figures = (
        Figure(f"{what} 5 ms: weighted JCT", 1.0, fine["5ms"] / whole["5ms"], Yardstick.at_most(), "×", 2),
        Figure(f"{what} 5 s: weighted JCT", 1.0, fine["5s"] / whole["5s"], Yardstick.at_least(), "×", 2),
    )
    columns = ("policy", "0", "5 ms", "1 s", "5 s", "10 s", "`restart`", "switches at 0")
    chart = line_chart(
        "40 short jobs on 32 GPUs", lines, Axis("cost of a switch, seconds"), Axis("mean weighted JCT, s")
    )
    return Findings(figures, {"costs": ResultTable(columns, tuple(rows))}, {"costs": chart})


def plans(setting: Setting) -> Findings:
    """Single plans as multiples of the bound that no schedule is below: the published rule, and the default.

    The paper promises α(2 + α) times the optimum, where α is the largest ratio of a task's times on two types.
    """
    rows, figures = [], []
    for jobs, gpus in SIZES[:1] if setting.quick else SIZES:
        given = _instance(jobs, gpus)
        bound, times_s = lower_bound(*given), given[0].task_s
        alpha = float((times_s.max(axis=1) / times_s.min(axis=1)).max())
        published, own = (plan(*given, assign).value / bound for assign in ASSIGNS)
        for name, ours in (("the published rule", published), ("the default", own)):
            what = f"{jobs} jobs, {gpus} GPUs, {name}: over what no schedule is below"
            figures.append(Figure(what, alpha * (2 + alpha), ours, Yardstick.at_most(), "×", 2))
        rows.append((f"{jobs}", f"{gpus}", f"{published:.2f}×", f"{own:.2f}×"))
    columns = ("jobs", "GPUs", "`earliest_available` over the bound", "`earliest_finish` over the bound")
    return Findings(tuple(figures), {"plans": ResultTable(columns, tuple(rows), 0)})


def _instance(jobs: int, gpus: int) -> tuple[TaskJobs, TaskGpus]:
    """Jobs with run times and speeds at random: 8 rounds of 2 to 8 tasks, 2 minutes to an hour, weights 1 to 5."""
    random = np.random.default_rng([0, jobs, gpus])
    slower = SLOWER * portable.exp(0.35 * random.standard_normal((jobs, len(SLOWER))))
    slower /= slower.min(axis=1)[:, None]
    alone_s = np.clip(600.0 * portable.exp(0.8 * random.standard_normal(jobs)), 120.0, 3600.0)
    task_s = (alone_s / ROUNDS)[:, None] * slower
    share = 0.005 + 0.045 * random.random(jobs)
    sync_s = np.broadcast_to((task_s.min(axis=1) * share)[:, None], task_s.shape)
    tasks, weight = random.integers(2, 9, jobs), random.integers(1, 6, jobs).astype(float)
    rounds, none_s = np.full(jobs, ROUNDS), np.zeros(jobs)
    kind = np.arange(gpus) % len(SLOWER)
    return TaskJobs(weight, none_s, rounds, tasks, tasks, none_s, task_s, sync_s), TaskGpus(kind, np.zeros(gpus))
