"""A journal that is empty, gone or lacks jobs that run: nobody gets their GPUs, and salvage brings them back."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_cli import LiveCli, live_cli_in, until

WAITS = "echo begun; while [ ! -e go ]; do sleep 0.1; done; echo done"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LiveCli]:
    yield from live_cli_in(tmp_path)


def _running(cli: LiveCli, *options: str, script: str = WAITS) -> str:
    job = cli.submit(*options, "--", "bash", "-c", script)
    cli.wait_for(job, "RUNNING")
    until((cli.state / "jobs" / job / "attempt-1" / "ranks.json").exists, f"job {job} to begin")
    return job


def _files(cli: LiveCli) -> list[Path]:
    return sorted(cli.state.glob("journal.db*"))


def _emptied(cli: LiveCli) -> None:
    _gone(cli)
    (cli.state / "journal.db").touch()


def _gone(cli: LiveCli) -> None:
    for path in _files(cli):
        path.unlink()


def _without_tables(cli: LiveCli) -> None:
    """As it is when the write-ahead log of a journal is lost in which all of it was."""
    _gone(cli)
    with sqlite3.connect(cli.state / "journal.db") as db:
        db.execute("PRAGMA journal_mode = WAL")
    db.close()


def _change(cli: LiveCli, statement: str, *values: Any) -> None:
    with sqlite3.connect(cli.state / "journal.db") as db:
        assert db.execute(statement, values).rowcount
    db.close()


def _salvaged(cli: LiveCli) -> dict[str, Any]:
    """Salvage the journal and put the new one in its place; what was told."""
    fresh = cli.folder / "new.db"
    call = cli("salvage", str(cli.state / "journal.db"), str(fresh), "--json")
    assert call.code == 0, call.err
    _gone(cli)
    fresh.rename(cli.state / "journal.db")
    told: dict[str, Any] = call.json
    return told


def _last_words(cli: LiveCli) -> str:
    assert cli("down").code == 0
    assert cli.daemon is not None
    return cli.daemon.communicate(timeout=60)[1]


@pytest.mark.parametrize("lost", [_emptied, _gone, _without_tables])
def test_a_lost_journal_is_refused_and_gives_no_gpu_twice(cli: LiveCli, lost: Callable[[LiveCli], None]) -> None:
    cli.start("--gpus", "2", "--policy", "fifo", "--round", "0.5")
    job = _running(cli, "--gpus", "2")
    cli.kill()
    lost(cli)
    before = {path: path.read_bytes() for path in _files(cli)}
    call = cli("up", "--gpus", "2")
    assert (call.code, call.out) == (2, "")
    assert call.err.count("\n") == 1
    for part in ("the folder of 1 job, which runs", "fairway salvage", "fairway down --jobs stop", "jobs away"):
        assert part in call.err
    assert {path: path.read_bytes() for path in before} == before, "nothing was changed"

    told = _salvaged(cli)
    assert (told["jobs"], told["from_folders"], told["running"], told["held"]) == (1, 1, 1, 0)
    first = cli.start()
    assert "2 × cpu" in first, "the GPUs of last time"
    assert "policy fifo" in first
    assert cli("policy", "--json").json["round_s"] == 0.5
    other = cli.submit("--gpus", "2", "--", "true")
    assert cli.show(other)["state"] == "PENDING"
    assert cli.show(job)["gpus_held"] == 2
    (cli.folder / "go").touch()
    assert cli.wait_for(job, "COMPLETED")["attempts"] == 1
    assert cli.wait_for(other, "COMPLETED")["attempts"] == 1
    assert cli("logs", job).out == "begun\ndone\n"


def test_every_kind_of_job_comes_back_as_far_as_its_folder_knows(cli: LiveCli) -> None:
    cli.start("--gpus", "4", "--policy", "fifo")
    done = cli.submit("--", "true")
    failed = cli.submit("--", "false")
    cli.wait_for(done, "COMPLETED")
    cli.wait_for(failed, "FAILED")
    cancelled = _running(cli)
    assert cli("cancel", cancelled).code == 0
    until((cli.state / "jobs" / cancelled / "attempt-1" / "exit.json").exists, "the end of the cancelled job")
    stopped = _running(cli, "--preempt", "restart", "--grace", "1")
    assert cli("hold", stopped).code == 0
    assert cli("requeue", stopped).code == 0
    cli.wait_for(stopped, "PREEMPTED")
    until((cli.state / "jobs" / stopped / "attempt-1" / "exit.json").exists, "the end of the first attempt")
    runs = _running(cli, "--priority", "7", "--env", "SAID=so")
    never = cli.submit("--hold", "--", "true")
    last = _running(cli)
    cli.kill()
    _gone(cli)
    fresh = cli.folder / "new.db"
    call = cli("salvage", str(cli.state / "journal.db"), str(fresh))
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
    fresh.rename(cli.state / "journal.db")
    cli.start()
    states = {row["id"]: row["state"] for row in cli("ls", "-a", "--json").json}
    assert {one: states[one] for one in (done, failed, cancelled)} == {
        done: "COMPLETED",
        failed: "FAILED",
        cancelled: "CANCELLED",
    }
    assert never not in states
    assert cli.show(stopped)["held"], "it may have been cancelled meanwhile"
    assert cli.show(runs)["request"]["priority"] == 7
    assert cli.show(runs)["request"]["env"]["SAID"] == "so"
    assert int(cli.submit("--hold", "--", "true")) == int(last) + 1
    (cli.folder / "go").touch()
    assert cli("release", stopped).code == 0
    for job, attempts in ((runs, 1), (last, 1), (stopped, 2)):
        assert cli.wait_for(job, "COMPLETED")["attempts"] == attempts


def test_beginning_anew_is_possible_without_a_journal(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    job = _running(cli, "--grace", "1")
    cli.kill()
    _emptied(cli)
    assert "1 running job was stopped" in cli("down", "--jobs", "stop").out
    assert (cli.state / "journal.db").stat().st_size == 0, "it may still be salvaged"
    call = cli("up", "--gpus", "1")
    assert call.code == 2
    assert "runs" not in call.err
    (cli.state / "jobs").rename(cli.folder / "old")
    cli.start("--gpus", "1")
    assert cli.submit("--", "true") == job


def test_a_job_that_runs_unknown_to_the_journal_is_taken_over(cli: LiveCli) -> None:
    cli.start("--gpus", "2")
    known = cli.submit("--hold", "--", "true")
    job = _running(cli, "--gpus", "2", "--key", "mine")
    lost = cli.submit("--", "true")
    cli.kill()
    _change(cli, "DELETE FROM jobs WHERE id IN (?, ?)", job, lost)
    cli.start()
    assert {row["id"]: row["state"] for row in cli("ls", "--json").json} == {known: "PENDING", job: "RUNNING"}
    other = cli.submit("--gpus", "2", "--", "true")
    assert cli.show(other)["state"] == "PENDING"
    assert cli("cancel", job).code == 0
    assert cli.wait_for(other, "COMPLETED")["attempts"] == 1
    assert f"job {job} has been started since the journal was last written" in _last_words(cli)
    cli.start()
    assert "last written" not in _last_words(cli)


def test_a_start_unknown_to_the_journal_is_not_repeated(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    job = _running(cli)
    cli.kill()
    db = sqlite3.connect(cli.state / "journal.db")
    record = json.loads(db.execute("SELECT record FROM jobs WHERE id = ?", (job,)).fetchone()[0])
    db.close()
    record |= {"attempts": [], "state": "PENDING", "since_s": None, "started_s": None}
    _change(cli, "UPDATE jobs SET record = ? WHERE id = ?", json.dumps(record), job)
    cli.start()
    assert cli.wait_for(job, "RUNNING")["attempts"] == 1
    (cli.folder / "go").touch()
    assert cli.wait_for(job, "COMPLETED")["attempts"] == 1
    assert cli("logs", job).out == "begun\ndone\n"


def test_what_was_cancelled_or_done_since_an_older_copy_is_not_done_again(cli: LiveCli) -> None:
    cli.start("--gpus", "1", "--policy", "fifo")
    runs = _running(cli, "--grace", "1")
    script = f"{WAITS}; echo again >> {cli.folder / 'done'}"
    waits = [cli.submit("--grace", "1", "--", "bash", "-c", script) for _ in range(2)]
    with sqlite3.connect(cli.state / "journal.db") as db, sqlite3.connect(cli.folder / "copy.db") as copy:
        db.backup(copy)
    db.close()
    copy.close()
    assert cli("cancel", runs).code == 0
    cli.wait_for(waits[0], "RUNNING")
    assert cli("cancel", waits[0]).code == 0
    cli.wait_for(waits[1], "RUNNING")
    (cli.folder / "go").touch()
    cli.wait_for(waits[1], "COMPLETED")
    cli.kill()
    _gone(cli)
    (cli.folder / "copy.db").rename(cli.state / "journal.db")
    cli.start()
    states = {row["id"]: row["state"] for row in cli("ls", "--all", "--json").json}
    assert states == {runs: "CANCELLED", waits[0]: "CANCELLED", waits[1]: "COMPLETED"}
    last = cli.submit("--", "true")
    cli.wait_for(last, "COMPLETED")
    assert (cli.folder / "done").read_text() == "again\n"


def test_jobs_that_have_ended_unknown_to_the_journal_are_remarked_on(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    jobs = [cli.submit("--", "true") for _ in range(3)]
    for job in jobs:
        cli.wait_for(job, "COMPLETED")
    cli.kill()
    _change(cli, "DELETE FROM jobs WHERE id IN (?, ?)", *jobs[1:])
    cli.start()
    assert cli.submit("--hold", "--", "true") == "4", "no number is given twice"
    assert "knows nothing of 2 jobs" in _last_words(cli)


def test_a_running_job_that_a_damaged_journal_has_lost_is_salvaged(cli: LiveCli) -> None:
    cli.start("--gpus", "2")
    held, job = cli.submit("--hold", "--", "true"), _running(cli, "--gpus", "2")
    cli.kill()
    _change(cli, "UPDATE jobs SET record = '{half' WHERE id = ?", job)
    assert "fairway salvage" in cli("up").err
    told = _salvaged(cli)
    assert (told["jobs"], told["unfinished"], told["unreadable"]) == (2, 2, 0)
    assert (told["from_folders"], told["running"], told["strays"]) == (1, 1, {})
    cli.start()
    assert cli.show(held)["held"]
    other = cli.submit("--gpus", "2", "--", "true")
    assert cli.show(other)["state"] == "PENDING"
    (cli.folder / "go").touch()
    assert cli.wait_for(job, "COMPLETED")["attempts"] == 1


def test_a_process_that_does_not_tell_what_it_is_must_end_first(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    cli.submit("--hold", "--", "true")
    job = _running(cli, "--grace", "1", script="sleep 300")
    cli.kill()
    launch = cli.state / "jobs" / job / "attempt-1" / "launch.json"
    told = json.loads(launch.read_text())
    launch.write_text(json.dumps({name: told[name] for name in told if name not in ("record", "facts")}))
    _change(cli, "DELETE FROM jobs WHERE id = ?", job)
    pid = json.loads((launch.parent / "keeper.json").read_text())[0]
    call = cli("up")
    assert call.code == 2
    assert call.err.count("\n") == 1
    assert f"job {job} (pid {pid})" in call.err
    fresh = cli.folder / "new.db"
    text = cli("salvage", str(cli.state / "journal.db"), str(fresh)).out
    assert f"are incomplete: {job}" in text
    assert f"`kill {pid}` ends it" in text
    subprocess.run(["kill", str(pid)], check=True)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the keeper to end")
    cli.start()
    assert "knows nothing of 1 job" in _last_words(cli)
