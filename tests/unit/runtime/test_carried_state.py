"""A state directory that goes from machine to machine: what is saved, when, and what the next scheduler finds."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from fairway.runtime.jobs.records import Attempt, JobRecord, JobState, StoredJob
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.carried_state import main, restore, save
from fairway.runtime.journal.database import Journal
from fairway.runtime.processes.keeper import write_over
from fairway.testing.waiting import WAIT_S, wait_for


def stored(number: int, *attempts: Attempt) -> StoredJob:
    state = JobState.RUNNING if attempts else JobState.PENDING
    request = JobRequest(command=("true",), user="ada", name=f"job {number}")
    record = JobRecord(number, str(number + 1), request, 1000.0 + number, state, attempts=list(attempts))
    return StoredJob(number, record.id, None, state.ended, record.plain())


def put(journal: Journal, *jobs: StoredJob) -> None:
    with journal.transaction():
        journal.set_facts({"policy": "las", "machine": [[["a100", 8]], None]})
        journal.save_jobs(jobs)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A state directory, the shared copy, and the folders of jobs."""
    (tmp_path / "state").mkdir()
    return tmp_path / "state", tmp_path / "shared" / "state", tmp_path / "shared" / "jobs"


def names(folder: Path) -> dict[str, str]:
    with closing(Journal(folder / "journal.db")) as journal:
        return {job.id: job.record["request"]["name"] for job in journal.jobs()}


def test_what_is_only_in_the_write_ahead_log_is_saved(places: tuple[Path, Path, Path]) -> None:
    """A scheduler has the journal open and goes on writing."""
    state, shared, jobs = places
    with closing(Journal(state / "journal.db")) as journal:
        put(journal, stored(0))
        assert save(state, shared)
        assert not save(state, shared), "nothing has changed"
        put(journal, stored(1))
        assert save(state, shared)
    assert [one.name for one in shared.iterdir()] == ["journal.db"], "no piece of a copy stays behind"
    elsewhere = state.with_name("elsewhere")
    assert restore(shared, elsewhere, jobs)
    assert names(elsewhere) == {"1": "job 0", "2": "job 1"}


def test_tokens_configuration_and_audit_log_go_along_and_nothing_else_does(places: tuple[Path, Path, Path]) -> None:
    state, shared, jobs = places
    Journal(state / "journal.db").close()
    for name in (
        "token",
        "tokens.json",
        "fairway.toml",
        "audit.jsonl",
        "audit.jsonl.1",
        "lock",
        "daemon.json",
        "ballast",
    ):
        (state / name).write_text(name)
        (state / name).chmod(0o600)
    save(state, shared)
    (state / "audit.jsonl").write_text("longer than before")
    assert save(state, shared)
    restore(shared, state.with_name("elsewhere"), jobs)
    found = {one.name: one.read_text() for one in state.with_name("elsewhere").iterdir() if one.name != "journal.db"}
    carried = ("token", "tokens.json", "fairway.toml", "audit.jsonl.1")
    assert found == {**{name: name for name in carried}, "audit.jsonl": "longer than before"}
    assert {one.stat().st_mode & 0o777 for one in shared.iterdir() if one.name != "journal.db"} == {0o600}
    assert shared.stat().st_mode & 0o777 == 0o700


def test_the_next_scheduler_takes_its_machines_as_they_are(places: tuple[Path, Path, Path]) -> None:
    state, shared, jobs = places
    with closing(Journal(state / "journal.db")) as journal:
        put(journal, stored(0))
    save(state, shared)
    elsewhere = state.with_name("elsewhere")
    assert restore(shared, elsewhere, jobs)
    with closing(Journal(elsewhere / "journal.db")) as journal:
        facts = journal.facts()
    assert (facts["policy"], facts["salvaged"]) == ("las", True)
    assert "machine" not in facts
    assert not restore(shared, elsewhere, jobs), "a journal that is there is not replaced"


