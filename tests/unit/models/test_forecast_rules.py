"""The forecast rules: the example of Shockwave's slides, the odd cases of matching, and the artifact's arithmetic."""

from __future__ import annotations

import math

import pytest

from fairway.core.prospect import Spell, Stage, Training
from fairway.models.forecast import METHODS, Forecast, Method, forecast

TWO = (512, 4096)


def training(batches: tuple[int, ...], *spells: tuple[int, float], epochs: float = 100) -> Training:
    return Training(epochs, tuple(Stage(b, (1.0,)) for b in batches), tuple(Spell(b, many) for b, many in spells))


def totals(found: Forecast) -> list[float]:
    return [round(epochs, 2) for epochs in found.epochs]


def test_the_slide_example_by_restatement() -> None:
    def expected(*spells: tuple[int, float]) -> list[float]:
        return totals(forecast(training(TWO, *spells), (10, 4)))

    assert expected() == expected((512, 0)) == [50, 50]
    assert expected((512, 30)) == [65, 35]
    assert expected((512, 30), (4096, 0)) == [30, 70]
    assert expected((512, 30), (4096, 20)) == expected((512, 30), (4096, 70)) == [30, 70]


def test_the_slide_example_by_the_posterior_which_counts_the_epoch_that_is_on() -> None:
    def expected(*spells: tuple[int, float]) -> list[float]:
        return totals(forecast(training(TWO, *spells), (10, 4), "bayes"))

    assert expected((512, 29.5)) == expected((512, 29)) == [61.54, 38.46]
    assert expected((512, 30), (4096, 19.5)) == [53.33, 46.67]
    assert expected((512, 30), (4096, 69.5)) == expected((512, 30), (4096, 70)) == [40, 60]


def test_the_expected_run_time_is_a_saw_tooth() -> None:
    def total_s(*spells: tuple[int, float]) -> float:
        done_s = sum(many * {512: 10, 4096: 4}[batch] for batch, many in spells)
        return done_s + forecast(training(TWO, *spells), (10, 4)).remaining_s

    assert [total_s((512, done)) for done in (0, 10, 29)] == pytest.approx([700, 730, 787])
    assert [total_s((512, 30), (4096, done)) for done in (0, 1, 50, 70)] == pytest.approx([580] * 4)


def test_reactive_and_agnostic_rules_go_on_as_now_and_as_at_first() -> None:
    now = training(TWO, (512, 30), (4096, 20))
    assert forecast(now, (10, 4), "reactive") == ((30, 70), (0, 50), 200, 0, 4, 200)
    assert forecast(now, (10, 4), "agnostic") == ((80, 20), (50, 0), 500, 0, 4, 500)


@pytest.mark.parametrize("method", ["restatement", "reactive", "agnostic"])
def test_one_stage_leaves_nothing_to_guess(method: Method) -> None:
    assert forecast(training((64,), (64, 12.25)), (7,), method) == ((100,), (87.75,), 87.75 * 7, 0, 7, 87.75 * 7)
    assert forecast(training((64,)), (7,), method).remaining_s == 700


def test_the_longest_time_is_that_of_the_slowest_stage_that_may_still_come() -> None:
    stages = (16, 32, 64)
    assert forecast(training(stages, (16, 10)), (3, 9, 4)).longest_s == 90 * 9
    assert forecast(training(stages, (16, 10), (64, 5)), (3, 9, 4)).longest_s == 85 * 4
    assert forecast(training(stages, (16, 10)), (3, 9, 4), "bayes").longest_s == 90 * 9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("last", [70, 70.0000001, 75])
def test_nothing_left_takes_no_time(method: Method, last: float) -> None:
    found = forecast(training(TWO, (512, 30), (4096, last)), (10, math.inf), method)
    assert (found.left, found.remaining_s, found.spread_s) == ((0, 0), 0, 0)


def test_stages_that_were_skipped_got_no_epochs() -> None:
    found = forecast(training((16, 32, 64, 128), (16, 20), (64, 10)), (8, 4, 2, 1))
    assert found.epochs == (20, 0, 45, 35)
    assert found.left == (0, 0, 35, 35)
    assert (found.remaining_s, found.epoch_s) == (105, 2)


def test_alternating_stages_are_told_apart_by_their_order() -> None:
    stages = (32, 128, 32, 128)
    assert forecast(training(stages, (32, 28), (128, 2)), (2, 1, 2, 1)).epochs == pytest.approx(
        (28, 2 + 70 / 3, 70 / 3, 70 / 3)
    )
    assert forecast(training(stages, (32, 28), (128, 2), (32, 10)), (2, 1, 2, 1)).epochs == (28, 2, 40, 30)


