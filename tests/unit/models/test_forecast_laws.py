"""Laws of every forecast, whatever was announced and seen; and its spread against draws from the Dirichlet."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairway.core.prospect import Spell, Stage, Training
from fairway.models.forecast import METHODS, Method, forecast

BATCHES = st.sampled_from([8, 16, 32, 64])
LENGTHS = st.floats(0.0, 400.0)
METHOD = st.sampled_from(METHODS)


@st.composite
def trainings(draw: st.DrawFn, announced: bool = False) -> tuple[Training, tuple[float, ...]]:
    """A training at some point, and what its epochs take; `announced`: what was seen is a beginning of its stages."""
    batches = draw(st.lists(BATCHES, min_size=1, max_size=6))
    if announced:
        batches = [batch for at, batch in enumerate(batches) if at == 0 or batch != batches[at - 1]]
        seen = batches[: draw(st.integers(0, len(batches)))]
    else:
        seen = draw(st.lists(BATCHES, max_size=6))
    # No epochs at all in a stage would be a stage skipped.
    spells = tuple(Spell(batch, draw(st.floats(0.5, 400.0) if announced else LENGTHS)) for batch in seen)
    done = sum(spell.epochs for spell in spells)
    epochs = max(1.0, draw(st.floats(0.9, 3.0)) * done) if done else draw(st.floats(1.0, 1000.0))
    speeds = tuple(draw(st.floats(0.5, 5000.0)) for _ in batches)
    return Training(epochs, tuple(Stage(batch, (1.0,)) for batch in batches), spells), speeds


@given(case=trainings(), method=METHOD)
def test_nothing_is_negative_or_undefined(case: tuple[Training, tuple[float, ...]], method: Method) -> None:
    training, epoch_s = case
    found = forecast(training, epoch_s, method)
    assert len(found.epochs) == len(found.left) == len(epoch_s)
    assert all(math.isfinite(value) and value >= 0 for value in (*found.epochs, *found.left, *found[2:]))
    assert found.epoch_s in epoch_s
    spent_s = sum(left * duration for left, duration in zip(found.left, epoch_s, strict=True))
    if method != "bayes" or len(set(epoch_s)) == 1:
        assert found.remaining_s == pytest.approx(spent_s, rel=1e-9)


@given(case=trainings(announced=True), method=METHOD)
def test_expected_totals_add_up_to_the_epochs(case: tuple[Training, tuple[float, ...]], method: Method) -> None:
    training, epoch_s = case
    assume(training.done <= training.epochs)
    found = forecast(training, epoch_s, method)
    assert sum(found.epochs) == pytest.approx(training.epochs)
    if method != "bayes":
        assert sum(found.left) == pytest.approx(training.epochs - training.done, abs=1e-9)


@given(case=trainings(announced=True))
def test_regimes_that_are_over_have_exactly_what_was_seen(case: tuple[Training, tuple[float, ...]]) -> None:
    training, epoch_s = case
    found = forecast(training, epoch_s)
    over = len(training.spells) - 1
    for stage in range(over):
        assert (found.epochs[stage], found.left[stage]) == (training.spells[stage].epochs, 0.0)
    assert len(set(found.left[max(0, over) :])) == 1


@given(case=trainings(), method=METHOD)
def test_the_time_left_lies_between_the_slowest_and_the_fastest_stage(
    case: tuple[Training, tuple[float, ...]], method: Method
) -> None:
    training, epoch_s = case
    left = max(0.0, training.epochs - training.done)
    found = forecast(training, epoch_s, method)
    # The posterior knows whole epochs only.
    begun = 1.0 if method == "bayes" and left else 0.0
    assert found.remaining_s <= (left + begun) * max(epoch_s) * (1 + 1e-9)
    if method != "bayes":
        assert found.remaining_s >= left * min(epoch_s) * (1 - 1e-9)


@given(case=trainings(), method=st.sampled_from(["restatement", "reactive", "agnostic"]), more=st.floats(0.0, 50.0))
def test_the_time_left_falls_while_a_regime_goes_on(
    case: tuple[Training, tuple[float, ...]], method: Method, more: float
) -> None:
    training, epoch_s = case
    assume(training.spells)
    last = training.spells[-1]
    later = training._replace(spells=(*training.spells[:-1], Spell(last.batch_size, last.epochs + more)))
    before_s, after_s = (forecast(now, epoch_s, method).remaining_s for now in (training, later))
    assert after_s <= before_s * (1 + 1e-9)


@given(case=trainings(), method=METHOD, factor=st.floats(0.1, 10.0))
def test_slower_gpus_scale_time_and_spread(
    case: tuple[Training, tuple[float, ...]], method: Method, factor: float
) -> None:
    training, epoch_s = case
    plain = forecast(training, epoch_s, method)
    slower = forecast(training, [factor * each for each in epoch_s], method)
    assert (slower.epochs, slower.left) == (plain.epochs, plain.left)
    assert slower.remaining_s == pytest.approx(factor * plain.remaining_s)
    # A spread of (nearly) equal durations is what rounding leaves of a difference of squares.
    assert slower.spread_s == pytest.approx(factor * plain.spread_s, rel=1e-4, abs=1e-6 * (1 + slower.remaining_s))


@given(case=trainings(announced=True))
def test_the_last_regime_has_no_spread(case: tuple[Training, tuple[float, ...]]) -> None:
    training, epoch_s = case
    assume(len(training.spells) == len(training.stages))
    assert forecast(training, epoch_s).spread_s == 0


@pytest.mark.parametrize("stages", [2, 3, 6])
@pytest.mark.parametrize("done", [0.0, 12.5, 99.0])
def test_the_spread_of_the_restated_prior_is_that_of_draws(stages: int, done: float) -> None:
    epoch_s = tuple(10.0 / (1 + stage) for stage in range(stages))
    training = Training(100.0, tuple(Stage(16 << k, (1.0,)) for k in range(stages)), (Spell(16, done),))
    found = forecast(training, epoch_s)
    left = 100.0 - done
    draws = np.random.default_rng(5).dirichlet([left / stages] * stages, 40_000)
    drawn_s = left * draws @ np.array(epoch_s)
    assert found.remaining_s == pytest.approx(drawn_s.mean(), rel=0.01)
    assert found.spread_s == pytest.approx(drawn_s.std(), rel=0.03)


def test_the_spread_of_the_posterior_is_that_of_draws() -> None:
    training = Training(100.0, (Stage(512, (1.0,)), Stage(4096, (1.0,))), (Spell(512, 30.0), Spell(4096, 20.0)))
    found = forecast(training, (10.0, 4.0), "bayes")
    left = np.array(found.left)
    # The prior weighs 100 epochs, and 51 were begun.
    draws = np.random.default_rng(6).dirichlet(151 * left / left.sum(), 40_000)
    drawn_s = left.sum() * draws @ np.array([10.0, 4.0])
    assert found.remaining_s == pytest.approx(drawn_s.mean(), rel=0.01)
    assert found.spread_s == pytest.approx(drawn_s.std(), rel=0.03)
