"""Reports: few lines that say enough, from one rank, and nothing that can hurt a training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from session_cases import environment, reports

from fairway.runtime.jobs.observations import take_in
from fairway.runtime.jobs.records import Progress
from fairway.runtime.processes.environment import ReportReader
from fairway.train import reporter, session
from fairway.train.reporter import Lines, number


@pytest.fixture
def _every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "LEAST_S", 0.0)


def test_outside_fairway_a_session_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    training = session(steps=3, env={"RANK": "1", "WORLD_SIZE": "4"})
    assert not training.scheduled
    assert (training.rank, training.world_size) == (1, 4)
    saved: list[Path] = []
    for step in training.steps(saved.append, saved.append, every=1):
        training.report(step, loss=1.0)
        assert not training.should_stop()
    training.saved("nowhere", 3)
    assert training.resume() is None
    assert training.checkpoint_path(3) is None
    assert signal.getsignal(signal.SIGTERM) is before
    assert not saved
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_every_report")
def test_a_report_says_what_is_known(tmp_path: Path) -> None:
    with session(steps=10, epochs=2, batch_size=8, env=environment(tmp_path)) as training:
        training.report(1, loss=0.5, epoch=0.2)
        training.report(3, loss=0.25, noise_scale=12.5)
    told = reports(tmp_path)
    assert told[0] == {"started": True, "steps": 10, "epochs": 2, "batch_size": 8}
    assert told[1] == {"step": 1, "loss": 0.5, "epoch": 0.2, "batch_size": 8, "samples": 8}
    assert told[2].pop("samples_per_s") > 0
    assert told[2] == {"step": 3, "loss": 0.25, "epoch": 0.2, "batch_size": 8, "samples": 24, "noise_scale": 12.5}


def test_few_lines_are_written_and_the_last_one_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "LEAST_S", 3600.0)
    with session(steps=5000, env=environment(tmp_path)) as training:
        for step in range(1, 4001):
            training.report(step, loss=1.0)
    assert [line.get("step") for line in reports(tmp_path)] == [None, 1, 4000]


def test_another_batch_size_and_the_last_step_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "LEAST_S", 3600.0)
    with session(steps=9, env=environment(tmp_path)) as training:
        for step in range(1, 10):
            training.report(step, batch_size=16 if step < 5 else 32)
        told = reports(tmp_path)
    assert [(line["step"], line["batch_size"]) for line in told[1:]] == [(1, 16), (5, 32), (9, 32)]
    assert told[-1]["samples"] == 4 * 16 + 5 * 32


def test_only_the_first_rank_reports(tmp_path: Path) -> None:
    for rank in range(3):
        with session(steps=2, env=environment(tmp_path, rank=rank, world=3)) as training:
            training.report(1 + rank)
    assert [line.get("step") for line in reports(tmp_path)] == [None, 1]


def test_a_process_that_was_forked_off_does_not_report(tmp_path: Path) -> None:
    with session(steps=2, env=environment(tmp_path)) as training:
        child = os.fork()
        if child == 0:
            training.report(2)
            training.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert len(reports(tmp_path)) == 1


def test_a_full_disk_is_one_warning_and_no_error(tmp_path: Path) -> None:
    env = environment(tmp_path) | {"FAIRWAY_REPORT": "/dev/full"}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with session(steps=100, env=env) as training:
            for step in range(1, 101):
                training.report(step, batch_size=step)
    assert [type(warning.message) for warning in seen] == [RuntimeWarning]
    assert "training goes on" in str(seen[0].message)


@pytest.mark.parametrize("value", ["much", [1, 2], object(), float("nan"), float("inf"), np.ones(2), None, True])
def test_what_is_no_number_is_left_out(tmp_path: Path, value: Any) -> None:
    with session(env=environment(tmp_path)) as training:
        training.report(1, loss=value, batch_size=value)
    (told,) = reports(tmp_path)[1:]
    assert told.get("loss") in (None, 1.0)
    assert told["step"] == 1


def test_numbers_of_arrays_are_numbers(tmp_path: Path) -> None:
    with session(steps=np.int64(7), env=environment(tmp_path)) as training:  # type: ignore[arg-type]
        training.report(np.int32(1), loss=np.float32(0.5), batch_size=np.int64(4))  # type: ignore[arg-type]
    told = reports(tmp_path)
    assert told[0]["steps"] == 7
    assert (told[1]["step"], told[1]["loss"], told[1]["batch_size"]) == (1, 0.5, 4)
    assert number(3) == 3


def test_half_a_line_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reports.jsonl"
    lines = Lines(path, lambda: True)
    write = os.write
    monkeypatch.setattr(reporter.os, "write", lambda fd, data: write(fd, data[:9]))
    assert not lines.write({"step": 1})
    monkeypatch.setattr(reporter.os, "write", write)
    assert lines.write({"step": 2})
    assert [report["step"] for report in ReportReader(path).new_lines()] == [2]


def test_the_scheduler_understands_what_is_reported(tmp_path: Path) -> None:
    """And a restart does not look like a slow step: the speed is that of training alone."""
    progress = Progress()
    for report in (
        {"started": True, "steps": 100, "epochs": 2, "batch_sizes": [8, 16], "batch_size": 8, "time": 10.0},
        {"step": 1, "samples": 8, "time": 20.0},
        {"step": 11, "samples": 88, "loss": 0.5, "time": 21.0},
        {"step": 11, "checkpoint": "/c", "save_s": 0.5, "time": 21.5},
        {"started": True, "steps": 100, "time": 1000.0},
        {"step": 12, "time": 1010.0},
        {"step": 22, "time": 1011.0},
    ):
        assert not take_in(progress, report, 0.0)
    assert (progress.steps, progress.epochs, progress.batch_sizes) == (100, 2, [8, 16])
    assert (progress.checkpoint, progress.checkpoint_step, progress.save_s) == ("/c", 11, 0.5)
    assert progress.samples == 88
    assert progress.steps_per_s == pytest.approx(10.0)
    assert take_in(progress, {"batch_size": 16, "time": 1012.0}, 0.0)


@pytest.mark.parametrize("sizes", [[], [0], [1.5], [True], "16", [1] * 1000, [2**50], None])
def test_batch_sizes_that_make_no_sense_are_not_taken_in(sizes: Any) -> None:
    progress = Progress()
    take_in(progress, {"batch_sizes": sizes}, 0.0)
    assert progress.batch_sizes is None


def test_the_library_loads_nothing_but_the_standard_library() -> None:
    code = "import sys; from fairway import train; print({'numpy', 'torch', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
