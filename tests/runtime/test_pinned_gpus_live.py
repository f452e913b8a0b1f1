"""Jobs whose memory is on their GPUs, and blocked GPUs: no job is placed where it cannot run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_scheduler import clear, ended, live_scheduler, log_of, submit, until
from real_processes import wait_for

from fairway.policies import make_policy
from fairway.runtime.daemon.daemon import suspend_jobs
from fairway.runtime.jobs.records import JobState
from fairway.runtime.journal.recovery import Recovery
from fairway.runtime.processes import local

DEVICES = ["first", "second"]
STUBBORN = ["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
SLOW = ["bash", "-c", "trap 'sleep 1; exit 75' TERM; echo ready; while :; do sleep 0.1; done"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    clear(tmp_path)


def test_another_policy_does_not_move_jobs_away_from_their_memory(folder: Path) -> None:
    with live_scheduler(folder, policy="las", devices=DEVICES) as scheduler:
        first = [until(submit(scheduler, ["sleep", "2"]), JobState.RUNNING) for _ in DEVICES]
        for job in first:
            scheduler.suspend(job.id)
        others = [until(submit(scheduler, ["sleep", "1"]), JobState.RUNNING) for _ in DEVICES]
        for job in first:
            scheduler.release(job.id)
        scheduler.set_policy(make_policy("gandiva"), "gandiva")
        for job in [*first, *others]:
            assert ended(job).state is JobState.COMPLETED
            assert [attempt.codes for attempt in job.attempts] == [[0]], "nobody was stopped"
        assert scheduler.guard.problem == ""


@pytest.mark.parametrize("policy", ["fifo", "las"])
def test_a_gpu_does_not_idle_because_a_suspended_job_cannot_use_it(folder: Path, policy: str) -> None:
    with live_scheduler(folder, policy=policy, devices=DEVICES) as scheduler:
        away = until(submit(scheduler, ["sleep", "600"]), JobState.RUNNING)
        short = until(submit(scheduler, ["sleep", "2"], preempt="never"), JobState.RUNNING)
        owner = until(submit(scheduler, ["sleep", "600"], preempt="never", priority=5), JobState.RUNNING)
        assert away.state is JobState.SUSPENDED
        ended(short)
        assert ended(submit(scheduler, ["true"])).state is JobState.COMPLETED
        assert away.state is JobState.SUSPENDED
        assert scheduler.reasons.all()[away.number] == f"its memory is on GPU 0, where job {owner.id} runs"
        scheduler.cancel(owner.id)
        until(away, JobState.RUNNING)
        assert len(away.attempts) == 1
        scheduler.end_all()


def test_a_job_whose_granted_gpu_is_taken_by_others_is_given_another(folder: Path) -> None:
    with live_scheduler(folder, devices=DEVICES) as scheduler:
        slow = submit(scheduler, SLOW, preempt="checkpoint")
        wait_for(lambda: "ready" in log_of(scheduler, slow))
        short = until(submit(scheduler, ["sleep", "3"], preempt="never"), JobState.RUNNING)
        waits = submit(scheduler, ["true"], preempt="never", priority=5)
        wait_for(lambda: scheduler.state.held_gpus.get(waits.number) == (0,), "the grant")
        scheduler.block_gpus({0: "somebody else computes on it"})
        ended(short)
        assert ended(waits).state is JobState.COMPLETED
        assert waits.attempts[-1].gpus == [1]
        scheduler.block_gpus({})
        until(slow, JobState.RUNNING)
        scheduler.end_all()


def test_a_job_at_its_time_limit_keeps_its_gpu_until_it_is_gone(folder: Path) -> None:
    with live_scheduler(folder, 1, devices=DEVICES[:1]) as scheduler:
        late = submit(scheduler, STUBBORN, limit_s=1.0, grace_s=3.0)
        wait_for(lambda: "ready" in log_of(scheduler, late))
        directory = folder / "jobs" / late.id / "attempt-1"
        wait_for((directory / "stopping").exists, "the limit")
        urgent = submit(scheduler, ["true"], priority=5)
        ended(urgent)
        assert late.attempts[0].ended_s is not None
        assert late.state is JobState.TIMEOUT
        assert urgent.attempts[0].launched_s >= late.attempts[0].ended_s


def test_a_full_disk_does_not_turn_pause_and_resume_round(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = folder / "ticks"
    with live_scheduler(folder, 1) as scheduler:
        job = submit(scheduler, ["bash", "-c", f"while :; do echo x >> {out}; sleep 0.05; done"])
        wait_for(out.exists)
        scheduler.suspend(job.id)
        scheduler.release(job.id)
        until(job, JobState.RUNNING)
        monkeypatch.setattr(local.Running, "_leave_word", lambda *_: False)
        scheduler.suspend(job.id)
        wait_for(lambda: _still(out), "the job to stand still")
        scheduler.release(job.id)
        wait_for(lambda: not _still(out), "the job to go on")
        scheduler.end_all()


def _still(path: Path) -> bool:
    before = path.stat().st_size
    time.sleep(0.5)
    return path.stat().st_size == before


def test_a_scheduler_that_is_killed_while_it_starts_again_leaves_running_jobs_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = ["first", "second", "third"]
    with live_scheduler(folder, 3, devices=devices) as scheduler:
        jobs = [submit(scheduler, STUBBORN, preempt="never", grace_s=0.5) for _ in devices]
        for job in jobs:
            wait_for(lambda job=job: "ready" in log_of(scheduler, job))
        scheduler.cancel(jobs[0].id)
        ended(jobs[0])
    # Dies while what it has found is written down.
    with monkeypatch.context() as context:
        context.setattr(Recovery, "_book_running", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError), live_scheduler(folder, 2, devices=devices[1:]):
            pass
    with live_scheduler(folder, 2, devices=devices[1:]) as scheduler:
        wait_for(lambda: scheduler.state.held_gpus == {1: (0,), 2: (1,)}, "both to go on")
        assert [len(record.attempts) for record in scheduler.store] == [1, 1, 1]
        assert [record.attempts[0].gpus for record in scheduler.store][1:] == [[0], [1]]
        scheduler.end_all()


def test_a_job_that_has_to_wait_for_its_gpu_after_a_restart_goes_on_then(folder: Path) -> None:
    with live_scheduler(folder, 1, policy="antman:interval_s=1") as scheduler:
        host = until(submit(scheduler, ["sleep", "600"], model="a"), JobState.RUNNING)
        guest = submit(scheduler, SLOW, model="b", preempt="checkpoint", priority=-1, grace_s=10.0)
        wait_for(lambda: "ready" in log_of(scheduler, guest))
        wait_for((folder / "jobs" / host.id / "attempt-1" / "ranks.json").exists)
    assert suspend_jobs(folder) == 2
    with live_scheduler(folder, 1) as scheduler:
        # The other policy does not let them share, and the guest takes its time.
        wait_for(lambda: not scheduler.engine.attempts.live[0].adopted, "the host to go on")
        wait_for(lambda: scheduler.store[0].since_s is not None, "its run time to count")
        scheduler.end_all()
