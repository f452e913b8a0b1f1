"""Batch sizes and learning rates that follow from measurements."""

from __future__ import annotations

import math

import pytest

from fairway.train import AccordionSchedule, NoiseEstimator, NoiseScaleSchedule, rate_factor


def test_the_batch_doubles_once_per_epoch_up_to_what_memory_holds() -> None:
    schedule = NoiseScaleSchedule(16, 256)
    assert [schedule.end_epoch(1e6) for _ in range(6)] == [32, 64, 128, 256, 256, 256]


def test_a_noise_scale_equal_to_the_batch_does_not_double_it() -> None:
    estimator, schedule = NoiseEstimator(), NoiseScaleSchedule(128)
    estimator.observe_norms(10.0, 4.0, 32, 128)
    assert estimator.noise_scale == 128
    assert schedule.end_epoch(estimator.noise_scale) == 128
    assert schedule.end_epoch(math.nextafter(128, 200)) == 256


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_without_an_estimate_there_is_no_decision(unknown: float | None) -> None:
    schedule = NoiseScaleSchedule(16)
    assert schedule.end_epoch(unknown) == 16
    assert schedule.end_epoch(17.0) == 32


def test_the_batch_stops_below_a_limit_that_is_no_power_of_two_times_the_first() -> None:
    schedule = NoiseScaleSchedule(16, 100)
    assert [schedule.end_epoch(1e6) for _ in range(4)] == [32, 64, 64, 64]


def test_a_falling_noise_scale_does_not_shrink_the_batch() -> None:
    schedule = NoiseScaleSchedule(16)
    assert [schedule.end_epoch(scale) for scale in (20.0, 1.0, 0.0)] == [32, 32, 32]


def test_decisions_may_be_rarer_than_epochs() -> None:
    schedule = NoiseScaleSchedule(16, interval=3)
    assert [schedule.end_epoch(1e6) for _ in range(7)] == [16, 16, 32, 32, 32, 64, 64]


def test_a_resumed_job_with_less_memory_halves_its_batch() -> None:
    before, after = NoiseScaleSchedule(5, 80), NoiseScaleSchedule(5, 30)
    for _ in range(4):
        before.end_epoch(1e6)
    after.restore(before.state())
    assert (before.batch, after.batch) == (80, 20)
    assert after.rate_factor == 4


def test_accordion_falls_back_to_the_small_batch_when_a_regime_turns_critical() -> None:
    schedule = AccordionSchedule(512, 4096, interval=1)
    assert schedule.batch == 512
    batches = [schedule.end_epoch(norm) for norm in (10, 4, 3.5, 3.4, 1.2, 1.1)]
    assert batches == [512, 512, 4096, 4096, 512, 4096]
    assert schedule.rate_factor == 8


@pytest.mark.parametrize(
    ("rule", "factors"),
    [
        ("linear", [0.25, 1, 4, 8, 16, 128]),
        ("sqrt", [0.5, 1, 2, math.sqrt(8), 4, math.sqrt(128)]),
        ("linear_then_sqrt", [0.25, 1, 4, 8, 8 * math.sqrt(2), 32]),
    ],
)
def test_rules_for_the_learning_rate(rule: str, factors: list[float]) -> None:
    ratios = [0.25, 1, 4, 8, 16, 128]
    assert [rate_factor(ratio, rule) for ratio in ratios] == pytest.approx(factors)  # type: ignore[arg-type]
    assert factors == sorted(factors)


def test_the_knee_can_be_moved() -> None:
    assert rate_factor(16, knee=4) == pytest.approx(8)
    assert rate_factor(16, knee=16) == 16


def test_schedules_scale_the_rate_by_their_rule() -> None:
    linear, sqrt = NoiseScaleSchedule(16, 4096, rule="linear"), NoiseScaleSchedule(16, 4096, rule="sqrt")
    for _ in range(4):
        linear.end_epoch(1e6)
        sqrt.end_epoch(1e6)
    assert (linear.rate_factor, sqrt.rate_factor) == (16, 4)


def test_settings_must_make_sense() -> None:
    with pytest.raises(ValueError, match="first"):
        NoiseScaleSchedule(32, 16)
    with pytest.raises(ValueError, match="interval"):
        NoiseScaleSchedule(16, interval=0)
    with pytest.raises(ValueError, match="small"):
        AccordionSchedule(64, 32)
    with pytest.raises(ValueError, match="cubic"):
        NoiseScaleSchedule(16, rule="cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cubic"):
        AccordionSchedule(16, 32, rule="cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        rate_factor(0)
