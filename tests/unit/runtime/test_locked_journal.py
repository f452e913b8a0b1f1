"""Another program that locks the journal delays the scheduler. It does not end it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fairway.runtime.journal import database
from fairway.runtime.journal.database import Journal, JournalError
from fairway.testing.waiting import WAIT_S, wait_for


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCKED_S", 0.05)
    monkeypatch.setattr(database, "OPENED_S", 0.3)


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield other


def test_writing_waits_for_a_lock_and_says_so(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal, locked(journal.path) as other:
        done = threading.Event()

        def write() -> None:
            with journal.transaction():
                journal.set_facts({"round": 7})
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        wait_for(lambda: journal.locked_since_s is not None, "it to say so")
        assert not done.is_set()
        other.execute("ROLLBACK")
        thread.join(WAIT_S)
        assert done.is_set()
        assert journal.locked_since_s is None
        assert journal.facts() == {"round": 7}


def test_a_wait_that_is_given_up_changes_nothing(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal, locked(journal.path):
        journal.give_up()
        with (
            pytest.raises(JournalError, match="is locked by another program; nothing was changed"),
            journal.transaction(),
        ):
            journal.set_facts({"round": 7})
        assert journal.facts() == {}


def test_a_journal_that_is_locked_for_good_cannot_be_opened_and_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(JournalError, match="locked") as told:
            Journal(path)
        assert "salvage" not in str(told.value)
