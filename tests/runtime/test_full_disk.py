"""A disk that is full or read-only: what fills it can be cancelled, and what is wrong is one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_scheduler import clear, ended, live_scheduler, submit, until
from real_processes import processes_of, wait_for

from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobState
from fairway.runtime.journal import disk_room
from fairway.runtime.journal.database import DiskFullError, Journal, ReadOnlyError
from fairway.runtime.processes.local import Running


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    clear(tmp_path)


def _fill(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Make the scheduler's disk full until the list is empty."""
    monkeypatch.setattr("fairway.runtime.journal.writer.FULL_RETRY_S", 0.05)
    full, real = [True], scheduler.journal.transaction

    @contextmanager
    def transaction() -> Iterator[None]:
        if full:
            raise DiskFullError("no room left")
        with real():
            yield

    monkeypatch.setattr(scheduler.journal, "transaction", transaction)
    monkeypatch.setattr(Running, "_leave_word", lambda running, name, text: False)
    return full


def test_a_running_job_can_be_cancelled_on_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_scheduler(folder) as scheduler:
        filler = until(submit(scheduler, ["sleep", "1000"]), JobState.RUNNING)
        other = until(submit(scheduler, ["sleep", "1001"]), JobState.RUNNING)
        full = _fill(scheduler, monkeypatch)
        waiting = scheduler.engine.ask(lambda now_s: (scheduler.store.touch(other), ([], None))[1])
        # The answer comes while the journal cannot be written.
        assert [record.id for record in scheduler.cancellation(filler.id).result(30)] == [filler.id]
        assert not waiting.done()
        assert (folder / "jobs" / filler.id / "attempt-1" / "hurry").exists()
        wait_for(lambda: not processes_of("sleep\0001000"), "its processes to go")
        later = scheduler.cancellation("77")
        full.clear()
        waiting.result(30)
        assert ended(filler).state is JobState.CANCELLED
        assert other.state is JobState.RUNNING
        with pytest.raises(Exception, match="there is no job '77'"):
            later.result(30)
        scheduler.cancel(other.id)
        ended(other)


def test_what_was_cancelled_on_a_full_disk_stays_cancelled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_scheduler(folder) as scheduler:
        filler = until(submit(scheduler, ["sleep", "1000"], preempt="checkpoint"), JobState.RUNNING)
        _fill(scheduler, monkeypatch)
        scheduler.engine.ask(lambda now_s: (scheduler.store.touch(filler), ([], None))[1])
        scheduler.cancellation(filler.id).result(30)
        # The scheduler crashes before there is room.
        monkeypatch.setattr(scheduler.writer, "_sleep", lambda seconds: (_ for _ in ()).throw(DiskFullError("crash")))
        wait_for(lambda: scheduler.failure is not None, "the scheduler to end")
    monkeypatch.undo()
    with live_scheduler(folder) as scheduler:
        found = scheduler.store.get(filler.id)
        assert found is not None
        assert ended(found).state is JobState.CANCELLED


def test_a_read_only_file_system_ends_the_scheduler_with_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with live_scheduler(folder) as scheduler:
        job = submit(scheduler, ["true"], hold=True)
        scheduler.ask(lambda now_s: (scheduler.journal._db.execute("PRAGMA query_only = 1"), ([], None))[1])
        with pytest.raises(Exception, match="read-only"):
            scheduler.hold(job.id)
        wait_for(lambda: scheduler.failure is not None, "the scheduler to end")
        assert isinstance(scheduler.failure, ReadOnlyError)
        assert str(scheduler.failure).endswith("its file system is read-only")
    assert "Traceback" not in capfd.readouterr().err


def test_a_disk_without_inodes_takes_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.refuse_if_full()
    about = os.statvfs(tmp_path)
    real, free = os.statvfs, [500]

    def statvfs(path: object) -> os.statvfs_result:
        fields = list(real(tmp_path))
        fields[5], fields[7] = 100_000, free[0]
        return os.statvfs_result(fields)

    monkeypatch.setattr(disk_room.os, "statvfs", statvfs)
    assert about.f_bavail > 0
    with pytest.raises(DiskFullError, match="only 500 free inodes"):
        journal.refuse_if_full()
    free[0] = 5000
    journal.refuse_if_full()
    journal.close()
