"""The market of a window: Fairway's form is free of scales, the published one is that of the public code."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shockwave_samples import market_of, outlook_of, random_market

from fairway.core.arrays import Ints
from fairway.policies.shockwave.program import WindowMarket, best_rho, own_program
from fairway.published.shockwave import LOG_BASES, LOG_VALUES, published_budgets, published_program
from fairway.solvers.window import Window, plan_window

SEEDS = st.integers(0, 1000)


def tiny(now_s: float = 0.0) -> WindowMarket:
    """Two GPUs, three rounds. A: two GPUs, 10 epochs of a minute, fair finish at 1800 s. B: half of 4 epochs of a
    minute are done, 360 s. C: half of 20 epochs of 30 s, 900 s."""
    outlook = outlook_of([600, 120, 300], epochs=[10, 4, 20], done=[0, 2, 10], epoch_s=[60, 60, 30])
    about = {"age_s": np.full(3, now_s), "fair_s": np.array([1800.0, 360.0, 900.0]), "rounds": 3, "now_s": now_s}
    return market_of(outlook, [2, 1, 1], 2, **about)


def test_the_published_program_of_three_jobs_is_solved_exactly() -> None:
    window, preference = published_program(tiny(), 1e-3, 12.0)
    planned = plan_window(window, preference)
    assert planned.counts.tolist() == [2, 1, 1]
    assert planned.objective == pytest.approx(-0.50259, abs=5e-6)
    assert window.left[np.arange(3), planned.counts].tolist() == [360.0, 0.0, 180.0]
    assert sorted(tuple(row.nonzero()[0].tolist()) for row in planned.rounds) == [(0,), (0,), (1, 2)]
    every = [counts for counts in product(range(4), repeat=3) if fits(counts)]
    assert max(window.objective(np.array(counts)) for counts in every) == pytest.approx(planned.objective)


def fits(counts: tuple[int, ...]) -> bool:
    """A takes whole rounds; B and C share the others."""
    a, b, c = counts
    return a + max(b, c) <= 3


def test_a_fair_finish_that_cannot_be_kept_raises_the_weight_of_who_misses_it() -> None:
    """At 240 s the window ends at 600 s, after B's fair finish at 360 s: B would end at 240 + 120 / (2/3) = 420 s."""
    budgets = published_budgets(tiny(240.0), 12.0)
    assert budgets.tolist() == [1.0, pytest.approx((420 / 360) ** 12), 1.0]
    assert budgets[1] == pytest.approx(6.36, abs=0.005)
    window, preference = published_program(tiny(240.0), 1e-3, 12.0)
    assert preference.urgency.tolist() == budgets.tolist()
    logs = np.interp([2 / 4, 4 / 4], LOG_BASES, LOG_VALUES) / 9
    assert window.values[1, :2].tolist() == pytest.approx((budgets[1] * logs).tolist())


def test_whoever_is_nearly_done_and_late_weighs_most() -> None:
    late = tiny(240.0)
    nearly = late._replace(outlook=late.outlook._replace(left_s=np.array([600.0, 119.0, 300.0])))
    rho = (240 + 119 * 1.5) / 360
    assert published_budgets(nearly, 12.0)[1] == pytest.approx(rho**100)


@pytest.mark.parametrize(("progress", "log"), [(0.05, -10.764), (0.1, -7.712), (0.3, -1.263), (0.5, -0.714), (1.0, 0)])
def test_the_logarithm_is_taken_by_pieces(progress: float, log: float) -> None:
    assert np.interp(progress, LOG_BASES, LOG_VALUES) == pytest.approx(log, abs=1e-3)


@pytest.mark.parametrize("makespan_weight", [1e-3, 10.0, 1e5])
def test_fair_finishes_that_can_be_kept_are_kept_whatever_the_makespan_costs(makespan_weight: float) -> None:
    """The short job needs a round now; the long one could end earlier with all of them."""
    outlook = outlook_of([30_000.0, 120.0], epochs=[500.0, 2.0])
    market = market_of(outlook, [1, 1], 1, fair_s=np.array([1e6, 2400.0]))
    window, preference = published_program(market, makespan_weight, 5.0)
    assert plan_window(window, preference).counts.tolist() == [19, 1]


def test_the_whole_window_is_charged_to_everybody() -> None:
    """With less than the window left to its fair finish a job cannot keep it, though it could end in time."""
    outlook = outlook_of([120.0, 120.0])
    kept = market_of(outlook, [1, 1], 1, fair_s=np.array([2400.0, 2400.0]))
    missed = market_of(outlook, [1, 1], 1, fair_s=np.array([2399.0, 2400.0]), age_s=np.array([200.0, 0.0]))
    assert published_program(kept, 1e-3, 5.0)[0].values.min() < -1e5
    assert published_program(missed, 1e-3, 5.0)[0].values.min() > -1e5


def planned_counts(market: WindowMarket, makespan_weight: float = 1.0, ftf_power: float = 4.0) -> Ints:
    return plan_window(*own_program(market, makespan_weight, ftf_power)).counts


