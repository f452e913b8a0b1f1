"""The journal's file: what is damaged, foreign or newer is refused and left as it is; what can be read is saved."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fairway.core.event import JobCancelled, JobStarted, RateChanged, Woken
from fairway.runtime.jobs.records import JobRecord, JobState, StoredJob
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal import database as journals
from fairway.runtime.journal.database import DiskFullError, Journal, JournalError
from fairway.runtime.journal.salvage import salvage


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Files are made readable for all, unless whoever makes them says otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def _modes(folder: Path) -> dict[str, str]:
    return {one.name: f"{one.stat().st_mode & 0o777:o}" for one in folder.iterdir()}


def _stored(number: int, state: JobState = JobState.PENDING) -> StoredJob:
    request = JobRequest(command=("python", "train.py", "x" * 200), user=f"user{number % 3}", name=f"job {number}")
    record = JobRecord(number, str(number + 1), request, 1000.0 + number, state)
    return StoredJob(number, record.id, None, state.ended, record.plain())


def _filled(path: Path, jobs: int = 2000) -> bytes:
    """A journal of many jobs, folded into one file; what is in that."""
    journal = Journal(path)
    with journal.transaction():
        journal.set_facts({"origin_s": 5.0, "policy": "fifo", "memory": {"a": 1}})
        journal.append(JobCancelled(float(number), number) for number in range(jobs))
        journal.save_jobs(
            [_stored(number, JobState.COMPLETED if number % 2 else JobState.PENDING) for number in range(jobs)]
        )
    journal.close()
    return path.read_bytes()


def _statements(*texts: str) -> Callable[[sqlite3.Connection], None]:
    def migrate(db: sqlite3.Connection) -> None:
        for text in texts:
            db.execute(text)

    return migrate


SCHEMA_1 = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, client_key TEXT UNIQUE, ended INTEGER NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX jobs_ended ON jobs (ended);
CREATE TABLE log (seq INTEGER PRIMARY KEY, job INTEGER, round INTEGER, kind TEXT NOT NULL, fields TEXT NOT NULL);
CREATE INDEX log_job ON log (job);
PRAGMA application_id = {journals.APPLICATION};
PRAGMA user_version = 1;
"""
"""How earlier versions made their journals."""


def _of_schema_1(path: Path) -> list[JobRecord]:
    """A journal of an earlier version, with a job and an array. Returns its records."""
    env = {"PATH": "/bin", "SECRET": "x"}
    records = [JobRecord(0, "1", JobRequest(command=("a",), user="ann", env=env), 5.0, JobState.COMPLETED)]
    for task in range(3):
        own = {**env, "FAIRWAY_ARRAY_TASK_ID": str(task)}
        request = JobRequest(command=("b",), user="bob", env=own, array_task=task, client_key=f"k/{task}")
        records.append(JobRecord(task + 1, f"2_{task}", request, 6.0))
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA_1)
        for record in records:
            number, name, key, ended, plain = record.stored()
            db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", (number, name, key, int(ended), json.dumps(plain)))
        db.execute("INSERT INTO facts VALUES ('policy', '\"fifo\"')")
        db.commit()
    return records


