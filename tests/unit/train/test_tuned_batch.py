"""Batches that the scheduler chooses: every sample is trained once, progress is what steps are worth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairway import train
from fairway.train.noise_scale import Noise
from fairway.train.sampler import Sampler
from fairway.train.scheduled import note_of, wish_in
from fairway.train.tuned import WARM_UP, StepTimer, TunedBatch, TunedCourse, Wish


class KnownNoise:
    """A probe that has measured what a test says."""

    def __init__(self, scale: float | None) -> None:
        self.noise = None if scale is None else Noise(1.0, scale)
        self.parts = 0

    @property
    def noise_scale(self) -> float | None:
        return None if self.noise is None else self.noise.scale

    def set_parts(self, parts: int) -> None:
        self.parts = parts

    def observe(self, gradient: Any, batch: float) -> bool:
        return True

    def state(self) -> dict[str, Any]:
        return {"kind": "known"}

    def restore(self, state: Mapping[str, Any]) -> None:
        assert state == {"kind": "known"}


def _batch(scale: float | None = None, largest: int = 512, first: int = 32, **about: Any) -> TunedBatch:
    return TunedBatch(first, largest, KnownNoise(scale), **about)  # type: ignore[arg-type]


def _course(batch: TunedBatch, rank: int = 0, world_size: int = 1, samples: int = 1024) -> TunedCourse:
    return TunedCourse(Sampler(samples, rank=rank, world_size=world_size), batch, epochs=2)


def test_a_batch_begins_as_its_owner_chose_it_on_any_number_of_processes() -> None:
    batch = _batch(largest_local=10, smallest_local=2)
    assert (batch.local, batch.accumulation, batch.size) == (8, 3, 32)
    for processes, expected in ((2, (8, 1, 32)), (4, (8, 0, 32)), (32, (2, 0, 64))):
        batch.begin(processes)
        assert (batch.local, batch.accumulation, batch.size) == expected


@pytest.mark.parametrize(
    "wish", [Wish(16, 0, 2), Wish(600, 0, 1), Wish(65, 0, 1), Wish(1, 1, 1), Wish(64, 99, 1), Wish(32, 0, 1)]
)
def test_a_wish_that_makes_no_sense_here_or_is_nothing_new_changes_nothing(wish: Wish) -> None:
    batch = _batch(smallest_local=2, largest_local=64)
    assert not batch.take(wish)
    assert batch.size == 32


def test_a_wish_changes_batch_passes_and_learning_rate() -> None:
    batch = _batch(scale=96.0)
    assert batch.rate_factor == batch.gain == 1.0
    assert batch.take(Wish(64, 1, 1))
    assert batch.size == 128
    assert batch.enter(9) == [64, 64]
    assert batch.noise.parts == 2
    assert batch.gain == batch.rate_factor == pytest.approx((96 / 32 + 1) / (96 / 128 + 1))
    assert _batch(scale=None).gain == 1.0


def test_every_sample_of_an_epoch_is_trained_once_by_one_process_while_batches_change() -> None:
    courses = [_course(_batch(scale=1e9), rank, 2) for rank in range(2)]
    trained: list[int] = []
    wishes = {3: Wish(32, 1, 2), 5: Wish(8, 2, 2)}
    for steps in zip(*courses, strict=True):
        if steps[0].epoch > 0:
            break
        for course, step in zip(courses, steps, strict=True):
            assert len(step.parts) == course.batch.accumulation + 1
            assert {len(part) for part in step.parts} == {course.batch.local}
            trained += step.rows
            course.advance()
            if step.number in wishes:
                assert course.batch.take(wishes[step.number])
    assert len(trained) == len(set(trained))
    assert len(trained) > 1024 - 64


def test_a_process_alone_makes_some_steps_in_two_passes_to_measure_the_noise() -> None:
    batch, passes = _batch(scale=96.0), []
    course = _course(batch)
    for step in course:
        passes.append(len(step.parts))
        assert len(step.rows) == 32
        assert batch.noise.parts == len(step.parts)
        course.advance()
    assert passes[:18] == [2] * 9 + [1] * 7 + [2, 1]
    alone = _batch(first=1, largest=8)
    assert alone.enter(0) == [1]


def test_the_training_ends_when_its_steps_are_worth_what_was_asked_for() -> None:
    batch = _batch(scale=96.0)
    course = _course(batch)
    for _ in course:
        course.advance()
        batch.take(Wish(128, 0, 1))
        assert course.progress() <= course.total
    gain = (96 / 32 + 1) / (96 / 128 + 1)
    assert course.total == 64
    assert course.steps == 1 + -(-63 // gain)
    assert course.epochs_done() == 2


def test_a_course_goes_on_where_it_was() -> None:
    first, second = _course(_batch(96.0)), _course(_batch(96.0), world_size=1)
    for step in first:
        first.advance()
        if step.number == 6:
            break
    second.restore(json.loads(json.dumps(first.state())))
    assert (second.progress(), second.steps) == (first.progress(), first.steps)
    assert next(iter(second)).rows == next(iter(first)).rows


def test_only_steps_after_a_warm_up_are_timed_and_each_batch_by_itself() -> None:
    timer, batch = StepTimer(), _batch()
    for took_s in [9.0] * WARM_UP + [1.0, 2.0, 3.0]:
        timer.timing(batch)
        assert timer.known is None or timer.known[3] < 3
        timer.note(took_s)
    assert timer.known == [1, 32, 0, 2.0]
    batch.take(Wish(64, 0, 1))
    timer.timing(batch)
    assert timer.known is None


def test_wishes_pass_between_ranks_as_numbers() -> None:
    wish = Wish(2**20 - 1, 3, 512)
    assert wish_in(note_of(wish)) == wish
    assert note_of(wish) < 2**60
    assert note_of(None) == 0


def test_a_session_announces_limits_takes_wishes_between_steps_and_reports_step_times(tmp_path: Path) -> None:
    report, attempt = tmp_path / "reports.jsonl", tmp_path / "attempt-1"
    attempt.mkdir()
    batch, sizes = _batch(96.0, largest_local=128), []
    with train.session(env={"FAIRWAY_REPORT": str(report)}) as session:
        for step in session.batches(session.sampler(1024), batch, 4):
            sizes.append(step.batch_size)
            if step.number == 2:
                (attempt / "wanted.json").write_text('{"local": 64, "accumulation": 0, "gpus": 1}')
                session._wish_at_s = 0.0
            if step.number == 20:
                (attempt / "wanted.json").write_text('{"local": "many"}')
                session._wish_at_s = 0.0
    assert sizes[:3] == [32] * 3
    assert set(sizes[3:]) == {64}
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert lines[1]["batch_limits"] == [32, 512, 1, 128]
    assert lines[1]["steps"] == 128
    assert any(line.get("batch_size") == 64 for line in lines)
    *split, step_s = lines[-1]["timing"]
    assert split == [1, 64, 0]
    assert 0 < step_s < 1


@pytest.mark.parametrize("about", [{"largest": 16}, {"smallest_local": 0}, {"smallest_local": 9, "largest_local": 8}])
def test_limits_that_contradict_each_other_are_an_error(about: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"largest|samples"):
        _batch(**about)