def test_an_unannounced_batch_size_leaves_the_rest_to_the_stages_to_come() -> None:
    found = forecast(training((16, 32, 64), (16, 20), (999, 20)), (8, 4, 2))
    assert (found.epochs, found.left) == ((20, 30, 30), (0, 30, 30))
    assert (found.remaining_s, found.epoch_s) == (180, 2)
    assert forecast(training((16, 32, 64), (999, 40)), (8, 4, 2)).left == (20, 20, 20)


def test_a_batch_size_that_comes_back_unannounced_goes_on_at_its_own_speed() -> None:
    found = forecast(training((16, 32), (16, 20), (32, 30), (16, 10)), (8, 4))
    assert (found.epochs, found.left, found.remaining_s, found.epoch_s) == ((60, 30), (40, 0), 320, 8)
    assert forecast(training((16, 32), (16, 20), (32, 30), (999, 10)), (8, 4)).remaining_s == 160


@pytest.mark.parametrize("method", METHODS)
def test_a_spell_of_no_length_changes_nothing_once_it_is_over(method: Method) -> None:
    plain = forecast(training((16, 32, 64), (16, 20), (32, 5)), (8, 4, 2), method)
    assert forecast(training((16, 32, 64), (16, 20), (64, 0), (32, 5)), (8, 4, 2), method) == plain
    assert forecast(training((16, 32, 64), (16, 20), (64, -1e-12), (32, 5)), (8, 4, 2), method) == plain


def test_a_stage_that_cannot_run_takes_for_ever_unless_it_is_over() -> None:
    ahead = forecast(training(TWO, (512, 30)), (10, math.inf))
    assert (ahead.remaining_s, ahead.spread_s) == (math.inf, math.inf)
    assert forecast(training(TWO, (512, 30), (4096, 5)), (math.inf, 4)).remaining_s == 260


def counted(schedule: list[int], done: int, epoch_s: dict[int, float]) -> float:
    """The artifact's rule on whole epochs, one epoch after the other as it does: an independent, slow account."""
    many = len(schedule)
    share = dict.fromkeys(schedule, many / len(set(schedule)))
    seen = schedule[: done + 1]
    for batch in seen:
        share[batch] += 1
    everything = sum(share.values())
    rest = {batch: many * mass / everything for batch, mass in share.items()}
    for batch in seen:
        rest[batch] -= rest[batch] >= 1
    scaled = (many - done) / max(int(sum(rest.values()) + 1), many - done)
    return scaled * sum(epochs * epoch_s[batch] for batch, epochs in rest.items())


@pytest.mark.parametrize(
    "runs",
    [
        [(512, 30), (4096, 70)],
        [(64, 27)],
        [(10, 11), (20, 10), (40, 1), (10, 1)],
        [(32, 28), (128, 2), (32, 10), (128, 20), (32, 10), (128, 20)],
        [(16, 1), (32, 99)],
    ],
)
def test_the_posterior_is_the_artifacts_at_every_whole_epoch(runs: list[tuple[int, int]]) -> None:
    durations = {batch: 100 / batch + 0.37 for batch, _ in runs}
    schedule = [batch for batch, many in runs for _ in range(many)]
    stages = tuple(batch for batch, _ in runs)
    for done in range(len(schedule)):
        spells, before = [], 0
        for batch, many in runs:
            # An epoch that begins is seen at its batch size before anything of it is done.
            if before <= done:
                spells.append((batch, float(min(many, done - before))))
            before += many
        found = forecast(training(stages, *spells, epochs=before), [durations[b] for b in stages], "bayes")
        assert found.remaining_s == pytest.approx(counted(schedule, done, durations), rel=1e-12, abs=1e-9)


def test_within_an_epoch_the_posterior_stays_as_it_is() -> None:
    found = [forecast(training(TWO, (512, done)), (10, 4), "bayes") for done in (30, 30.25, 30.999, 31)]
    assert [each.remaining_s for each in found[:3]] == pytest.approx([found[0].remaining_s] * 3)
    assert found[3].remaining_s < found[0].remaining_s


def test_the_posterior_of_one_batch_size_leaves_out_the_epoch_that_is_on() -> None:
    assert forecast(training((64,), (64, 12.25)), (7,), "bayes").remaining_s == pytest.approx(87 * 7)
    assert forecast(training((64,), (64, 99.5)), (7,), "bayes").remaining_s == pytest.approx(0)
