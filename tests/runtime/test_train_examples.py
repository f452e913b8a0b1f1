"""The examples under a real scheduler: stopped, killed and resumed, they end as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from training import Stage, alone, example, staged, wait_for

from fairway.runtime.jobs import live_jobs as ends
from fairway.runtime.jobs.records import JobRecord, JobState

PACE, SLOW_PACE = ("--pause", "0.04"), ("--pause", "0.1")
"""Slow enough to be stopped before the end on a busy machine; with large batches there are few steps."""


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def reaches(record: JobRecord, step: float) -> None:
    wait_for(lambda: record.progress.step >= step, f"step {step}; it is {record.state} at {record.progress.step}")


def preempt(stage: Stage, record: JobRecord) -> None:
    """Take the GPU away by the scheduler's own decision, and give it back when the processes are gone."""
    before = len(record.attempts)
    stage.give(0)
    wait_for(lambda: record.attempts[-1].ended_s is not None, "the job to stop")
    stage.give(1)
    wait_for(lambda: len(record.attempts) > before, "the next attempt")


def test_a_plain_training_is_the_same_to_the_bit_after_any_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "BACK_OFF_S", 0.1)
    alone(*example("plain_python"), "--pause", "0", "--out", str(tmp_path / "alone.json"))
    with staged(tmp_path) as stage:
        record = stage.submit(*example("plain_python"), *PACE, "--out", str(tmp_path / "out.json"), retries=1)
        reaches(record, 30)
        preempt(stage, record)
        reaches(record, 70)
        # Nobody is asked this time: what came after the last checkpoint is trained once more.
        rank = read(tmp_path / "jobs" / record.id / "attempt-2" / "ranks.json")[0][0]
        os.kill(rank, signal.SIGKILL)
        wait_for(lambda: len(record.attempts) > 2, "the attempt after the kill")
        reaches(record, 110)
        preempt(stage, record)
        stage.completed(record)
        progress = record.progress
    assert [attempt.codes for attempt in record.attempts] == [[75], [137], [75], [0]]
    assert [attempt.resume for attempt in record.attempts] == [False, True, True, True]
    assert read(tmp_path / "out.json") == read(tmp_path / "alone.json")
    assert (progress.step, progress.steps, progress.epochs, progress.batch_size) == (192, 192, 6, 16)
    assert progress.samples == 192 * 16
    assert progress.loss == read(tmp_path / "alone.json")["losses"][-1]


def test_an_adaptive_training_goes_on_with_what_it_has_measured(tmp_path: Path) -> None:
    """A pair of gradients is lost with each interruption, so that the measurement is a little different."""
    epochs = ("--batch", "gns", "--epochs", "12")
    alone(*example("plain_python"), *epochs, "--pause", "0", "--out", str(tmp_path / "alone.json"))
    with staged(tmp_path) as stage:
        record = stage.submit(*example("plain_python"), *epochs, *SLOW_PACE, "--out", str(tmp_path / "out.json"))
        reaches(record, 40)
        preempt(stage, record)
        reaches(record, 150)
        preempt(stage, record)
        stage.completed(record)
    assert len(record.attempts) == 3
    assert record.progress.batch_sizes == [16, 32, 64, 128]
    assert record.progress.step == 12 * 512 / 16
    mine, theirs = read(tmp_path / "out.json"), read(tmp_path / "alone.json")
    assert mine["batch_size"] > 16
    assert mine["losses"][:40] == theirs["losses"][:40]
    assert mine["losses"][-1] == pytest.approx(theirs["losses"][-1], abs=0.1)


def test_an_unmodified_script_is_suspended_in_place(tmp_path: Path) -> None:
    told = alone(*example("unmodified"), "--pause", "0")
    with staged(tmp_path) as stage:
        record = stage.submit(*example("unmodified"), "--pause", "0.03", preempt="suspend")
        for mark in ("step 20", "step 50"):
            wait_for(lambda mark=mark: mark in stage.log(record), mark)
            stage.give(0)
            wait_for(lambda: record.state is JobState.SUSPENDED, "the job to be suspended")
            seen = stage.log(record)
            assert "done" not in seen
            stage.give(1)
            wait_for(lambda seen=seen: stage.log(record) != seen, "the job to go on")
        stage.completed(record)
        assert stage.log(record) == told
    assert len(record.attempts) == 1
    assert record.preemptions == 2


COUPLED = """
import os, sys, time
from pathlib import Path
from fairway import train

out = Path(sys.argv[1])
session = train.session(steps=100, batch_size=4)
rank, other = session.rank, 1 - session.rank
tag = os.environ["FAIRWAY_RESTART_COUNT"]
trained = []

def save(path):
    (path / f"rank-{rank}").write_text(repr(trained))

def load(path):
    trained[:] = eval((path / f"rank-{rank}").read_text())

for step in session.steps(save, load, everyone=True):
    # Neither ends a step before the other has begun it, as in data-parallel training.
    (out / f"{tag}.{step}.{rank}").touch()
    while not (out / f"{tag}.{step}.{other}").exists():
        time.sleep(0.001)
    time.sleep(0.01 * (1 + rank))
    trained.append(step)
    session.report(loss=1 / (step + 1))
(out / f"rank-{rank}").write_text(repr(trained))
"""


def test_plain_processes_stop_after_the_same_step_and_go_on_together(tmp_path: Path) -> None:
    script = tmp_path / "coupled.py"
    script.write_text(COUPLED)
    with staged(tmp_path, gpus=2) as stage:
        record = stage.submit(sys.executable, str(script), str(tmp_path), gpus=2, processes="per_gpu")
        for attempts in (1, 2):
            wait_for(lambda attempts=attempts: len(record.attempts) == attempts, f"attempt {attempts}")
            reaches(record, record.progress.checkpoint_step + 20)
            stage.give(0)
            wait_for(lambda: record.attempts[-1].ended_s is not None, "the job to stop")
            assert record.attempts[-1].codes == [75, 75], stage.logs(record)
            stage.give(2)
        stage.completed(record)
    assert len(record.attempts) == 3
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == [repr(list(range(100)))] * 2
