"""Commands in quick succession and restarts of the scheduler: run times, guests, places and logs stay right."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs import live_jobs as ends
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.waiting import WAIT_S, at_rest, wait_for


def scheduler(folder: Path, gpus: int = 1, policy: str = "fifo") -> Scheduler:
    cluster = Cluster.of([Node("here", "cpu", gpus)], [GpuType("cpu", 0, 0.0, 1.0)])
    made = Scheduler(folder, cluster, make_policy(policy), placement("packed"), min_run_s=0.0, policy_text=policy)
    made.start()
    return made


def stop(made: Scheduler) -> None:
    over = threading.Event()
    made.on_stop.append(over.set)
    made.close()
    assert over.wait(WAIT_S), "the scheduler does not stop"


def kept(made: Scheduler, record: JobRecord) -> None:
    """Wait until a job's processes outlive the scheduler: before that they are started anew by the next one."""
    ranks = made.folder / "jobs" / record.id / "attempt-1" / "ranks.json"
    wait_for(ranks.exists, "its processes run")


def end(made: Scheduler) -> None:
    made.end_all()
    assert not made.engine.attempts.live
    stop(made)


def test_exit_code_75_asks_for_another_run_whatever_the_job_said_of_preemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "BACK_OFF_S", 0.2)
    made = scheduler(tmp_path)
    mark = tmp_path / "once"
    script = f"if [ -e {mark} ]; then exit 0; fi; touch {mark}; exit 75"
    (record,) = made.submit([JobRequest(("bash", "-c", script), cwd="/")])
    wait_for(lambda: record.state.ended, "the job ends")
    assert record.state is JobState.COMPLETED
    assert len(record.attempts) == 2
    stop(made)


def test_run_time_is_counted_across_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    made = scheduler(tmp_path)
    (record,) = made.submit([JobRequest(("sleep", "3"), cwd="/")])
    wait_for(lambda: record.state is JobState.RUNNING, "the job runs")
    time.sleep(1.5)
    stop(made)
    again = scheduler(tmp_path)
    found = again.store.get(record.id)
    assert found is not None
    wait_for(lambda: found.state.ended, "the job ends")
    assert 2.5 < found.ran_s < 200.0
    stop(again)


def test_orders_to_suspend_and_resume_in_quick_succession_leave_the_last_one_in_force(tmp_path: Path) -> None:
    made = scheduler(tmp_path)
    out = tmp_path / "ticks"
    (record,) = made.submit([JobRequest(("bash", "-c", f"while :; do echo x >> {out}; sleep 0.05; done"), cwd="/")])
    wait_for(lambda: out.exists(), "the job runs")
    for act in (made.suspend, made.release, made.suspend):
        act(record.id)
    before = at_rest(lambda: out.stat().st_size)
    made.release(record.id)
    wait_for(lambda: out.stat().st_size > before, "the job goes on")
    made.cancel(record.id)
    wait_for(lambda: record.attempts[-1].ended_s is not None, "its processes are gone")
    stop(made)


STUBBORN = "trap '' TERM; touch {mark}; while :; do sleep 0.1; done"


def test_a_job_that_waits_for_the_last_owner_of_its_gpus_can_be_held_and_suspended(tmp_path: Path) -> None:
    made = scheduler(tmp_path)
    mark = tmp_path / "trapped"
    (owner,) = made.submit([JobRequest(("bash", "-c", STUBBORN.format(mark=mark)), cwd="/", grace_s=5.0)])
    wait_for(mark.exists, "the first job runs")
    held, suspended = made.submit([JobRequest(("true",), cwd="/"), JobRequest(("true",), cwd="/")])
    made.cancel(owner.id)
    wait_for(lambda: held.number in made.state.held_gpus, "its GPU is granted to the second")
    made.hold(held.id)
    wait_for(lambda: suspended.number in made.state.held_gpus, "and then to the third")
    made.suspend(suspended.id)
    wait_for(lambda: owner.attempts[-1].ended_s is not None, "the first one is gone")
    (last,) = made.submit([JobRequest(("true",), cwd="/")])
    wait_for(lambda: last.state.ended, "another job runs")
    assert held.attempts == suspended.attempts == []
    made.release(held.id)
    made.release(suspended.id)
    wait_for(lambda: held.state.ended and suspended.state.ended, "they run when they may")
    stop(made)


def sharing(made: Scheduler) -> tuple[JobRecord, JobRecord]:
    (host,) = made.submit([JobRequest(("sleep", "60"), cwd="/", model="a")])
    (guest,) = made.submit([JobRequest(("sleep", "60"), cwd="/", model="b", priority=-1)])
    wait_for(lambda: guest.state is JobState.RUNNING, "they share the GPU")
    kept(made, host)
    kept(made, guest)
    return host, guest


