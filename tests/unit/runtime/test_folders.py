"""What the folder of a job tells of it, and where a job that is brought back finds its place."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fairway.runtime.jobs.records import Attempt, JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.database import Journal, is_blank
from fairway.runtime.journal.job_folders import UNCERTAIN, Places, facts_in, folders_of, opened, record_in
from fairway.runtime.journal.salvage import salvage
from fairway.runtime.processes import keeper, local


def _record(name: str = "7", number: int = 6, **about: Any) -> JobRecord:
    request = JobRequest(
        command=("true",), user="ann", client_key=about.pop("key", None), retries=about.pop("retries", 0)
    )
    return JobRecord(number, name, request, 1000.0, attempts=[Attempt(1, [0, 1], "token", 1010.0)], **about)


def _folder(tmp_path: Path, record: JobRecord, outcome: dict[str, Any] | None = None, **facts: Any) -> Path:
    path = tmp_path / "jobs" / record.id
    attempt = path / f"attempt-{len(record.attempts)}"
    attempt.mkdir(parents=True)
    keeper.write_over(attempt / "launch.json", {"ranks": [], "record": record.plain(), "facts": facts})
    if outcome is not None:
        told = {"cause": "", "killed": False, "problem": "", "time": 1020.0, "codes": [], **outcome}
        keeper.write_over(attempt / "exit.json", told)
    return path


@pytest.mark.parametrize(
    ("outcome", "retries", "held"),
    [
        ({"codes": [0]}, 0, False),
        ({"codes": [1]}, 0, False),
        ({"codes": [1]}, 1, True),
        ({"codes": [75], "cause": "limit"}, 0, False),
        ({"codes": [143], "cause": "request"}, 0, True),
        ({"codes": [75]}, 0, True),
        (None, 0, True),
    ],
)
def test_a_job_that_may_run_again_is_held(
    tmp_path: Path, outcome: dict[str, Any] | None, retries: int, held: bool
) -> None:
    found = record_in(opened(_folder(tmp_path, _record(retries=retries), outcome)))
    assert found is not None
    assert (found.held, found.reason) == (held, UNCERTAIN if held else "")
    assert (found.state, found.since_s) == (JobState.RUNNING, 1010.0), "its end is found by whoever adopts it"


def test_a_job_whose_work_nobody_wanted_is_cancelled(tmp_path: Path) -> None:
    path = _folder(tmp_path, _record(), {"codes": [143], "cause": "request"})
    (path / "attempt-1" / "hurry").write_text("2.0")
    found = record_in(opened(path))
    assert found is not None
    assert (found.state, found.ended_s, found.held) == (JobState.CANCELLED, 1020.0, False)


@pytest.mark.parametrize(("paused", "state"), [(None, "RUNNING"), ("no", "RUNNING"), ("yes", "SUSPENDED")])
def test_a_job_whose_keeper_lives_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: str | None, state: str
) -> None:
    path = _folder(tmp_path, _record())
    monkeypatch.setattr(local, "living_keeper", lambda directory: 5)
    if paused is not None:
        (path / "attempt-1" / "paused").write_text(paused)
    found = record_in(opened(path))
    assert found is not None
    assert (found.state, found.held) == (state, False)
    (path / "attempt-1" / "stopping").touch()
    found = record_in(opened(path))
    assert found is not None
    assert found.held, "it was asked to stop, and nobody knows what for"


def test_a_keeper_lives_only_if_it_is_that_process(tmp_path: Path) -> None:
    directory = tmp_path / "attempt-1"
    directory.mkdir()
    assert local.living_keeper(directory) is None
    me, start = keeper.identity(os.getpid())
    for told, expected in (
        ([me, start, keeper.boot_id()], me),
        ([me, start + 1, keeper.boot_id()], None),
        ([me, start, "another boot"], None),
        (local.NOBODY, None),
        ("nonsense", None),
    ):
        keeper.write_over(directory / "keeper.json", told)
        assert local.living_keeper(directory) == expected


def test_folders_that_tell_too_little(tmp_path: Path) -> None:
    path = _folder(tmp_path, _record())
    launch = path / "attempt-1" / "launch.json"
    whole = json.loads(launch.read_text())
    other_id = {**whole, "record": {**whole["record"], "id": "8"}}
    for told in ({}, [], {"record": {}}, {"record": None}, {**whole, "record": "half"}, other_id):
        launch.write_text(json.dumps(told))
        assert record_in(opened(path)) is None
    launch.write_text("{half")
    assert record_in(opened(path)) is None
    launch.unlink()
    assert record_in(opened(path)) is None
    (path / "attempt-1").rmdir()
    assert record_in(opened(path)) is None
    assert facts_in(opened(path)) == {}


def test_only_folders_of_jobs_count(tmp_path: Path) -> None:
    for name in ("1", "12", "3_0", "3_x", "x", "4_", "5.old"):
        (tmp_path / name).mkdir()
    (tmp_path / "6").touch()
    assert sorted(path.name for path in folders_of(tmp_path)) == ["1", "12", "3_0"]
    assert list(folders_of(tmp_path / "nowhere")) == []


def test_nobody_loses_a_number_or_a_key_to_a_job_that_comes_back() -> None:
    places = Places([_record("1", 0, key="a").stored(), _record("2", 4, key="b").stored()])
    settled = [
        places.settle(_record("3", 0, key="a")),
        places.settle(_record("2", 9, key="b")),
        places.settle(_record("5", 2, key="c")),
        places.settle(_record("6", 2, key="c")),
    ]
    assert [(one.number, one.request.client_key) for one in settled] == [(5, None), (4, "b"), (2, "c"), (6, None)]


def test_blank_is_what_never_knew_a_job(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    assert is_blank(path)
    path.touch()
    assert is_blank(path)
    Journal(path).close()
    assert is_blank(path)
    journal = Journal(path)
    with journal.transaction():
        journal.save_jobs([_record().stored()])
    assert not is_blank(path), "also while somebody has it"
    journal.close()
    assert not is_blank(path)
    path.write_bytes(b"dear diary " * 1000)
    assert not is_blank(path)
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE others (a)")
    db.close()
    assert not is_blank(path)


def test_salvage_takes_what_is_newer_and_lists_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    ended, stale = _record("1", 0, _state=JobState.COMPLETED), _record("2", 1)
    ended.attempts, stale.attempts = [], []
    with journal.transaction():
        journal.set_facts({"policy": "las"})
        journal.save_jobs([ended.stored(), stale.stored()])
    journal.close()
    _folder(tmp_path, _record("1", 0), {"codes": [1]})
    _folder(tmp_path, _record("2", 1), {"codes": [0]}, policy="fifo", gpus="3", plugins=["/a.py"], junk=1, listen=7)
    _folder(tmp_path, _record("4", 3), {"codes": [0]})
    (tmp_path / "jobs" / "5" / "attempt-1").mkdir(parents=True)
    told = salvage(path, tmp_path / "new.db")
    assert told[:6] == (3, 2, 1, 2, 0, 0)
    assert (told.untold, told.strays) == (("5",), {})
    fresh = Journal(tmp_path / "new.db")
    kept = {job.id: (JobRecord.from_plain(job.record).state, len(job.record["attempts"])) for job in fresh.jobs()}
    assert kept == {"1": ("COMPLETED", 0), "2": ("RUNNING", 1), "4": ("RUNNING", 1)}
    facts = fresh.facts()
    fresh.close()
    assert facts == {"policy": "las", "gpus": "3", "plugins": ["/a.py"], "salvaged": True}