@given(SEEDS)
def test_a_cluster_twice_as_large_with_twice_the_jobs_is_worth_the_same(seed: int) -> None:
    market = random_market(seed, 12, 8)
    double = WindowMarket(
        *(
            np.concatenate([column, column]) if isinstance(column, np.ndarray) else column
            for column in market._replace(capacity=16, outlook=None)
        )
    )
    outlook = market.outlook
    twice = double._replace(outlook=outlook.of(np.tile(np.arange(12), 2)))
    one, other = own_program(market, 1.0, 4.0)[0], own_program(twice, 1.0, 4.0)[0]
    counts = plan_window(one).counts
    assert other.objective(np.tile(counts, 2)) == pytest.approx(one.objective(counts), rel=1e-9)
    assert plan_window(other).bound == pytest.approx(plan_window(one).bound, rel=1e-6)


@given(SEEDS)
def test_twice_the_jobs_of_one_gpu_on_twice_the_gpus_are_planned_as_well(seed: int) -> None:
    """Plans of the two sizes are worth the same up to 2 % of what they gain; whole rounds make the difference."""
    left_s = np.random.default_rng(seed).uniform(200.0, 9000.0, 6).tolist()
    small = plan_window(*own_program(market_of(outlook_of(left_s), [1] * 6, 3), 1.0, 4.0))
    large = plan_window(*own_program(market_of(outlook_of(left_s * 2), [1] * 12, 6), 1.0, 4.0))
    assert large.objective == pytest.approx(small.objective, abs=0.02 * (small.bound - small.idle))
    assert large.counts.sum() == 2 * small.counts.sum()


@given(SEEDS, st.sampled_from([0.25, 4.0, 1024.0]))
def test_the_unit_of_time_does_not_matter(seed: int, unit: float) -> None:
    """Powers of two, so that not even rounding differs."""
    market = random_market(seed, 15, 8)
    outlook = market.outlook
    times = {name: getattr(outlook, name) * unit for name in outlook._fields if name.endswith("_s")}
    names = ("age_s", "restart_s", "fair_s", "round_s", "now_s")
    scaled = market._replace(
        outlook=outlook._replace(**times), **{name: getattr(market, name) * unit for name in names}
    )
    assert planned_counts(scaled).tolist() == planned_counts(market).tolist()


@given(SEEDS)
def test_values_are_concave_and_grow_and_what_is_left_falls(seed: int) -> None:
    for program, makespan_weight in ((own_program, 1.0), (published_program, 1e-3), (published_program, 1e5)):
        window, preference = program(random_market(seed, 20, 8), makespan_weight, 5.0)
        gains = np.diff(window.values, axis=1)
        close = 2e-9 * (1.0 + np.abs(window.values).max())
        assert (gains >= -close).all()
        assert (np.diff(gains, axis=1) <= close).all()
        assert (np.diff(window.left, axis=1) <= 0).all()
        assert np.isfinite(preference.urgency).all()


def alike(jobs: int, **about: object) -> WindowMarket:
    return market_of(outlook_of([5000.0] * jobs), [1] * jobs, 1, **about)


def test_a_heavier_job_gets_more_rounds() -> None:
    assert planned_counts(alike(2), 0.0).tolist() == [10, 10]
    one, other = planned_counts(alike(2, weights=np.array([1.0, 1.2])), 0.0).tolist()
    assert one < other


def test_whoever_lags_behind_its_fair_finish_gets_more_rounds_if_the_power_says_so() -> None:
    late = alike(2, age_s=np.array([0.0, 5000.0]))
    assert best_rho(late).tolist() == [0.5, 1.0]
    one, other = planned_counts(late, 0.0).tolist()
    assert one < other
    assert planned_counts(late, 0.0, 0.0).tolist() == [10, 10]


def test_the_price_of_the_makespan_gives_rounds_to_the_longest_job() -> None:
    market = market_of(outlook_of([600.0, 600.0, 9000.0]), [1, 1, 1], 1)
    assert planned_counts(market, 0.0)[2] < planned_counts(market, 10.0)[2] == 20


def test_a_start_costs_a_part_of_the_first_round() -> None:
    running = alike(2, running=np.array([True, False]), restart_s=np.full(2, 60.0))
    window, _ = own_program(running, 0.0, 4.0)
    assert window.values[0, -1] > window.values[1, -1]
    assert (np.diff(window.values, 2, axis=1) <= 1e-12).all()


def test_rho_is_bounded_so_that_budgets_are_finite() -> None:
    odd = alike(3, age_s=np.array([0.0, 1e12, 0.0]), fair_s=np.array([0.0, 1.0, 1e30]))
    for program in (own_program, published_program):
        window, preference = program(odd, 1.0, 100.0)
        assert np.isfinite(window.values).all()
        assert np.isfinite(preference.urgency).all()


def test_a_window_for_nobody_is_not_asked_for() -> None:
    """The policy leaves out GPU types without jobs; a window without jobs is worth nothing all the same."""
    nothing = Window(np.zeros(0, dtype=np.int64), 4, np.zeros((0, 21)), np.zeros((0, 21)))
    assert plan_window(nothing).objective == 0.0
