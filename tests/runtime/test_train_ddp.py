"""Data-parallel PyTorch on two ranks, then one, then two again: the loss curve does not show it.

The jobs run with the Python of FAIRWAY_TEST_TORCH_PYTHON, or with this one where it has torch.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from training import Stage, example, staged, wait_for

from fairway.runtime.jobs.records import JobRecord

PYTHON = os.environ.get("FAIRWAY_TEST_TORCH_PYTHON") or (sys.executable if find_spec("torch") else "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="needs torch")]
ELASTIC: dict[str, Any] = {"gpus": 2, "gpus_min": 1, "gpus_max": 2, "processes": "per_gpu"}


def trained(folder: Path, *options: str, sizes: tuple[tuple[int, int], ...] = ()) -> tuple[JobRecord, Any]:
    """Train on two GPUs, and from the given steps on with others; the job and its result."""
    with staged(folder, gpus=2) as stage:
        out = folder / "out.json"
        record = stage.submit(*example("pytorch_ddp", PYTHON), "--out", str(out), *options, **ELASTIC)
        for step, gpus in sizes:
            resize(stage, record, step, gpus)
        stage.completed(record)
        return record, json.loads(out.read_text())


def resize(stage: Stage, record: JobRecord, step: int, gpus: int) -> None:
    attempts = len(record.attempts)
    wait_for(
        lambda: record.progress.step >= step or record.state.ended,
        f"step {step}; it is {record.state} at {record.progress.step}\n{stage.logs(record)}",
    )
    stage.give(gpus)
    wait_for(lambda: len(record.attempts) > attempts, f"the attempt on {gpus} GPUs\n{stage.logs(record)}")


def test_a_resized_training_has_the_loss_curve_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, expected = trained(tmp_path / "whole")
    resized, found = trained(tmp_path / "resized", "--pause", "0.05", sizes=((20, 1), (50, 2)))
    assert len(whole.attempts) == 1
    assert [len(attempt.gpus) for attempt in resized.attempts] == [2, 1, 2]
    assert [attempt.codes for attempt in resized.attempts] == [[75, 75], [75], [0, 0]]
    assert len(found["losses"]) == 96
    assert found["losses"] == expected["losses"]
    assert found["weights"] == expected["weights"]


def test_with_more_shards_than_two_only_the_last_digits_differ(tmp_path: Path) -> None:
    """And so it is if the batch follows the noise, which is measured between shards on any number of ranks."""
    options = ("--gns", "--epochs", "4", "--shards", "4")
    whole, expected = trained(tmp_path / "whole", *options)
    resized, found = trained(tmp_path / "resized", *options, "--pause", "0.05", sizes=((40, 1), (80, 2)))
    assert [len(attempt.gpus) for attempt in resized.attempts] == [2, 1, 2]
    assert resized.progress.step == resized.progress.steps == whole.progress.step == 4 * 32
    assert resized.progress.batch_sizes == [32, 64, 128, 256]
    assert found["batch_size"] == expected["batch_size"] > 32
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-3)
