"""What scripts that were written for Slurm find in their environment."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.environment import launch_of


def environments(tmp_path: Path, **fields: Any) -> list[dict[str, str]]:
    """The environment of each rank."""
    gpus = fields.get("gpus", 1)
    request = JobRequest(command=("true",), user="ann", account="ann", cwd="/home", **fields)
    task = "" if request.array_task is None else f"_{request.array_task}"
    record = JobRecord(0, f"12{task}", request, 1.0)
    launch = launch_of(record, Attempt(3, list(range(gpus)), "t", 1.0), tmp_path, None)
    return [{name: rank["env"][name] for name in rank["env"] if name.startswith("SLURM")} for rank in launch["ranks"]]


def test_a_batch_job_is_on_one_node_with_all_its_tasks(tmp_path: Path) -> None:
    asked = {"FAIRWAY_TASKS": "4", "SLURM_CPUS_PER_TASK": "8"}
    (told,) = environments(tmp_path, gpus=4, slurm_env=True, env=asked, name="resnet", queue="night")
    host = socket.gethostname()
    for name, value in {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NAME": "resnet",
        "SLURM_JOB_PARTITION": "night",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": host,
        "SLURM_NODELIST": host,
        "SLURM_NTASKS": "4",
        "SLURM_NPROCS": "4",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_PROCID": "0",
        "SLURM_RESTART_COUNT": "2",
    }.items():
        assert (name, told[name]) == (name, value)
    assert "SLURM_ARRAY_JOB_ID" not in told


def test_ranks_are_tasks(tmp_path: Path) -> None:
    ranks = environments(tmp_path, gpus=2, slurm_env=True, processes="per_gpu", env={"FAIRWAY_TASKS": "9"})
    assert [one["SLURM_PROCID"] for one in ranks] == ["0", "1"]
    assert {one["SLURM_NTASKS"] for one in ranks} == {"2"}


def test_tasks_of_an_array(tmp_path: Path) -> None:
    (told,) = environments(tmp_path, slurm_env=True, array_task=7)
    assert (told["SLURM_ARRAY_JOB_ID"], told["SLURM_ARRAY_TASK_ID"], told["SLURM_JOB_ID"]) == ("12", "7", "12")


@pytest.mark.parametrize("tasks", ["", "many", "²", "-1"])
def test_a_number_of_tasks_that_is_none_counts_as_one(tmp_path: Path, tasks: str) -> None:
    (told,) = environments(tmp_path, slurm_env=True, env={"FAIRWAY_TASKS": tasks})
    assert told["SLURM_NTASKS"] == "1"


def test_nobody_else_finds_any(tmp_path: Path) -> None:
    assert environments(tmp_path) == [{}]
