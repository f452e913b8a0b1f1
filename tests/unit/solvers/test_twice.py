"""Numbers of twice the precision, against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fairway.solvers.twice import added_up


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 200, 1001])
def test_sums_are_those_of_fractions(size: int) -> None:
    rng = np.random.default_rng(size)
    high = rng.normal(size=(2, 3, size)) * np.exp2(rng.integers(-40, 40, size=(2, 3, size)))
    low = high * 1e-17 * rng.normal(size=high.shape)
    totals, rests = added_up(high, low)
    for at in np.ndindex(2, 3):
        exact = sum(map(Fraction, high[at].tolist())) + sum(map(Fraction, low[at].tolist()))
        found = Fraction(float(totals[at])) + Fraction(float(rests[at]))
        assert abs(found - exact) <= abs(Fraction(float(np.abs(high[at]).sum()))) * Fraction(2) ** -100


@pytest.mark.parametrize("row", [[1e308, 1e308, 1e308], [np.inf, -np.inf, 1.0], [np.nan, 1.0, 1.0]])
def test_a_sum_without_a_value_is_not_a_number(row: list[float]) -> None:
    high, low = added_up(np.array([row]), np.zeros((1, 3)))
    assert np.isnan(high + low).all()
