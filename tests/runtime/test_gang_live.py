"""Trainings over two machines under a live scheduler: real hands, keepers and torch, without Ray.

The loss curve does not show that a training was suspended, preempted, or resized from two machines to one and back.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from plain_bridge import PlainBridge
from training import Dictated, Stage, example, wait_for

from fairway.placement import placement
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.submission.shell import run_script_text

PYTHON = os.environ.get("FAIRWAY_TEST_TORCH_PYTHON") or (sys.executable if find_spec("torch") else "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="needs torch")]
ELASTIC: dict[str, Any] = {"gpus": 2, "gpus_min": 1, "gpus_max": 2, "processes": "per_gpu"}


@contextmanager
def over_machines(folder: Path) -> Iterator[Stage]:
    """A scheduler over two machines with one GPU each."""
    folder.mkdir()
    bridge = PlainBridge(folder, ["n1", "n2"], gpus="1", address="127.0.0.1")
    site = bridge.site()
    stage = Stage(folder / "state", 2, site.cluster, site=site, jobs_folder=folder / "jobs")
    try:
        yield stage
    finally:
        stage.close()
        site.close()
        bridge.close()


def test_gpus_are_numbered_by_machine_even_if_it_is_several_nodes(tmp_path: Path) -> None:
    bridge = PlainBridge(tmp_path, ["n1", "n2"], gpus="v100:1,k80:2")
    site = bridge.site()
    scheduler = Scheduler(tmp_path / "state", site.cluster, Dictated(1), placement("packed"), site=site)
    try:
        assert [site.member(node).name for node in range(4)] == ["n1", "n1", "n2", "n2"]
        found = [[(one.member.name, one.gpus) for one in scheduler.engine._places(gpus)] for gpus in ((1, 2), (5, 2))]
        assert found == [[("n1", (1, 2))], [("n1", (2,)), ("n2", (2,))]]
    finally:
        scheduler.close()
        site.close()
        bridge.close()


def command(folder: Path, *options: str) -> tuple[str, ...]:
    return (*example("pytorch_ddp", PYTHON), "--out", str(folder / "out.json"), *options)


def result(folder: Path) -> Any:
    return json.loads((folder / "out.json").read_text())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an uninterrupted training over two machines gives."""
    folder = tmp_path_factory.mktemp("gang") / "whole"
    with over_machines(folder) as stage:
        record = stage.completed(stage.submit(*command(folder), **ELASTIC))
        assert [attempt.nodes for attempt in record.attempts] == [["n1", "n2"]]
    return result(folder)


def at_step(stage: Stage, record: JobRecord, step: int) -> None:
    wait_for(
        lambda: record.progress.step >= step or record.state.ended,
        f"step {step}; it is {record.state} at {record.progress.step}\n{stage.logs(record)}",
    )


def resize(stage: Stage, record: JobRecord, step: int, gpus: int) -> None:
    at_step(stage, record, step)
    attempts = len(record.attempts)
    stage.give(gpus)
    wait_for(lambda: len(record.attempts) > attempts, f"the attempt on {gpus} GPUs\n{stage.logs(record)}")


def test_a_training_is_resized_from_two_machines_to_one_and_back(tmp_path: Path, expected: Any) -> None:
    folder = tmp_path / "resized"
    with over_machines(folder) as stage:
        record = stage.submit(*command(folder, "--pause", "0.05"), **ELASTIC)
        resize(stage, record, 20, 1)
        resize(stage, record, 50, 2)
        stage.completed(record)
    assert [len(attempt.nodes) for attempt in record.attempts] == [2, 1, 2]
    assert [attempt.codes for attempt in record.attempts] == [[75, 75], [75], [0, 0]]
    assert result(folder) == expected


def test_a_training_over_machines_is_suspended_in_place(tmp_path: Path, expected: Any) -> None:
    folder = tmp_path / "suspended"
    with over_machines(folder) as stage:
        about = {"gpus": 2, "processes": "per_gpu", "preempt": "suspend"}
        record = stage.submit(*command(folder, "--pause", "0.05"), **about)
        at_step(stage, record, 20)
        stage.give(0)
        wait_for(lambda: record.state is JobState.SUSPENDED, "the job to be suspended")
        wait_for(lambda: _stands_still(stage), "all ranks to stand still")
        stage.give(2)
        stage.completed(record)
    assert len(record.attempts) == 1
    assert result(folder) == expected


def _stands_still(stage: Stage) -> bool:
    """Whether the processes of all keepers are stopped."""
    ranks = [json.loads(path.read_text()) for path in stage.jobs.glob("*/attempt-*/node-*/ranks.json")]
    stats = [Path(f"/proc/{pid}/stat").read_text() for known in ranks for pid, _ in known]
    return len(stats) == 2 and all(stat[stat.rfind(")") + 2] == "T" for stat in stats)


def test_a_batch_script_trains_over_machines_and_is_preempted(tmp_path: Path, expected: Any) -> None:
    folder = tmp_path / "batch"
    words = shlex.join(command(folder, "--pause", "0.05"))
    with over_machines(folder) as stage:
        about: dict[str, Any] = {"gpus": 2, "slurm_env": True, "env": {"FAIRWAY_TASKS": "2"}}
        record = stage.submit(*run_script_text(f"srun {words}\n", "sbatch", ()), **about)
        at_step(stage, record, 20)
        stage.give(0)
        wait_for(lambda: record.attempts[0].ended_s is not None, f"the first attempt to end\n{stage.logs(record)}")
        stage.give(2)
        stage.completed(record)
    assert [attempt.codes for attempt in record.attempts] == [[75, 0], [0, 0]]
    assert result(folder) == expected
