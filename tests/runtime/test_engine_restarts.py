"""Schedulers that end and are started again: processes are found in whatever state the old one had left them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from live_scheduler import clear, ended, live_scheduler, log_of, submit, until
from real_processes import processes_of, python, state_of, wait_for

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import FairwayError
from fairway.runtime.daemon.clock import SystemTime
from fairway.runtime.daemon.daemon import AlreadyUpError, Daemon, Options
from fairway.runtime.jobs.records import JobState
from fairway.runtime.journal import database as journals
from fairway.runtime.journal.database import DiskFullError
from fairway.runtime.journal.salvage import salvage
from fairway.runtime.processes.machine import virtual_machine

TICKS = "import time\nfor _ in range(40):\n    print('tick', flush=True)\n    time.sleep(0.05)"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = clear(tmp_path)
    assert not left, f"processes {left} were left behind"


def _keeper(folder: Path, name: str = "1") -> int:
    path = folder / "jobs" / name / "attempt-1" / "keeper.json"
    wait_for(path.exists)
    return int(json.loads(path.read_text())[0])


def test_alike_jobs_that_ended_meanwhile_in_another_order_are_taken_note_of(folder: Path) -> None:
    alike = ["bash", "-c", "while [ ! -e $GO ]; do sleep 0.05; done"]
    go = [folder / "first", folder / "second"]
    with live_scheduler(folder) as scheduler:
        jobs = [submit(scheduler, alike, env={"GO": str(path)}) for path in go]
        for job in jobs:
            until(job, JobState.RUNNING)
            wait_for((folder / "jobs" / job.id / "attempt-1" / "ranks.json").exists)
    for job, path in reversed(list(zip(jobs, go, strict=True))):
        path.touch()
        wait_for((folder / "jobs" / job.id / "attempt-1" / "exit.json").exists)
    with live_scheduler(folder) as scheduler:
        assert [ended(job).state for job in scheduler.store] == [JobState.COMPLETED] * 2
        assert not scheduler.state.active


def test_a_job_that_was_left_suspended_against_what_was_decided_goes_on(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        job = until(submit(scheduler, python(TICKS)), JobState.RUNNING)
        wait_for(lambda: "tick" in log_of(scheduler, job))
    # As if the old one had ended between writing down that the job goes on and letting it.
    os.kill(_keeper(folder), signal.SIGUSR1)
    time.sleep(0.3)
    with live_scheduler(folder) as scheduler:
        job = ended(scheduler.store[0])
        assert (job.state, len(job.attempts)) == (JobState.COMPLETED, 1)


def test_a_job_that_was_left_running_against_what_was_decided_is_suspended(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        job = until(submit(scheduler, python(TICKS.replace("40", "400"))), JobState.RUNNING)
        wait_for(lambda: "tick" in log_of(scheduler, job))
        scheduler.suspend(job.id)
    keeper = _keeper(folder)
    os.kill(keeper, signal.SIGUSR2)
    with live_scheduler(folder) as scheduler:
        job = scheduler.store[0]
        ranks = scheduler.engine.attempts.live[0].handle.directory / "ranks.json"
        pid = int(ranks.read_text().strip("[").split(",")[0])
        wait_for(lambda: state_of(pid) == "T")
        assert job.state is JobState.SUSPENDED
        scheduler.cancel(job.id)
        ended(job)


def test_a_cancelled_job_whose_processes_nobody_stopped_is_stopped(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        job = until(submit(scheduler, ["bash", "-c", "echo ready; exec sleep 600"]), JobState.RUNNING)
        wait_for(lambda: "ready" in log_of(scheduler, job))
        # As if the scheduler had ended between writing down that the job is cancelled and stopping it.
        scheduler.engine.attempts.stop = lambda number, **_: False  # type: ignore[method-assign]
        scheduler.engine.attempts.set_targets = lambda targets: None  # type: ignore[method-assign]
        scheduler.cancel(job.id)
    with live_scheduler(folder) as scheduler:
        job = scheduler.store[0]
        assert job.state is JobState.CANCELLED
        ended(job)
        attempt = job.attempt
        assert attempt is not None
        assert attempt.codes == [143]


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_scheduler_on_another_number_of_gpus_loses_no_job(folder: Path, gpus: int) -> None:
    with live_scheduler(folder, 4) as scheduler:
        jobs = [submit(scheduler, python(TICKS.replace("40", "15")), gpus=1) for _ in range(6)]
        wide = submit(scheduler, ["true"], gpus=4)
        until(jobs[3], JobState.RUNNING)
        # A keeper that has not begun when its scheduler ends never will, and the job has a second attempt.
        wait_for(lambda: all("tick" in log_of(scheduler, job) for job in jobs[:4]))
    with live_scheduler(folder, gpus) as scheduler:
        for job in list(scheduler.store)[:6]:
            ended(job)
            assert (job.state, len(job.attempts)) == (JobState.COMPLETED, 1)
        wide = scheduler.store[6]
        if gpus >= 4:
            assert ended(wide).state is JobState.COMPLETED
        else:
            assert wide.state is JobState.PENDING
            assert "no GPUs that are here now" in scheduler.guard.outside[wide.number]
    if gpus < 4:
        with live_scheduler(folder, 4) as scheduler:
            assert ended(scheduler.store[6]).state is JobState.COMPLETED


def test_gpus_that_were_renumbered_keep_their_jobs(folder: Path) -> None:
    # The first of three GPUs is gone; jobs on the others are suspended in place and go on where their memory is.
    with live_scheduler(folder, 3, devices=["a", "b", "c"]) as scheduler:
        jobs = [submit(scheduler, python(TICKS.replace("40", "30"))) for _ in range(3)]
        for job in jobs:
            until(job, JobState.RUNNING)
        before = [job.attempts[0].gpus for job in jobs]
        wait_for(lambda: all("tick" in log_of(scheduler, job) for job in jobs))
    assert before == [[0], [1], [2]]
    with live_scheduler(folder, 2, devices=["b", "c"]) as scheduler:
        jobs = [ended(job) for job in scheduler.store]
        assert [job.state for job in jobs] == [JobState.COMPLETED] * 3
        assert [len(job.attempts) for job in jobs] == [2, 1, 1]
        assert [job.attempts[0].gpus for job in jobs[1:]] == [[0], [1]]


def test_other_gpu_types_than_last_time_lose_no_job(folder: Path) -> None:
    with live_scheduler(folder, 2) as scheduler:
        submit(scheduler, python(TICKS))
        submit(scheduler, ["true"], hold=True)
    nodes = [Node("a", "v100", 1), Node("b", "t4", 1)]
    mixed = Cluster.of(nodes, [GpuType("v100", 0, 0.0, 1.0), GpuType("t4", 0, 0.0, 0.5)])
    with live_scheduler(folder, cluster=mixed) as scheduler:
        assert ended(scheduler.store[0]).state is JobState.COMPLETED
        scheduler.release("2")
        assert ended(scheduler.store[1]).state is JobState.COMPLETED


def test_a_salvaged_journal_loses_no_job_that_could_be_read(folder: Path) -> None:
    with live_scheduler(folder, 2) as scheduler:
        done = ended(submit(scheduler, ["true"]))
        running = until(submit(scheduler, python(TICKS)), JobState.RUNNING)
        waiting = submit(scheduler, ["true"], hold=True)
        began = folder / "jobs" / running.id / "attempt-1" / "ranks.json"
        wait_for(began.exists)
    path = folder / "journal.db"
    db = sqlite3.connect(path)
    db.execute("DROP TABLE log")
    db.commit()
    db.close()
    with pytest.raises(FairwayError, match="no journal"):
        journals.Journal(path)
    saved = salvage(path, folder / "new.db")
    assert (saved.jobs, saved.unfinished, saved.unreadable) == (3, 2, 0)
    (folder / "new.db").replace(path)
    with live_scheduler(folder, 2) as scheduler:
        assert scheduler.store[done.number].state is JobState.COMPLETED
        assert ended(scheduler.store[running.number]).state is JobState.COMPLETED
        assert len(scheduler.store[running.number].attempts) == 1
        scheduler.release(waiting.id)
        assert ended(scheduler.store[waiting.number]).state is JobState.COMPLETED


def test_a_full_disk_stops_the_scheduler_not_the_jobs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairway.runtime.journal.writer.FULL_RETRY_S", 0.05)
    full: list[int] = []
    with live_scheduler(folder, 2) as scheduler:
        scheduler.writer.on_full.append(lambda: full.append(1))
        job = until(submit(scheduler, ["bash", "-c", "sleep 0.5; touch done"], cwd=str(folder)), JobState.RUNNING)
        db = scheduler.journal._db

        def fill(now_s: float) -> tuple[list[object], None]:
            db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
            return [], None

        def write(now_s: float) -> tuple[list[object], None]:
            job.reason = "x" * 200_000
            scheduler.store.touch(job)
            return [], None

        scheduler.ask(fill)
        answer = scheduler.engine.ask(write)
        wait_for(lambda: full, "the scheduler to find the disk full")
        wait_for((folder / "done").exists, "the job to do its work beside a full disk")
        assert not answer.done()
        db.execute("PRAGMA max_page_count = 1000000")
        answer.result(60)
        assert ended(job).state is JobState.COMPLETED


def test_submissions_are_refused_where_there_is_no_room_and_change_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_scheduler(folder, 2) as scheduler:
        job = until(submit(scheduler, ["sleep", "0.5"]), JobState.RUNNING)
        monkeypatch.setattr(journals, "ROOM_BYTES", 1 << 62)
        with pytest.raises(DiskFullError, match="nothing new is taken"):
            submit(scheduler, ["true"])
        assert len(scheduler.store) == 1
        assert ended(job).state is JobState.COMPLETED
        monkeypatch.undo()
        assert ended(submit(scheduler, ["true"])).state is JobState.COMPLETED


def test_two_schedulers_on_one_directory_are_refused(folder: Path) -> None:
    first = Daemon(Options(folder), virtual_machine(1))
    try:
        with pytest.raises(AlreadyUpError, match="already running"):
            Daemon(Options(folder), virtual_machine(1))
    finally:
        first.start()
        first.close()
    second = Daemon(Options(folder), virtual_machine(1))
    second.start()
    second.close()


class SettableTime(SystemTime):
    """The time of this machine, except that a test sets the time of day."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def time(self) -> float:
        """The time of day, in seconds since 1970."""
        return super().time() + self.ahead_s


