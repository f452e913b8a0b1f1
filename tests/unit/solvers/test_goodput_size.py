"""Cluster sizes for a band of utility."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.solvers.goodput_placement import Placing
from fairway.solvers.goodput_search import search
from fairway.solvers.goodput_size import sizes_in_band, utility


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("most", [1, 7, 64])
def test_the_sizes_are_those_of_trying_all(scale: float, most: int) -> None:
    def falls(nodes: int) -> float:
        return min(1.0, scale / (nodes + scale))

    found = sizes_in_band(falls, most)
    inside = [nodes for nodes in range(1, most + 1) if 0.35 <= falls(nodes) <= 0.65]
    near = min(range(1, most + 1), key=lambda nodes: abs(falls(nodes) - 0.5))
    assert abs(falls(found.nearest) - 0.5) == pytest.approx(abs(falls(near) - 0.5))
    if inside:
        assert (found.fewest, found.most) == (inside[0], inside[-1])
    else:
        assert found.fewest == found.nearest == found.most


def test_few_sizes_are_tried() -> None:
    tried: list[int] = []

    def falls(nodes: int) -> float:
        tried.append(nodes)
        return 20.0 / (nodes + 20.0)

    assert sizes_in_band(falls, 1000).nearest == 20
    assert len(tried) == len(set(tried)) < 40


def test_jobs_that_scale_badly_deserve_fewer_nodes() -> None:
    def size(bend: float) -> int:
        def utility_of(nodes: int) -> float:
            replicas = np.arange(4 * nodes + 1)
            speedup = replicas / (1.0 + bend * np.maximum(replicas - 1, 0))
            table = np.tile(speedup, (3, 2, 1))
            most, held = np.full(3, 4 * nodes), np.zeros((3, nodes), dtype=np.int64)
            placing = Placing(table, np.full(nodes, 4), most, held, np.ones(3))
            return utility(placing, search(placing).rows)

        return sizes_in_band(utility_of, 12).nearest

    assert 1 <= size(1.0) < size(0.2)


@pytest.mark.parametrize(("most", "low", "high"), [(0, 0.3, 0.6), (4, 0.6, 0.3), (4, -1.0, 0.3)])
def test_a_band_that_cannot_be_is_an_error(most: int, low: float, high: float) -> None:
    with pytest.raises(ValueError, match="at least 1 node"):
        sizes_in_band(lambda nodes: 1.0, most, low, high)
