"""Norms of gradients, whatever they are made of."""

from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pytest

from fairway.train import gradients, learning_rate
from fairway.train.gradients import copied, layers, squared_norm, squared_norm_of_mean


@pytest.mark.parametrize(
    "gradient",
    [
        np.array([3.0, 4.0]),
        [np.array([3.0]), np.array([[4.0]])],
        [3, 4.0],
        {"weight": np.float32(3), "bias": [np.array(4)]},
        (part for part in (3.0, None, [4.0])),
        np.array([3.0, 4.0], dtype=np.float16),
    ],
    ids=["array", "arrays", "numbers", "mapping", "generator", "half"],
)
def test_the_squared_norm_is_the_sum_of_all_squares(gradient: Any) -> None:
    assert squared_norm(gradient) == 25.0


def test_squares_are_summed_over_layers_and_not_norms() -> None:
    assert squared_norm([np.full(4, 1.0), np.full(9, 1.0)]) == 13.0


def test_half_precision_neither_overflows_nor_loses_small_parts() -> None:
    assert squared_norm(np.full(4, 300.0, dtype=np.float16)) == 4 * 300.0**2
    ones = np.ones(100_000, dtype=np.float16)
    assert squared_norm(ones) == 100_000
    assert squared_norm_of_mean([ones, ones]) == 100_000


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_shows_in_the_norm_without_a_warning(bad: float) -> None:
    assert not math.isfinite(squared_norm([np.ones(3), np.array([1.0, bad])]))


@pytest.mark.parametrize("gradient", ["1", object(), np.array([1j])])
def test_what_is_no_gradient_is_refused(gradient: Any) -> None:
    with pytest.raises(TypeError):
        squared_norm(gradient)


def test_a_layer_without_a_gradient_counts_as_zeros() -> None:
    first = [np.array([2.0, 0.0]), None, None]
    second = [np.array([0.0, 2.0]), np.array([4.0]), None]
    assert squared_norm_of_mean([first, second]) == 1 + 1 + 4


def test_gradients_of_other_shapes_are_refused_rather_than_broadcast() -> None:
    with pytest.raises(ValueError, match="shape"):
        squared_norm_of_mean([[np.ones(3)], [np.ones(1)]])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        squared_norm_of_mean([[np.ones(3)], [np.ones(3), np.ones(3)]])


def test_a_copy_does_not_change_with_the_original() -> None:
    original = [np.ones(3), 2.0, None]
    copy = copied(original)
    original[0][:] = 5.0  # type: ignore[index,call-overload]
    assert squared_norm(copy) == 7.0
    assert [layer is None for layer in layers(copy)] == [False, False, True]


@pytest.mark.parametrize("module", [gradients, learning_rate])
def test_the_examples_in_docstrings_hold(module: Any) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