def test_a_journal_of_the_first_schema_is_read_and_its_environments_are_shared(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    before = _of_schema_1(path)
    journal = Journal(path)
    assert journal.facts() == {"policy": "fifo"}
    found = [JobRecord.from_plain(job.record) for job in journal.jobs()]
    assert [job.client_key for job in journal.jobs()] == [None, *(f"bob\0k/{task}" for task in range(3))]
    assert journal._db.execute("SELECT count(*) FROM environments").fetchone() == (1,)
    journal.close()
    for old, new in zip(before, found, strict=True):
        env = {name: value for name, value in old.request.env.items() if name != "FAIRWAY_ARRAY_TASK_ID"}
        assert (new.id, new.state, new.request) == (old.id, old.state, replace(old.request, env=env))
        assert new.request.env is found[0].request.env
    with closing(sqlite3.connect(tmp_path / "journal.db.schema-1")) as copy:
        assert copy.execute("SELECT count(*) FROM jobs").fetchone() == (4,)
    salvage(tmp_path / "journal.db.schema-1", tmp_path / "new.db")
    journal = Journal(tmp_path / "new.db")
    assert [job.id for job in journal.jobs()] == ["1", "2_0", "2_1", "2_2"]
    journal.close()


def test_a_record_of_the_first_schema_that_is_none_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    _of_schema_1(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE jobs SET record = '{}' WHERE number = 2")
        db.commit()
    with pytest.raises(JournalError, match="damaged"):
        Journal(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


def test_an_environment_is_kept_once_and_leaves_with_its_last_job(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    shared = JobRequest(command=("a",), env={"A": "1" * 1000})
    records = [JobRecord(at, str(at + 1), replace(shared), 0.0, JobState.FAILED) for at in range(3)]
    records.append(JobRecord(3, "4", JobRequest(command=("a",), env={"B": "2"}), 0.0, JobState.FAILED))
    with journal.transaction():
        journal.save_jobs(record.stored() for record in records)
    count = "SELECT count(*) FROM environments"
    assert journal._db.execute(count).fetchone() == (2,)
    with journal.transaction():
        journal.forget([0, 1, 3])
    assert journal._db.execute(count).fetchone() == (1,)
    assert [JobRecord.from_plain(job.record).request.env for job in journal.jobs()] == [{"A": "1" * 1000}]
    with journal.transaction():
        journal.forget([2])
    assert journal._db.execute(count).fetchone() == (0,)
    journal.close()


def _refused(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(JournalError) as caught:
        Journal(path)
    assert path.read_bytes() == before, "nothing was changed"
    return str(caught.value)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    _filled(tmp_path / "journal.db", 10)
    journal = Journal(tmp_path / "journal.db")
    assert [job.number for job in journal.jobs()] == list(range(10))
    assert [job.number for job in journal.jobs(ended=True)] == [1, 3, 5, 7, 9]
    assert [entry.thing.job for entry in journal.log()] == [0, 2, 4, 6, 8]
    assert journal.facts()["policy"] == "fifo"
    journal.close()


@pytest.mark.parametrize("part", [0.02, 0.3, 0.7, 0.97])
def test_a_truncated_file_is_refused(tmp_path: Path, part: float) -> None:
    path = tmp_path / "journal.db"
    content = _filled(path)
    path.write_bytes(content[: int(len(content) * part)])
    assert "fairway salvage" in _refused(path)


def test_a_file_with_its_head_gone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    content = _filled(path, 50)
    path.write_bytes(b"\0" * 100 + content[100:])
    assert "damaged or no journal" in _refused(path)
    assert salvage(path, tmp_path / "new.db")[:3] == (50, 25, 0)


def test_any_other_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_text("dear diary, " * 500)
    assert "damaged or no journal" in _refused(path)
    with pytest.raises(JournalError, match="nothing can be read"):
        salvage(path, tmp_path / "new.db")


def test_the_database_of_another_program_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path)
    db.executescript("CREATE TABLE jobs (a); CREATE TABLE log (b); INSERT INTO jobs VALUES (1);")
    db.close()
    assert "no journal of Fairway" in _refused(path)
    assert not (tmp_path / "journal.db-wal").exists()


def test_a_newer_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    _filled(path, 5)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {journals.SCHEMA + 1}")
    db.close()
    assert f"has schema {journals.SCHEMA + 1}; this Fairway reads up to {journals.SCHEMA}" in _refused(path)


def test_a_record_that_makes_no_sense_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    _filled(path, 5)
    db = sqlite3.connect(path)
    db.execute("UPDATE jobs SET record = '{half' WHERE number = 3")
    db.execute("UPDATE log SET kind = 'SomethingElse' WHERE job = 2")
    db.commit()
    db.close()
    journal = Journal(path)
    with pytest.raises(JournalError, match="fairway salvage"):
        list(journal.jobs())
    with pytest.raises(JournalError, match="SomethingElse"):
        list(journal.log())
    journal.close()
    saved = salvage(path, tmp_path / "new.db")
    assert (saved.jobs, saved.unreadable) == (4, 1)


def test_a_journal_of_the_second_schema_gets_the_indexes_of_the_third(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    _filled(path, 8)
    with closing(sqlite3.connect(path)) as db:
        made = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql != ''")}
        for name in made - {"log_job"}:
            db.execute(f"DROP INDEX {name}")
        db.execute("CREATE INDEX jobs_settled ON jobs (settled, ended_s)")
        db.execute("CREATE INDEX jobs_family ON jobs (family, settled, ended_s)")
        db.execute("PRAGMA user_version = 2")
        db.commit()
    journal = Journal(path)
    found = journal._db.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql != ''")
    assert {name for (name,) in found} == made
    assert len(list(journal.jobs())) == 8
    journal.close()


@pytest.mark.usefixtures("open_umask")
def test_only_its_owner_can_read_a_journal_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    connect = sqlite3.connect

    def seen(path: Path, **options: object) -> sqlite3.Connection:
        made.append(_modes(tmp_path))
        return connect(path, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", seen)
    journal = Journal(tmp_path / "journal.db")
    assert made == [{"journal.db": "600"}], "before SQLite writes anything"
    with journal.transaction():
        journal.save_jobs([_stored(0)])
    assert _modes(tmp_path) == dict.fromkeys(("journal.db", "journal.db-wal", "journal.db-shm"), "600")
    journal.close()


@pytest.mark.usefixtures("open_umask")
def test_only_its_owner_can_read_what_was_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    _filled(path, 10)
    path.chmod(0o644)
    salvage(path, tmp_path / "new.db")
    assert _modes(tmp_path) == {"journal.db": "644", "new.db": "600"}


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("interrupted", [False, True])
def test_only_its_owner_can_read_the_copy_of_an_older_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    _filled(tmp_path / "journal.db", 2)
    copy = tmp_path / f"journal.db.schema-{journals.SCHEMA}"
    if interrupted:
        copy.touch(0o644)
    monkeypatch.setitem(journals._MIGRATIONS, journals.SCHEMA, _statements("CREATE TABLE others (a)"))
    monkeypatch.setattr(journals, "SCHEMA", journals.SCHEMA + 1)
    Journal(tmp_path / "journal.db").close()
    assert f"{copy.stat().st_mode & 0o777:o}" == "600"


def test_an_older_journal_is_brought_up_to_date_and_a_copy_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    _filled(path, 8)
    old = journals.SCHEMA
    monkeypatch.setattr(journals, "SCHEMA", old + 2)
    added = _statements("ALTER TABLE jobs ADD COLUMN note TEXT DEFAULT 'none'")
    monkeypatch.setitem(journals._MIGRATIONS, old, added)
    monkeypatch.setitem(journals._MIGRATIONS, old + 1, _statements("CREATE TABLE others (a)"))
    journal = Journal(path)
    assert journal._db.execute("PRAGMA user_version").fetchone() == (old + 2,)
    assert {row[0] for row in journal._db.execute("SELECT note FROM jobs")} == {"none"}
    journal.close()
    copy = sqlite3.connect(tmp_path / f"journal.db.schema-{old}")
    assert copy.execute("SELECT count(*) FROM jobs").fetchone() == (8,)
    assert copy.execute("PRAGMA user_version").fetchone() == (old,)
    copy.close()


def test_a_migration_that_fails_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.db"
    _filled(path, 8)
    old = journals.SCHEMA
    monkeypatch.setattr(journals, "SCHEMA", old + 1)
    broken = _statements("DELETE FROM jobs", "ALTER TABLE no_such_table ADD COLUMN a")
    monkeypatch.setitem(journals._MIGRATIONS, old, broken)
    with pytest.raises(JournalError):
        Journal(path)
    monkeypatch.undo()
    journal = Journal(path)
    assert len(list(journal.jobs())) == 8
    journal.close()


@pytest.mark.parametrize("seed", range(5))
def test_salvage_saves_the_jobs_of_all_pages_but_the_damaged_ones(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "journal.db"
    content = bytearray(_filled(path))
    pages, rng = len(content) // 4096, random.Random(seed)
    for page in rng.sample(range(pages // 4, pages), 3):
        content[page * 4096 : (page + 1) * 4096] = rng.randbytes(4096)
    path.write_bytes(content)
    _refused(path)
    saved = salvage(path, tmp_path / "new.db")
    assert saved.jobs >= 1800, f"seed {seed}"
    journal = Journal(tmp_path / "new.db")
    assert journal.facts()["salvaged"] is True
    assert "memory" not in journal.facts()
    stored = list(journal.jobs())
    assert len(stored) == saved.jobs
    for job in stored:
        state = JobState.COMPLETED if job.number % 2 else JobState.PENDING
        assert job.record == json.loads(json.dumps(_stored(job.number, state).record))
    journal.close()


def test_salvage_never_writes_over_anything(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    _filled(path, 5)
    with pytest.raises(JournalError, match="exists"):
        salvage(path, path)
    with pytest.raises(JournalError, match="there is no file"):
        salvage(tmp_path / "nothing.db", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_a_full_disk_changes_nothing_and_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    with journal.transaction():
        journal.save_jobs([_stored(0)])
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFullError, match="no room"), journal.transaction():
        journal.save_jobs(_stored(number) for number in range(1, 500))
    assert [job.number for job in journal.jobs()] == [0]
    journal._db.execute("PRAGMA max_page_count = 100000")
    with journal.transaction():
        journal.save_jobs(_stored(number) for number in range(1, 500))
    assert len(list(journal.jobs())) == 500
    journal.close()


def test_the_log_of_a_job_goes_when_it_ends(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    with journal.transaction():
        journal.append([JobStarted(1.0, 0, 1.0, 1.0), JobStarted(1.0, 1, 1.0, 1.0)])
        journal.save_jobs([_stored(0), _stored(1)])
    assert journal.size() == 2
    with journal.transaction():
        journal.append([JobCancelled(2.0, 0)])
        journal.save_jobs([_stored(0, JobState.CANCELLED)])
    assert [entry.thing for entry in journal.log()] == [JobStarted(1.0, 1, 1.0, 1.0)]
    assert journal.size() == 1
    journal.close()


def test_compaction_keeps_what_makes_a_difference(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    things = [Woken(1.0), Woken(2.0), JobStarted(2.0, 0, 1.0, 2.0), JobStarted(2.0, 1, 1.0, 2.0)]
    for time_s in range(3, 100):
        things += [RateChanged(float(time_s), job, float(time_s), 1.0) for job in (0, 1)]
    things += [Woken(100.0), JobStarted(100.0, 0, 2.0, 100.0), RateChanged(101.0, 0, 1.0, 1.0), Woken(102.0)]
    with journal.transaction():
        journal.save_jobs([_stored(0), _stored(1)])
        journal.append(things)
    gone = journal.compact()
    left = [repr(entry.thing) for entry in journal.log()]
    assert left == [repr(thing) for thing in (*things[1:4], *things[-6:])]
    assert gone == len(things) - len(left)
    assert journal.compact() == 0
    journal.close()


def test_a_journal_in_use_for_long_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "COMPACT_EVERY", 500)
    journal = Journal(tmp_path / "journal.db")
    largest = 0
    for number in range(300):
        with journal.transaction():
            journal.append(
                [Woken(float(number)), *(RateChanged(float(number), number // 10, k, 1.0) for k in range(30))]
            )
            journal.save_jobs([_stored(number // 10, JobState.COMPLETED if number % 10 == 9 else JobState.PENDING)])
        journal.tidy()
        largest = max(largest, journal.size())
    assert 0 < largest <= 1200
    assert (tmp_path / "journal.db").stat().st_size < 2_000_000
    journal.close()


def test_a_directory_that_cannot_be_written_to_is_said_to_be_that(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "no" / "such" / "journal.db")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "folder.db")
