"""Batch sizes that jobs change by themselves: what the profile lays down, and what a running job asks for."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.core.job import JobSpec
from fairway.models.adaptation import DOUBLINGS, EPOCH_SAMPLES, LARGEST_BATCH, AdaptationCourse, course_of


def course(model: str, method: Any, batch_size: int, gpus: int = 1) -> AdaptationCourse:
    return AdaptationCourse(model, method, batch_size, gpus)


def spec(**fields: Any) -> JobSpec:
    about = {"id": "a", "submitted_s": 0.0, "steps": 1000.0, "model": "LM", "batch_size": 10, **fields}
    return JobSpec(**about)


def test_doublings_come_in_order_and_stay_within_the_largest_batch() -> None:
    for model, by_batch in DOUBLINGS.items():
        for batch_size, by_gang in by_batch.items():
            for gang, starts in by_gang.items():
                assert list(starts) == sorted(set(starts)), (model, batch_size, gang)
                assert batch_size << len(starts) <= LARGEST_BATCH[model]
                assert model in EPOCH_SAMPLES


def test_epochs_are_counted_in_whole_steps_of_the_first_batch() -> None:
    lm = course("LM", "gns", 10)
    assert lm.steps_per_epoch(10) == 5968
    assert lm.epochs(5968) == 1
    assert lm.epochs(5969) == 2
    assert lm.epochs(134583) == 23


def test_the_profile_of_gns_doubles_and_ends_with_the_first_batch_after_two_doublings() -> None:
    assert course("LM", "gns", 10).profile(134583) == [(10, 12), (20, 10), (40, 1)]
    assert course("LM", "gns", 20).profile(33 * 2984) == [(20, 11), (40, 22)]
    assert course("LM", "gns", 5, 2).profile(48 * 11935) == [(5, 31), (10, 17)]
    assert course("LM", "gns", 5, 8).profile(48 * 11935) == [(5, 48)]


def test_the_profile_of_accordion_keeps_the_first_batch_early_and_in_critical_regimes() -> None:
    # Of 92 epochs the first 28 (0 to 27, up to 30 % of 92 = 27.6) are early; 10 of them are critical as well.
    assert course("ResNet-18", "accordion", 32).profile(143450) == [(32, 28), (256, 64)]
    # ResNet-50: the first ten of every thirty epochs are critical; 0 to 12 of 40 are early.
    assert course("ResNet-50", "accordion", 64).profile(40 * 1563) == [(64, 23), (128, 17)]
    # Recommendation: 0 to 39, then 60 to 69 and 80 to 89, of 100.
    assert course("Recommendation", "accordion", 2048).profile(100 * 58) == [(2048, 60), (8192, 40)]


@pytest.mark.parametrize("method", ["none", "accordion", "gns"])
def test_models_without_a_largest_batch_never_change(method: str) -> None:
    transformer = course("Transformer", method, 64)
    assert not transformer.adapts
    assert transformer.profile(38 * 157) == [(64, 38)]


def test_a_running_job_asks_for_the_largest_batch_outside_critical_regimes() -> None:
    resnet = course("ResNet-18", "accordion", 32)
    epoch, large = resnet.steps_per_epoch(32), resnet.steps_per_epoch(256)
    assert resnet.wanted(32, 9 * epoch) == 32
    assert resnet.wanted(32, 9 * epoch + 1) == 256, "an epoch that was begun counts"
    assert resnet.wanted(256, 149 * large) == 256
    assert resnet.wanted(256, 150 * large) == 32
    assert course("ResNet-18", "accordion", 256).wanted(256, 15 * large) == 256
    # Without the profile's guard of the first 30 %, and without its late critical stretches of Recommendation.
    assert course("Recommendation", "accordion", 4096).wanted(4096, 10 * 29) == 8192
    assert course("Recommendation", "accordion", 4096).wanted(8192, 65 * 15) == 8192
    assert course("Recommendation", "accordion", 4096).critical(65, profile=True)


def test_gns_asks_for_one_doubling_at_a_time_and_looks_an_epoch_ahead() -> None:
    lm = course("LM", "gns", 10)
    epoch = lm.steps_per_epoch(10)
    assert lm.wanted(10, 9 * epoch) == 10
    assert lm.wanted(10, 10 * epoch) == 20, "epoch 11 is the next one"
    assert lm.wanted(10, 40 * epoch) == 20, "three doublings are due, one is asked for"
    assert lm.wanted(20, 15 * lm.steps_per_epoch(20)) == 20
    assert lm.wanted(80, 90 * lm.steps_per_epoch(80)) == 80


def test_a_change_keeps_the_number_of_epochs_and_rounds_what_is_done_up() -> None:
    lm = course("LM", "gns", 10)
    work, done = lm.rescaled(134583, 10 * 5968 + 1, 10, 20)
    assert work == 67292.0, "half as many, rounded up: still 23 epochs of 2,984"
    assert done == 11 * 2984
    # An epoch has 13 steps at 512 and 7 at 1,024.
    cyclegan = AdaptationCourse("CycleGAN", "none", 512, 1)
    assert cyclegan.rescaled(26, 13, 512, 1024) == (13.0, 7.0)
    assert cyclegan.rescaled(14, 13, 512, 1024) == (14.0, 7.0), "7 steps would be a single epoch"


def test_a_change_may_leave_more_behind_than_there_is() -> None:
    lm = course("LM", "gns", 10)
    work, done = lm.rescaled(11 * 5968 - 100, 10 * 5968 + 1, 10, 20)
    assert work < done


def test_names_are_found_in_other_spellings_and_unknown_models_have_no_course() -> None:
    known = course_of(spec(model="lstm", adaptation="gns"))
    assert known is not None
    assert known.model == "LM"
    assert known.adapts
    assert course_of(spec(model="BERT", adaptation="gns")) is None
    assert course_of(spec(batch_size=None)) is None
    assert course_of(JobSpec("a", 0, duration_s=10, model="LM", batch_size=10)) is None
    static = course_of(spec())
    assert static is not None
    assert not static.adapts
