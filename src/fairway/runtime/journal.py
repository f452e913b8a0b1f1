"""The journal: everything that a restarted scheduler needs, in one SQLite file with a write-ahead log.

Three kinds of content. `jobs` holds one record per job that was ever submitted. `log` holds, in order, the events and
actions of jobs that have not ended: replaying them gives the scheduler's state back. `facts` holds single values (the
policy and its memory, the clock's origin, settings). All that one step of the scheduler writes is one transaction, on
disk before anything is done about it. When a job has ended its entries are of no use any more and are compacted away.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.errors import FairwayError
from fairway.runtime.codec import from_plain, to_plain

SCHEMA = 1
COMPACT_FROM = 20_000
"""Entries of ended jobs that may pile up before they are thrown out."""

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, client_key TEXT UNIQUE, ended INTEGER NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX jobs_ended ON jobs (ended);
CREATE TABLE log (seq INTEGER PRIMARY KEY, job INTEGER, round INTEGER, kind TEXT NOT NULL, fields TEXT NOT NULL);
CREATE INDEX log_job ON log (job);
"""
_MIGRATIONS: dict[int, str] = {}
"""For each older schema the statements that lead to the next one."""


class JournalError(FairwayError):
    """The journal cannot be used as it is; the text says what can be done."""


class DiskFullError(FairwayError):
    """There is no room to write; nothing was changed."""


class Entry(NamedTuple):
    """One line of the log. Entries with the same `round` > 0 are the actions of one round."""

    seq: int
    round: int
    thing: Any


class StoredJob(NamedTuple):
    """A job's record as it was stored."""

    number: int
    id: str
    client_key: str | None
    ended: bool
    record: dict[str, Any]


class Journal:
    """An open journal. One thread writes; `reader` gives others a connection of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = _opened(path)
        self._ended_entries = 0

    def close(self) -> None:
        """Fold the write-ahead log into the file and let go of it."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and on disk afterwards. `DiskFullError` where there is no room."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
                raise DiskFullError(f"no room left to write {self.path}") from None
            if isinstance(error, sqlite3.DatabaseError):
                raise JournalError(f"{self.path}: {error}; `fairway salvage` saves what can be read") from None
            raise

    def append(self, things: Iterable[Any], round_number: int = 0) -> None:
        """Add events or actions to the log."""
        rows = []
        for thing in things:
            kind, fields = to_plain(thing)
            rows.append((fields.get("job"), round_number, kind, json.dumps(fields, separators=(",", ":"))))
        if rows:
            self._db.executemany("INSERT INTO log (job, round, kind, fields) VALUES (?, ?, ?, ?)", rows)

    def save_jobs(self, jobs: Iterable[StoredJob]) -> None:
        """Add or replace records."""
        rows = [(*job[:3], int(job.ended), json.dumps(job.record, separators=(",", ":"))) for job in jobs]
        self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)", rows)
        self._ended_entries += sum(job.ended for job in jobs if isinstance(job, StoredJob))

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Keep single values."""
        rows = [(name, json.dumps(value, separators=(",", ":"))) for name, value in facts.items()]
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def facts(self) -> dict[str, Any]:
        """All single values."""
        return {name: json.loads(value) for name, value in self._db.execute("SELECT name, value FROM facts")}

    def jobs(self, *, ended: bool | None = None) -> Iterator[StoredJob]:
        """The records in order of submission; only those that have ended, or have not, if asked."""
        where = "" if ended is None else f" WHERE ended = {int(ended)}"
        for number, name, key, done, record in self._db.execute(f"SELECT * FROM jobs{where} ORDER BY number"):
            yield StoredJob(number, name, key, bool(done), json.loads(record))

    def log(self) -> Iterator[Entry]:
        """The entries of jobs that have not ended, and those of no job, in order."""
        query = (
            "SELECT seq, round, kind, fields FROM log LEFT JOIN jobs ON log.job = jobs.number "
            "WHERE log.job IS NULL OR jobs.ended = 0 ORDER BY seq"
        )
        for seq, round_number, kind, fields in self._db.execute(query):
            yield Entry(seq, round_number, from_plain(kind, json.loads(fields)))

    def compact(self) -> int:
        """Throw out the entries of jobs that have ended; returns how many there were."""
        with self.transaction():
            gone = self._db.execute("DELETE FROM log WHERE job IN (SELECT number FROM jobs WHERE ended = 1)").rowcount
        self._db.execute("PRAGMA incremental_vacuum(1000)")
        return int(gone)

    def size(self) -> int:
        """How many entries the log has."""
        return int(self._db.execute("SELECT count(*) FROM log").fetchone()[0])


def _opened(path: Path) -> sqlite3.Connection:
    """A connection to a sound journal of the present schema, made or brought up to date where necessary."""
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        # Without tables it is new, or its making was interrupted before anything was in it.
        fresh = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if fresh:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if fresh:
            db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        elif version != SCHEMA:
            _migrate(db, version, path)
    except sqlite3.DatabaseError as error:
        raise JournalError(
            f"{path} is damaged or no journal of Fairway ({error}); nothing was changed. "
            f"`fairway salvage {path} NEW` saves what can be read"
        ) from None
    return db


def _migrate(db: sqlite3.Connection, version: int, path: Path) -> None:
    if not 0 < version < SCHEMA:
        raise JournalError(f"{path} has schema {version}; this Fairway reads up to {SCHEMA}. Nothing was changed")
    for step in range(version, SCHEMA):
        db.executescript(f"BEGIN; {_MIGRATIONS[step]} PRAGMA user_version = {step + 1}; COMMIT;")


def salvage(damaged: Path, fresh: Path) -> tuple[int, int]:
    """Copy what can be read of a damaged journal into a new one; returns how many jobs and log entries that were.

    A job whose entries are incomplete is still there with its record, and its command can be submitted again.
    """
    if fresh.exists():
        raise JournalError(f"{fresh} exists; give the name of a new file")
    target = Journal(fresh)
    source = sqlite3.connect(f"file:{damaged}?mode=ro", uri=True)
    counts = []
    for table, columns in (("facts", 2), ("jobs", 5), ("log", 5)):
        with target.transaction():
            counts.append(_copied(source, target._db, table, columns))
    target.close()
    return counts[1], counts[2]


def _copied(source: sqlite3.Connection, target: sqlite3.Connection, table: str, columns: int) -> int:
    """Copy the rows of a table one by one, until one cannot be read."""
    marks, copied = ", ".join("?" * columns), 0
    try:
        for row in source.execute(f"SELECT * FROM {table}"):
            target.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
            copied += 1
    except sqlite3.DatabaseError:
        return copied
    return copied
