"""The matching finds the least sum of completion times: against all schedules, and against a plain solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fairway.core.arrays import Floats
from fairway.solvers.matching import least_completion


def _random(seed: int, jobs: int = 8) -> tuple[Floats, list[Floats], Floats]:
    """Few jobs and machines with many ties, types on which a job cannot run, machines that are busy for a while."""
    random = np.random.default_rng(seed)
    machines = random.integers(1, 4, size=int(random.integers(1, 4)))
    times_s = random.integers(0, 10, size=(len(machines), int(random.integers(1, jobs + 1)))).astype(float)
    times_s[random.random(times_s.shape) < 0.15] = np.inf
    times_s[0, ~np.isfinite(times_s).any(axis=0)] = 3.0
    own_s = random.integers(-3, 4, size=times_s.shape).astype(float)
    return times_s, [random.integers(0, 12, count).astype(float) for count in machines], own_s


def _plainly(times_s: Floats, free_at_s: list[Floats], own_s: Floats) -> float:
    """The optimum with one column for every machine and position."""
    jobs = times_s.shape[1]
    columns = [
        free + position * times_s[kind][:, None] + own_s[kind][:, None]
        for kind, free in enumerate(free_at_s)
        for position in range(1, jobs + 1)
    ]
    cost = np.minimum(np.hstack(columns), 1e7)
    return float(cost[linear_sum_assignment(cost)].sum())


def _by_trying(times_s: Floats, free_at_s: list[Floats]) -> float:
    """The optimum over all schedules, in which each machine takes its jobs in the order of their length."""
    machines = [(kind, float(free)) for kind, all_free in enumerate(free_at_s) for free in all_free]
    best = np.inf
    for choice in itertools.product(range(len(machines)), repeat=times_s.shape[1]):
        total = 0.0
        for machine, (kind, free) in enumerate(machines):
            here = sorted(times_s[kind, job] for job, at in enumerate(choice) if at == machine)
            total += sum(free + end for end in itertools.accumulate(here))
        best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_total_is_that_of_a_plain_assignment_solver(seed: int) -> None:
    times_s, free_at_s, own_s = _random(seed)
    assert least_completion(times_s, free_at_s, own_s).total == pytest.approx(_plainly(times_s, free_at_s, own_s))


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_is_better(seed: int) -> None:
    times_s, free_at_s, _ = _random(seed, jobs=4)
    free_at_s = [free[:2] for free in free_at_s]
    assert least_completion(times_s, free_at_s).total == pytest.approx(_by_trying(times_s, free_at_s))


@pytest.mark.parametrize("seed", range(3))
def test_many_jobs_on_busy_machines_are_matched_optimally(seed: int) -> None:
    random = np.random.default_rng(seed)
    times_s = random.lognormal(5, 1.5, 60) * random.uniform(1, 8, (3, 60))
    free_at_s = [random.uniform(0, 2000, count) for count in (4, 3, 1)]
    found = least_completion(times_s, free_at_s)
    assert found.total == pytest.approx(_plainly(times_s, free_at_s, np.zeros_like(times_s)))


@pytest.mark.parametrize("seed", range(10))
def test_the_seats_add_up_to_the_total_and_no_seat_is_taken_twice(seed: int) -> None:
    times_s, free_at_s, own_s = _random(seed)
    found = least_completion(times_s, free_at_s, own_s)
    total = 0.0
    for kind, free in enumerate(free_at_s):
        for position in np.unique(found.positions[found.types == kind]).tolist():
            here = (found.types == kind) & (found.positions == position)
            assert here.sum() <= len(free)
            total += float(np.sort(free)[: here.sum()].sum())
            total += float((position * times_s[kind] + own_s[kind])[here].sum())
    assert found.total == pytest.approx(total)


def test_among_equals_the_shorter_queues_are_taken() -> None:
    times_s = np.array([[10.0, 15.0, 20.0, 20.0], [20.0, 25.0, 100.0, 90.0]])
    found = least_completion(times_s, [np.zeros(2), np.zeros(2)])
    assert found.total == 85
    assert found.types.tolist() == [1, 1, 0, 0]


def test_two_machines_and_three_jobs() -> None:
    found = least_completion(np.array([[1.0, 2.0, 3.0]]), [np.zeros(2)])
    assert found.total == 7
    assert found.positions.tolist() == [2, 1, 1]


def test_there_may_be_no_jobs_and_types_without_machines() -> None:
    assert least_completion(np.zeros((2, 0)), [np.zeros(1), np.zeros(0)]).total == 0
    found = least_completion(np.array([[1.0, 1.0], [5.0, 5.0]]), [np.zeros(0), np.zeros(1)])
    assert (found.types.tolist(), found.total) == ([1, 1], 15)


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_times_of_very_different_lengths_do_not_lead_round_in_circles(seed: int) -> None:
    # Where savings were lost in the rounding of long times, paths had circles, and a decision never ended.
    random = np.random.default_rng(seed)
    times_s = np.exp(random.normal(7, 2, (3, 40)))
    times_s[random.random((3, 40)) < 0.2] = 1e15
    times_s[0] = np.minimum(times_s[0], 1e6)
    found = least_completion(times_s, [np.zeros(1), np.zeros(5), np.zeros(1)])
    assert found.total < 1e9
