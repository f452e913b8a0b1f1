"""The interior-point method for allocations against HiGHS, and what makes its answers worth having."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from fairway.published.embedding import solve_embedded
from fairway.solvers.allocation import Allocation, Solution
from fairway.solvers.classes import solve_alike
from fairway.solvers.interior import solve

SOLVERS = [solve, solve_embedded, solve_alike]


def random_problem(seed: int, jobs: int = 12, types: int = 3, gangs: bool = True) -> Allocation:
    """A max-min problem with gangs, weights and types that some jobs cannot use."""
    random = np.random.default_rng(seed)
    rates = random.uniform(1.0, 10.0, (jobs, types)) * np.geomspace(4.0, 1.0, types)
    usable = random.random((jobs, types)) < 0.85
    usable[np.arange(jobs), random.integers(types, size=jobs)] = True
    rates = np.where(usable, rates, 0.0)
    sizes = random.choice([1.0, 1.0, 2.0, 4.0], jobs) if gangs else np.ones(jobs)
    base = Allocation.over(sizes, random.integers(4, 9, types).astype(np.float64), usable)
    weights = random.uniform(0.5, 3.0, jobs)
    return replace(base, rows=rates, weights=weights, held=np.ones(jobs, dtype=bool), level_gain=1.0)


def by_highs(a: Allocation) -> float | None:
    """The optimum of the same problem by a general solver; None where there is none."""
    jobs, types = a.usable.shape
    size = jobs * types
    rows, limits = [], []
    for m in range(jobs):
        row = np.zeros(size + 1)
        row[m * types : (m + 1) * types] = 1.0
        rows.append(row)
        limits.append(1.0)
    for j in range(types):
        row = np.zeros(size + 1)
        row[j:size:types] = a.gangs
        rows.append(row)
        limits.append(a.capacity[j])
    for m in np.nonzero(a.held)[0]:
        row = np.zeros(size + 1)
        row[m * types : (m + 1) * types] = -a.rows[m]
        row[-1] = a.weights[m]
        rows.append(row)
        limits.append(-a.floors[m])
    cost = -np.append(a.gain.ravel(), a.level_gain)
    bounds = [(0.0, None if use else 0.0) for use in a.usable.ravel()] + [(None, None) if a.level_gain else (0.0, 0.0)]
    found = linprog(cost, np.array(rows), np.array(limits), bounds=bounds, method="highs")
    return -float(found.fun) if found.status == 0 else None


def assert_feasible(a: Allocation, x: np.ndarray, slack: float = 1e-6) -> None:
    assert (x >= 0).all()
    assert (x[~a.usable] == 0).all()
    assert (x.sum(axis=1) <= 1.0 + slack).all()
    assert (a.gangs @ x <= a.capacity * (1.0 + slack) + slack).all()


@pytest.mark.parametrize("method", SOLVERS)
@pytest.mark.parametrize("seed", range(25))
def test_the_highest_level_is_that_of_a_general_solver(method, seed: int) -> None:
    a = random_problem(seed, jobs=3 + 2 * seed, types=1 + seed % 4)
    found = method(a)
    assert found.optimal
    assert found.level == pytest.approx(by_highs(a), rel=1e-5)
    assert_feasible(a, found.x)
    reached = (a.rows * found.x).sum(axis=1) / a.weights
    assert reached.min() == pytest.approx(found.level, rel=1e-4)


@pytest.mark.parametrize("method", SOLVERS)
@pytest.mark.parametrize("seed", range(15))
def test_the_largest_sum_above_floors_is_that_of_a_general_solver(method, seed: int) -> None:
    a = random_problem(seed, jobs=10)
    level = solve(a).level
    held = np.random.default_rng(seed).random(10) < 0.6
    floors = np.where(held, 0.8 * level * a.weights, 0.0)
    nothing = np.zeros(10)
    b = replace(a, gain=a.rows, weights=nothing, floors=floors, held=held, level_gain=0.0)
    found = method(b)
    assert found.optimal
    assert float((b.gain * found.x).sum()) == pytest.approx(by_highs(b), rel=1e-5)
    assert_feasible(b, found.x)
    assert ((b.rows * found.x).sum(axis=1) >= floors * (1 - 1e-5)).all()


@pytest.mark.parametrize("method", SOLVERS)
def test_floors_that_cannot_be_kept_are_told(method) -> None:
    a = random_problem(3)
    floors = 1.2 * solve(a).level * a.weights
    b = replace(a, gain=a.rows, weights=np.zeros(12), floors=floors, level_gain=0.0)
    assert by_highs(b) is None
    assert not method(b).optimal


@pytest.mark.parametrize("seed", range(10))
def test_positive_multipliers_are_the_jobs_that_cannot_rise(seed: int) -> None:
    a = random_problem(seed, jobs=8)
    found = solve(a)
    assert found.multipliers.sum() == pytest.approx(1.0, abs=1e-4)
    for job in range(8):
        # Can this job alone rise above the level while all others keep theirs?
        lone = np.zeros((8, 3))
        lone[job] = a.rows[job]
        floors = found.level * a.weights * (1 - 1e-7)
        best = by_highs(replace(a, gain=lone, weights=np.zeros(8), floors=floors, level_gain=0.0))
        assert best is not None
        stuck = best <= found.level * a.weights[job] * (1 + 1e-4)
        assert stuck == (found.multipliers[job] > 1e-5)


@pytest.mark.parametrize("method", SOLVERS)
def test_equal_jobs_are_treated_equally_and_order_does_not_count(method) -> None:
    a = random_problem(7, jobs=9, gangs=False)
    order = np.array([4, 4, 0, 2, 2, 2, 8])
    twice = replace(
        a,
        gangs=a.gangs[order],
        usable=a.usable[order],
        gain=a.gain[order],
        rows=a.rows[order],
        weights=a.weights[order],
        floors=a.floors[order],
        held=a.held[order],
    )
    x = method(twice).x
    assert np.allclose(x[0], x[1], atol=1e-5)
    assert np.allclose(x[3], x[4], atol=1e-5)
    assert np.allclose(x[4], x[5], atol=1e-5)


def test_types_without_gpus_and_jobs_without_types_are_left_out() -> None:
    a = random_problem(1, jobs=6)
    capacity = a.capacity.copy()
    capacity[1] = 0.0
    usable = a.usable.copy()
    usable[2] = False
    held = usable.any(axis=1)
    b = replace(a, capacity=capacity, usable=usable, rows=np.where(usable, a.rows, 0.0), held=held)
    b = replace(b, held=held & (np.where(capacity > 0, b.rows, 0.0).any(axis=1)))
    for method in SOLVERS:
        found = method(b)
        assert found.optimal
        assert not found.x[:, 1].any()
        assert not found.x[2].any()


def test_where_no_type_has_gpus_nobody_gets_any_and_floors_cannot_be_kept() -> None:
    a = replace(random_problem(1, jobs=6), capacity=np.zeros(3))
    assert solve(a).optimal
    assert not solve(a).x.any()
    assert not solve(replace(a, floors=np.ones(6), weights=np.zeros(6), level_gain=0.0)).optimal


def test_a_start_from_the_last_solution_takes_fewer_steps_to_the_same_level() -> None:
    a = random_problem(11, jobs=300)
    before = random_problem(11, jobs=300)
    without = {name: getattr(before, name)[:-1] for name in ("gangs", "usable", "gain", "rows", "weights", "floors")}
    known = solve(replace(before, held=before.held[:-1], **without))
    near = Solution(
        np.vstack([known.x, known.x.mean(axis=0)]),
        known.level,
        np.append(known.multipliers, known.multipliers.mean()),
        True,
        0,
        known.prices,
    )
    cold, warm = solve(a), solve(a, near=near)
    assert warm.optimal
    assert warm.level == pytest.approx(cold.level, rel=1e-6)
    assert warm.steps <= 0.75 * cold.steps


def test_a_bad_start_does_no_harm() -> None:
    a = random_problem(5)
    junk = Solution(np.full((12, 3), 9.0), 1e6, np.full(12, np.nan), True, 0, np.full(3, np.inf))
    assert solve(a, near=junk).level == pytest.approx(solve(a).level, rel=1e-6)


@pytest.mark.parametrize("seed", range(30))
def test_a_single_type_has_a_closed_form(seed: int) -> None:
    a = random_problem(seed, jobs=9, types=1)
    random = np.random.default_rng(seed)
    floors = np.where(random.random(9) < 0.3, 0.2 * a.rows[:, 0] / a.gangs / 9, 0.0)
    weights = np.where(random.random(9) < 0.2, 0.0, a.weights)
    weights[0] = 1.0
    levels = replace(a, floors=floors, weights=weights)
    sums = replace(a, gain=a.rows, floors=floors, weights=np.zeros(9), level_gain=0.0)
    for problem in (levels, sums):
        expected, found = by_highs(problem), solve_alike(problem)
        assert found.optimal == (expected is not None)
        if expected is not None:
            value = found.level if problem is levels else float((problem.gain * found.x).sum())
            assert value == pytest.approx(expected, rel=1e-7)
            assert_feasible(problem, found.x, 1e-9)
            assert ((problem.rows * found.x).sum(axis=1) >= floors * (1 - 1e-9)).all()


def test_classes_of_jobs_change_neither_level_nor_who_is_held_down() -> None:
    a = random_problem(2, jobs=5)
    many = np.repeat(np.arange(5), 40)
    wide = {name: getattr(a, name)[many] for name in ("gangs", "usable", "gain", "rows", "weights", "floors", "held")}
    b = replace(a, capacity=20 * a.capacity, **wide)
    whole, alike = solve(b), solve_alike(b)
    assert alike.level == pytest.approx(whole.level, rel=1e-6)
    assert ((whole.multipliers > 1e-7) == (alike.multipliers > 1e-7)).all()
    assert_feasible(b, alike.x)
