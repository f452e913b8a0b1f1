"""The choice of a configuration for each job: laws, the best answer on small cases, HiGHS on larger ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fairway.core.arrays import Ints
from fairway.solvers.configuration_choice import UNIT, WAITS, Choosing, choose

CLUSTER = ((6, 4), (2, 8), (3, 8))
"""Nodes and GPUs of each by type: the mixed cluster of Sia's simulator."""


def program(jobs: int, seed: int, types: tuple[tuple[int, int], ...] = CLUSTER) -> Choosing:
    """Jobs that gain less and less from more GPUs, each with its own taste in types."""
    random = np.random.default_rng(seed)
    shapes = [(kind, 2**power) for kind, (_, size) in enumerate(types) for power in range(size.bit_length())]
    shapes += [(kind, many * size) for kind, (nodes, size) in enumerate(types) for many in range(2, nodes + 1)]
    kind, gpus = np.array(shapes, dtype=np.int64).T
    speed = (1.0 + 3.0 * random.random((jobs, len(types))))[:, kind]
    value = speed * gpus ** (0.3 + 0.7 * random.random((jobs, 1)))
    costs = np.rint(UNIT * (value / value.min(axis=1, keepdims=True)) ** -0.5).astype(np.int64)
    allowed = gpus <= 2 ** random.integers(0, 6, (jobs, 1))
    waiting = np.full(jobs, round(1.1 * UNIT))
    return Choosing(costs, allowed, waiting, kind, gpus, np.array([nodes * size for nodes, size in types]))


def cost_of(problem: Choosing, chosen: Ints) -> int:
    """What a choice costs; it keeps the laws."""
    used = np.zeros(len(problem.capacity), dtype=np.int64)
    total = 0
    for job, choice in enumerate(chosen.tolist()):
        if choice == WAITS:
            total += int(problem.waiting[job])
            continue
        assert problem.allowed[job, choice]
        used[problem.kind[choice]] += problem.gpus[choice]
        total += int(problem.costs[job, choice])
    assert (used <= problem.capacity).all()
    return total


def best_by_hand(problem: Choosing) -> int:
    jobs, count = problem.costs.shape
    least = None
    for chosen in itertools.product(range(-1, count), repeat=jobs):
        if any(choice >= 0 and not problem.allowed[job, choice] for job, choice in enumerate(chosen)):
            continue
        used = np.zeros(len(problem.capacity), dtype=np.int64)
        for choice in chosen:
            if choice >= 0:
                used[problem.kind[choice]] += problem.gpus[choice]
        if (used <= problem.capacity).all():
            cost = cost_of(problem, np.array(chosen))
            least = cost if least is None else min(least, cost)
    assert least is not None
    return least


def by_highs(problem: Choosing) -> float:
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    jobs, count = problem.costs.shape
    gain = np.where(problem.allowed, problem.costs - problem.waiting[:, None], 0).ravel() / UNIT
    use = [np.tile(np.where(problem.kind == kind, problem.gpus, 0), jobs) for kind in range(len(problem.capacity))]
    rows = sparse.vstack([sparse.kron(sparse.eye(jobs), np.ones((1, count))), sparse.csr_matrix(np.array(use))])
    most = np.concatenate([np.ones(jobs), problem.capacity])
    found = milp(
        gain,
        constraints=LinearConstraint(rows.tocsc(), -np.inf, most),
        integrality=np.ones(jobs * count),
        bounds=Bounds(0, problem.allowed.ravel().astype(float)),
        options={"mip_rel_gap": 1e-9},
    )
    return float(found.fun + problem.waiting.sum() / UNIT)


@pytest.mark.parametrize("seed", range(12))
def test_small_programs_are_solved_exactly(seed: int) -> None:
    problem = program(4, seed, ((1, 4), (1, 2)))
    found = choose(problem)
    assert found.cost == found.bound == cost_of(problem, found.configurations) == best_by_hand(problem)


@pytest.mark.parametrize(("jobs", "seed"), [(3, 0), (16, 1), (40, 2), (100, 3)])
def test_it_is_as_good_as_highs(jobs: int, seed: int) -> None:
    problem = program(jobs, seed)
    found = choose(problem)
    assert found.cost == cost_of(problem, found.configurations)
    assert found.cost / UNIT == pytest.approx(by_highs(problem), abs=1e-5)
    assert found.bound == found.cost


def test_a_narrow_search_keeps_the_laws_and_says_how_far_it_may_be_from_the_best() -> None:
    problem = program(60, 5, ((16, 8), (8, 8), (20, 4), (4, 16)))
    best, narrow = choose(problem), choose(problem, widths=(2,))
    assert cost_of(problem, narrow.configurations) == narrow.cost
    assert narrow.bound <= best.cost <= narrow.cost


def test_many_types_and_gpus_are_no_problem() -> None:
    problem = program(30, 6, ((300, 8),) * 9)
    found = choose(problem)
    assert cost_of(problem, found.configurations) == found.cost
    assert found.bound <= found.cost


def test_equal_jobs_are_served_by_what_waiting_costs_and_the_same_way_every_time() -> None:
    one = program(1, 7, ((1, 4),))
    costs, allowed = np.repeat(one.costs, 8, axis=0), np.ones((8, one.costs.shape[1]), dtype=bool)
    problem = Choosing(costs, allowed, one.waiting + np.arange(8)[::-1], one.kind, one.gpus, one.capacity)
    found = choose(problem).configurations
    running = int((found != WAITS).sum())
    assert 0 < running <= 4
    assert (found[:running] != WAITS).all()
    for _ in range(3):
        assert choose(problem).configurations.tolist() == found.tolist()


def test_nobody_runs_where_there_are_no_gpus_and_without_jobs_nothing_happens() -> None:
    problem = program(5, 8)
    empty = replace(problem, capacity=np.zeros(3, dtype=np.int64))
    assert choose(empty).configurations.tolist() == [WAITS] * 5
    assert choose(program(0, 8)).cost == 0


def test_sizes_that_do_not_match_are_an_error() -> None:
    problem = program(3, 9)
    with pytest.raises(ValueError, match="differ in size"):
        Choosing(problem.costs, problem.allowed, problem.waiting[:2], problem.kind, problem.gpus, problem.capacity)
    with pytest.raises(ValueError, match="needs GPUs"):
        Choosing(problem.costs, problem.allowed, problem.waiting, problem.kind, 0 * problem.gpus, problem.capacity)
