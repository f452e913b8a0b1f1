"""The journal: everything that a restarted scheduler needs, in one SQLite file with a write-ahead log.

It has six tables. `jobs` holds one record per job, until retention lets it go. `environments` holds the variables of
jobs, each environment once. `notes` and `courses` hold what happened to jobs and what they reported over time. `log`
holds, in order, the events and actions of jobs that have not ended: replaying them gives the scheduler's state back.
`facts` holds single values (the policy and its memory, the clock's origin, settings). Everything that one step of the
scheduler writes is one transaction. It is on disk before the scheduler acts on it.

The log stays small: the entries of a job are deleted when it ends, of several reports of its speed in a row only the
last one is kept, and of several expectations of its run time the first and the last one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.errors import FairwayError, InputError
from fairway.runtime.jobs.records import JobNote, StoredJob
from fairway.runtime.jobs.shared_environment import shared
from fairway.runtime.journal.disk_room import ROOM_FILES, is_read_only, room_in
from fairway.runtime.journal.entries import from_plain, to_plain
from fairway.runtime.journal.job_rows import (
    ADD,
    COLUMNS,
    INDEXES,
    JOBS,
    SAVE,
    STORIES,
    JobReader,
    add_stories,
    compact,
    divide_indexes,
    row_of,
    share_environments,
)

SCHEMA = 4
APPLICATION = 0x46574159
"""The application id that marks a database as a journal of Fairway."""
LOCKED_S = 1.0
"""How long to wait for another program that has locked the journal, before that is told."""
OPENED_S = 30.0
"""How long opening a journal waits for another program that has locked it."""
COMPACT_EVERY = 20_000
"""The number of new entries after which entries that are of no use any more are deleted."""
ROOM_BYTES = 16 * 1024 * 1024
"""With less free disk space than this, no new jobs are accepted, so that running jobs can still be written down."""
FIRST_NOTES, LAST_NOTES, MOST_NOTES = 100, 60, 200
"""How many of the notes of a job stay, the first and the last ones, when there are more than `MOST_NOTES`."""
CERTAIN: dict[str, type | tuple[type, ...]] = {
    "origin_s": float,
    "clock": dict,
    "last_s": float,
    "round": int,
    "policy": str,
    "machine": list,
    "config": str,
    "gpus": str,
    "plugins": list,
    "config_file": str,
    "round_s": (float, int, str),
    "min_run_s": (float, int, str),
    "placement": str,
    "listen": str,
    "open_to_all": bool,
    "next": list,
    "gone": dict,
    "drained": dict,
    "eras": list,
    "known_gpus": list,
}
"""The facts that are still useful when others, or the log, are lost; with their types."""

_TABLES = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
{JOBS}{INDEXES}
CREATE TABLE log (seq INTEGER PRIMARY KEY, job INTEGER, round INTEGER, kind TEXT NOT NULL, fields TEXT NOT NULL);
CREATE INDEX log_job ON log (job);
{STORIES};
"""
_MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: share_environments,
    2: divide_indexes,
    3: add_stories,
}
"""For each older schema, what leads to the next one, inside a transaction."""


class JournalError(FairwayError):
    """The journal cannot be used as it is. The text says what can be done."""


class DiskFullError(FairwayError):
    """The disk is full. Nothing was changed."""


class ReadOnlyError(JournalError):
    """The journal is on a file system that cannot be written."""


class LogEntry(NamedTuple):
    """One line of the log. Entries with the same `round` > 0 are the actions of one round."""

    round: int
    thing: Any


