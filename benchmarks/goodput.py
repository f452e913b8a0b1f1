"""What goodput costs: fits of step times, tables of speedups, and placements by both searches, in CPU seconds.

    python benchmarks/goodput.py [--jobs 4,16,40,64,256] [--nodes 16] [--node-gpus 4] [--rounds 3] [--p -1]

Jobs are drawn from six step-time models in the range of what GPUs of a cloud show. Each round starts from the placement
that the own search found in the round before. The genetic search starts from the same placement and from its own last
population. `short` is how far the own search can be below the best of all placements, by its bound.

The second table is about a mixed cluster: a whole decision of `sia` on t4:6x4,a100:2x8,v100:3x8, of it the integer
program, and HiGHS for the same program at a relative gap of 1e-4. `over` is how far the own choice can be above the
best, by its bound.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from fairway.core.batch import BatchLimits, Timing, limits_of
from fairway.core.event import JobMeasured
from fairway.core.state import State
from fairway.models.speedup_table import speedup_table
from fairway.models.step_fit import averaged, fit
from fairway.models.step_time import StepModel, gradient_s, step_s
from fairway.policies import make_policy, sia
from fairway.solvers.configuration_choice import UNIT, Choosing, choose
from fairway.solvers.goodput_genetic import genetic_search
from fairway.solvers.goodput_placement import Placing, restart_factor
from fairway.solvers.goodput_search import search
from fairway.testing import job, state_of

T = TypeVar("T")
KINDS: list[tuple[StepModel, BatchLimits, float]] = [
    (StepModel(0.02, 0.0007, 0.02, 0.012, 0.08, 0.0007, 1.24), limits_of(128, 4096, 32, 1024, True), 0.6),
    (StepModel(0.3, 0.023, 0.14, 0.028, 0.1, 0.007, 1.02), limits_of(20, 640, 10, 80, True), 0.1),
    (StepModel(0.17, 0.059, 1.3, 0.014, 0.08, 0.0025, 1.8), limits_of(12, 384, 4, 12, True), 0.1),
    (StepModel(0.19, 0.025, 0.6, 0.022, 0.1, 0.009, 1.0), limits_of(8, 512, 4, 8, True), 0.1),
    (StepModel(0.07, 0.0043, 0.075, 0.013, 0.09, 0.007, 1.1), limits_of(200, 12800, 20, 200, True), 0.05),
    (StepModel(0.1, 0.002, 0.05, 0.002, 0.03, 0.001, 2.5), limits_of(64, 2048, 8, 256, True), 0.05),
]
"""Models, limits and how often each is drawn."""


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a function returns, and its CPU seconds."""
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


def fit_times(count: int) -> list[float]:
    """CPU seconds of fits to the timings of jobs that have seen more and more allocations."""
    random, took = np.random.default_rng(0), []
    for number in range(count):
        model, limits, _ = KINDS[number % len(KINDS)]
        rows: list[Timing] = []
        for _ in range(1 + number % 24):
            nodes = int(random.integers(1, 5))
            replicas, local = nodes * int(random.integers(1, 5)), int(random.integers(limits.smallest_local, 200))
            noise = 1.0 + 0.1 * (random.random(2) - 0.5)
            step, gradient = float(step_s(model, nodes, replicas, local)), float(gradient_s(model, local))
            rows.append(Timing(nodes, replicas, local, 0, step * noise[0], gradient * noise[1]))
        seen = averaged(rows)
        took.append(timed(lambda seen=seen: fit(seen))[1])  # type: ignore[misc]
    return took


def problem(jobs: int, nodes: int, node_gpus: int, p: float) -> tuple[Placing, float]:
    """Jobs without GPUs on a cluster, and the CPU seconds of their speedups."""
    random, gpus = np.random.default_rng(jobs), nodes * node_gpus
    kinds = random.choice(len(KINDS), jobs, p=[share for *_, share in KINDS])
    models, limits = [KINDS[kind][0] for kind in kinds], [KINDS[kind][1] for kind in kinds]
    noise = np.array([float(each.first) for each in limits]) * 2.0 ** random.integers(0, 5, jobs)
    most = np.minimum(2 ** random.integers(1, 6, jobs), gpus)
    share = max(math.ceil(gpus / jobs), 1)
    table, took = timed(lambda: speedup_table(models, noise, limits, most, node_gpus, share))
    restart = restart_factor(600.0 + 7200.0 * random.random(jobs), random.integers(0, 5, jobs).astype(float), 30.0)
    held = np.zeros((jobs, nodes), dtype=np.int64)
    return Placing(table, np.full(nodes, node_gpus), most, held, restart, p), took


