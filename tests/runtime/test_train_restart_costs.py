"""What restarts of a live job cost, in the snapshot that policies decide on, and over restarts of the scheduler."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_scheduler import clear, live_scheduler, submit, until
from real_processes import wait_for
from training import ENVIRONMENT

from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.estimates import RESTART_S
from fairway.runtime.jobs.observations import LEAST_COST_S
from fairway.runtime.jobs.records import JobRecord, JobState

SLOW = """
import time
from fairway import train
time.sleep(0.6)
session = train.session(100000)
def save(path):
    time.sleep(0.8)
    path.write_text('saved')
for step in session.steps(save, lambda path: None):
    time.sleep(0.02)
    session.report(loss=1.0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = clear(tmp_path)
    assert not left, f"processes {left} were left behind"


def cost_of(scheduler: Scheduler, job: JobRecord) -> float:
    """What the state says that a restart of a job costs."""
    snapshot = scheduler.state.snapshot()
    return float(snapshot.restart_s[snapshot.jobs.tolist().index(job.number)])


def test_what_restarts_of_a_running_job_cost_reaches_the_snapshot_and_stays(folder: Path) -> None:
    with live_scheduler(folder, 1) as scheduler:
        command = [sys.executable, "-c", SLOW]
        job = until(submit(scheduler, command, preempt="checkpoint", env=ENVIRONMENT), JobState.RUNNING)
        assert cost_of(scheduler, job) == RESTART_S
        wait_for(lambda: cost_of(scheduler, job) != RESTART_S, "its start to be measured")
        before_s = cost_of(scheduler, job)
        assert before_s > 0.5
        began_s = time.monotonic()
        scheduler.requeue(job.id)
        wait_for(lambda: job.attempts[0].ended_s is not None, "it to stop")
        took_s = time.monotonic() - began_s
        first = job.attempts[0]
        assert first.start_s is not None
        assert first.stop_s is not None
        assert 0.8 <= first.stop_s <= took_s + 0.5
        wait_for(lambda: len(job.attempts) == 2 and job.attempts[1].start_s is not None, "its second start")
        seen_s = scheduler.observations.restarts.expected_s(job.request, job.attempts)
        assert seen_s > 0.5 + first.stop_s
        close = pytest.approx(seen_s, abs=LEAST_COST_S)
        wait_for(lambda: cost_of(scheduler, job) == close, "both to count")
    time.sleep(1.0)
    with live_scheduler(folder, 1) as scheduler:
        job = scheduler.store[0]
        assert cost_of(scheduler, job) == close
        assert scheduler.observations.restarts.expected_s(job.request) == pytest.approx(seen_s, rel=0.3)
        read = job.progress.read_bytes
        wait_for(lambda: job.progress.read_bytes > read, "it to report to the new scheduler")
        # It has run for a while: that is not how long it took to start.
        assert cost_of(scheduler, job) == close
        scheduler.cancel(job.id)
        wait_for(lambda: not scheduler.engine.attempts.live)
