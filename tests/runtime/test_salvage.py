"""Salvage: whatever became of the file, the jobs in pages that are whole are saved, and the file stays as it is."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path

import pytest

from fairway.runtime.jobs.records import JobRecord, JobState, StoredJob
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.database import Journal, JournalError
from fairway.runtime.journal.salvage import Salvaged, salvage
from fairway.testing.seeds import some

PAGE, JOBS, LONG = 4096, 600, 77
"""Job `LONG` has a command that does not fit into a page."""


def _stored(number: int) -> StoredJob:
    words = ("python", "train.py", "y" * (30_000 if number == LONG else 150 + number % 90))
    key = f"key {number}" if number % 5 == 0 else None
    request = JobRequest(command=words, user=f"user{number % 3}", name=f"job {number}", client_key=key)
    state = JobState.COMPLETED if number % 2 else JobState.PENDING
    return JobRecord(number, str(number + 1), request, 1000.0 + number, state).stored()


def _text(number: int) -> bytes:
    return json.dumps(_stored(number).record, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal that has been in use: jobs were added in several steps and changed, entries have come and gone."""
    path = tmp_path_factory.mktemp("whole") / "journal.db"
    journal = Journal(path)
    with journal.transaction():
        journal.set_facts({"origin_s": 5.0, "policy": "fifo", "memory": {"a": 1}})
    for first in range(0, JOBS, 100):
        with journal.transaction():
            journal.save_jobs(map(_stored, range(first, first + 100)))
            journal.save_jobs(map(_stored, range(max(first - 50, 0), first)))
    journal.close()
    return path.read_bytes()