def mixed_cluster(jobs: int) -> State:
    """Jobs on a mixed cluster, most of which have run on two of its three types."""
    random = np.random.default_rng(jobs)
    specs = [job(f"job-{at}", 1, 1000.0, gpus_min=1, gpus_max=64) for at in range(jobs)]
    state = state_of(specs, "t4:6x4,a100:2x8,v100:3x8", now_s=7200.0)
    for at in range(jobs):
        model, limits, _ = KINDS[int(random.choice(len(KINDS), p=[share for *_, share in KINDS]))]
        noise = limits.first * 2.0 ** int(random.integers(0, 5))
        state.apply(JobMeasured(7200.0, at, limits, None, noise))
        for name, faster in (("t4", 1.0), ("a100", 2.0 + 4.0 * random.random()))[: int(random.integers(0, 3))]:
            for replicas in (1, 2, 4):
                local = limits.smallest_local
                step, gradient = float(step_s(model, 1, replicas, local)), float(gradient_s(model, local))
                timing = Timing(1, replicas, local, 0, step / faster, gradient / faster, name)
                state.apply(JobMeasured(7200.0, at, timing=timing, noise_scale=noise))
    return state


def by_highs(program: Choosing) -> float:
    """The least cost by HiGHS."""
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    jobs, count = program.costs.shape
    gain = np.where(program.allowed, program.costs - program.waiting[:, None], 0).ravel() / UNIT
    use = [np.tile(np.where(program.kind == kind, program.gpus, 0), jobs) for kind in range(len(program.capacity))]
    rows = sparse.vstack([sparse.kron(sparse.eye(jobs), np.ones((1, count))), sparse.csr_matrix(np.array(use))])
    found = milp(
        gain,
        constraints=LinearConstraint(rows.tocsc(), -np.inf, np.concatenate([np.ones(jobs), program.capacity])),
        integrality=np.ones(jobs * count),
        bounds=Bounds(0, program.allowed.ravel().astype(float)),
        options={"mip_rel_gap": 1e-4},
    )
    return float(found.fun + program.waiting.sum() / UNIT)


def mixed_row(jobs: int) -> list[str]:
    """What a decision of `sia` costs, with models that were fitted before, and what it is worth."""
    state, policy, programs = mixed_cluster(jobs), make_policy("sia"), list[Choosing]()
    state.memory = policy.decide(state.snapshot(policy.knows)).memory
    snapshot = state.snapshot(policy.knows)
    _, whole_s = timed(lambda: policy.decide(snapshot))
    sia.choose = lambda program: programs.append(program) or choose(program)  # type: ignore[assignment, func-returns-value]
    policy.decide(snapshot)
    sia.choose = choose
    found, own_s = timed(lambda: choose(programs[0]))
    best, highs_s = timed(lambda: by_highs(programs[0]))
    over = (found.cost - found.bound) / found.bound
    cells = (f"{whole_s:.3f}", f"{own_s:.3f}", f"{found.cost / UNIT:.4f}", f"{over:.2%}", f"{highs_s:.3f}")
    return [str(jobs), *cells, f"{best:.4f}"]


def main() -> None:
    """Run all and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="4,16,40,64,256")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--node-gpus", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--p", type=float, default=-1.0)
    options = parser.parse_args()
    console, took = Console(), fit_times(240)
    mean, tail = 1e3 * statistics.mean(took), 1e3 * statistics.quantiles(took, n=20)[-1]
    console.print(f"fit: mean {mean:.2f} ms, 95 % below {tail:.2f} ms, {len(took)} fits")
    shown = Table("jobs", "round", "table s", "own s", "own fitness", "short", "genetic s", "genetic fitness")
    for jobs in map(int, options.jobs.split(",")):
        placing, table_s = problem(jobs, options.nodes, options.node_gpus, options.p)
        population = None
        for number in range(options.rounds):
            found, own_s = timed(lambda placing=placing: search(placing))  # type: ignore[misc]
            (rows, population), genetic_s = timed(
                lambda placing=placing, population=population: genetic_search(placing, 0, population)  # type: ignore[misc]
            )
            fitness = float(placing.fitness(found.rows)), float(placing.fitness(rows))
            short = (found.bound - found.utility) / abs(found.bound)
            cells = (f"{table_s:.3f}", f"{own_s:.3f}", f"{fitness[0]:.4f}", f"{short:.1%}", f"{genetic_s:.2f}")
            shown.add_row(str(jobs), str(number + 1), *cells, f"{fitness[1]:.4f}")
            placing = Placing(placing.speedups, placing.capacity, placing.most, found.rows, placing.restart, placing.p)
    console.print(shown)
    shown = Table("jobs", "decision s", "program s", "cost", "over", "HiGHS s", "HiGHS cost")
    for jobs in map(int, options.jobs.split(",")):
        shown.add_row(*mixed_row(jobs))
    console.print(shown)


if __name__ == "__main__":
    main()
