"""Trainings with torch in an executor on the CPU: they move, wait, save and go on without another bit.

The executor runs with the Python of FAIRWAY_TEST_TORCH_PYTHON, or with this one where it has torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from executor_process import FakeSeat, executor, leave_word

from fairway.gpu.device import TorchCpu
from fairway.gpu.executor import Executor
from fairway.gpu.lanes import MARGIN_BYTES

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


class NoHostMemory(TorchCpu):
    """A device beside which there is no host memory left to pin."""

    def host_buffer(self, size: int) -> Any:
        raise RuntimeError("CUDA error: out of memory (cudaHostAlloc)")


@pytest.mark.skipif(not find_spec("torch"), reason="needs torch in this process")
def test_a_job_stays_on_the_device_if_host_memory_runs_out(tmp_path: Path) -> None:
    attempt, note = tmp_path / "attempt", tmp_path / "note"
    attempt.mkdir()
    made = Executor(tmp_path, NoHostMemory(1000 + MARGIN_BYTES), idle_s=0.2)
    threading.Thread(target=made.run, daemon=True).start()
    first = FakeSeat(tmp_path).host("1", "hosted_torch_jobs:small", "1", "200", str(note), attempt=str(attempt))
    _wait_for_steps(note, 5)
    leave_word(attempt, "paused", "yes")
    second = FakeSeat(tmp_path).host("2", "hosted_torch_jobs:small", "2", "20", str(tmp_path / "note 2"))
    second.until("waits")
    assert "its state stays on the GPU, there is no room for it: CUDA error" in first.until("log")
    leave_word(attempt, "paused", "no")
    assert first.until("done") == 200
    assert second.until("done") == 20


class Three:
    """Three trainings in an executor, of which one computes at a time."""

    def __init__(self, folder: Path, factory: str = "small") -> None:
        self._factory = f"hosted_torch_jobs:{factory}"
        self.attempts = {seed: folder / f"attempt {seed}" for seed in "123"}
        self.notes = {seed: folder / f"note {seed}" for seed in "123"}
        self._folder = folder
        self._seats: dict[str, FakeSeat] = {}
        for attempt in self.attempts.values():
            attempt.mkdir()

    def run(self, seed: str) -> None:
        """Let one of them make some steps, and the others stand still."""
        for other, attempt in self.attempts.items():
            leave_word(attempt, "paused", "no" if other == seed else "yes")
        if seed not in self._seats:
            about = {"attempt": str(self.attempts[seed])}
            arguments = (seed, "1000000", str(self.notes[seed]))
            self._seats[seed] = FakeSeat(self._folder).host(seed, self._factory, *arguments, **about)
        _wait_for_steps(self.notes[seed], len(_losses(self.notes[seed])) + 5)

    def plan(self, *seeds: str) -> None:
        """Say in which order they go on."""
        for seed, attempt in self.attempts.items():
            leave_word(attempt, "in_plan", str(seeds.index(seed)) if seed in seeds else "")

    def moved_bytes(self, seed: str) -> int:
        """What one that stands still has on the device. It leaves."""
        self._seats[seed].say({"move": True})
        moved: int = self._seats[seed].until("moved")
        return moved


@pytest.mark.parametrize("next_one", ["1", "2", ""])
def test_the_next_job_of_the_plan_leaves_last(tmp_path: Path, next_one: str) -> None:
    jobs = Three(tmp_path)
    with executor(tmp_path, PYTHON, bytes="1500"):
        jobs.run("1")
        jobs.run("2")
        jobs.plan(*next_one)
        jobs.run("3")
        stays = next_one or "2"
        assert jobs.moved_bytes(stays) > 0
        assert jobs.moved_bytes("2" if stays == "1" else "1") == 0


def test_the_next_job_of_the_plan_comes_back_while_another_computes(tmp_path: Path) -> None:
    jobs = Three(tmp_path)
    with executor(tmp_path, PYTHON, bytes="1500"):
        for seed in "123":
            jobs.run(seed)
        # The first has left, for the third. It comes back in the place of the second, which is behind it.
        jobs.plan("1", "2")
        _wait_for_steps(jobs.notes["3"], len(_losses(jobs.notes["3"])) + 200)
        assert jobs.moved_bytes("2") == 0
        assert jobs.moved_bytes("1") > 0
        # It was sent out for a program beside the executor, so it stays out until its turn.
        _wait_for_steps(jobs.notes["3"], len(_losses(jobs.notes["3"])) + 200)
        assert jobs.moved_bytes("1") == 0


def test_as_much_of_the_next_job_comes_ahead_as_there_is_room_for(tmp_path: Path) -> None:
    jobs = Three(tmp_path, "large")
    with executor(tmp_path, PYTHON, bytes="20100"):
        for seed in "12":
            jobs.run(seed)
        jobs.plan("1")
        _wait_for_steps(jobs.notes["2"], len(_losses(jobs.notes["2"])) + 200)
        # The layers, without the state of the optimiser.
        assert 0 < jobs.moved_bytes("1") <= 5000


@pytest.mark.parametrize(("factory", "room"), [("small", "1500"), ("large", "20100")])
def test_losses_are_the_same_when_states_come_ahead(
    tmp_path: Path, expected: dict[str, list[str]], factory: str, room: str
) -> None:
    jobs = Three(tmp_path, factory)
    with executor(tmp_path, PYTHON, bytes=room):
        for turn in range(12):
            jobs.run("123"[turn % 3])
            jobs.plan("123"[(turn + 1) % 3], "123"[(turn + 2) % 3])
            _wait_for_steps(jobs.notes["123"[turn % 3]], len(_losses(jobs.notes["123"[turn % 3]])) + 30)
    for seed, losses in expected.items():
        found = _losses(jobs.notes[seed])[: len(losses)]
        assert len(found) > 100
        assert found == losses[: len(found)]
