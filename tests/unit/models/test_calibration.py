"""Intervals of forecasts: right four times of five, whatever the errors are like, and also when they change."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from fairway.models.calibration import FLOOR_S, GUESS, LEAST, Calibration, Subject

Truth = Callable[[random.Random, float, float], float]
ERRORS: dict[str, Truth] = {
    "even": lambda rng, lead_s, when: lead_s * (1.0 + rng.gauss(0.0, 0.2)),
    "heavy tail": lambda rng, lead_s, when: lead_s * rng.paretovariate(1.1),
    "wide": lambda rng, lead_s, when: lead_s * rng.lognormvariate(0.0, 1.0),
    "too early": lambda rng, lead_s, when: lead_s * (1.5 + rng.gauss(0.0, 0.2)),
    "too late": lambda rng, lead_s, when: lead_s * (0.6 + rng.gauss(0.0, 0.1)),
    "some seconds": lambda rng, lead_s, when: lead_s + rng.expovariate(1 / 20.0),
    "drifts": lambda rng, lead_s, when: lead_s * (1.0 + 3.0 * when + rng.gauss(0.0, 0.2)),
    "jumps": lambda rng, lead_s, when: lead_s * (1.0 + 2.0 * (when > 0.5) + rng.gauss(0.0, 0.2)),
    "swings": lambda rng, lead_s, when: lead_s * rng.lognormvariate(0.0, 0.3 * (1.5 + math.sin(20.0 * when))),
}


@pytest.mark.parametrize("delay", [0, 50])
@pytest.mark.parametrize("error", ERRORS)
def test_four_of_five_lie_within(error: str, delay: int) -> None:
    """`delay`: so many forecasts are told before it is known what became of the first of them."""
    rng, calibration, told, open_ = random.Random(3), Calibration(), list[bool](), list[tuple[float, ...]]()
    subject, count = Subject("fifo", "start"), 3000
    for number in range(count):
        lead_s = math.exp(rng.uniform(0.0, 11.0))
        spread = calibration.interval(subject, lead_s)
        assert 0.0 <= spread.low_s <= lead_s <= spread.high_s
        actual_s = max(ERRORS[error](rng, lead_s, number / count), 0.0)
        told.append(spread.low_s <= actual_s <= spread.high_s)
        open_.append((subject, lead_s, spread, actual_s))  # type: ignore[arg-type]
        if len(open_) > delay:
            calibration.learn(*open_.pop(0))  # type: ignore[arg-type]
    later = told[500:]
    assert sum(later) / len(later) == pytest.approx(0.8, abs=0.03)


def test_as_long_as_little_is_known_the_interval_is_a_wide_guess() -> None:
    calibration, subject = Calibration(), Subject("fifo", "finish", "told")
    first = calibration.interval(subject, 100.0)
    assert (first.low_s, first.high_s) == pytest.approx((100 + GUESS[0] * 130, 100 + GUESS[1] * 130))
    assert calibration.interval(subject, 100.0, (50.0, 120.0))[:2] == (50.0, 120.0)
    # A guess never leaves out the forecast itself.
    assert calibration.interval(subject, 100.0, (150.0, 180.0))[:2] == (100.0, 180.0)
    for _ in range(LEAST - 1):
        calibration.learn(subject, 100.0, first, 110.0)
    assert calibration.interval(subject, 100.0) == first
    calibration.learn(subject, 100.0, first, 110.0)
    known = calibration.interval(subject, 100.0)
    assert (known.low_s, known.high_s) == pytest.approx((100.0, 110.0))


def test_the_closest_class_that_is_known_counts() -> None:
    calibration = Calibration()
    for policy, late in (("fifo", 0.1), ("srtf", 0.5)):
        for lead_s in (600.0, 6000.0) * LEAST:
            subject = Subject(policy, "finish", "told")
            actual_s = lead_s + late * (lead_s + FLOOR_S)
            calibration.learn(subject, lead_s, calibration.interval(subject, lead_s), actual_s)
    same, other = (calibration.interval(Subject(policy, "finish", "told"), 600.0) for policy in ("fifo", "srtf"))
    assert (same.scored_as, other.scored_as) == ("fifo finish told 1", "srtf finish told 1")
    assert same.high_s == pytest.approx(663.0)
    assert other.high_s == pytest.approx(915.0)
    assert calibration.interval(Subject("fifo", "finish", "told"), 50.0).scored_as == "fifo finish told"
    assert calibration.interval(Subject("fifo", "finish", "seen"), 50.0).scored_as == "fifo finish"
    assert calibration.interval(Subject("las", "finish", "seen"), 50.0).scored_as == "finish"
    assert calibration.interval(Subject("fifo", "start"), 50.0).scored_as == ""
