"""Speeds of live jobs in places where they were not measured, and how much of the training is done."""

from __future__ import annotations

import math

import pytest

from fairway.runtime.jobs.estimates import ELASTIC_EXPONENT, epochs_done, place_name, speed_on
from fairway.runtime.jobs.observations import take_in
from fairway.runtime.jobs.records import Progress
from fairway.runtime.jobs.request import JobRequest

RELATIVE = {"v100": 0.5, "a100": 1.0, "k80": 0.0}


def test_a_place_that_was_seen_counts_as_it_was_seen() -> None:
    seen = {place_name("a100", 2): 30.0, place_name("a100", 4): 44.0}
    assert speed_on(seen, RELATIVE, "a100", 2) == 30.0
    assert speed_on(seen, RELATIVE, "a100", 4) == 44.0


def test_the_closest_number_of_gpus_of_the_same_type_tells_most() -> None:
    seen = {place_name("v100", 8): 1000.0, place_name("a100", 1): 10.0, place_name("a100", 4): 30.0}
    assert speed_on(seen, RELATIVE, "a100", 8) == pytest.approx(30.0 * 2.0**ELASTIC_EXPONENT)


def test_another_type_tells_by_the_types_own_speeds() -> None:
    seen = {place_name("a100", 2): 30.0}
    assert speed_on(seen, RELATIVE, "v100", 2) == pytest.approx(15.0)
    assert speed_on(seen, RELATIVE, "k80", 2) == 0.0


def test_nothing_seen_or_only_on_types_that_are_gone_tells_nothing() -> None:
    assert speed_on({}, RELATIVE, "a100", 1) == 0.0
    assert speed_on({place_name("t4 of old", 1): 5.0}, RELATIVE, "a100", 1) == 0.0


def test_epochs_follow_steps_where_their_number_is_known() -> None:
    request = JobRequest(("true",))
    assert epochs_done(Progress(step=25, steps=100, epochs=8), request) == 2.0
    assert epochs_done(Progress(step=25, epoch=3), request) == 3
    assert math.isnan(epochs_done(Progress(step=25), request))


def test_another_batch_size_makes_measured_speeds_worthless() -> None:
    progress = Progress(batch_size=32, steps_per_s=5.0, speeds={place_name("a100", 1): 5.0})
    assert take_in(progress, {"step": 1, "batch_size": 64, "time": 1000.0}, 1000.0)
    assert progress.steps_per_s is None
    assert progress.speeds == {}
