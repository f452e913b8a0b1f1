"""What a plan of tasks on mixed GPUs costs in CPU seconds, and how far it is above the bound that no schedule is below.

    python benchmarks/hare_plans.py [--seeds N] [--largest] [--json]

Jobs have 8 rounds of 2 to 8 tasks, run for 2 minutes to an hour on the GPUs that suit them, and weigh 1 to 5. GPUs are
V100, T4, M60 and K80, a quarter each. How much slower a job is on each type differs by job. All jobs are there at the
start. A re-plan is the plan after one more job arrived. The published form of the relaxation is the linear program; the
second one is the dual with the same prices for all types. Both are compared by the schedules that their orders give.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway.core.kernels import use_compiled
from fairway.solvers.task_bound import lower_bound
from fairway.solvers.task_fluid import Fluid
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_plan import plan
from fairway.solvers.task_relaxation import order_of, relax
from fairway.solvers.task_schedule import ASSIGNS, TaskBoard

SLOWER = np.array([1.0, 2.0, 3.2, 7.0])
"""How much slower than a V100 the types are on average: V100, T4, M60, K80."""
ROUNDS = 8
SIZES = ((200, 40), (200, 80), (200, 120), (200, 160), (200, 200), (100, 160), (300, 160))
LARGEST = (2000, 1000)
FORMS = ((20, 12), (50, 40), (100, 80))


def instance(jobs: int, gpus: int, seed: int) -> tuple[TaskJobs, TaskGpus]:
    """Jobs with run times and speeds at random."""
    random = np.random.default_rng([seed, jobs, gpus])
    slower = SLOWER * np.exp(random.normal(0.0, 0.35, (jobs, len(SLOWER))))
    slower /= slower.min(axis=1)[:, None]
    alone_s = np.clip(np.exp(random.normal(np.log(600.0), 0.8, jobs)), 120.0, 3600.0)
    task_s = (alone_s / ROUNDS)[:, None] * slower
    sync_s = np.broadcast_to((task_s.min(axis=1) * random.uniform(0.005, 0.05, jobs))[:, None], task_s.shape)
    tasks, weight = random.integers(2, 9, jobs), random.integers(1, 6, jobs).astype(float)
    rounds, none_s = np.full(jobs, ROUNDS), np.zeros(jobs)
    kind = np.arange(gpus) % len(SLOWER)
    return TaskJobs(weight, none_s, rounds, tasks, tasks, none_s, task_s, sync_s), TaskGpus(kind, np.zeros(gpus))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its CPU seconds."""
    before = time.process_time()
    found = call()
    return found, time.process_time() - before


def measure(size: tuple[int, int], seeds: int) -> dict[str, Any]:
    """Means over seeds: CPU seconds, and plans as multiples of the bound."""
    rows = []
    for seed in range(seeds):
        jobs, gpus = instance(*size, seed)
        before = plan(TaskJobs(*(column[:-1] for column in jobs)), gpus)
        bound, bound_s = timed(lambda: lower_bound(jobs, gpus))  # noqa: B023 - called at once
        found, plan_s = timed(lambda: plan(jobs, gpus))  # noqa: B023
        again, again_s = timed(lambda: plan(jobs, gpus, hint=before.hint))  # noqa: B023
        published, published_s = timed(lambda: plan(jobs, gpus, ASSIGNS[0]))  # noqa: B023
        values = [each.value / bound for each in (published, found, again)]
        rows.append((bound_s, published_s, plan_s, again_s, *values))
    names = ("bound_s", "available_s", "finish_s", "replan_s", "available", "finish", "replan")
    return {"jobs": size[0], "gpus": size[1]} | dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def compare_forms(size: tuple[int, int], seeds: int) -> dict[str, Any]:
    """Both forms of the relaxation: CPU seconds, value over the program's, and schedules over the program's."""
    rows = []
    for seed in range(seeds):
        jobs, gpus = instance(*size, seed)
        fluid, board = Fluid(jobs, gpus), TaskBoard(jobs, gpus)
        program, program_s = timed(lambda: relax(jobs, gpus))  # noqa: B023
        dual, dual_s = timed(lambda: fluid.spread(np.ones(fluid.types)))  # noqa: B023
        orders = [order_of(fluid.jobs, keys) for keys in (program.mean_busy_s, fluid.average(dual, 30))]
        ratios = [
            board.schedule(orders[1], assign).value / board.schedule(orders[0], assign).value for assign in ASSIGNS
        ]
        rows.append((program_s, dual_s, dual.value / program.value, *ratios))
    names = ("program_s", "dual_s", "value", "available", "finish")
    return {"jobs": size[0], "gpus": size[1]} | dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def show(console: Console, title: str, headings: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """A table with one row per size."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--largest", action="store_true", help="2,000 jobs on 1,000 GPUs as well")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    compiled = use_compiled()
    measure((4, 4), 1)
    plans = [measure(size, given.seeds) for size in SIZES + (LARGEST,) * given.largest]
    forms = [compare_forms(size, given.seeds) for size in FORMS]
    if given.json:
        print(json.dumps({"compiled": compiled, "plans": plans, "forms": forms}, indent=1))
        return
    console = Console(width=140)
    assigns = ("earliest available", "earliest finish", "re-plan")
    times = tuple(f"{name} CPU s" for name in ("bound", *assigns))
    ratios = tuple(f"{name} / bound" for name in assigns)
    how = "compiled" if compiled else "not compiled"
    show(console, f"Plans ({how})", ("jobs", "GPUs", *times, *ratios), plans)
    headings = ("jobs", "GPUs", "program CPU s", "dual CPU s", "bounds", *assigns[:2])
    show(console, "Second form over the published one", headings, forms)


if __name__ == "__main__":
    main()
