"""Saving what can be read of a damaged journal.

Rows are read in ranges; a range that cannot be read is halved until only what is really lost is left out.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from fairway.runtime.journal import Journal, JournalError
from fairway.runtime.records import JobRecord

_MOST_NUMBER = 10_000_000
_MOST_FAILURES = 20_000
"""Reads that may fail before the rest of a table is given up."""


class Salvaged(NamedTuple):
    """What was saved: jobs, how many of them had not ended, and records that were there but could not be read."""

    jobs: int
    unfinished: int
    unreadable: int


def salvage(damaged: Path, fresh: Path) -> Salvaged:
    """Copy the jobs that can be read of a damaged journal into a new one.

    The log is not copied: parts of it may be missing, and then it says nothing certain. A scheduler that starts on the
    new journal queues the jobs that had not ended anew, and takes over those of their processes that still run.
    """
    if fresh.exists():
        raise JournalError(f"{fresh} exists; give the name of a new file")
    if not damaged.is_file():
        raise JournalError(f"there is no file {damaged}")
    with closing(_source(damaged)) as source:
        facts = _facts(source)
        rows, unreadable, unfinished = list[tuple[Any, ...]](), 0, 0
        for row in _rows(source):
            record = _record(row[4])
            if record is None:
                unreadable += 1
                continue
            rows.append((*row[:3], int(record.state.ended), row[4]))
            unfinished += not record.state.ended
    if not rows and not facts:
        raise JournalError(
            f"nothing can be read of {damaged}; what its jobs were told is in the folder `jobs` beside it"
        )
    target = Journal(fresh)
    try:
        with target.transaction():
            target.set_facts({**facts, "salvaged": True})
            target._db.executemany("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?)", rows)
    finally:
        target.close()
    return Salvaged(len(rows), unfinished, unreadable)


def _source(damaged: Path) -> sqlite3.Connection:
    """The damaged file, read only; without its write-ahead log if that cannot be used."""
    path = damaged.resolve().as_uri()
    for how in ("mode=ro", "mode=ro&immutable=1"):
        source = sqlite3.connect(f"{path}?{how}", uri=True)
        try:
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return source
        except sqlite3.DatabaseError:
            source.close()
    raise JournalError(f"nothing can be read of {damaged}: it is no database any more")


def _facts(source: sqlite3.Connection) -> dict[str, Any]:
    """The single values that can be read, without those that only a whole log explains."""
    found: dict[str, Any] = {}
    try:
        for name, value in source.execute("SELECT name, value FROM facts"):
            found[name] = json.loads(value)
    except (sqlite3.DatabaseError, ValueError):
        return {name: found[name] for name in ("origin_s", "last_s", "policy") if name in found}
    return {name: value for name, value in found.items() if name != "memory"}


def _rows(source: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """The rows of all jobs that can be read, in order."""
    try:
        last = source.execute("SELECT max(number) FROM jobs").fetchone()[0]
    except sqlite3.DatabaseError:
        last = _MOST_NUMBER
    ranges, failures = [(0, -1 if last is None else int(last))], 0
    while ranges and failures < _MOST_FAILURES:
        low, high = ranges.pop()
        if low > high:
            continue
        try:
            # All of a range or nothing, so that no row comes twice.
            yield from source.execute(
                "SELECT * FROM jobs WHERE number BETWEEN ? AND ? ORDER BY number", (low, high)
            ).fetchall()
        except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError):
            failures += 1
            if low < high:
                middle = (low + high) // 2
                ranges += [(middle + 1, high), (low, middle)]


def _record(text: Any) -> JobRecord | None:
    try:
        return JobRecord.from_plain(json.loads(text))
    except Exception:
        # Damage can leave anything behind, and whatever it is, it is no record.
        return None