def test_guests_leave_when_the_policy_changes(tmp_path: Path) -> None:
    made = scheduler(tmp_path, policy="antman:interval_s=1")
    host, guest = sharing(made)
    made.set_policy(make_policy("fifo"), "fifo")
    wait_for(lambda: guest.state is JobState.SUSPENDED, "the guest leaves")
    (later,) = made.submit([JobRequest(("true",), cwd="/")])
    made.cancel(host.id)
    wait_for(lambda: guest.state is JobState.RUNNING, "it is the first in the queue")
    assert made.guard.problem == ""
    made.cancel(guest.id)
    wait_for(lambda: later.state.ended, "the others follow")
    stop(made)


def test_a_guest_outlives_its_host_across_a_restart(tmp_path: Path) -> None:
    made = scheduler(tmp_path, policy="antman:interval_s=1")
    host, _ = sharing(made)
    made.cancel(host.id)
    wait_for(lambda: host.attempts[-1].ended_s is not None, "the host is gone")
    stop(made)
    again = scheduler(tmp_path, policy="antman:interval_s=1")
    assert again.state.snapshot().host.tolist() == [-1]
    end(again)


def test_jobs_that_have_traded_places_do_not_block_one_another_after_a_restart(tmp_path: Path) -> None:
    made = scheduler(tmp_path, gpus=2)
    one, other = made.submit([JobRequest(("sleep", "60"), cwd="/")] * 2)
    wait_for(lambda: one.state is other.state is JobState.RUNNING, "both run")
    made.suspend(one.id)
    made.suspend(other.id)
    made.release(other.id)
    wait_for(lambda: other.state is JobState.RUNNING, "the second goes on, in the first's place")
    made.release(one.id)
    wait_for(lambda: one.state is JobState.RUNNING, "the first goes on as well")
    assert [one.attempts[-1].gpus, other.attempts[-1].gpus] == [[1], [0]]
    stop(made)
    again = scheduler(tmp_path, gpus=2)
    again.cancel(one.id)
    (third,) = again.submit([JobRequest(("true",), cwd="/")])
    wait_for(lambda: third.state.ended, "a job runs in the free place")
    end(again)


def test_holding_a_task_that_runs_does_not_let_another_in(tmp_path: Path) -> None:
    made = scheduler(tmp_path, gpus=2)
    task = JobRequest(("sleep", "60"), cwd="/", array_at_once=1)
    first, second = made.submit([task.task(0), task.task(1)], array=True)
    wait_for(lambda: first.state is JobState.RUNNING, "the first task runs")
    made.hold(first.id)
    assert made.guard.outside.keys() == {first.number, second.number}
    assert second.number not in made.state.held_gpus
    made.suspend(first.id)
    wait_for(lambda: second.state is JobState.RUNNING, "another comes in when it is off its GPU")
    end(made)


def test_jobs_go_on_when_the_number_of_gpus_has_changed(tmp_path: Path) -> None:
    made = scheduler(tmp_path, gpus=3)
    jobs = made.submit([JobRequest(("sleep", "60"), cwd="/", preempt="never")] * 2)
    wait_for(lambda: all(job.state is JobState.RUNNING for job in jobs), "both run")
    for job in jobs:
        kept(made, job)
    stop(made)
    again = scheduler(tmp_path, gpus=2)
    wait_for(lambda: sorted(again.state.held_gpus.values()) == [(0,), (1,)], "both go on")
    wait_for(lambda: all(record.state is JobState.RUNNING for record in again.store), "both go on")
    assert [len(record.attempts) for record in again.store] == [1, 1]
    end(again)


def test_a_log_that_is_not_sound_loses_no_job_and_stops_none(tmp_path: Path) -> None:
    made = scheduler(tmp_path, gpus=2)
    runs, waits = made.submit([JobRequest(("sleep", "60"), cwd="/"), JobRequest(("true",), cwd="/", hold=True)])
    wait_for(lambda: runs.state is JobState.RUNNING, "the first runs")
    kept(made, runs)
    stop(made)
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("DELETE FROM log WHERE job = ? AND kind = 'JobSubmitted'", (runs.number,))
    again = scheduler(tmp_path, gpus=2)
    assert "not sound" in again.problem
    found = again.store.get(runs.id)
    assert found is not None
    wait_for(lambda: found.number in again.state.held_gpus, "the first goes on")
    again.release(waits.id)
    other = again.store.get(waits.id)
    assert other is not None
    wait_for(lambda: other.state is JobState.COMPLETED, "the second runs")
    assert len(found.attempts) == 1
    end(again)


def test_steps_without_a_total_leave_work_counted_in_seconds_across_a_restart(tmp_path: Path) -> None:
    made = scheduler(tmp_path)
    report = 'while :; do i=$((i+1)); echo "{\\"step\\": $i}" >> "$FAIRWAY_REPORT"; sleep 0.2; done'
    (record,) = made.submit([JobRequest(("bash", "-c", report), cwd="/", expected_s=1.0)])
    wait_for(lambda: made.observations.expected_s.get(record.number, 0.0) > 1.5, "it runs for longer than expected")
    wait_for(lambda: record.progress.steps_per_s is not None, "it reports")
    stop(made)
    again = scheduler(tmp_path)
    found = again.store.get(record.id)
    assert found is not None
    assert again.observations.progress(found) == found.ran_s
    end(again)
