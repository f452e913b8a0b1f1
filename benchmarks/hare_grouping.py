"""What grouping of rounds changes for Hare: small jobs from every round by itself to one round a job.

    python benchmarks/hare_grouping.py [--seeds 3]

16 jobs of 0.2 to 2 s on 8 GPUs, drawn as in `fairway reproduce hare`, no costs of switches. Policy and bound have the
same groups, however many that are.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway.reproduce.systems.hare.workload import TaskRun, measured

SECONDS = (0.2 / 60.0, 2.0 / 60.0)
GROUPED_S = (0.001, 0.05, 0.1, 0.2, 0.5, 10.0)
ASSIGNS = ("earliest_finish", "earliest_available")


def means(each_s: float, assign: str, seeds: int) -> tuple[float, float]:
    """Weighted JCT and bound over seeds, with groups of about so many seconds."""
    policy = f"hare:assign={assign},group_s={each_s:g}"
    with ExitStack() as changed:
        changed.enter_context(patch("fairway.policies.hare.outline.MOST_ROUNDS", 10**6))
        changed.enter_context(patch("fairway.policies.hare.outline.PLANNED_ROUNDS", 10**9))
        changed.enter_context(patch("fairway.simulator.bound._MOST_ROUNDS", ((10**9, 10**6),)))
        changed.enter_context(patch("fairway.simulator.bound._MOST_WITH_TIME", 0))
        changed.enter_context(patch("fairway.simulator.bound._ROUND_S", each_s))
        runs = (TaskRun(policy, 16, 8, seed, switching="0", minutes=SECONDS) for seed in range(1, seeds + 1))
        rows = [measured(run) for run in runs]
    return float(np.mean([row.weighted_s for row in rows])), float(np.mean([row.least_s for row in rows]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table = Table("a group takes, s", "weighted JCT, s", "change", "published rule, s", "change", "bound, s")
    first: dict[str, float] = {}
    for each_s in GROUPED_S:
        cells = []
        for assign in ASSIGNS:
            weighted_s, bound_s = means(each_s, assign, given.seeds)
            cells += [f"{weighted_s:.2f}", f"{weighted_s / first.setdefault(assign, weighted_s) - 1:+.1%}"]
        table.add_row(f"{each_s:g}", *cells, f"{bound_s:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
