"""Loss curves of jobs in Fairway's own trace format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairway import InputError, JobSpec, Workload
from fairway.core.job import LossCurve
from fairway.traces import read_trace, write_trace

CURVE = {"epochs": 40, "b0": 0.05, "b1": 0.3, "b2": 0.2}


def read(tmp_path: Path, loss: object) -> JobSpec:
    file = tmp_path / "jobs.jsonl"
    file.write_text(json.dumps({"id": "a", "submitted_s": 0, "duration_s": 9, "loss": loss}) + "\n")
    return read_trace(str(file)).jobs[0]


def test_a_loss_curve_survives_writing_and_reading(tmp_path: Path) -> None:
    jobs = [JobSpec("a", 0.0, duration_s=5.0, loss=LossCurve(**CURVE)), JobSpec("b", 0.0, duration_s=5.0)]
    write_trace(Workload.of(jobs), tmp_path / "t.jsonl")
    again = read_trace(str(tmp_path / "t.jsonl")).jobs
    assert again == tuple(jobs)
    assert isinstance(again[0].loss, LossCurve)
    assert again[0].loss.at(0.5) == pytest.approx(1 / 1.3 + 0.2)


def test_null_is_no_curve(tmp_path: Path) -> None:
    assert read(tmp_path, None).loss is None


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ([40, 0.05, 0.3, 0.2], "is not an object with the keys epochs, b0, b1, b2"),
        ({"epochs": 40}, "is not an object with the keys"),
        (CURVE | {"b3": 1}, "is not an object with the keys"),
        (CURVE | {"b1": "x"}, "loss: b1 'x' is not a number"),
        (CURVE | {"epochs": 0}, "epochs 0 is not positive"),
        (CURVE | {"b0": -1}, "b0 -1 must be at least 0"),
        (CURVE | {"b1": 0}, "b1 0 positive"),
    ],
)
def test_a_senseless_curve_is_refused_with_its_line(tmp_path: Path, loss: object, why: str) -> None:
    with pytest.raises(InputError, match=r"jobs\.jsonl:1: ") as refused:
        read(tmp_path, loss)
    assert why in str(refused.value)


def test_a_curve_that_is_not_finite_is_refused() -> None:
    with pytest.raises(InputError, match="not finite"):
        JobSpec("a", 0.0, duration_s=1.0, loss=LossCurve(10.0, 0.1, 0.3, float("nan")))
