from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.job import JobSpec, Regime
from fairway.models.regimes import next_boundary, progress_after, regime_at, seconds_left
from fairway.models.restart import restart_cost_s

THIRDS = (Regime(1 / 3, 32, 1.0), Regime(2 / 3, 64, 2.0), Regime(1.0, 128, 4.0))


@st.composite
def regime_lists(draw: st.DrawFn) -> tuple[Regime, ...]:
    cuts = draw(st.lists(st.integers(1, 999), unique=True, max_size=6))
    ends = [cut / 1000 for cut in sorted(cuts)] + [1.0]
    return tuple(Regime(end, None, draw(st.floats(0.1, 10))) for end in ends)


def test_a_job_without_regimes_has_a_single_one() -> None:
    assert regime_at((), 0.4) == Regime(1.0)
    assert next_boundary((), 0.4) == 1.0
    assert seconds_left(100.0, 0.25, 5.0) == 15.0
    assert progress_after(100.0, 0.25, 5.0, 5.0) == 0.5


@pytest.mark.parametrize(
    ("progress", "batch"), [(0.0, 32), (0.33, 32), (1 / 3, 64), (1 / 3 - 1e-16, 64), (2 / 3, 128), (1.0, 128)]
)
def test_a_regime_ends_where_the_next_one_begins(progress: float, batch: int) -> None:
    assert regime_at(THIRDS, progress).batch_size == batch


def test_the_next_boundary_lies_ahead() -> None:
    assert [next_boundary(THIRDS, p) for p in (0.0, 1 / 3, 0.5, 2 / 3, 1.0)] == [1 / 3, 2 / 3, 2 / 3, 1.0, 1.0]


def test_thirds_add_up_exactly() -> None:
    even = tuple(Regime(r.until, None, 1.0) for r in THIRDS)
    assert seconds_left(300.0, 0.0, 1.0, even) == 300.0
    assert seconds_left(300.0, 0.0, 1.0, THIRDS) == pytest.approx(100 + 50 + 25, rel=1e-15)
    assert seconds_left(300.0, 2 / 3, 1.0, THIRDS) == pytest.approx(25, rel=1e-15)


def test_nothing_left_takes_no_time_and_no_rate_takes_for_ever() -> None:
    assert seconds_left(300.0, 1.0, 0.0, THIRDS) == 0.0
    assert seconds_left(0.0, 0.0, 1.0, THIRDS) == 0.0
    assert seconds_left(300.0, 0.5, 0.0, THIRDS) == math.inf
    assert progress_after(300.0, 0.5, 0.0, 1e9, THIRDS) == 0.5
    assert progress_after(0.0, 0.0, 1.0, 0.0, THIRDS) == 1.0


@given(regime_lists(), st.floats(1, 1e6), st.floats(0, 1), st.floats(0.01, 1e3))
def test_seconds_left_equals_the_sum_in_exact_fractions(
    regimes: tuple[Regime, ...], work: float, progress: float, rate: float
) -> None:
    start, exact = Fraction(progress), Fraction(0)
    for regime in regimes:
        end = Fraction(regime.until)
        if end > start:
            exact += (end - start) / Fraction(regime.speed)
            start = end
    expected = float(exact * Fraction(work) / Fraction(rate))
    assert seconds_left(work, progress, rate, regimes) == pytest.approx(expected, rel=1e-9, abs=1e-10 * work / rate)


@given(regime_lists(), st.floats(1, 1e6), st.floats(0, 0.99), st.floats(0.01, 1e3), st.floats(0, 1))
def test_running_part_of_the_time_leaves_the_rest(
    regimes: tuple[Regime, ...], work: float, progress: float, rate: float, part: float
) -> None:
    total_s = seconds_left(work, progress, rate, regimes)
    reached = progress_after(work, progress, rate, part * total_s, regimes)
    assert progress <= reached <= 1.0
    left_s = seconds_left(work, reached, rate, regimes)
    assert left_s == pytest.approx((1 - part) * total_s, rel=1e-6, abs=1e-9 * work / rate)


def test_a_restart_costs_what_the_job_says_or_else_the_default() -> None:
    assert restart_cost_s(JobSpec("a", 0.0, duration_s=1.0), 20.0) == 20.0
    assert restart_cost_s(JobSpec("a", 0.0, duration_s=1.0, checkpoint_s=0.0), 20.0) == 0.0
    assert restart_cost_s(JobSpec("a", 0.0, duration_s=1.0, checkpoint_s=45.0), 20.0) == 45.0
