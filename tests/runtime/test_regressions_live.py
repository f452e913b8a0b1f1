"""Things that went wrong once: exit code 75 of any job, run time across restarts, orders that cross."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime import live
from fairway.runtime.records import JobState
from fairway.runtime.request import JobRequest
from fairway.runtime.scheduler import Scheduler

DEADLINE_S = 60.0


def scheduler(folder: Path) -> Scheduler:
    cluster = Cluster.of([Node("here", "cpu", 1)], [GpuType("cpu", 0, 0.0, 1.0)])
    made = Scheduler(folder, cluster, make_policy("fifo"), placement("packed"), min_run_s=0.0)
    made.start()
    return made


def until(met: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def stop(made: Scheduler) -> None:
    over = threading.Event()
    made.on_stop = over.set
    made.close()
    assert over.wait(DEADLINE_S), "the scheduler does not stop"


def test_exit_code_75_asks_for_another_run_whatever_the_job_said_of_preemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "BACK_OFF_S", 0.2)
    made = scheduler(tmp_path)
    mark = tmp_path / "once"
    script = f"if [ -e {mark} ]; then exit 0; fi; touch {mark}; exit 75"
    (record,) = made.submit([JobRequest(("bash", "-c", script), cwd="/")])
    until(lambda: record.state.ended, "the job ends")
    assert record.state is JobState.COMPLETED
    assert len(record.attempts) == 2
    stop(made)


def test_run_time_is_counted_across_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    made = scheduler(tmp_path)
    (record,) = made.submit([JobRequest(("sleep", "3"), cwd="/")])
    until(lambda: record.state is JobState.RUNNING, "the job runs")
    time.sleep(1.5)
    stop(made)
    again = scheduler(tmp_path)
    found = again.book.get(record.id)
    assert found is not None
    until(lambda: found.state.ended, "the job ends")
    assert 2.5 < found.ran_s < 20.0
    stop(again)


def test_orders_to_suspend_and_resume_in_quick_succession_leave_the_last_one_in_force(tmp_path: Path) -> None:
    made = scheduler(tmp_path)
    out = tmp_path / "ticks"
    (record,) = made.submit([JobRequest(("bash", "-c", f"while :; do echo x >> {out}; sleep 0.05; done"), cwd="/")])
    until(lambda: out.exists(), "the job runs")
    for act in (made.suspend, made.release, made.suspend):
        act(record.id)
    time.sleep(1.0)
    before = out.stat().st_size
    time.sleep(1.0)
    assert out.stat().st_size == before
    made.release(record.id)
    until(lambda: out.stat().st_size > before, "the job goes on")
    made.cancel(record.id)
    until(lambda: record.attempts[-1].ended_s is not None, "its processes are gone")
    stop(made)
