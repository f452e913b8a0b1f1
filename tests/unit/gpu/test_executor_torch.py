"""Trainings with torch in an executor on the CPU: they move, wait, save and go on without another bit.

The executor runs with the Python of FAIRWAY_TEST_TORCH_PYTHON, or with this one where it has torch.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from executor_process import FakeSeat, executor, leave_word

PYTHON = os.environ.get("FAIRWAY_TEST_TORCH_PYTHON") or (sys.executable if find_spec("torch") else "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="needs torch")]
STEPS = "1000"


def _losses(note: Path) -> list[str]:
    return note.read_text().split() if note.exists() else []


def _wait_for_steps(note: Path, more_than: int) -> None:
    until_s = time.monotonic() + 120
    while len(_losses(note)) <= more_than:
        assert time.monotonic() < until_s, "no steps"
        time.sleep(0.005)


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, list[str]]:
    """The losses of two trainings alone."""
    (tmp_path / "alone").mkdir()
    found = {}
    with executor(tmp_path / "alone", PYTHON):
        for seed in ("1", "2"):
            note = tmp_path / f"alone {seed}"
            assert (
                FakeSeat(tmp_path / "alone").host(seed, "hosted_torch_jobs:small", seed, STEPS, str(note)).until("done")
            )
            found[seed] = _losses(note)
    assert found["1"] != found["2"]
    return found


def test_a_job_that_stands_still_makes_room_and_loses_no_bit(tmp_path: Path, expected: dict[str, list[str]]) -> None:
    attempts = {seed: tmp_path / f"attempt {seed}" for seed in ("1", "2")}
    notes = {seed: tmp_path / f"note {seed}" for seed in attempts}
    for attempt in attempts.values():
        attempt.mkdir()
    with executor(tmp_path, PYTHON, bytes="1000"):

        def host(seed: str) -> FakeSeat:
            arguments = (seed, STEPS, str(notes[seed]))
            return FakeSeat(tmp_path).host(seed, "hosted_torch_jobs:small", *arguments, attempt=str(attempts[seed]))

        first = host("1")
        _wait_for_steps(notes["1"], 5)
        second = None
        for turn in range(8):
            running, other = ("1", "2") if turn % 2 else ("2", "1")
            leave_word(attempts[other], "paused", "yes")
            leave_word(attempts[running], "paused", "no")
            second = second or host("2")
            _wait_for_steps(notes[running], len(_losses(notes[running])) + 5)
        for attempt in attempts.values():
            leave_word(attempt, "paused", "no")
        assert second is not None
        assert first.until("done") == second.until("done") == int(STEPS)
    assert {seed: _losses(note) for seed, note in notes.items()} == expected


def test_a_saved_training_goes_on_without_another_bit(tmp_path: Path, expected: dict[str, list[str]]) -> None:
    note, saved = tmp_path / "note", tmp_path / "saved"
    arguments = ("1", STEPS, str(note))
    for _ in range(3):
        with executor(tmp_path, PYTHON):
            about = {"checkpoints": str(saved), "resume": True}
            seat = FakeSeat(tmp_path).host("1", "hosted_torch_jobs:small", *arguments, **about)
            _wait_for_steps(note, len(_losses(note)) + 5)
            seat.say({"leave": True})
            seat.until("left")
    with executor(tmp_path, PYTHON):
        seat = FakeSeat(tmp_path).host("1", "hosted_torch_jobs:small", *arguments, checkpoints=str(saved), resume=True)
        assert seat.until("done") == int(STEPS)
    assert _losses(note) == expected["1"]


def test_a_job_that_runs_out_of_memory_begins_again_when_it_is_alone(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    with executor(tmp_path, PYTHON):
        other = FakeSeat(tmp_path).host("1", "hosted_torch_jobs:small", "1", STEPS, str(tmp_path / "1"))
        other.until("step")
        crowded = FakeSeat(tmp_path).host("2", "hosted_torch_jobs:crowded", "2", "5", str(tmp_path / "2"), str(alone))
        assert "memory ran out" in crowded.until("log")
        alone.touch()
        assert other.until("done") == int(STEPS)
        assert crowded.until("done") == 5
        alone.unlink()
        told = FakeSeat(tmp_path).host("3", "hosted_torch_jobs:crowded", "2", "5", str(tmp_path / "3"), str(alone))
        assert told.until("error").startswith("OutOfMemoryError: CUDA out of memory")


def test_a_job_leaves_the_device_when_the_scheduler_needs_its_memory(
    tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    attempt, note = tmp_path / "attempt", tmp_path / "note"
    attempt.mkdir()
    with executor(tmp_path, PYTHON):
        seat = FakeSeat(tmp_path).host("1", "hosted_torch_jobs:small", "1", STEPS, str(note), attempt=str(attempt))
        for turn in range(3):
            _wait_for_steps(note, len(_losses(note)) + 5)
            if turn:
                # It may be asked before it stands still.
                seat.say({"move": True})
            leave_word(attempt, "paused", "yes")
            if not turn:
                seat.say({"move": True})
            assert seat.until("moved") > 0
            leave_word(attempt, "paused", "no")
        assert seat.until("done") == int(STEPS)
    assert _losses(note) == expected["1"]
