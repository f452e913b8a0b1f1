"""Replays of trainings whose course is known: errors, bias, calibration, and what is known at each point."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.cli.lab.forecast_error import (
    Replay,
    Stretch,
    error_curve,
    replay,
    replays,
    score,
    scores,
    stretches_of,
    training_at,
)
from fairway.core.job import Regime
from fairway.core.prospect import Prospect, Spell, Stage

SLIDE = [Stretch(512, 30, 10.0), Stretch(4096, 70, 4.0)]


def test_a_change_is_known_from_the_moment_that_it_happens() -> None:
    def seen(elapsed_s: float) -> tuple[Spell, ...]:
        return training_at(SLIDE, elapsed_s).spells

    assert seen(0) == ((512, 0),)
    assert seen(299) == ((512, 29.9),)
    assert seen(300) == ((512, 30), (4096, 0))
    assert seen(340) == ((512, 30), (4096, 10))
    assert seen(580) == ((512, 30), (4096, 70))
    assert training_at(SLIDE, 0).epochs == 100


def test_the_slide_example_in_seconds() -> None:
    found = replay(SLIDE, "restatement", points=58)
    assert found.run_s == 580
    assert found.true_s[:3].tolist() == pytest.approx([580, 570, 560])
    # 120 s too long at first, and 3 s more with every epoch of 10 s, until the change is seen.
    assert found.error_s[:30].tolist() == pytest.approx([120 + 3 * epoch for epoch in range(30)])
    assert found.error_s[30:].tolist() == pytest.approx([0] * 28, abs=1e-9)
    assert (found.spread_s[:30] > 0).all()
    assert (found.spread_s[30:] == 0).all()


def test_reactive_is_blind_to_what_is_announced_and_exact_after_the_last_change() -> None:
    found = replay(SLIDE, "reactive", points=58)
    assert found.error_s[:30].tolist() == pytest.approx([420] * 30)
    assert found.error_s[30:].tolist() == pytest.approx([0] * 28, abs=1e-9)


def test_a_constant_training_is_forecast_exactly() -> None:
    found = scores(replays([[Stretch(64, 27, 500.0)]]))
    assert [found[name].mae_s for name in ("restatement", "reactive", "agnostic")] == pytest.approx([0] * 3, abs=1e-6)
    # The artifact's rule takes the epoch that is on for done: half an epoch on average, of 27.
    assert found["bayes"].relative == pytest.approx(0.5 / 27, rel=0.3)
    assert found["bayes"].bias < 0


def test_stages_that_never_come_are_still_expected() -> None:
    told = [*SLIDE, Stretch(8192, 0, 2.0)]
    found = replay(SLIDE, "restatement", points=58, announced=told)
    # At the start (10 + 4 + 2) / 3 s per epoch; after the change 70 epochs of 3 s instead of 4.
    assert found.predicted_s[0] == pytest.approx(1600 / 3)
    assert found.predicted_s[30] == pytest.approx(210)


def test_scores_weigh_jobs_alike_and_say_how_often_the_spread_held() -> None:
    short = Replay(100.0, np.array([100.0, 50.0]), np.array([110.0, 50.0]), np.array([5.0, 0.0]))
    long = Replay(1000.0, np.array([1000.0, 500.0]), np.array([900.0, 480.0]), np.array([60.0, 30.0]))
    found = score([short, long])
    assert (found.jobs, found.mae_s) == (2, pytest.approx(130 / 4))
    assert found.relative == pytest.approx((0.1 + 0 + 0.1 + 0.02) / 4)
    assert found.bias == pytest.approx((0.1 + 0 - 0.1 - 0.02) / 4)
    assert found.unsure == 0.75
    # Errors of 2, 1.67 and 0.67 spreads.
    assert (found.within_one, found.within_two) == (pytest.approx(1 / 3), 1)
    assert error_curve([short, long]) == pytest.approx([0.1, 0.01])


def test_a_method_without_spreads_has_no_calibration() -> None:
    assert score([replay(SLIDE, "reactive")])[4:] == (0, None, None)


def test_a_course_is_timed_on_the_gpu_type_that_is_best_for_all_of_it() -> None:
    regimes = (Regime(0.3, 512), Regime(1.0, 4096))
    speeds = ((0.1, 0.2, 9.0), (0.25, 0.1, 0.0))
    prospect = Prospect(100, tuple(Stage(b, each) for b, each in zip((512, 4096), speeds, strict=True)))
    assert stretches_of(prospect, regimes) == [(512, pytest.approx(30), 10), (4096, pytest.approx(70), 4)]
    nowhere = Prospect(100, (Stage(512, (0.1, 0.0)), Stage(4096, (0.0, 0.1))))
    assert stretches_of(nowhere, regimes) == []
