"""Jobs that are gone are gone: from the journal, the memory and the disk. Nothing else is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_scheduler import clear, ended, live_scheduler, submit, until

from fairway.core.errors import InputError
from fairway.runtime.daemon.config import Keep
from fairway.runtime.daemon.retention import Collected, Retention
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobState
from fairway.runtime.jobs.request import Dependency
from fairway.runtime.journal.database import DiskFullError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    clear(tmp_path)


def _retention(scheduler: Scheduler, told: list[str] | None = None) -> Retention:
    return Retention(scheduler, Keep, (told if told is not None else []).append)


def _settled(scheduler: Scheduler) -> None:
    """Wait until everything so far is on disk."""
    scheduler.ask(lambda now_s: ([], None))


def _folders(folder: Path) -> list[str]:
    return sorted(one.name for one in (folder / "jobs").iterdir())


def test_a_job_leaves_with_its_folder_and_its_id_is_not_used_again(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        jobs = [ended(submit(scheduler, ["true"], client_key=f"k{at}")) for at in range(3)]
        running = until(submit(scheduler, ["sleep", "60"]), JobState.RUNNING)
        _settled(scheduler)
        assert _retention(scheduler).collect(Keep(None, 1), dry_run=True) == Collected(2, 0)
        assert _folders(folder) == ["1", "2", "3", "4"]
        assert _retention(scheduler).collect(Keep(None, 1)) == Collected(2, 0)
        assert _folders(folder) == ["3", "4"]
        assert [scheduler.store.get(job.id) is None for job in jobs] == [True, True, False]
        assert _retention(scheduler).collect(Keep(None, 0)) == Collected(1, 0)
        scheduler.cancel(running.id)
        ended(running)
        _settled(scheduler)
        assert _retention(scheduler).collect(Keep(0.0, None)) == Collected(1, 0)
        assert _folders(folder) == []
        used = scheduler.store.past.gpu_s
    with live_scheduler(folder) as scheduler:
        assert list(scheduler.store) == []
        assert scheduler.store.past.gpu_s == pytest.approx(used)
        again = submit(scheduler, ["true"], client_key="k0")
        assert (again.id, again.number) == ("5", 4)
        ended(again)


def test_a_job_that_others_depend_on_stays_until_they_have_ended(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        first = ended(submit(scheduler, ["true"]))
        later = submit(scheduler, ["true"], hold=True, depends=(Dependency("afterok", first.id),))
        _settled(scheduler)
        assert _retention(scheduler).collect(Keep(None, 0), dry_run=True) == Collected(0, 1)
        assert _retention(scheduler).collect(Keep(None, 0)) == Collected(0, 1)
        scheduler.release(later.id)
        assert ended(later).state is JobState.COMPLETED
        _settled(scheduler)
        assert _retention(scheduler).collect(Keep(None, 0)) == Collected(2, 0)
        with pytest.raises(InputError, match="there is no job '1'"):
            submit(scheduler, ["true"], depends=(Dependency("afterok", first.id),))


def test_a_full_disk_gets_room_and_the_record_leaves_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_scheduler(folder) as scheduler:
        job = ended(submit(scheduler, ["true"]))
        _settled(scheduler)

        @contextmanager
        def full() -> Iterator[None]:
            raise DiskFullError("no room left")
            yield

        with monkeypatch.context() as patch:
            patch.setattr(scheduler.journal, "transaction", full)
            with pytest.raises(DiskFullError):
                _retention(scheduler).collect(Keep(None, 0))
        assert _folders(folder) == []
        assert scheduler.store.get(job.id) is not None
        assert _retention(scheduler).collect(Keep(None, 0)) == Collected(1, 0)
    with sqlite3.connect(folder / "journal.db") as db:
        assert db.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


def test_directories_that_a_job_has_locked_are_deleted_too(folder: Path) -> None:
    with live_scheduler(folder) as scheduler:
        script = 'mkdir "$FAIRWAY_CHECKPOINT_DIR/a"; touch "$FAIRWAY_CHECKPOINT_DIR/a/b"; '
        script += 'chmod 0 "$FAIRWAY_CHECKPOINT_DIR/a"; ln -s /etc "$FAIRWAY_CHECKPOINT_DIR/etc"'
        job = ended(submit(scheduler, ["bash", "-c", script]))
        assert job.state is JobState.COMPLETED
        _settled(scheduler)
        assert _retention(scheduler).collect(Keep(None, 0)) == Collected(1, 0)
        assert _folders(folder) == []
        assert Path("/etc/passwd").exists()
