"""A training with a session that is suspended in place: it stands still between two steps, and is not started again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from live_scheduler import clear, ended, live_scheduler, log_of, submit, until
from real_processes import state_of, wait_for
from training import ROOT

from fairway.runtime.jobs.records import JobState

TRAINING = """
import time
from fairway import train
session = train.session(steps=%d)
for step in session.steps():
    print('begin', step, flush=True)
    end = time.monotonic() + 0.03
    while time.monotonic() < end: pass
    print('end', step, flush=True)
"""
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src")}


def training(steps: int) -> list[str]:
    return [sys.executable, "-c", TRAINING % steps]


def test_a_suspended_session_stands_between_two_steps(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, gpus=1) as scheduler:
        job = submit(scheduler, training(100_000), env=ENVIRONMENT)
        wait_for(lambda: "end 2" in log_of(scheduler, job), "the first steps")
        ranks = tmp_path / "jobs" / job.id / "attempt-1" / "ranks.json"
        ((pid, _),) = json.loads(ranks.read_text())
        tries = between = 0
        # A step that takes a quarter of a second is cut. If nobody waited for its end, nearly all would be.
        while between < 5:
            tries += 1
            assert tries <= 40, f"it stood between two steps {between} times"
            scheduler.suspend(job.id)
            until(job, JobState.SUSPENDED)
            wait_for(lambda: state_of(pid) == "T", "it to stand still")
            last = log_of(scheduler, job).split("\n")[-2]
            between += last.startswith("end")
            scheduler.release(job.id)
            until(job, JobState.RUNNING)
            wait_for(lambda last=last: log_of(scheduler, job).split("\n")[-2] != last, "it to go on")
        assert len(job.attempts) == 1
        scheduler.cancel(job.id)
        ended(job)
    assert not clear(tmp_path)


def test_jobs_under_hare_take_turns_without_being_started_again(tmp_path: Path) -> None:
    with live_scheduler(tmp_path, gpus=1, policy="hare:clairvoyant=no,group_s=1") as scheduler:
        jobs = [submit(scheduler, training(90), env=ENVIRONMENT) for _ in range(2)]
        for job in jobs:
            ended(job)
            assert (job.state, len(job.attempts)) == (JobState.COMPLETED, 1)
            assert log_of(scheduler, job).count("begin") == 90
        assert all(job.preemptions > 0 for job in jobs[:1])
    assert not clear(tmp_path)