def test_attempts_without_an_end_are_given_up(places: tuple[Path, Path, Path]) -> None:
    """Their keepers should be dead. One on a machine that nobody reaches is told so, if it sees the directory."""
    state, shared, jobs = places
    now_s = time.time()
    over = Attempt(1, [0], "t1", now_s, now_s, ended_s=now_s)
    with closing(Journal(state / "journal.db")) as journal:
        put(
            journal,
            stored(0, over, Attempt(2, [0], "t2", now_s)),
            stored(1, Attempt(1, [1, 2], "t3", now_s)),
            stored(2),
        )
    for name in ("1/attempt-1", "1/attempt-2", "2/attempt-1/node-0", "2/attempt-1/node-1"):
        (jobs / name).mkdir(parents=True)
        (jobs / name / "keeper.json").write_text("[1, 1]")
    save(state, shared)
    restore(shared, state.with_name("elsewhere"), jobs)
    given_up = {str(one.parent.relative_to(jobs)) for one in jobs.rglob("given-up")}
    assert given_up == {"1/attempt-2", "2/attempt-1/node-0", "2/attempt-1/node-1"}


def test_jobs_that_were_started_after_the_last_copy_are_queued_again_unless_their_folders_say_otherwise(
    places: tuple[Path, Path, Path],
) -> None:
    state, shared, jobs = places
    with closing(Journal(state / "journal.db")) as journal:
        put(journal, stored(0), stored(1), stored(2))
    save(state, shared)
    for number in range(3):
        folder = jobs / str(number + 1) / "attempt-1"
        folder.mkdir(parents=True)
        record = stored(number, Attempt(1, [0], "t", 1010.0)).record
        write_over(folder / "launch.json", {"ranks": [], "record": record, "facts": {}})
    (jobs / "2" / "attempt-1" / "hurry").touch()
    told = {"cause": "", "killed": False, "problem": "", "time": 1020.0, "codes": [0]}
    write_over(jobs / "3" / "attempt-1" / "exit.json", told)
    restore(shared, state.with_name("elsewhere"), jobs)
    with closing(Journal(state.with_name("elsewhere") / "journal.db")) as journal:
        records = {job.id: JobRecord.from_plain(job.record) for job in journal.jobs()}
    assert [(one.state, one.held, len(one.attempts)) for one in records.values()] == [
        (JobState.RUNNING, False, 1),
        (JobState.CANCELLED, False, 1),
        (JobState.RUNNING, False, 1),
    ], "the scheduler finds out how an attempt ended"


def test_it_saves_as_long_as_its_parent_lives(places: tuple[Path, Path, Path]) -> None:
    state, shared, _ = places
    words = f"{sys.executable} -m fairway.runtime.journal.carried_state keep {state} {shared} & echo $!; wait"
    shell = subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    keeper = os.pidfd_open(int(shell.stdout.readline()))
    try:
        with closing(Journal(state / "journal.db")) as journal:
            put(journal, stored(0))
            wait_for((shared / "journal.db").exists, "a copy")
        shell.kill()
        shell.wait()
        assert select.select([keeper], [], [], WAIT_S)[0], "it ends with its parent"
    finally:
        shell.kill()
        shell.stdout.close()
        if not select.select([keeper], [], [], 0.0)[0]:
            signal.pidfd_send_signal(keeper, signal.SIGKILL)
        os.close(keeper)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "usage: "),
        (["save", "a"], 2, "usage: "),
        (["load", "a", "b"], 2, "usage: "),
        (["save", "state", "/proc/none"], 1, "fairway: the state could not be saved: "),
    ],
)
def test_as_a_program_an_error_is_one_line(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    said = capsys.readouterr().err
    assert said.startswith(told)
    assert said.count("\n") == 1


def test_a_saved_journal_that_is_damaged_is_told(
    places: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    state, shared, jobs = places
    shared.mkdir(parents=True)
    (shared / "journal.db").write_bytes(b"nonsense" * 1000)
    assert main(["restore", str(shared), str(state), str(jobs)]) == 1
    assert capsys.readouterr().err.startswith("fairway: the state could not be restored: ")
