"""Placements of adaptive jobs: the worked fitness figures, the laws of both searches, and how good they are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from fairway.core.arrays import Ints
from fairway.solvers import goodput_search
from fairway.solvers.goodput_counts import best_counts
from fairway.solvers.goodput_genetic import genetic_search
from fairway.solvers.goodput_placement import LEAST_SPEEDUP, Placing, power_mean, restart_factor
from fairway.solvers.goodput_search import search

POWERS = (1.0, 0.0, -1.0, -math.inf)


def placing(jobs: int, nodes: int, node_gpus: int, seed: int, p: float = -1.0, held: Ints | None = None) -> Placing:
    """Jobs with speedups that rise less and less; some are faster on one node, some on several."""
    random = np.random.default_rng(seed)
    gpus = nodes * node_gpus
    replicas = np.arange(gpus + 1)
    bend, worse = 0.02 + 0.5 * random.random((jobs, 1)), 0.7 + 0.5 * random.random((jobs, 1))
    inside = replicas / (1.0 + bend * np.maximum(replicas - 1, 0))
    across = np.where(replicas > 1, inside * worse, 0.0)
    most = np.minimum(2 ** random.integers(0, 6, jobs), gpus)
    rows = np.zeros((jobs, nodes), dtype=np.int64) if held is None else held
    return Placing(
        np.stack([inside, across], axis=1), np.full(nodes, node_gpus), most, rows, 0.6 + 0.4 * random.random(jobs), p
    )


def genetic(problem: Placing) -> Ints:
    return genetic_search(problem, 7, generations=30)[0]


def own(problem: Placing) -> Ints:
    return search(problem).rows


def test_worked_figures() -> None:
    speedups = np.array([2.0, 0.5])
    assert [float(power_mean(speedups, p)) for p in POWERS] == pytest.approx([1.25, 1.0, 0.8, 0.5])


def test_power_means_rise_with_the_power() -> None:
    values = np.random.default_rng(0).random(20) + 0.1
    means = [float(power_mean(values, p)) for p in (-math.inf, -5.0, -1.0, -0.5, 0.0, 0.5, 1.0)]
    assert means == sorted(means)
    assert float(power_mean(np.full(3, 0.7), -1.0)) == pytest.approx(0.7)


def test_a_restart_costs_the_more_the_younger_a_job_and_the_more_restarts_it_had() -> None:
    found = restart_factor(np.array([0.0, 30.0, 300.0, 300.0, 40.0]), np.array([0, 0, 0, 5, 9]), 30.0)
    assert found.tolist() == pytest.approx([0.0, 0.5, 300 / 330, 150 / 330, 0.0])


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_the_best_of_all(seed: int) -> None:
    values = np.random.default_rng(seed).random((3, 7))
    values[1, 4:] = -np.inf
    counts, total = best_counts(values, 8)
    every = [each for each in itertools.product(range(7), repeat=3) if sum(each) <= 8]
    best = max(sum(values[job, count] for job, count in enumerate(each)) for each in every)
    assert total == pytest.approx(best)
    assert sum(values[job, count] for job, count in enumerate(counts)) == pytest.approx(best)


@pytest.mark.parametrize("method", [own, genetic])
@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize(("jobs", "nodes", "node_gpus"), [(1, 1, 1), (3, 2, 4), (12, 4, 4), (30, 3, 8), (5, 16, 4)])
def test_laws_hold_round_after_round(
    method: Callable[[Placing], Ints], p: float, jobs: int, nodes: int, node_gpus: int
) -> None:
    held = None
    for _ in range(3):
        problem = placing(jobs, nodes, node_gpus, 3, p, held)
        held = method(problem)
        assert problem.broken(held) is None
        assert (method(problem) == held).all()


@pytest.mark.parametrize("method", [own, genetic])
def test_lost_nodes_lower_limits_and_closed_nodes_are_respected(method: Callable[[Placing], Ints]) -> None:
    first = placing(8, 4, 4, 1)
    held = own(first)
    smaller = Placing(
        first.speedups,
        np.array([4, 0, 2, 4]),
        np.minimum(first.most, 2),
        held,
        first.restart,
        closed=np.array([True, False, False, False]),
    )
    found = method(smaller)
    assert smaller.broken(found) is None
    assert found.sum() > 0


def best_of_all(problem: Placing) -> float:
    capacity = problem.capacity.tolist()
    rows = np.array(list(itertools.product(*(range(gpus + 1) for gpus in capacity))))
    choices = [rows[rows.sum(axis=1) <= most] for most in problem.most]
    best = 0.0
    for each in itertools.product(*choices):
        matrix = np.array(each)
        if problem.broken(matrix) is None:
            best = max(best, float(problem.fitness(matrix)))
    return best


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("seed", range(3))
def test_small_problems_are_solved_exactly_and_others_nearly(
    p: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = None
    for _ in range(2):
        problem = placing(3, 2, 2, seed, p, held)
        held = own(problem)
        best = best_of_all(problem)
        assert float(problem.fitness(held)) == pytest.approx(best, rel=1e-6)
        with monkeypatch.context() as patched:
            patched.setattr(goodput_search, "SMALL", 0)
            assert float(problem.fitness(own(problem))) >= 0.95 * best


@pytest.mark.parametrize("p", POWERS)
def test_the_own_search_is_as_good_as_the_genetic_one(p: float) -> None:
    ratios = []
    for jobs, nodes, node_gpus in ((6, 4, 4), (20, 4, 4), (10, 8, 8)):
        held = None
        for _ in range(2):
            problem = placing(jobs, nodes, node_gpus, 5, p, held)
            found = search(problem)
            other, _ = genetic_search(problem, 1, generations=60)
            ratios.append(float(problem.fitness(found.rows)) / float(problem.fitness(other)))
            assert found.utility <= found.bound + 1e-9 * abs(found.bound)
            held = found.rows
    assert min(ratios) > 0.99
    assert sum(ratios) / len(ratios) > 1 - 1e-9


def test_a_genetic_search_goes_on_from_its_population() -> None:
    problem = placing(20, 4, 4, 2)
    first, population = genetic_search(problem, 1, generations=10)
    second, _ = genetic_search(problem, 2, population, generations=10)
    assert problem.fitness(second) >= problem.fitness(first)
    other, _ = genetic_search(problem, 2, generations=10)
    assert (other != first).any()


@pytest.mark.parametrize("method", [own, genetic])
def test_jobs_that_a_restart_would_ruin_stay_where_they_are(method: Callable[[Placing], Ints]) -> None:
    first = placing(6, 4, 4, 4)
    held = own(first)
    ruinous = Placing(first.speedups, first.capacity, first.most, held, np.full(6, 0.1))
    assert (method(ruinous) == held).all()


def test_every_job_runs_before_any_grows_if_the_slow_ones_count() -> None:
    problem = placing(16, 4, 4, 6, -1.0)
    assert own(problem).sum(axis=1).tolist() == [1] * 16
    assert own(placing(16, 4, 4, 6, 1.0)).sum(axis=1).max() >= 1


def test_more_jobs_than_gpus_all_gpus_work() -> None:
    problem = placing(40, 4, 4, 8)
    assert own(problem).sum() == 16


def test_a_job_that_only_fits_whole_gets_all_or_nothing() -> None:
    speedups = np.zeros((2, 2, 5))
    speedups[0, :, 4] = 1.0
    speedups[1, 0, 1] = 1.0
    problem = Placing(speedups, np.array([2, 3]), np.array([4, 4]), np.zeros((2, 2), dtype=np.int64), np.ones(2))
    assert own(problem).sum(axis=1).tolist() == [4, 1]


@pytest.mark.parametrize("method", [own, genetic])
def test_nothing_to_place_is_placed_at_once(method: Callable[[Placing], Ints]) -> None:
    for jobs, nodes in ((0, 4), (3, 0), (0, 0)):
        problem = Placing(
            np.zeros((jobs, 2, 1)),
            np.full(nodes, 4),
            np.zeros(jobs, dtype=np.int64),
            np.zeros((jobs, nodes), dtype=np.int64),
            np.ones(jobs),
        )
        assert method(problem).shape == (jobs, nodes)


def test_a_problem_that_cannot_be_is_an_error() -> None:
    good = placing(3, 2, 2, 0)
    with pytest.raises(ValueError, match="no number"):
        Placing(good.speedups * math.nan, good.capacity, good.most, good.held, good.restart)
    with pytest.raises(ValueError, match="jobs by nodes"):
        Placing(good.speedups, good.capacity, good.most, good.held[:2], good.restart)
    with pytest.raises(ValueError, match="more replicas"):
        Placing(good.speedups, good.capacity, good.most + 9, good.held, good.restart)


def test_a_waiting_job_counts_a_little() -> None:
    problem = placing(2, 1, 1, 0, -1.0)
    rows = np.array([[1], [0]])
    score = float(problem.scores(rows)[0]) + LEAST_SPEEDUP
    assert float(problem.fitness(rows)) == pytest.approx(2 / (1 / score + 1 / LEAST_SPEEDUP))
