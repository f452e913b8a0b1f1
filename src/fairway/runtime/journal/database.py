"""The journal: everything that a restarted scheduler needs, in one SQLite file with a write-ahead log.

It has three tables. `jobs` holds one record per job that was ever submitted. `log` holds, in order, the events and
actions of jobs that have not ended: replaying them gives the scheduler's state back. `facts` holds single values (the
policy and its memory, the clock's origin, settings). Everything that one step of the scheduler writes is one
transaction. It is on disk before the scheduler acts on it.

The log stays small: the entries of a job are deleted when it ends, and of several reports of its speed in a row only
the last one is kept.

Events and actions are kept as JSON, with every field. An entry of unknown form is an error.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

from fairway.core.action import Action
from fairway.core.errors import FairwayError, InputError
from fairway.core.event import Event
from fairway.core.job import JobSpec, LossCurve, Regime, job_to_dict
from fairway.core.prospect import Prospect
from fairway.runtime.jobs.records import StoredJob

SCHEMA = 1
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
    "placement": str,
    "listen": str,
    "open_to_all": bool,
}
"""The facts that are still useful when others, or the log, are lost; with their types."""

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
"""For each older schema, the statements that lead to the next one."""
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Action))}
_TUPLES = ("gpus", "speeds", "scaling")


class JournalError(FairwayError):
    """The journal cannot be used as it is. The text says what can be done."""


class DiskFullError(FairwayError):
    """The disk is full. Nothing was changed."""


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
            if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorname", "") in _NO_ROOM:
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
            rows.append((fields.get("job"), round_number, kind, json.dumps(fields, separators=(",", ":"))))
        if rows:
            self._db.executemany("INSERT INTO log (job, round, kind, fields) VALUES (?, ?, ?, ?)", rows)
            self._since_compaction += len(rows)

    def save_jobs(self, jobs: Iterable[StoredJob]) -> None:
        """Add or replace records. This deletes the log of jobs that have ended, so call it after `append`."""
        rows = [(*job[:3], int(job.ended), json.dumps(job.record, separators=(",", ":"))) for job in jobs]
        self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)", rows)
        self._db.executemany("DELETE FROM log WHERE job = ?", [(row[0],) for row in rows if row[3]])

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Add or replace facts."""
        rows = [(name, json.dumps(value, separators=(",", ":"))) for name, value in facts.items()]
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

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
        where = "" if ended is None else f" WHERE ended = {int(ended)}"
        with self._readable():
            for number, name, key, done, record in self._db.execute(f"SELECT * FROM jobs{where} ORDER BY number"):
                yield StoredJob(number, name, key, bool(done), json.loads(record))

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
        directly, and instants at which nothing was done.
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
            if shutil.disk_usage(self.path.parent).free < ROOM_BYTES:
                raise DiskFullError(f"less than {ROOM_BYTES >> 20} MiB are free for {self.path}; nothing new is taken")


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether another program has locked the journal. That is no damage."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


_NO_ROOM = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")
_NEXT = "SELECT seq FROM (SELECT seq, kind, lead(kind) OVER ({}) AS next FROM log) WHERE kind = '{}' AND next = kind"
_USELESS = (
    "DELETE FROM log WHERE job IN (SELECT number FROM jobs WHERE ended = 1)",
    f"DELETE FROM log WHERE seq IN ({_NEXT.format('PARTITION BY job ORDER BY seq', 'RateChanged')})",
    f"DELETE FROM log WHERE seq IN ({_NEXT.format('ORDER BY seq', 'Woken')})",
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
    except sqlite3.DatabaseError as error:
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
            db.executescript(f"BEGIN; {_MIGRATIONS[step]} PRAGMA user_version = {step + 1}; COMMIT;")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def to_plain(thing: Event | Action) -> tuple[str, dict[str, Any]]:
    """The kind of an event or action, and its fields as JSON values."""
    fields: dict[str, Any] = thing._asdict()
    for name, value in fields.items():
        if isinstance(value, JobSpec):
            fields[name] = job_to_dict(value)
        elif isinstance(value, LossCurve):
            fields[name] = list(value)
        elif isinstance(value, Prospect):
            fields[name] = value.plain()
        elif isinstance(value, float) and not math.isfinite(value):
            fields[name] = repr(value)
    return type(thing).__name__, fields


def from_plain(kind: str, fields: Mapping[str, Any]) -> Any:
    """Read what `to_plain` gave."""
    made = _KINDS.get(kind)
    if made is None:
        raise InputError(f"the journal has an entry of unknown kind {kind!r}")
    values = dict(fields)
    for name, value in values.items():
        if name == "spec":
            values[name] = spec_from_plain(value)
        elif name == "loss" and isinstance(value, list):
            values[name] = LossCurve(*value)
        elif name == "prospect" and value is not None:
            values[name] = Prospect.from_plain(value)
        elif name in _TUPLES:
            values[name] = tuple(value)
        elif value in ("nan", "inf", "-inf"):
            values[name] = float(value)
    try:
        return made(**values)
    except TypeError as error:
        raise InputError(f"the journal's entry of the kind {kind!r} cannot be read ({error})") from None


def spec_from_plain(fields: Mapping[str, Any]) -> JobSpec:
    """A job from what `job_to_dict` gave."""
    values = dict(fields)
    if "regimes" in values:
        values["regimes"] = tuple(Regime(**regime) for regime in values["regimes"])
    if "gpu_types" in values:
        values["gpu_types"] = tuple(values["gpu_types"])
    if values.get("loss") is not None:
        values["loss"] = LossCurve(**values["loss"])
    return JobSpec(**values)