class Journal:
    """An open journal. Only one thread may write to it.

    If another program has locked it (a backup, a shell), writing waits, however long that takes. `locked_since_s` then
    says since when, by the monotonic clock. `give_up` ends such a wait.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.locked_since_s: float | None = None
        self._given_up = False
        self._db = _opened(path)
        self._since_compaction = 0

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it."""
        self._db.close()

    def locked_s(self) -> float:
        """How long another program has had the journal locked, in seconds; 0 if none has."""
        since_s = self.locked_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def give_up(self) -> None:
        """Wait no longer for another program that has locked the journal. Any thread may call this."""
        self._given_up = True

    def _begin(self) -> None:
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self.locked_since_s = None
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or self._given_up:
                    raise
                if self.locked_since_s is None:
                    self.locked_since_s = time.monotonic() - LOCKED_S

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and on disk afterwards. `DiskFullError` if there is no room."""
        try:
            self._begin()
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            name = getattr(error, "sqlite_errorname", "") if isinstance(error, sqlite3.Error) else ""
            if name.startswith("SQLITE_READONLY") or (name in _NO_ROOM and is_read_only(self.path.parent)):
                raise ReadOnlyError(f"{self.path} cannot be written: its file system is read-only") from None
            if name in _NO_ROOM:
                raise DiskFullError(f"no room left to write {self.path}") from None
            if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
                raise JournalError(f"{self.path} is locked by another program; nothing was changed") from None
            if isinstance(error, sqlite3.DatabaseError):
                raise JournalError(f"{self.path}: {error}; `fairway salvage` saves what can be read") from None
            raise

    def append(self, things: Iterable[Any], round_number: int = 0) -> None:
        """Add events or actions to the log."""
        rows = []
        for thing in things:
            kind, fields = to_plain(thing)
            rows.append((fields.get("job"), round_number, kind, compact(fields)))
        if rows:
            self._db.executemany("INSERT INTO log (job, round, kind, fields) VALUES (?, ?, ?, ?)", rows)
            self._since_compaction += len(rows)

    def save_jobs(self, jobs: Iterable[StoredJob], *, unless_known: bool = False) -> None:
        """Add or replace records. This deletes the log of jobs that have ended, so call it after `append`.

        `unless_known`: if the number, id or key of a job is taken, the job that has it stays, and this one is left out.
        """
        for job in jobs:
            env = job.record["request"].get("env")
            self._db.execute(ADD if unless_known else SAVE, row_of(job, self._kept(env) if env else None))
            if job.ended:
                self._db.execute("DELETE FROM log WHERE job = ?", (job.number,))

    def _kept(self, env: Mapping[str, str]) -> str:
        """The hash of an environment that is in the journal from now on."""
        one = shared(env)
        if not self._db.execute("SELECT 1 FROM environments WHERE hash = ?", (one.hash,)).fetchone():
            self._db.execute("INSERT INTO environments (hash, variables) VALUES (?, ?)", (one.hash, compact(one)))
        return one.hash

    def forget(self, numbers: Collection[int]) -> None:
        """Delete the records of jobs that have ended, and the environments that only they had."""
        marks = ", ".join("?" * len(numbers))
        query = f"SELECT DISTINCT environment FROM jobs WHERE number IN ({marks}) AND environment IS NOT NULL"
        hashes = self._db.execute(query, tuple(numbers)).fetchall()
        self._db.execute(f"DELETE FROM jobs WHERE number IN ({marks}) AND settled = 1", tuple(numbers))
        for table in ("notes", "courses"):
            self._db.execute(f"DELETE FROM {table} WHERE job IN ({marks})", tuple(numbers))
        having = "SELECT 1 FROM jobs WHERE environment = hash AND settled ="
        unused = f"NOT EXISTS ({having} 0) AND NOT EXISTS ({having} 1)"
        self._db.executemany(f"DELETE FROM environments WHERE hash = ? AND {unused}", hashes)

    def add_notes(self, notes: Iterable[JobNote]) -> None:
        """Add what happened to jobs. Of each job the first and the latest notes stay."""
        rows = list(notes)
        self._db.executemany("INSERT INTO notes (job, date_s, what, text) VALUES (?, ?, ?, ?)", rows)
        for job in {note.job for note in rows}:
            if self._db.execute("SELECT count(*) FROM notes WHERE job = ?", (job,)).fetchone()[0] > MOST_NOTES:
                self._db.execute(_THINNED, (job, job, FIRST_NOTES, job, LAST_NOTES))

    def save_courses(self, courses: Mapping[int, bytes]) -> None:
        """Add or replace what jobs have reported over time."""
        self._db.executemany("INSERT OR REPLACE INTO courses (job, points) VALUES (?, ?)", courses.items())

    def course(self, number: int) -> bytes:
        """What a job has reported over time; empty if that is nothing."""
        with self._readable():
            found = self._db.execute("SELECT points FROM courses WHERE job = ?", (number,)).fetchone()
        return b"" if found is None else bytes(found[0])

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Add or replace facts. One that is None is deleted."""
        rows = [(name, compact(value)) for name, value in facts.items() if value is not None]
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)
        gone = [(name,) for name, value in facts.items() if value is None]
        self._db.executemany("DELETE FROM facts WHERE name = ?", gone)

    def facts(self, only: Collection[str] | None = None) -> dict[str, Any]:
        """All facts, or those with the given names."""
        query, names = "SELECT name, value FROM facts", tuple(only or ())
        if only is not None:
            query += f" WHERE name IN ({', '.join('?' * len(names))})"
        with self._readable():
            return {name: json.loads(value) for name, value in self._db.execute(query, names)}

    def names(self) -> dict[str, bool]:
        """The ids of all jobs, and whether they have ended."""
        with self._readable():
            return {name: bool(ended) for name, ended in self._db.execute("SELECT id, ended FROM jobs")}

    def jobs(self, *, ended: bool | None = None) -> Iterator[StoredJob]:
        """The records in order of submission. `ended` selects those that have ended, or those that have not."""
        where = {None: "", True: " WHERE ended = 1", False: f"{_UNSETTLED} AND ended = 0"}[ended]
        yield from self._chosen(f"{where} ORDER BY number")

    def unsettled(self) -> Iterator[StoredJob]:
        """The records of jobs that have not ended, or whose processes may still run."""
        yield from self._chosen(f"{_UNSETTLED} ORDER BY number")

    def _chosen(self, which: str) -> Iterator[StoredJob]:
        with self._readable():
            read = JobReader(self._db)
            for row in self._db.execute(f"SELECT {COLUMNS} FROM jobs{which}"):
                yield read.job(row)

    def log(self) -> Iterator[LogEntry]:
        """The entries of jobs that have not ended, and those of no job, in order."""
        query = (
            "SELECT round, kind, fields FROM log LEFT JOIN jobs ON log.job = jobs.number "
            "WHERE log.job IS NULL OR jobs.ended = 0 ORDER BY seq"
        )
        with self._readable():
            for round_number, kind, fields in self._db.execute(query):
                yield LogEntry(round_number, from_plain(kind, json.loads(fields)))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, InputError) as error:
            if isinstance(error, sqlite3.Error) and _is_busy(error):
                raise JournalError(f"{self.path} is locked by another program; nothing was changed") from None
            raise _damaged(self.path, str(error)) from None

    def drop_log(self) -> None:
        """Delete all entries. The records stay."""
        self._db.execute("DELETE FROM log")

    def tidy(self) -> int:
        """Compact if much has been written since the last time. Returns how many entries were deleted."""
        return self.compact() if self._since_compaction >= COMPACT_EVERY else 0

    def compact(self) -> int:
        """Delete entries that make no difference to a replay of the log. Returns how many there were.

        These are the entries of jobs that have ended, reports of speed that another one of the same job follows
        directly, instants at which nothing was done, and losses of nodes that are back.
        """
        self._since_compaction = 0
        try:
            with self.transaction():
                gone = sum(self._db.execute(statement).rowcount for statement in _USELESS)
            self._db.execute("PRAGMA incremental_vacuum(2000)").fetchall()
        except (DiskFullError, sqlite3.OperationalError):
            return 0
        return int(gone)

    def size(self) -> int:
        """How many entries the log has."""
        return int(self._db.execute("SELECT count(*) FROM log").fetchone()[0])

    def refuse_if_full(self) -> None:
        """Raise `DiskFullError` if there is too little room to accept new jobs. Any thread may call this."""
        with contextlib.suppress(OSError):
            room = room_in(self.path.parent)
            if room.bytes < ROOM_BYTES:
                raise DiskFullError(f"less than {ROOM_BYTES >> 20} MiB are free for {self.path}; nothing new is taken")
            if room.files < ROOM_FILES:
                raise DiskFullError(
                    f"the disk of {self.path} has only {room.files:,.0f} free inodes; nothing new is taken below "
                    f"{ROOM_FILES:,}"
                )


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether another program has locked the journal. That is no damage."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