def test_a_clock_that_was_set_back_between_two_schedulers_stops_nothing(folder: Path) -> None:
    today = SettableTime()
    with live_scheduler(folder, 1, time=today) as scheduler:
        submit(scheduler, python(TICKS))
        second = submit(scheduler, ["true"])
    today.ahead_s = -7200.0
    with live_scheduler(folder, 1, time=today) as scheduler:
        for job in scheduler.store:
            assert ended(job).state is JobState.COMPLETED
        assert ended(submit(scheduler, ["true"])).state is JobState.COMPLETED
        assert second.number == 1
        assert scheduler.clock.jump is not None


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0, 10 * 365 * 86400.0])
def test_a_job_that_is_put_back_in_the_queue_after_the_time_of_day_was_set_has_run_as_long_as_it_has(
    folder: Path, ahead_s: float
) -> None:
    today = SettableTime()
    with live_scheduler(folder, 1, time=today) as scheduler:
        job = submit(scheduler, ["bash", "-c", "echo ready; exec sleep 600"], limit_s=300.0, grace_s=2.0)
        wait_for(lambda: "ready" in log_of(scheduler, job))
        time.sleep(1.0)
        today.ahead_s = ahead_s
        wait_for(lambda: scheduler.clock.jump is not None, "the step to be noticed")
        scheduler.requeue(job.id)
        wait_for(lambda: len(job.attempts) == 2 and job.state is JobState.RUNNING)
        assert 0.9 < job.ran_s < 300.0
        assert job.attempts[0].ended_s is not None
        assert 0.9 < job.attempts[0].ended_s - job.attempts[0].launched_s < 300.0
        today.ahead_s = 0.0
        scheduler.cancel(job.id)
        assert ended(job).state is JobState.CANCELLED
        assert job.ran_s < 600.0


