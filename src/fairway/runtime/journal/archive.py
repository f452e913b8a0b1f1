"""The settled jobs of a journal: those that have ended and whose processes are gone. They are read when asked for.

Each reader has a connection of its own, so it sees only what is on disk, and no thread waits for another.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fairway.runtime.jobs.records import JobNote, JobRecord, JobState
from fairway.runtime.jobs.store import SettledTotals
from fairway.runtime.journal.database import LOCKED_S, JournalError
from fairway.runtime.journal.job_rows import COLUMNS, JobReader

AT_ONCE = 500
"""How many jobs are read at a time."""
_SOME = f"SELECT {COLUMNS} FROM jobs WHERE settled = 1 AND"


class Wanted(NamedTuple):
    """Which jobs are meant. None stands for all."""

    states: Collection[JobState] | None = None
    user: str | None = None
    queue: str | None = None
    submitted_since_s: float | None = None
    ended_since_s: float | None = None

    def has(self, record: JobRecord) -> bool:
        """Whether a job is one of them."""
        return (
            (self.states is None or record.state in self.states)
            and (self.user is None or record.request.user == self.user)
            and (self.queue is None or record.request.queue == self.queue)
            and (self.submitted_since_s is None or record.submitted_s >= self.submitted_since_s)
            and (self.ended_since_s is None or (record.ended_s or 0.0) >= self.ended_since_s)
        )

    def where(self) -> tuple[str, list[Any]]:
        """The same as a condition of SQL, with its values."""
        parts, values = ["settled = 1"], list[Any]()
        if self.states is not None:
            parts.append(f"state IN ({', '.join('?' * len(self.states))})")
            values += map(str, self.states)
        for text, value in (
            ("user = ?", self.user),
            ("queue = ?", self.queue),
            ("submitted_s >= ?", self.submitted_since_s),
            ("ended_s >= ?", self.ended_since_s),
        ):
            if value is not None:
                parts.append(text)
                values.append(value)
        return " AND ".join(parts), values


class Family(NamedTuple):
    """A job, or all tasks of an array: their numbers, and when the last of them ended."""

    number: int
    jobs: tuple[int, ...]
    ended_s: float


class JobArchive:
    """The settled jobs of the journal at a path. Any thread may ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    def close(self) -> None:
        """Close all connections. Those in use are closed after that."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def job(self, number: int) -> JobRecord:
        """A job by its number; `KeyError` if it is not there."""
        found = self._jobs(f"{_SOME} number = ?", (number,))
        if not found:
            raise KeyError(number)
        return found[0]

    def named(self, name: str) -> list[JobRecord]:
        """The job with this id, or all tasks of the array with this id, in order."""
        found = self._jobs(f"{_SOME} id = ?", (name,))
        if found or not (name.isascii() and name.isdecimal()):
            return found
        return self._jobs(f"{_SOME} family = ? ORDER BY number", (int(name),))

    def states(self, name: str) -> dict[int, JobState]:
        """The states of the job with this id, or of all tasks of the array with this id, by number."""
        some = "SELECT number, state FROM jobs WHERE settled = 1 AND"
        found = self._rows(f"{some} id = ?", (name,))
        if not found and name.isascii() and name.isdecimal():
            found = self._rows(f"{some} family = ?", (int(name),))
        return {number: JobState(state) for number, state in found}

    def with_keys(self, keys: Sequence[str]) -> dict[str, JobRecord]:
        """The jobs that were submitted under these keys."""
        found: dict[str, int] = {}
        for some in _pieces(keys):
            marks = ", ".join("?" * len(some))
            query = f"SELECT client_key, number FROM jobs WHERE client_key IN ({marks}) AND settled = 1"
            found.update(self._rows(query, some))
        records = {one.number: one for one in self.records(list(found.values()))}
        return {key: records[number] for key, number in found.items() if number in records}

    def listed(self, wanted: Wanted, most: int, *, by_end: bool = False) -> list[tuple[int, float]]:
        """The numbers of the latest jobs that are wanted, and when they ended; the latest first."""
        where, values = wanted.where()
        order = "ended_s DESC, number DESC" if by_end else "number DESC"
        query = f"SELECT number, ended_s FROM jobs WHERE {where} ORDER BY {order} LIMIT ?"
        return [(number, ended_s or 0.0) for number, ended_s in self._rows(query, (*values, most))]

    def records(self, numbers: Iterable[int], *, environments: bool = True) -> Iterator[JobRecord]:
        """Jobs in the order of their numbers given; those that are gone meanwhile are left out.

        Without `environments` they have none. That is enough for lists, and takes half the time.
        """
        for some in _pieces(list(numbers)):
            query = f"{_SOME} number IN ({', '.join('?' * len(some))})"
            found = {one.number: one for one in self._jobs(query, some, environments=environments)}
            yield from (found[number] for number in some if number in found)

    def notes(self, number: int) -> list[JobNote]:
        """What happened to a job, in order, as far as that is not in its record. It need not have settled."""
        query = "SELECT job, date_s, what, text FROM notes WHERE job = ? ORDER BY seq"
        return [JobNote(*row) for row in self._rows(query, (number,))]

    def course(self, number: int) -> bytes:
        """What a job has reported over time, as it was last written down; it need not have settled."""
        found = self._rows("SELECT points FROM courses WHERE job = ?", (number,))
        return bytes(found[0][0]) if found else b""

    def past(self) -> SettledTotals:
        """What all settled jobs add up to."""
        past = SettledTotals()
        query = "SELECT user, state, count(*), sum(gpu_s), sum(preemptions) FROM jobs WHERE settled = 1 GROUP BY 1, 2"
        for user, state, count, gpu_s, preemptions in self._rows(query, ()):
            past.states[JobState(state)] += count
            past.ended[user] += count
            past.gpu_s[user] = past.gpu_s.get(user, 0.0) + (gpu_s or 0.0)
            past.preemptions += preemptions or 0
        return past

    def next(self) -> tuple[int, int]:
        """The first number and the first id after those of all jobs."""
        found = self._rows("SELECT number, family FROM jobs ORDER BY number DESC LIMIT 1", ())
        return (found[0][0] + 1, found[0][1] + 1) if found else (0, 1)

    def oldest_s(self) -> float | None:
        """When the first job that is here ended."""
        found = self._rows("SELECT ended_s FROM jobs WHERE settled = 1 ORDER BY ended_s LIMIT 1", ())
        return float(found[0][0] or 0.0) if found else None

    def families(self) -> list[Family]:
        """All jobs and arrays that are settled as a whole; those that ended first come first."""
        query = (
            "SELECT family, group_concat(number), max(ended_s) FROM jobs WHERE settled = 1 "
            "AND family NOT IN (SELECT family FROM jobs INDEXED BY jobs_unsettled WHERE settled = 0) "
            "GROUP BY family ORDER BY 3, 1"
        )
        return [
            Family(family, tuple(map(int, numbers.split(","))), ended_s or 0.0)
            for family, numbers, ended_s in self._rows(query, ())
        ]

    def _jobs(self, query: str, values: Sequence[Any], *, environments: bool = True) -> list[JobRecord]:
        with self._reading() as db:
            read = JobReader(db, environments=environments)
            stored = [read.job(row) for row in db.execute(query, values).fetchall()]
        return [JobRecord.from_plain(one.record) for one in stored]

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self._reading() as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that no other thread uses meanwhile."""
        try:
            db = self._idle.pop() if self._idle else self._connected()
        except IndexError:
            # Another thread was faster.
            db = self._connected()
        try:
            yield db
        except (sqlite3.Error, ValueError) as error:
            raise JournalError(f"{self._path}: {error}") from None
        finally:
            if self._closed:
                db.close()
            else:
                self._idle.append(db)

    def _connected(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=LOCKED_S)
        db.execute("PRAGMA query_only = 1")
        return db


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), AT_ONCE):
        yield values[first : first + AT_ONCE]