_UNSETTLED = " INDEXED BY jobs_unsettled WHERE settled = 0"
_NO_ROOM = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")
_OWN = "SELECT seq FROM notes WHERE job = ? ORDER BY seq"
_THINNED = f"DELETE FROM notes WHERE job = ? AND seq NOT IN ({_OWN} LIMIT ?) AND seq NOT IN ({_OWN} DESC LIMIT ?)"
_NEXT = "SELECT seq FROM (SELECT seq, kind, lead(kind) OVER ({}) AS next FROM log) WHERE kind = '{}' AND next = kind"
_SAME = (
    "json_extract({0}, '$.batch_size') = json_extract(fields, '$.batch_size') AND json_extract({0}, '$.scaling') = '[]'"
)
_GUESSES = f"""
SELECT seq FROM (SELECT seq, kind, fields, lag(kind) OVER each AS last, lag(fields) OVER each AS before,
  lead(kind) OVER each AS next, lead(fields) OVER each AS after FROM log WINDOW each AS (PARTITION BY job ORDER BY seq))
WHERE kind = 'RegimeEntered' AND last = kind AND next = kind AND {_SAME.format("before")} AND {_SAME.format("after")}
  AND json_extract(fields, '$.scaling') = '[]' AND json_extract(fields, '$.steps_left') = 'nan'
  AND json_type(after, '$.work') IN ('real', 'integer') AND json_type(after, '$.prospect') = 'array'
"""
"""Run times that were expected of a job that reports nothing, between the first and the last one."""
_NODES, _NODE = "kind IN ('NodeLost', 'NodeRestored')", "json_extract(fields, '$.node')"
_USELESS = (
    "DELETE FROM log WHERE job IN (SELECT number FROM jobs WHERE ended = 1)",
    f"DELETE FROM log WHERE seq IN ({_NEXT.format('PARTITION BY job ORDER BY seq', 'RateChanged')})",
    f"DELETE FROM log WHERE seq IN ({_GUESSES})",
    f"DELETE FROM log WHERE seq IN ({_NEXT.format('ORDER BY seq', 'Woken')})",
    # The last word about a node counts. The jobs of a lost node have left it, so nothing depends on the others.
    f"DELETE FROM log WHERE {_NODES} AND seq NOT IN (SELECT max(seq) FROM log WHERE {_NODES} GROUP BY {_NODE})",
    "DELETE FROM log WHERE kind = 'NodeRestored'",
)


