"""Cuts of a model into groups: the worked example of PipeSwitch's specification, and every cut by brute force."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.gpu.grouping import best_cuts, end_s


def _all_cuts(layers: int) -> Iterator[tuple[int, ...]]:
    if not layers:
        yield ()
    for first in range(1, layers + 1):
        for rest in _all_cuts(layers - first):
            yield (first, *rest)


def test_little_overhead_makes_a_group_of_each_layer() -> None:
    assert best_cuts([1, 1, 1], [2, 2, 2], 0.5) == ((1, 1, 1), 7.5)
    ends = sorted(end_s(cuts, [1, 1, 1], [2, 2, 2], 0.5) for cuts in _all_cuts(3))
    assert ends == [7.5, 8.0, 8.5, 9.5]


def test_much_overhead_makes_two_groups() -> None:
    assert best_cuts([1, 1, 1], [2, 2, 2], 2) == ((2, 1), 10)
    assert sorted(end_s(cuts, [1, 1, 1], [2, 2, 2], 2) for cuts in _all_cuts(3)) == [10, 11, 11, 11]


def test_a_model_without_layers_has_no_groups() -> None:
    assert best_cuts([], [], 1.0) == ((), 0.0)


_TIMES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=9)


@given(_TIMES, st.integers(0, 15))
def test_no_other_cuts_end_earlier(layers: list[tuple[int, int]], overhead_s: int) -> None:
    transfers_s, computes_s = [float(one) for one, _ in layers], [float(one) for _, one in layers]
    found = best_cuts(transfers_s, computes_s, overhead_s)
    assert sum(found.sizes) == len(layers)
    assert found.end_s == end_s(found.sizes, transfers_s, computes_s, overhead_s)
    assert found.end_s == min(end_s(cuts, transfers_s, computes_s, overhead_s) for cuts in _all_cuts(len(layers)))


def test_a_deep_model_is_cut_quickly() -> None:
    transfers_s = [0.1 + 0.01 * (layer % 7) for layer in range(400)]
    computes_s = [0.1 + 0.02 * (layer % 5) for layer in range(400)]
    found = best_cuts(transfers_s, computes_s, 0.05)
    assert found.end_s == pytest.approx(end_s(found.sizes, transfers_s, computes_s, 0.05))
