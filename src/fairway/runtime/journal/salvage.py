"""Saving what can be read of a damaged journal.

Everything is done on a copy, so the damaged file stays as it is. SQLite reads rows in ranges. A range that cannot be
read is halved until only rows that are really lost are left out. Jobs that SQLite cannot find are then looked for in
the pages themselves, and finally in the folders of jobs beside the journal, which say what was started.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.journal import sqlite_pages as leaves
from fairway.runtime.journal.database import CERTAIN, Journal, JournalError
from fairway.runtime.journal.job_folders import Folder, Places, facts_in, folders_of, opened, record_in

_MOST_NUMBER = 10_000_000
_MOST_FAILURES = 20_000
"""The number of failed reads after which the rest of a table is given up."""


class Salvaged(NamedTuple):
    """What was saved: jobs, how many of them had not ended, and how many jobs are lost.

    Of the saved jobs, `from_folders` are not from the journal; of these, `running` still run, and `held` are held
    because it is not known whether they had been cancelled. `untold` are the ids of jobs whose folders say too little,
    and `strays` those among them that still run, with the pids of their keepers.
    """

    jobs: int
    unfinished: int
    unreadable: int
    from_folders: int = 0
    running: int = 0
    held: int = 0
    untold: tuple[str, ...] = ()
    strays: Mapping[str, int] = MappingProxyType({})


class Found(NamedTuple):
    """A job's row and the record in it."""

    row: tuple[int, str, str | None, int, str]
    record: JobRecord


def salvage(damaged: Path, fresh: Path) -> Salvaged:
    """Copy the jobs that can be read from a damaged journal into a new one, with those that only their folders know.

    The log is not copied: parts of it may be missing, and then it cannot be used. A scheduler that starts on the new
    journal queues the jobs that had not ended again, and takes over those of their processes that still run.
    """
    if fresh.exists():
        raise JournalError(f"{fresh} exists; give the name of a new file")
    folders = [opened(one) for one in folders_of(damaged.parent / "jobs")]
    if not damaged.is_file() and not folders:
        raise JournalError(f"there is no file {damaged}")
    try:
        # Beside the new file: there has to be room for it there, and a rename makes it appear as a whole.
        with tempfile.TemporaryDirectory(prefix=".salvage-", dir=fresh.parent) as scratch:
            facts, found, last = _read(_copied(damaged, Path(scratch)))
            back, untold = _brought_back(folders, found)
            facts = {**_latest_facts(folders), **facts}
            if not found and not facts:
                raise JournalError(
                    f"nothing can be read of {damaged}; the folder `jobs` beside it says how its jobs were started"
                )
            made = Path(scratch) / "fresh.db"
            _write(made, facts, found)
            made.rename(fresh)
    except OSError as error:
        raise JournalError(f"{error.filename or fresh}: {error.strerror or error}; nothing was changed") from None
    return Salvaged(
        len(found),
        sum(not one.record.state.ended for one in found.values()),
        # Jobs are numbered without gaps, so the numbers tell how many are missing.
        max([last, *found]) + 1 - len(found),
        len(back),
        sum(one.keeper is not None for one in back),
        sum(found[number].record.held for number in back.values()),
        tuple(one.id for one in untold),
        {one.id: one.keeper for one in untold if one.keeper is not None},
    )


def _brought_back(folders: Sequence[Folder], found: dict[int, Found]) -> tuple[dict[Folder, int], list[Folder]]:
    """Add to `found` the jobs that only their folders know, and those whose folders have a later attempt.

    Returns the folders of these with the numbers of the jobs, and the folders that say too little.
    """
    by_id = {one.record.id: one.record for one in found.values()}
    places = Places(one.record.stored() for one in found.values())
    back: dict[Folder, int] = {}
    untold: list[Folder] = []
    for folder in sorted(folders, key=_by_number):
        journal = by_id.get(folder.id)
        if journal is not None and (journal.state.ended or len(journal.attempts) >= folder.number):
            continue
        record = record_in(folder)
        if record is None:
            untold += [folder] if journal is None or folder.keeper is not None else []
            continue
        job = places.settle(record).stored()
        text = json.dumps(job.record, separators=(",", ":"))
        found[job.number] = Found((job.number, job.id, job.client_key, int(job.ended), text), record)
        back[folder] = job.number
    return back, untold


def _by_number(folder: Folder) -> tuple[int, ...]:
    return tuple(map(int, folder.id.split("_")))


