"""Jobs that an executor hosts, under the real scheduler with virtual GPUs: they are jobs like others."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_scheduler import clear, ended, live_scheduler, log_of, submit, until
from real_processes import wait_for

from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.processes import executors
from fairway.testing.hosted import Hosted
from fairway.testing.waiting import at_rest

JOBS = Path(__file__).resolve().parents[1] / "unit" / "gpu"


def hosted(scheduler: Scheduler, *arguments: str, factory: str = "hosted_jobs:counting", **about: Any) -> JobRecord:
    """Submit a job for an executor that ends soon after its last job."""
    env = {"FAIRWAY_EXECUTOR_IDLE_S": "0.5", "CUDA_VISIBLE_DEVICES": ""}
    return submit(scheduler, [sys.executable, *arguments], executor=factory, cwd=str(JOBS), env=env, **about)


def _wardens(folder: Path) -> set[int]:
    return set().union(*executors.wardens(folder / "executors").values(), set())


def _executor(folder: Path) -> int:
    """The process of the only executor."""
    (warden,) = wait_for(lambda: _wardens(folder), "a warden")
    children = Path(f"/proc/{warden}/task/{warden}/children")
    return int(wait_for(lambda: children.read_text().split(), "an executor")[0])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    wait_for(lambda: not _wardens(tmp_path), "executors to end")
    assert not clear(tmp_path)


def _steps(note: Path) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in note.read_text().splitlines()] if note.exists() else []


def test_a_hosted_job_is_a_job_like_others(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        job = ended(hosted(scheduler, "30", "0.01"))
        assert job.state is JobState.COMPLETED, log_of(scheduler, job)
        assert job.progress.step == 30
        assert "step 30: loss 0.0333333" in log_of(scheduler, job)


def test_jobs_of_one_user_on_one_gpu_share_a_process(folder: Path) -> None:
    note = folder / "note"
    with live_scheduler(folder, gpus=1) as scheduler:
        for _ in range(2):
            assert ended(hosted(scheduler, "5", "0", str(note))).state is JobState.COMPLETED
    assert len({pid for pid, _ in _steps(note)}) == 1


def test_an_error_is_told_and_the_job_fails(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        job = ended(hosted(scheduler, "factory", factory="hosted_jobs:odd"))
        assert job.state is JobState.FAILED
        assert "hosted_jobs:odd: RuntimeError: no data here" in log_of(scheduler, job)


def test_a_suspended_job_stands_still_and_goes_on_in_the_same_process(folder: Path) -> None:
    note = folder / "note"
    with live_scheduler(folder, gpus=1) as scheduler:
        job = hosted(scheduler, "100000", "0.01", str(note))
        wait_for(lambda: len(_steps(note)) > 3, "steps")
        scheduler.suspend(job.id)
        until(job, JobState.SUSPENDED)
        before = at_rest(lambda: len(_steps(note)))
        scheduler.release(job.id)
        until(job, JobState.RUNNING)
        wait_for(lambda: len(_steps(note)) > before + 3, "more steps")
        scheduler.cancel(job.id)
        assert ended(job).state is JobState.CANCELLED
    assert len({pid for pid, _ in _steps(note)}) == 1


def test_a_preempted_job_saves_its_state_and_goes_on_later(folder: Path) -> None:
    note = folder / "note"
    with live_scheduler(folder, gpus=1, policy="fifo") as scheduler:
        job = hosted(scheduler, "400", "0.01", str(note), preempt="checkpoint")
        wait_for(lambda: len(_steps(note)) > 3, "steps")
        scheduler.requeue(job.id)
        wait_for(lambda: len(job.attempts) == 2, "another attempt")
        assert ended(job).state is JobState.COMPLETED
    assert [count for _, count in _steps(note)] == list(range(1, 401))


def test_a_job_whose_executor_is_killed_goes_on_from_its_last_saved_state(folder: Path) -> None:
    note = folder / "note"
    with live_scheduler(folder, gpus=1) as scheduler:
        job = hosted(scheduler, "400", "0.01", str(note), factory="hosted_jobs:saving")
        wait_for(lambda: len(_steps(note)) > 30, "steps")
        os.kill(_executor(folder), signal.SIGKILL)
        assert ended(job).state is JobState.COMPLETED
        assert len(job.attempts) == 1
    counts = [count for _, count in _steps(note)]
    again = next(at for at in range(1, len(counts)) if counts[at] <= counts[at - 1])
    assert counts[again] % 10 == 1
    assert counts[again] > 1
    assert counts[-1] == 400
    assert len({pid for pid, _ in _steps(note)}) == 2


def test_a_killed_seat_takes_its_job_along(folder: Path) -> None:
    note = folder / "note"
    with live_scheduler(folder, gpus=1) as scheduler:
        job = hosted(scheduler, "100000", "0.01", str(note))
        wait_for(lambda: len(_steps(note)) > 3, "steps")
        ranks = folder / "jobs" / job.id / "attempt-1" / "ranks.json"
        ((pid, _),) = json.loads(ranks.read_text())
        os.kill(pid, signal.SIGKILL)
        ended(job)
        at_rest(lambda: len(_steps(note)))


def test_an_executor_outlives_the_scheduler(folder: Path) -> None:
    note = folder / "note"
    with live_scheduler(folder, gpus=1) as scheduler:
        name = hosted(scheduler, "300", "0.01", str(note)).id
        wait_for(lambda: len(_steps(note)) > 3, "steps")
    with live_scheduler(folder, gpus=1) as scheduler:
        job = next(record for record in scheduler.store if record.id == name)
        second = hosted(scheduler, "3", "0", str(note))
        assert ended(job).state is JobState.COMPLETED
        assert ended(second).state is JobState.COMPLETED
    assert len({pid for pid, _ in _steps(note)}) == 1


def test_guests_of_one_gpu_are_in_one_executor(folder: Path) -> None:
    note = folder / "note"
    with live_scheduler(folder, gpus=1) as scheduler:
        scheduler.set_policy(Hosted(1.0), "hosted")
        jobs = [hosted(scheduler, "400", "0.01", str(note)) for _ in range(2)]
        for job in jobs:
            assert ended(job).state is JobState.COMPLETED, log_of(scheduler, job)
    counts = [count for _, count in _steps(note)]
    assert len({pid for pid, _ in _steps(note)}) == 1
    assert max(counts[:400]) < 400