def _damaged(path: Path, why: str) -> JournalError:
    return JournalError(
        f"{path} is damaged or no journal of Fairway ({why}); nothing was changed. "
        f"`fairway salvage {path} NEW` saves what can be read"
    )


def is_blank(path: Path) -> bool:
    """Whether a journal does not exist or has no jobs. A journal that cannot be read is damaged, not blank."""
    try:
        # If SQLite opened an empty file, it would delete the write-ahead log beside it.
        if path.stat().st_size == 0:
            return True
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            known = db.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
            return not known or db.execute("SELECT 1 FROM jobs LIMIT 1").fetchone() is None
    except FileNotFoundError:
        return True
    except (OSError, sqlite3.Error):
        return False


def _opened(path: Path) -> sqlite3.Connection:
    """A connection to a sound journal of the present schema. The journal is made or migrated if necessary."""
    _make_private(path)
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=LOCKED_S)
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be opened: {error}") from None
    deadline_s = time.monotonic() + OPENED_S
    try:
        while True:
            try:
                _made_sound(db, path)
                break
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline_s:
                    raise
    except sqlite3.OperationalError as error:
        db.close()
        if getattr(error, "sqlite_errorname", "") in _NO_ROOM:
            raise DiskFullError(f"no room left to write {path}") from None
        raise JournalError(f"{path} cannot be opened: {error}; nothing was changed") from None
    except (sqlite3.DatabaseError, ValueError, LookupError, TypeError) as error:
        # The last three: a migration has found a record that is none.
        db.close()
        raise _damaged(path, str(error)) from None
    except BaseException:
        db.close()
        raise
    return db


def _make_private(path: Path) -> None:
    """Make an empty private file for SQLite, if there is none: it will hold the environments of all jobs.

    The files that SQLite puts beside it get the same mode. An existing file is not opened, because closing it would
    release the locks that connections of this process have on it. If the file cannot be made, SQLite will say why.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _made_sound(db: sqlite3.Connection, path: Path) -> None:
    # Without tables it is new, or was interrupted before anything was written.
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    # Nothing is written until it is known to be a journal of Fairway.
    if tables and (db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION or not {"jobs", "log"} <= tables):
        raise JournalError(f"{path} is a database, but no journal of Fairway; nothing was changed")
    if tables and not 0 < version <= SCHEMA:
        raise JournalError(f"{path} has schema {version}; this Fairway reads up to {SCHEMA}. Nothing was changed")
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    if not tables:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    if not tables:
        about = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}"
        db.executescript(f"BEGIN; {_TABLES} {about}; COMMIT;")
    elif version < SCHEMA:
        _migrate(db, version, path)


def _migrate(db: sqlite3.Connection, version: int, path: Path) -> None:
    """Bring an older journal up to date, one schema after the other. A copy of the old file stays beside it."""
    kept = path.with_name(f"{path.name}.schema-{version}")
    _make_private(kept)
    with contextlib.suppress(OSError):
        # A copy that an interrupted migration has left is written over.
        kept.chmod(0o600)
    with contextlib.closing(sqlite3.connect(kept)) as copy:
        db.backup(copy)
    for step in range(version, SCHEMA):
        try:
            db.execute("BEGIN IMMEDIATE")
            _MIGRATIONS[step](db)
            db.execute(f"PRAGMA user_version = {step + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