def _latest_facts(folders: Sequence[Folder]) -> dict[str, Any]:
    """The facts as they were when the scheduler last started a job, for facts that the journal has lost."""
    for folder in sorted(folders, key=_launched_s, reverse=True):
        facts = _certain(facts_in(folder))
        if facts:
            return facts
    return {}


def _launched_s(folder: Folder) -> float:
    try:
        return (folder.attempt / "launch.json").stat().st_mtime
    except OSError:
        return 0.0


def _write(path: Path, facts: dict[str, Any], found: dict[int, Found]) -> None:
    journal = Journal(path)
    try:
        with journal.transaction():
            journal.set_facts({**facts, "salvaged": True})
            rows = [(*one.row[:3], int(one.record.state.ended), one.row[4]) for _, one in sorted(found.items())]
            # If damage has made a key or an id the same as another one, the other rows are still saved.
            journal._db.executemany("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?)", rows)
    finally:
        journal.close()


def _copied(damaged: Path, scratch: Path) -> Path:
    """A copy with its write-ahead log, made such that SQLite does not refuse the whole file."""
    path = scratch / "damaged.db"
    path.touch()
    with suppress(FileNotFoundError):
        shutil.copyfile(damaged, path)
    log = damaged.with_name(f"{damaged.name}-wal")
    if log.is_file():
        shutil.copyfile(log, path.with_name(f"{path.name}-wal"))
    with path.open("r+b") as file:
        head = file.read(100)
        size = file.seek(0, 2)
        page_bytes = leaves.shape_of(head).page_bytes
        # With an empty file SQLite would delete the log, and it cannot read half a page.
        pages = max(-(-size // page_bytes), 1)
        file.truncate(pages * page_bytes)
        if head.startswith(leaves.MAGIC) and int.from_bytes(head[28:32], "big") > pages:
            file.seek(28)
            file.write(pages.to_bytes(4, "big"))
    return path


def _read(path: Path) -> tuple[dict[str, Any], dict[int, Found], int]:
    """The facts, the jobs, and the highest number of a job."""
    found: dict[int, Found] = {}
    facts: dict[str, Any] = {}
    last = -1
    with closing(sqlite3.connect(path, isolation_level=None)) as source:
        with suppress(sqlite3.DatabaseError):
            # This moves the write-ahead log into the pages, which are searched last.
            source.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with suppress(sqlite3.DatabaseError):
            facts = _facts(source)
            last = _last_number(source)
        for row in _rows(source, _MOST_NUMBER if last < 0 else last):
            _take(row, found)
    for key, values in leaves.rows(path, found):
        if len(values) == 5:
            _take((key, *values[1:]), found)
    return facts, found, last if last < _MOST_NUMBER else -1


def _take(row: tuple[Any, ...], found: dict[int, Found]) -> None:
    """Keep a row if it is the row of a job and its record can be read."""
    try:
        record = JobRecord.from_plain(json.loads(row[4]))
        sound = (record.number, record.id) == (row[0], row[1]) and isinstance(row[2], str | None)
        int(record.id.split("_")[0])
    except Exception:
        # Damage can leave any bytes behind. They are not a record.
        return
    if sound and 0 <= record.number <= _MOST_NUMBER and record.number not in found:
        found[record.number] = Found((row[0], row[1], row[2], row[3], row[4]), record)


def _facts(source: sqlite3.Connection) -> dict[str, Any]:
    """The facts that can be read, without those that mean nothing without the log."""
    found: dict[str, Any] = {}
    with suppress(sqlite3.DatabaseError, ValueError, TypeError):
        for name, value in source.execute("SELECT name, value FROM facts"):
            found[name] = json.loads(value)
    return _certain(found)


def _certain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name, kind in CERTAIN.items() if isinstance(facts.get(name), kind)}


def _last_number(source: sqlite3.Connection) -> int:
    last = source.execute("SELECT max(number) FROM jobs").fetchone()[0]
    return last if isinstance(last, int) and 0 <= last <= _MOST_NUMBER else -1


def _rows(source: sqlite3.Connection, last: int) -> Iterator[tuple[Any, ...]]:
    """The rows of all jobs that SQLite can read, in order."""
    ranges, failures = [(0, last)], 0
    while ranges and failures < _MOST_FAILURES:
        low, high = ranges.pop()
        try:
            yield from source.execute(
                "SELECT * FROM jobs WHERE number BETWEEN ? AND ? ORDER BY number", (low, high)
            ).fetchall()
        except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError):
            failures += 1
            if low < high:
                middle = (low + high) // 2
                ranges += [(middle + 1, high), (low, middle)]
