"""The worked examples of Gavel's policies (OSDI 2020, and small ones that can be solved by hand)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fairway.policies.gavel.situation import Shares
from fairway.reproduce.systems.gavel.examples import plan_of

TWO_TYPES = ((40.0, 10.0), (12.0, 4.0), (100.0, 50.0))
THREE_TYPES = ((40.0, 20.0, 10.0), (12.0, 8.0, 4.0), (100.0, 75.0, 50.0))


def _throughput(rates: Sequence[Sequence[float]], shares: Shares) -> np.ndarray:
    return np.asarray((np.array(rates) * shares.x).sum(axis=1))


def _split(rates: Sequence[Sequence[float]]) -> np.ndarray:
    """An equal split: a third of each type's time for each of three jobs."""
    return np.asarray(np.array(rates).sum(axis=1) / 3)


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_min_fairness:published=on", "water_filling"])
def test_three_jobs_on_two_types_gain_a_tenth_over_an_equal_split(policy: str) -> None:
    shares = plan_of(policy, TWO_TYPES)
    got = _throughput(TWO_TYPES, shares)
    np.testing.assert_allclose(got / _split(TWO_TYPES), 12 / 11, rtol=1e-5)
    np.testing.assert_allclose(got, [18.1818, 5.81818, 54.5455], rtol=1e-5)
    np.testing.assert_allclose(shares.x, np.array([[5, 0], [5, 1], [1, 10]]) / 11, atol=1e-5)


def test_measured_against_the_mean_of_the_types_the_same_plan_has_level_8_11() -> None:
    got = _throughput(TWO_TYPES, plan_of("max_min_fairness", TWO_TYPES))
    np.testing.assert_allclose(got / np.array([25.0, 8.0, 75.0]), 8 / 11, rtol=1e-5)


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_min_fairness:published=on", "water_filling"])
def test_three_jobs_on_three_types_gain_one_part_in_59(policy: str) -> None:
    got = _throughput(THREE_TYPES, plan_of(policy, THREE_TYPES))
    assert (got / _split(THREE_TYPES)).min() == pytest.approx(60 / 59, rel=1e-5)


def test_three_jobs_that_end_together_after_200_seconds() -> None:
    steps = np.array([4000.0, 1200.0, 10000.0])
    shares = plan_of("min_makespan", TWO_TYPES, steps=steps.tolist())
    np.testing.assert_allclose(steps / _throughput(TWO_TYPES, shares), 200.0, rtol=1e-4)
    np.testing.assert_allclose(shares.x, [[0.5, 0], [0.5, 0], [0, 1]], atol=1e-4)


def test_the_published_makespan_is_within_its_bisection() -> None:
    steps = np.array([4000.0, 1200.0, 10000.0])
    got = _throughput(TWO_TYPES, plan_of("min_makespan:published=on", TWO_TYPES, steps=steps.tolist()))
    assert 200.0 * (1 - 1e-6) <= (steps / got).max() <= 200.0 * 1.05


def test_the_largest_sum_is_110_and_starves_a_job() -> None:
    shares = plan_of("max_throughput", TWO_TYPES)
    np.testing.assert_allclose(_throughput(TWO_TYPES, shares), [10.0, 0.0, 100.0], atol=1e-4)


@pytest.mark.parametrize(
    ("together", "alone", "value"),
    [((0.6, 0.6), (0.0, 0.0), 0.6), ((0.9, 0.2), (0.0, 7 / 17), 9 / 17)],
    ids=["alike", "unequal"],
)
def test_two_jobs_that_share_a_gpu(together: tuple[float, float], alone: tuple[float, float], value: float) -> None:
    """In turns each would make half of its steps. Of an unequal pair the one that loses most also runs alone."""
    rates = ((1.0,), (1.0,))
    shares = plan_of("max_min_fairness:packing=on", rates, together=together)
    np.testing.assert_allclose(shares.x[:, 0], alone, atol=1e-5)
    assert shares.pairs.tolist() == [[0, 1]]
    assert shares.pair_x.sum() == pytest.approx(1.0 - sum(alone), abs=1e-5)
    got = _throughput(rates, shares) + shares.pair_x.sum() * np.array(together)
    np.testing.assert_allclose(got, value, rtol=1e-5)
    np.testing.assert_allclose(plan_of("max_min_fairness", rates).x, 0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [(3, (0.5, 0.5, 1.0, 1.0)), (2, (1 / 3, 1 / 3, 1.0, 1 / 3)), (4, (1.0, 1.0, 1.0, 1.0))],
)
def test_two_entities_one_of_which_goes_in_order(gpus: int, wanted: tuple[float, ...]) -> None:
    """a and b share what a weight of 1 gives, c and d are served in order from a weight of 2."""
    policy = "hierarchical:levels=user,weights=e:1/f:2,fifo=f"
    shares = plan_of(policy, ((1.0,),) * 4, [gpus], users="eeff")
    np.testing.assert_allclose(shares.x[:, 0], wanted, atol=1e-4)
