"""Where many allocations are equally good, the embedding ends where ECOS does.

The figures are those that Gavel's policies returned with ECOS for small inputs (recorded from the public artifact).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairway.published.embedding import solve_embedded
from fairway.solvers.allocation import Allocation


def level_problem(rows: list[list[float]], gangs: list[float], capacity: list[float]) -> Allocation:
    wide = np.array(rows)
    base = Allocation.over(np.array(gangs), np.array(capacity), wide > 0)
    scaled = wide * np.array(gangs)[:, None]
    return replace(base, rows=scaled, weights=np.ones(len(wide)), held=np.ones(len(wide), dtype=bool), level_gain=1.0)


AGNOSTIC = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
RATES = [[2.0, 1.0, 0.5], [3.0, 2.0, 1.0], [4.0, 3.0, 2.0], [1.0, 1.0, 1.0]]
NORMAL = [[rate / (sum(row) / 3) for rate in row] for row in RATES]

LEVELS = [
    (AGNOSTIC, [1.0, 1.0], [4.0, 8.0, 6.0], [[0.273461, 0.398096, 0.328443]] * 2),
    (AGNOSTIC, [2.0, 1.0], [4.0, 4.0, 4.0], [[0.283535] * 3, [0.333333] * 3]),
    (AGNOSTIC, [2.0, 1.0], [4.0, 8.0, 6.0], [[0.231861, 0.349122, 0.285904], [0.292695, 0.373571, 0.333734]]),
    (AGNOSTIC, [2.0, 2.0], [4.0, 8.0, 6.0], [[0.252821, 0.412424, 0.334755]] * 2),
    (
        NORMAL,
        [1.0, 2.0, 4.0, 1.0],
        [4.0, 4.0, 4.0],
        [
            [0.514986, 0.213476, 0.157792],
            [0.260548, 0.279344, 0.275822],
            [0.220127, 0.257617, 0.296743],
            [0.354414, 0.328936, 0.316649],
        ],
    ),
]


@pytest.mark.parametrize(("rows", "gangs", "capacity", "expected"), LEVELS)
def test_levels_end_where_ecos_does(rows, gangs, capacity, expected) -> None:
    found = solve_embedded(level_problem(rows, gangs, capacity))
    assert found.optimal
    assert np.allclose(found.x, expected, atol=2e-4)


SUMS = [
    (RATES[:2], [[0.493788, 0.506212, 0.0], [0.506212, 0.493788, 0.0]]),
    (RATES, [[0.0, 0.0, 0.0], [0.513152, 0.486848, 0.0], [0.486848, 0.513152, 0.0], [0.0, 0.0, 1.0]]),
]


@pytest.mark.parametrize(("rates", "expected"), SUMS)
def test_sums_end_near_to_where_ecos_does(rates, expected) -> None:
    wide = np.array(rates)
    base = Allocation.over(np.ones(len(wide)), np.ones(3), wide > 0)
    found = solve_embedded(replace(base, gain=wide))
    assert found.optimal
    assert np.allclose(found.x, expected, atol=0.03)


def test_a_makespan_without_anything_to_maximise_ends_near_to_where_ecos_does() -> None:
    wide, left = np.array(RATES), np.array([30000.0, 50000.0, 100000.0, 50000.0])
    base = Allocation.over(np.ones(4), np.ones(3), wide > 0)
    # The last makespan for which the bisection of the artifact finds an allocation.
    problem = replace(base, rows=wide, floors=left / 50344.913, held=np.ones(4, dtype=bool))
    found = solve_embedded(problem)
    assert found.optimal
    expected = [
        [0.241018, 0.173807, 0.134196],
        [0.212038, 0.184498, 0.14833],
        [0.290559, 0.225768, 0.15472],
        [0.164629, 0.334459, 0.494061],
    ]
    assert np.allclose(found.x, expected, atol=0.015)
