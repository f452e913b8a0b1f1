"""Learning rates for larger batches, by the noise of gradients and with a warm-up."""

from __future__ import annotations

import math

import pytest

from fairway.train import Noise, adascale_factor, legw_factor, rate_factor


@pytest.mark.parametrize("variance", [0.0, 10.0, 1e4, 1e9])
def test_adascale_is_between_no_change_and_the_linear_rule(variance: float) -> None:
    noise, first = Noise(1.0, variance), 64
    factors = [adascale_factor(noise, first * ratio, first) for ratio in (1, 2, 8, 64)]
    assert factors[0] == 1.0
    assert factors == sorted(factors)
    for ratio, factor in zip((1, 2, 8, 64), factors, strict=True):
        assert 1.0 <= factor <= rate_factor(ratio, "linear")


def test_adascale_is_the_gain_and_adaptive_optimisers_get_its_root() -> None:
    noise = Noise(0.5, 320.0)
    assert adascale_factor(noise, 256, 32) == noise.gain(8, 32)
    assert adascale_factor(noise, 256, 32, adaptive=True) == math.sqrt(noise.gain(8, 32))
    assert noise.gain(8, 32) / 8 == pytest.approx(noise.efficiency(256, 32))


def test_without_an_estimate_the_rate_stays() -> None:
    assert adascale_factor(None, 256, 32) == 1.0
    assert adascale_factor(Noise(0.0, 0.0), 256, 32) == 1.0


def test_gradients_of_pure_noise_follow_the_linear_rule() -> None:
    assert adascale_factor(Noise(0.0, 3.0), 256, 32) == pytest.approx(8.0)


def test_legw_warms_up_for_as_many_steps_as_the_first_batch() -> None:
    assert [legw_factor(4, epochs, 2.5) for epochs in (0, 5, 10, 20)] == [0.0, 1.0, 2.0, 2.0]
    assert legw_factor(1, 1.25, 2.5) == 0.5
    assert legw_factor(9, 0, 0) == 3.0


@pytest.mark.parametrize(("batch", "first"), [(16, 32), (0, 0), (math.nan, 32), (32, -1)])
def test_adascale_refuses_batches_below_the_first(batch: float, first: float) -> None:
    with pytest.raises(ValueError, match="first <= batch"):
        adascale_factor(Noise(1.0, 1.0), batch, first)


@pytest.mark.parametrize("given", [(0, 1, 1), (2, -1, 1), (2, 1, math.nan)])
def test_legw_refuses_what_cannot_be(given: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        legw_factor(*given)