def test_a_job_that_ended_while_no_scheduler_ran_is_charged_for_what_its_keeper_counted(folder: Path) -> None:
    today = SettableTime()
    with live_scheduler(folder, 1, time=today) as scheduler:
        job = submit(scheduler, ["bash", "-c", "echo ready; exec sleep 2"])
        wait_for(lambda: "ready" in log_of(scheduler, job))
    exit_json = folder / "jobs" / job.id / "attempt-1" / "exit.json"
    wait_for(exit_json.exists)
    # The date that the keeper wrote down is wrong by an hour.
    told = json.loads(exit_json.read_text())
    exit_json.write_text(json.dumps({**told, "time": told["time"] - 3600.0}))
    today.ahead_s = -86400.0
    with live_scheduler(folder, 1, time=today) as scheduler:
        job = ended(scheduler.store[0])
        assert job.ran_s == pytest.approx(told["ran_s"])
        assert 1.9 < job.ran_s < 300.0
        assert job.ended_s is not None
        assert 1.9 < job.ended_s - job.submitted_s < 600.0


def test_the_time_in_which_the_machine_was_down_is_nobodys_run_time(folder: Path) -> None:
    begun_s = time.monotonic()
    with live_scheduler(folder) as scheduler:
        job = submit(scheduler, ["bash", "-c", "echo ready; exec sleep 600"], limit_s=600.0)
        wait_for(lambda: "ready" in log_of(scheduler, job))
    for pid in [_keeper(folder), *processes_of(str(folder))]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(str(folder)))
    killed_s = time.monotonic()
    time.sleep(3.0)
    with live_scheduler(folder) as scheduler:
        job = scheduler.store[0]
        wait_for(lambda: len(job.attempts) == 2 and job.state is JobState.RUNNING)
        assert job.ran_s <= killed_s - begun_s
        assert job.attempts[0].ended_s is not None
        assert job.attempts[0].ended_s < job.attempts[1].launched_s - 2.9
        assert scheduler.state.snapshot().attained_s[0] <= killed_s - begun_s
        scheduler.cancel(job.id)
        ended(job)
