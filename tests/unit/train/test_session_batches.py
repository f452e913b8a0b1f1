"""Trainings whose batch size changes: positions, progress, announcements and measurements survive an interruption."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from session_cases import Attempts, Counter, environment, reports

from fairway.train import AccordionBatch, Batch, GivenBatch, NoiseScaleBatch, Session, session
from fairway.train.adaptive import NoiseMeasure
from fairway.train.course import Course
from fairway.train.sampler import Sampler

SAMPLES, EPOCHS = 64, 5


class Told:
    """A noise scale that is told instead of measured."""

    def __init__(self, scale: float | None) -> None:
        self.noise_scale = scale

    def observe(self, gradient: Any, batch: float) -> bool:
        return True

    def state(self) -> dict[str, Any]:
        return {"scale": self.noise_scale}

    def restore(self, state: Any) -> None:
        self.noise_scale = state["scale"]


def growing(scale: float | None = 1e9, largest: int = 32) -> NoiseScaleBatch:
    noise: NoiseMeasure = Told(scale)
    return NoiseScaleBatch(8, largest, noise=noise)


def trained(training: Session, counter: Counter, batch: Batch | int, stop: int | None = None, **about: Any) -> bool:
    """Train and write down what was trained in each step; True if the training came to its end."""
    try:
        for step in training.batches(training.sampler(SAMPLES), batch, EPOCHS, counter.save, counter.load, **about):
            counter.trained.append([step.number, step.epoch, step.batch, step.batch_size, step.rate_factor, step.rows])
            if step.number == stop:
                os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        return False
    return True


def test_the_batch_doubles_at_the_ends_of_epochs(tmp_path: Path) -> None:
    counter = Counter()
    with session(env=environment(tmp_path)) as training:
        assert trained(training, counter, growing())
    sizes = [step[3] for step in counter.trained]
    assert sizes == [8] * 8 + [16] * 4 + [32] * 2 * 3
    assert {(step[3], step[4]) for step in counter.trained} == {(8, 1.0), (16, 2.0), (32, 4.0)}
    for epoch in range(EPOCHS):
        assert sorted(row for step in counter.trained if step[1] == epoch for row in step[5]) == list(range(SAMPLES))


def test_progress_is_counted_in_steps_of_the_first_batch_size(tmp_path: Path) -> None:
    with session(env=environment(tmp_path)) as training:
        trained(training, Counter(), growing())
    told = reports(tmp_path)
    assert told[1] == {"started": True, "steps": 40, "epochs": 5, "batch_size": 8, "batch_sizes": [8, 16, 32]}
    changes = [(line["step"], line["epoch"], line["batch_size"]) for line in told if line.get("batch_size", 8) != 8]
    assert changes[0] == (8, 1.0, 16)
    assert (16, 2.0, 32) in changes
    assert (told[-1]["step"], told[-1]["epoch"], told[-1]["samples"]) == (40, 5.0, 320)
    assert told[-1]["noise_scale"] == 1e9
    steps = [line["step"] for line in told if "step" in line]
    assert steps == sorted(steps)


@pytest.mark.parametrize("kind", ["fixed", "noise", "accordion"])
@pytest.mark.parametrize("stops", [(0,), (3, 8, 9), (7,), (13, 14), (8, 12)])
def test_an_interrupted_training_is_the_same_training(tmp_path: Path, kind: str, stops: tuple[int, ...]) -> None:
    def batch() -> Batch:
        # Accordion with nothing observed keeps to the small batch.
        return {"fixed": Batch(8), "noise": growing(), "accordion": AccordionBatch(8, 16, interval=1)}[kind]

    whole = Counter()
    with session(env=environment(tmp_path / "whole")) as training:
        assert trained(training, whole, batch())
    attempts = Attempts(tmp_path / "parts")
    for stop in (*stops, None):
        counter = Counter()
        with attempts.begin() as training:
            done = trained(training, counter, batch(), stop)
        assert done == (stop is None or stop >= len(whole.trained) - 1)
    assert counter.trained == whole.trained
    assert reports(tmp_path / "parts")[-1]["samples"] == reports(tmp_path / "whole")[-1]["samples"]


def test_less_memory_after_a_restart_halves_the_batch_and_trains_no_sample_twice(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    counter = Counter()
    with attempts.begin() as training:
        assert not trained(training, counter, growing(), stop=12)
    with attempts.begin() as training:
        assert trained(training, counter, growing(None, largest=16))
    epoch = [row for step in counter.trained if step[1] == 2 for row in step[5]]
    assert [step[3] for step in counter.trained if step[1] == 2] == [32, 16, 16]
    assert sorted(epoch) == list(range(SAMPLES))


def test_accordion_takes_the_large_batch_outside_critical_regimes() -> None:
    batch = AccordionBatch(8, 32, interval=1, eta=0.5)
    sizes = []
    for slope in (10.0, 10.0, 9.0, 3.0, 3.0):
        batch.observe([slope, 0.0], 8)
        sizes.append(batch.end_epoch())
    assert sizes == [8, 32, 32, 8, 32]
    assert batch.sizes == (8, 32)
    assert batch.rate_factor == 4.0
    other = AccordionBatch(8, 32, interval=1)
    other.restore(json.loads(json.dumps(batch.state())))
    assert other.size == 32


@pytest.mark.parametrize(("spread", "size"), [(4.0, 8), (0.5, 4)])
def test_noisy_gradients_make_the_batch_grow_and_clean_ones_do_not(spread: float, size: int) -> None:
    """50 parameters of slope 1: with this spread of single samples the noise scale is 16, or a quarter."""
    draw, batch = random.Random(1), NoiseScaleBatch(4, 64)
    for _ in range(100):
        batch.observe([draw.gauss(1.0, spread / 2) for _ in range(50)], 4)
    assert batch.noise_scale == pytest.approx(spread**2, rel=0.5)
    assert batch.end_epoch() == size


def test_the_scheduler_gives_the_batch_size(tmp_path: Path) -> None:
    with session(env=environment(tmp_path) | {"FAIRWAY_BATCH_SIZE": "16"}) as training:
        batch = GivenBatch(8, training.wanted_batch, largest=32, multiple=8)
        assert (batch.size, batch.rate_factor) == (16, 2.0)
        sizes = []
        for wish in (27, 1000, 3, None):
            told = {"local": wish, "accumulation": 0, "gpus": 1}
            (tmp_path / "attempt-1" / "wanted.json").write_text(json.dumps(told))
            sizes.append(batch.end_epoch())
    assert sizes == [24, 32, 32, 16]
    other = GivenBatch(8, lambda: None)
    other.restore(batch.state())
    assert other.end_epoch() == 16


@pytest.mark.parametrize("make", [lambda: Batch(0), lambda: GivenBatch(8, lambda: None, multiple=3)])
def test_batch_sizes_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(ValueError):
        make()


def test_a_course_that_cannot_be_run_is_refused_before_it_begins() -> None:
    with pytest.raises(ValueError, match="more than all"):
        Course(Sampler(100), NoiseScaleBatch(8, 512), 3)
    with pytest.raises(ValueError, match="epoch"):
        Course(Sampler(100), Batch(8), 0)
    with pytest.raises(ValueError, match="equal shards"):
        Course(Sampler(100, shards=4), Batch(6), 3)


def test_a_state_of_another_kind_is_refused() -> None:
    course = Course(Sampler(100), Batch(8), 2)
    with pytest.raises(ValueError, match="not of"):
        course.restore(Course(Sampler(100), growing(), 2).state())
