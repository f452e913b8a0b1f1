"""Pollux workloads: the global batch is kept, and says how far a job can be stretched."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.core.errors import InputError
from fairway.core.job import JobSpec
from fairway.traces import read_trace, write_trace

HEADER = "name,time,application,num_replicas,batch_size\n"


def _job(tmp_path: Path, row: str) -> JobSpec:
    path = tmp_path / "workload.csv"
    path.write_text(f"{HEADER}a,5,{row}\n")
    (job,) = read_trace(path).jobs
    return job


@pytest.mark.parametrize(
    ("row", "most"),
    [("cifar10,6,2048", 64), ("bert,6,384", 96), ("imagenet,32,6400", 320), ("yolov3,1,8", 2), ("ncf,1,32768", 1)],
)
def test_a_job_can_use_as_many_gpus_as_its_batch_can_feed(tmp_path: Path, row: str, most: int) -> None:
    job = _job(tmp_path, row)
    assert (job.gpus_min, job.gpus_max, job.global_batch) == (1, most, int(row.rsplit(",", 1)[1]))


@pytest.mark.parametrize("row", ["ncf,4,1024", "yolov3,16,8"])
def test_a_job_that_asks_for_more_than_that_is_rigid(tmp_path: Path, row: str) -> None:
    job = _job(tmp_path, row)
    assert job.gpus_min == job.gpus_max == job.gpus == int(row.split(",")[1])


def test_the_global_batch_survives_fairways_own_format(tmp_path: Path) -> None:
    path = tmp_path / "workload.csv"
    path.write_text(f"{HEADER}a,5,cifar10,6,2048\n")
    workload = read_trace(path)
    write_trace(workload, tmp_path / "own.jsonl")
    assert read_trace(tmp_path / "own.jsonl").jobs == workload.jobs


def test_a_global_batch_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="global batch 0 is not at least 1"):
        JobSpec("a", 0, steps=1, model="x", global_batch=0)