def _at(content: bytes, number: int) -> set[int]:
    """The pages in which the record of a job begins, as copies that are no longer in use may, too."""
    pages, start, text = set(), 0, _text(number)[:400]
    while (found := content.find(text, start)) >= 0:
        pages |= set(range(found // PAGE, (found + len(text) - 1) // PAGE + 1))
        start = found + 1
    return pages


def _saved(folder: Path, content: bytes) -> tuple[Salvaged | None, dict[int, StoredJob]]:
    """What is saved of a file; None if that is nothing at all. The file must not have been touched."""
    path, fresh = folder / "journal.db", folder / "new.db"
    path.write_bytes(content)
    others = {one.name: one.read_bytes() for one in folder.iterdir()}
    told, why = None, "nothing can be read"
    try:
        told = salvage(path, fresh)
    except JournalError as error:
        why = str(error)
    assert "nothing can be read" in why
    left = {one.name: one.read_bytes() for one in folder.iterdir() if one != fresh}
    assert left == others, "nothing but the new file may be there"
    if told is None:
        assert not fresh.exists()
        return None, {}
    journal = Journal(fresh)
    found = {job.number: job for job in journal.jobs()}
    assert journal.facts()["salvaged"] is True
    journal.close()
    assert told.jobs == len(found)
    assert told.unfinished == sum(not job.ended for job in found.values())
    return told, found


def _check(found: dict[int, StoredJob], expected: set[int], what: str) -> None:
    missing = expected - found.keys()
    assert not missing, f"{what}: {len(missing)} jobs of whole pages are missing"
    for number, job in found.items():
        assert job == _stored(number)._replace(record=json.loads(_text(number))), (
            f"{what}: job {number} is not as it was"
        )


@pytest.mark.parametrize("seed", some(range(24), 6))
def test_of_a_truncated_file_all_whole_pages_are_saved(tmp_path: Path, whole: bytes, seed: int) -> None:
    end = random.Random(seed).randrange(len(whole))
    _, found = _saved(tmp_path, whole[:end])
    expected = {job for job in range(JOBS) if job != LONG and all(page < end // PAGE for page in _at(whole, job))}
    _check(found, expected, f"cut at {end}")


@pytest.mark.parametrize("end", [0, 1, 16, 99, 100, PAGE - 1, PAGE, PAGE + 1])
def test_of_the_very_beginning_nothing_is_saved_and_nothing_breaks(tmp_path: Path, whole: bytes, end: int) -> None:
    _, found = _saved(tmp_path, whole[:end])
    assert not found


@pytest.mark.parametrize("seed", some(range(24), 6))
def test_damaged_pages_cost_only_their_own_jobs(tmp_path: Path, whole: bytes, seed: int) -> None:
    rng, content = random.Random(1000 + seed), bytearray(whole)
    # The first pages are the head, the schema and the roots of all tables: without them SQLite finds nothing.
    bad = {*rng.sample(range(len(whole) // PAGE), rng.choice((1, 3, 8))), *rng.sample(range(8), seed % 4)}
    for page in bad:
        junk = (rng.randbytes(PAGE), b"\0" * PAGE, b"\xff" * PAGE)[seed % 3]
        content[page * PAGE : (page + 1) * PAGE] = junk
    _, found = _saved(tmp_path, bytes(content))
    _check(found, {job for job in range(JOBS) if job != LONG and not _at(whole, job) & bad}, f"pages {sorted(bad)}")


@pytest.mark.parametrize("seed", some(range(12), 4))
def test_single_bytes_that_have_changed_break_nothing(tmp_path: Path, whole: bytes, seed: int) -> None:
    rng, content = random.Random(2000 + seed), bytearray(whole)
    hit = [rng.randrange(200 if seed % 2 else len(whole)) for _ in range(20)]
    for at in hit:
        content[at] = rng.randrange(256)
    _, found = _saved(tmp_path, bytes(content))
    bad = {at // PAGE for at in hit}
    missing = {job for job in range(JOBS) if job != LONG and not _at(whole, job) & bad} - found.keys()
    assert not missing


def test_without_its_head_the_jobs_are_still_found(tmp_path: Path, whole: bytes) -> None:
    told, found = _saved(tmp_path, b"\0" * PAGE + whole[PAGE:])
    _check(found, set(range(JOBS)), "no head")
    assert told is not None
    assert told[:3] == (JOBS, JOBS // 2, 0)


def test_it_says_how_many_are_lost(tmp_path: Path, whole: bytes) -> None:
    page = max(_at(whole, 300))
    told, found = _saved(tmp_path, whole[: page * PAGE] + b"\0" * PAGE + whole[(page + 1) * PAGE :])
    assert told is not None
    assert 300 not in found
    assert told.unreadable == JOBS - len(found) > 0


def _with_log(folder: Path) -> None:
    """A journal as a killed scheduler leaves it: 100 jobs in the file, 50 more only in its write-ahead log."""
    journal = Journal(folder / "journal.db")
    journal._db.execute("PRAGMA wal_autocheckpoint = 0")
    with journal.transaction():
        journal.save_jobs(map(_stored, range(100)))
    journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with journal.transaction():
        journal.save_jobs(map(_stored, range(100, 150)))
    killed = folder / "killed"
    killed.mkdir()
    for name in ("journal.db", "journal.db-wal"):
        shutil.copy(folder / name, killed / name)
    journal.close()


def test_what_is_only_in_the_write_ahead_log_is_saved(tmp_path: Path) -> None:
    _with_log(tmp_path)
    folder = tmp_path / "killed"
    _, found = _saved(folder, (folder / "journal.db").read_bytes())
    _check(found, set(range(150)), "with its log")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.4])
def test_a_truncated_file_with_a_whole_log(tmp_path: Path, part: float) -> None:
    _with_log(tmp_path)
    folder = tmp_path / "killed"
    content = (folder / "journal.db").read_bytes()
    _, found = _saved(folder, content[: int(part * len(content))])
    # The last jobs of the file share a page with the first of the log.
    _check(found, set(range(100, 150)), "only the log")


def test_a_log_that_is_lost_takes_only_its_own_jobs_with_it(tmp_path: Path) -> None:
    _with_log(tmp_path)
    folder = tmp_path / "killed"
    (folder / "journal.db-wal").unlink()
    told, found = _saved(folder, (folder / "journal.db").read_bytes())
    _check(found, set(range(100)), "no log")
    assert told is not None
    assert told[:3] == (100, 50, 0)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.8])
def test_a_log_that_is_cut_is_used_as_far_as_it_goes(tmp_path: Path, part: float) -> None:
    _with_log(tmp_path)
    folder = tmp_path / "killed"
    log = folder / "journal.db-wal"
    log.write_bytes(log.read_bytes()[: int(part * log.stat().st_size)])
    _, found = _saved(folder, (folder / "journal.db").read_bytes())
    _check(found, set(range(100)), "half a log")


def test_records_that_were_deleted_do_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    with journal.transaction():
        journal.save_jobs(map(_stored, range(200)))
    journal._db.execute("DELETE FROM jobs WHERE number < 150")
    journal.close()
    assert struct.unpack(">I", path.read_bytes()[36:40])[0] > 0, "no page is free; this test would test nothing"
    _, found = _saved(tmp_path, path.read_bytes())
    assert set(found) == set(range(150, 200))


def test_the_new_file_has_to_have_a_place(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "journal.db").write_bytes(whole)
    with pytest.raises(JournalError, match="No such file"):
        salvage(tmp_path / "journal.db", tmp_path / "no" / "such" / "new.db")


def test_a_job_whose_environment_is_lost_is_held(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    with journal.transaction():
        for number, value in enumerate(("kept", "lost")):
            request = JobRequest(command=("a",), env={"NAME": value * 2000})
            journal.save_jobs([JobRecord(number, str(number + 1), request, 0.0).stored()])
    journal.close()
    content = path.read_bytes()
    at = content.index(b"lostlost")
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    assert salvage(path, tmp_path / "new.db").jobs == 2
    journal = Journal(tmp_path / "new.db")
    one, other = (JobRecord.from_plain(job.record) for job in journal.jobs())
    journal.close()
    assert (one.held, one.request.env) == (False, {"NAME": "kept" * 2000})
    assert other.held
    assert "environment could not be read" in other.reason
