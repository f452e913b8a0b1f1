"""The Gittins index: the values of the worked example, and laws that hold for any distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.models.gittins import MOST_CELLS, gittins_index, index_table

EXAMPLE = np.array([4.0, 8.0, 12.0])


@pytest.mark.parametrize(
    ("attained", "best", "quantum_4"),
    [
        (0, 1 / 8, 1 / 12),
        (2, 1 / 6, 1 / 10),
        (4, 1 / 6, 1 / 8),
        (6, 1 / 4, 1 / 6),
        (8, 1 / 4, 1 / 4),
        (10, 1 / 2, 1 / 2),
    ],
)
def test_the_values_of_the_worked_example(attained: float, best: float, quantum_4: float) -> None:
    assert gittins_index(EXAMPLE, attained) == pytest.approx(best)
    assert gittins_index(EXAMPLE, attained, 4.0) == pytest.approx(quantum_4)


def test_older_than_all_samples_means_no_hope() -> None:
    assert gittins_index(EXAMPLE, 12.0) == gittins_index(EXAMPLE, 99.0) == 0.0


samples = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40).map(lambda values: np.sort(np.array(values)))


@given(samples, st.floats(0, 1e6))
def test_the_best_quantum_is_at_least_as_good_as_any(values: np.ndarray, attained: float) -> None:
    best = gittins_index(values, attained)
    for quantum in (0.5, 10.0, 1e3, 1e7):
        assert gittins_index(values, attained, quantum) <= best * (1 + 1e-9)


@given(samples, st.floats(0, 1e6), st.floats(0.5, 100))
def test_the_index_scales_with_the_unit_of_service(values: np.ndarray, attained: float, unit: float) -> None:
    assert gittins_index(values * unit, attained * unit) * unit == pytest.approx(
        gittins_index(values, attained), rel=1e-6
    )


def test_for_equal_jobs_the_index_is_one_over_what_is_left() -> None:
    equal = np.full(5, 100.0)
    assert [gittins_index(equal, age) for age in (0.0, 50.0, 99.0)] == pytest.approx([0.01, 0.02, 1.0])


def test_for_a_heavy_tail_the_index_falls_with_age() -> None:
    values = np.sort(np.random.default_rng(3).pareto(0.9, 4000) * 100 + 1)
    cells, index = index_table(values)
    inner = index[(cells > 200) & (cells < 5000)]
    assert len(inner) > 5
    assert (np.diff(inner) < 0).mean() > 0.7
    assert inner[-1] < 0.2 * inner[0]


@given(samples)
def test_the_table_is_a_step_function_of_the_index(values: np.ndarray) -> None:
    cells, index = index_table(values)
    assert cells[0] == 0.0
    assert len(cells) <= MOST_CELLS + 1
    assert (np.diff(cells) > 0).all()
    assert index.tolist() == [gittins_index(values, float(age)) for age in cells]


def test_without_samples_the_table_is_flat() -> None:
    assert index_table(np.zeros(0))[1].tolist() == [0.0]
