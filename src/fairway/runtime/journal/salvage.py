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
from fairway.runtime.jobs.shared_environment import SharedEnvironment
from fairway.runtime.journal import sqlite_pages as leaves
from fairway.runtime.journal.database import CERTAIN, Journal, JournalError
from fairway.runtime.journal.job_folders import Folder, Places, facts_in, folders_of, opened, record_in
from fairway.runtime.journal.job_rows import WIDTH, environment_in

LOST_ENVIRONMENT = "its environment could not be read; cancel it and submit it again"
_FIRST_WIDTH = 5
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


class JobRow(NamedTuple):
    """A row of the table `jobs`, of this schema or of the first one."""

    number: int
    id: str
    client_key: str | None
    environment: str | None
    text: str

    @staticmethod
    def of(values: Sequence[Any]) -> JobRow | None:
        """The row with these values; None if it has another number of columns."""
        if len(values) not in (_FIRST_WIDTH, WIDTH):
            return None
        number, name, key = values[:3]
        return JobRow(number, name, key, None if len(values) == _FIRST_WIDTH else values[-2], values[-1])


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
        sum(not one.state.ended for one in found.values()),
        # Jobs are numbered without gaps, except for those that retention has let go. So the numbers tell what is lost.
        max(max([last, *found]) + 1 - len(found) - int((facts.get("gone") or {}).get("jobs", 0)), 0),
        len(back),
        sum(one.keeper is not None for one in back),
        sum(found[number].held for number in back.values()),
        tuple(one.id for one in untold),
        {one.id: one.keeper for one in untold if one.keeper is not None},
    )


def _brought_back(folders: Sequence[Folder], found: dict[int, JobRecord]) -> tuple[dict[Folder, int], list[Folder]]:
    """Add to `found` the jobs that only their folders know, and those whose folders have a later attempt.

    Returns the folders of these with the numbers of the jobs, and the folders that say too little.
    """
    by_id = {one.id: one for one in found.values()}
    places = Places(one.stored() for one in found.values())
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
        found[places.settle(record).number] = record
        back[folder] = record.number
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


def _write(path: Path, facts: dict[str, Any], found: dict[int, JobRecord]) -> None:
    journal = Journal(path)
    try:
        with journal.transaction():
            journal.set_facts({**facts, "salvaged": True})
            # If damage has made a key or an id the same as another one, the other rows are still saved.
            journal.save_jobs([one.stored() for _, one in sorted(found.items())], unless_known=True)
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


def _read(path: Path) -> tuple[dict[str, Any], dict[int, JobRecord], int]:
    """The facts, the jobs, and the highest number of a job."""
    found: dict[int, JobRecord] = {}
    facts: dict[str, Any] = {}
    last = -1
    with closing(sqlite3.connect(path, isolation_level=None)) as source:
        with suppress(sqlite3.DatabaseError):
            # This moves the write-ahead log into the pages, which are searched last.
            source.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with suppress(sqlite3.DatabaseError):
            facts = _facts(source)
            last = _last_number(source)
        environments = _environments(source, path)
        for row in _rows(source, _MOST_NUMBER if last < 0 else last):
            _take(JobRow.of(row), environments, found)
    for key, values in leaves.rows(path, found):
        _take(JobRow.of((key, *values[1:])), environments, found)
    return facts, found, last if last < _MOST_NUMBER else -1


def _environments(source: sqlite3.Connection, path: Path) -> dict[str, SharedEnvironment]:
    """All environments that can be read, by their hashes. The hash says whether one is sound."""
    rows = [values for _, values in leaves.rows(path, ()) if len(values) == 3]
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        rows.extend(source.execute("SELECT number, hash, variables FROM environments"))
    found: dict[str, SharedEnvironment] = {}
    for _, name, text in rows:
        if isinstance(name, str) and isinstance(text, str) and name not in found:
            env = environment_in(name, text)
            if env is not None:
                found[name] = env
    return found


def _take(row: JobRow | None, environments: Mapping[str, SharedEnvironment], found: dict[int, JobRecord]) -> None:
    """Keep a row if it is the row of a job and its record can be read."""
    if row is None:
        return
    try:
        plain = json.loads(row.text)
        env = None if row.environment is None else environments.get(row.environment)
        if env is not None:
            plain["request"]["env"] = env
        record = JobRecord.from_plain(plain)
        sound = (record.number, record.id) == (row.number, row.id) and isinstance(row.client_key, str | None)
        int(record.id.split("_")[0])
    except Exception:
        # Damage can leave any bytes behind. They are not a record.
        return
    if row.environment is not None and env is None and not record.state.ended:
        record.held, record.reason = True, LOST_ENVIRONMENT
    if sound and 0 <= record.number <= _MOST_NUMBER and record.number not in found:
        found[record.number] = record


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
