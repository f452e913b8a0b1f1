"""A journal that is empty, gone or lacks jobs that run: nobody gets their GPUs, and salvage brings them back."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_house import CliHouse, house_in, until

WAITS = "echo begun; while [ ! -e go ]; do sleep 0.1; done; echo done"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CliHouse]:
    yield from house_in(tmp_path)


def _running(house: CliHouse, *options: str, script: str = WAITS) -> str:
    job = house.submit(*options, "--", "bash", "-c", script)
    house.wait_for(job, "RUNNING")
    until((house.state / "jobs" / job / "attempt-1" / "ranks.json").exists, f"job {job} to begin")
    return job


def _files(house: CliHouse) -> list[Path]:
    return sorted(house.state.glob("journal.db*"))


def _emptied(house: CliHouse) -> None:
    _gone(house)
    (house.state / "journal.db").touch()


def _gone(house: CliHouse) -> None:
    for path in _files(house):
        path.unlink()


def _without_tables(house: CliHouse) -> None:
    """As it is when the write-ahead log of a journal is lost in which all of it was."""
    _gone(house)
    with sqlite3.connect(house.state / "journal.db") as db:
        db.execute("PRAGMA journal_mode = WAL")
    db.close()


def _change(house: CliHouse, statement: str, *values: Any) -> None:
    with sqlite3.connect(house.state / "journal.db") as db:
        assert db.execute(statement, values).rowcount
    db.close()


def _salvaged(house: CliHouse) -> dict[str, Any]:
    """Salvage the journal and put the new one in its place; what was told."""
    fresh = house.folder / "new.db"
    call = house("salvage", str(house.state / "journal.db"), str(fresh), "--json")
    assert call.code == 0, call.err
    _gone(house)
    fresh.rename(house.state / "journal.db")
    told: dict[str, Any] = call.json
    return told


def _last_words(house: CliHouse) -> str:
    assert house("down").code == 0
    assert house.daemon is not None
    return house.daemon.communicate(timeout=60)[1]


@pytest.mark.parametrize("lost", [_emptied, _gone, _without_tables])
def test_a_lost_journal_is_refused_and_gives_no_gpu_twice(house: CliHouse, lost: Callable[[CliHouse], None]) -> None:
    house.start("--gpus", "2", "--policy", "fifo", "--round", "0.5")
    job = _running(house, "--gpus", "2")
    house.kill()
    lost(house)
    before = {path: path.read_bytes() for path in _files(house)}
    call = house("up", "--gpus", "2")
    assert (call.code, call.out) == (2, "")
    assert call.err.count("\n") == 1
    for part in ("the folder of 1 job, which runs", "fairway salvage", "fairway down --jobs stop", "jobs away"):
        assert part in call.err
    assert {path: path.read_bytes() for path in before} == before, "nothing was changed"

    told = _salvaged(house)
    assert (told["jobs"], told["from_folders"], told["running"], told["held"]) == (1, 1, 1, 0)
    first = house.start()
    assert "2 × cpu" in first, "the GPUs of last time"
    assert "policy fifo" in first
    assert house("policy", "--json").json["round_s"] == 0.5
    other = house.submit("--gpus", "2", "--", "true")
    assert house.show(other)["state"] == "PENDING"
    assert house.show(job)["gpus_held"] == 2
    (house.folder / "go").touch()
    assert house.wait_for(job, "COMPLETED")["attempts"] == 1
    assert house.wait_for(other, "COMPLETED")["attempts"] == 1
    assert house("logs", job).out == "begun\ndone\n"


def test_every_kind_of_job_comes_back_as_far_as_its_folder_knows(house: CliHouse) -> None:
    house.start("--gpus", "4", "--policy", "fifo")
    done = house.submit("--", "true")
    failed = house.submit("--", "false")
    house.wait_for(done, "COMPLETED")
    house.wait_for(failed, "FAILED")
    cancelled = _running(house)
    assert house("cancel", cancelled).code == 0
    until((house.state / "jobs" / cancelled / "attempt-1" / "exit.json").exists, "the end of the cancelled job")
    stopped = _running(house, "--preempt", "restart", "--grace", "1")
    assert house("hold", stopped).code == 0
    assert house("requeue", stopped).code == 0
    house.wait_for(stopped, "PREEMPTED")
    until((house.state / "jobs" / stopped / "attempt-1" / "exit.json").exists, "the end of the first attempt")
    runs = _running(house, "--priority", "7", "--env", "SAID=so")
    never = house.submit("--hold", "--", "true")
    last = _running(house)
    house.kill()
    _gone(house)
    fresh = house.folder / "new.db"
    call = house("salvage", str(house.state / "journal.db"), str(fresh))
    assert call.code == 0, call.err
    for part in (
        "6 jobs saved",
        "1 could not be read",
        "restored from their folders, as they were at their last start: 6 (still running: 2)\n",
        "never started",
        "lets them run: 1\n",
        f"move {fresh} to",
    ):
        assert part in call.out, call.out
    fresh.rename(house.state / "journal.db")
    house.start()
    states = {row["id"]: row["state"] for row in house("ls", "-a", "--json").json}
    assert {one: states[one] for one in (done, failed, cancelled)} == {
        done: "COMPLETED",
        failed: "FAILED",
        cancelled: "CANCELLED",
    }
    assert never not in states
    assert house.show(stopped)["held"], "it may have been cancelled meanwhile"
    assert house.show(runs)["request"]["priority"] == 7
    assert house.show(runs)["request"]["env"]["SAID"] == "so"
    assert int(house.submit("--hold", "--", "true")) == int(last) + 1
    (house.folder / "go").touch()
    assert house("release", stopped).code == 0
    for job, attempts in ((runs, 1), (last, 1), (stopped, 2)):
        assert house.wait_for(job, "COMPLETED")["attempts"] == attempts


def test_beginning_anew_is_possible_without_a_journal(house: CliHouse) -> None:
    house.start("--gpus", "1")
    job = _running(house, "--grace", "1")
    house.kill()
    _emptied(house)
    assert "1 running job was stopped" in house("down", "--jobs", "stop").out
    assert (house.state / "journal.db").stat().st_size == 0, "it may still be salvaged"
    call = house("up", "--gpus", "1")
    assert call.code == 2
    assert "runs" not in call.err
    (house.state / "jobs").rename(house.folder / "old")
    house.start("--gpus", "1")
    assert house.submit("--", "true") == job


def test_a_job_that_runs_unknown_to_the_journal_is_taken_over(house: CliHouse) -> None:
    house.start("--gpus", "2")
    known = house.submit("--hold", "--", "true")
    job = _running(house, "--gpus", "2", "--key", "mine")
    lost = house.submit("--", "true")
    house.kill()
    _change(house, "DELETE FROM jobs WHERE id IN (?, ?)", job, lost)
    house.start()
    assert {row["id"]: row["state"] for row in house("ls", "--json").json} == {known: "PENDING", job: "RUNNING"}
    other = house.submit("--gpus", "2", "--", "true")
    assert house.show(other)["state"] == "PENDING"
    assert house("cancel", job).code == 0
    assert house.wait_for(other, "COMPLETED")["attempts"] == 1
    assert f"job {job} has been started since the journal was last written" in _last_words(house)
    house.start()
    assert "last written" not in _last_words(house)


def test_a_start_unknown_to_the_journal_is_not_repeated(house: CliHouse) -> None:
    house.start("--gpus", "1")
    job = _running(house)
    house.kill()
    db = sqlite3.connect(house.state / "journal.db")
    record = json.loads(db.execute("SELECT record FROM jobs WHERE id = ?", (job,)).fetchone()[0])
    db.close()
    record |= {"attempts": [], "state": "PENDING", "since_s": None, "started_s": None}
    _change(house, "UPDATE jobs SET record = ? WHERE id = ?", json.dumps(record), job)
    house.start()
    assert house.wait_for(job, "RUNNING")["attempts"] == 1
    (house.folder / "go").touch()
    assert house.wait_for(job, "COMPLETED")["attempts"] == 1
    assert house("logs", job).out == "begun\ndone\n"


def test_what_was_cancelled_or_done_since_an_older_copy_is_not_done_again(house: CliHouse) -> None:
    house.start("--gpus", "1", "--policy", "fifo")
    runs = _running(house, "--grace", "1")
    script = f"{WAITS}; echo again >> {house.folder / 'done'}"
    waits = [house.submit("--grace", "1", "--", "bash", "-c", script) for _ in range(2)]
    with sqlite3.connect(house.state / "journal.db") as db, sqlite3.connect(house.folder / "copy.db") as copy:
        db.backup(copy)
    db.close()
    copy.close()
    assert house("cancel", runs).code == 0
    house.wait_for(waits[0], "RUNNING")
    assert house("cancel", waits[0]).code == 0
    house.wait_for(waits[1], "RUNNING")
    (house.folder / "go").touch()
    house.wait_for(waits[1], "COMPLETED")
    house.kill()
    _gone(house)
    (house.folder / "copy.db").rename(house.state / "journal.db")
    house.start()
    states = {row["id"]: row["state"] for row in house("ls", "--all", "--json").json}
    assert states == {runs: "CANCELLED", waits[0]: "CANCELLED", waits[1]: "COMPLETED"}
    last = house.submit("--", "true")
    house.wait_for(last, "COMPLETED")
    assert (house.folder / "done").read_text() == "again\n"


def test_jobs_that_have_ended_unknown_to_the_journal_are_remarked_on(house: CliHouse) -> None:
    house.start("--gpus", "1")
    jobs = [house.submit("--", "true") for _ in range(3)]
    for job in jobs:
        house.wait_for(job, "COMPLETED")
    house.kill()
    _change(house, "DELETE FROM jobs WHERE id IN (?, ?)", *jobs[1:])
    house.start()
    assert house.submit("--hold", "--", "true") == "4", "no number is given twice"
    assert "knows nothing of 2 jobs" in _last_words(house)


def test_a_running_job_that_a_damaged_journal_has_lost_is_salvaged(house: CliHouse) -> None:
    house.start("--gpus", "2")
    held, job = house.submit("--hold", "--", "true"), _running(house, "--gpus", "2")
    house.kill()
    _change(house, "UPDATE jobs SET record = '{half' WHERE id = ?", job)
    assert "fairway salvage" in house("up").err
    told = _salvaged(house)
    assert (told["jobs"], told["unfinished"], told["unreadable"]) == (2, 2, 0)
    assert (told["from_folders"], told["running"], told["strays"]) == (1, 1, {})
    house.start()
    assert house.show(held)["held"]
    other = house.submit("--gpus", "2", "--", "true")
    assert house.show(other)["state"] == "PENDING"
    (house.folder / "go").touch()
    assert house.wait_for(job, "COMPLETED")["attempts"] == 1


def test_a_process_that_does_not_tell_what_it_is_must_end_first(house: CliHouse) -> None:
    house.start("--gpus", "1")
    house.submit("--hold", "--", "true")
    job = _running(house, "--grace", "1", script="sleep 300")
    house.kill()
    launch = house.state / "jobs" / job / "attempt-1" / "launch.json"
    told = json.loads(launch.read_text())
    launch.write_text(json.dumps({name: told[name] for name in told if name not in ("record", "facts")}))
    _change(house, "DELETE FROM jobs WHERE id = ?", job)
    pid = json.loads((launch.parent / "keeper.json").read_text())[0]
    call = house("up")
    assert call.code == 2
    assert call.err.count("\n") == 1
    assert f"job {job} (pid {pid})" in call.err
    fresh = house.folder / "new.db"
    text = house("salvage", str(house.state / "journal.db"), str(fresh)).out
    assert f"are incomplete: {job}" in text
    assert f"`kill {pid}` ends it" in text
    subprocess.run(["kill", str(pid)], check=True)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the keeper to end")
    house.start()
    assert "knows nothing of 1 job" in _last_words(house)
