"""How long one plan of water filling takes, by the number of jobs.

    python benchmarks/hierarchical.py [--jobs 256,1024] [--repeat N] [--json FILE]

N single-GPU jobs on a cluster with N/4 GPUs of each of three types, in five entities of weights 1, 1, 2, 3 and 5, of
which the last goes by order; a tenth of the jobs weighs 5. Three kinds of workload: `models` (jobs of 26 kinds, as in a
profile of so many models), `ordered` (all jobs differ, the first type is always the fastest), `any` (all jobs differ in
every way). CPU seconds are the best of several runs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway.core.arrays import Floats
from fairway.policies.gavel.entities import Entities
from fairway.policies.gavel.fair import per_fair_share
from fairway.policies.gavel.filling import fill
from fairway.policies.gavel.throughputs import Throughputs

WEIGHTS = np.array([1.0, 1.0, 2.0, 3.0, 5.0])
KINDS = ("models", "ordered", "any")
LIMIT_S = 0.1


def speeds(kind: str, jobs: int, random: np.random.Generator) -> Floats:
    """Steps per second of the jobs on three types."""
    if kind == "any":
        return random.uniform(0.2, 10, (jobs, 3))
    count = 26 if kind == "models" else jobs
    ordered = -np.sort(-random.uniform(0.2, 10, (count, 3)), axis=1)
    return np.asarray(ordered[random.integers(0, count, jobs)] if kind == "models" else ordered)


def measured(kind: str, jobs: int, repeat: int) -> dict[str, Any]:
    """The figures of one size and kind."""
    random = np.random.default_rng(jobs)
    throughputs = Throughputs.alone(speeds(kind, jobs, random), np.ones(jobs), np.full(3, jobs / 4))
    per_unit = per_fair_share(throughputs, np.ones(jobs))
    weights = np.where(random.random(jobs) < 0.1, 5.0, 1.0)
    by_order = np.arange(len(WEIGHTS)) == len(WEIGHTS) - 1
    tree = Entities.flat(random.integers(0, len(WEIGHTS), jobs), WEIGHTS, weights, by_order)
    taken_s = []
    for _ in range(repeat):
        before_s = time.process_time()
        filled = fill(throughputs, per_unit, tree)
        taken_s.append(time.process_time() - before_s)
    return {"kind": kind, "jobs": jobs, "cpu_s": min(taken_s), "phases": filled.phases}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default="64,256,1024", help="sizes, with commas")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    sizes = [int(size) for size in given.jobs.split(",")]
    rows = [measured(kind, size, given.repeat) for kind in KINDS for size in sizes]
    table = Table(title=f"One hierarchical plan, five entities (limit with 256 jobs: {LIMIT_S:g} CPU s)")
    for heading in ("jobs", "kind", "CPU s", "phases"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for row in rows:
        table.add_row(str(row["jobs"]), row["kind"], f"{row['cpu_s']:.3f}", str(row["phases"]))
    Console().print(table)
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
