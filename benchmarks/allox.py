"""What AlloX's matching costs: CPU seconds of one solve, matrix building included.

    python benchmarks/allox.py [--repeats N]

Jobs have random speeds on three GPU types, and all GPUs are busy for a while.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from fairway.core.arrays import Floats
from fairway.solvers.matching import least_completion

SIZES = ((128, (32, 32, 32)), (1000, (34, 33, 33)))


def instance(jobs: int, machines: Sequence[int], seed: int) -> tuple[Floats, list[Floats]]:
    """Run times by type and job, and when each machine is free."""
    random = np.random.default_rng(seed)
    slower = np.stack([np.ones(jobs), random.uniform(1.2, 3, jobs), random.uniform(2, 10, jobs)])
    return random.lognormal(7, 1.3, jobs) * slower, [random.uniform(0, 5000, count) for count in machines]


def solve_cpu_s(jobs: int, machines: Sequence[int], repeats: int) -> float:
    """The median CPU time of one solve."""
    taken = []
    for seed in range(repeats):
        times_s, free_at_s = instance(jobs, machines, seed)
        before = time.process_time()
        least_completion(times_s, free_at_s)
        taken.append(time.process_time() - before)
    return float(np.median(taken))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    for jobs, machines in SIZES:
        print(f"{jobs} x {'+'.join(map(str, machines))} GPUs: {solve_cpu_s(jobs, machines, repeats):.4f} CPU s")


if __name__ == "__main__":
    main()
