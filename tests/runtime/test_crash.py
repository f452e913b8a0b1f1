"""A scheduler that is killed with -9 again and again loses no job, starts none twice and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.journal.database import Journal
from fairway.testing.seeds import some

DAEMON = Path(__file__).with_name("crash_daemon.py")
SAVE_EVERY = 5
SEED = int(os.environ.get("FAIRWAY_CRASH_SEED", "20260"))
DEADLINE_S = 240.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory of its own; whatever of it still runs after a failed test is killed."""
    (tmp_path / "diaries").mkdir()
    yield tmp_path
    for pid in _processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def _processes_of(folder: Path) -> list[int]:
    """All processes that have to do with a directory, by command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                about = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) + b"/" in about:
                found.append(int(entry.name))
    return found


def _live_and_die(folder: Path, policy: str, round_s: float, jobs: int, kills: int, seed: int) -> None:
    """Start the scheduler, kill it at random instants, and let its last life come to its end."""
    dice, deadline_s = random.Random(seed), time.monotonic() + DEADLINE_S
    command = [sys.executable, str(DAEMON), str(folder), policy, str(round_s), str(jobs)]
    with (folder / "errors").open("ab") as errors:
        for kill in range(kills + 1):
            life = subprocess.Popen(command, stderr=errors)
            try:
                # Some of the instants are in the middle of starting up or of taking over.
                wait_s = dice.uniform(0.3, 1.6) if kill < kills else deadline_s - time.monotonic()
                assert life.wait(timeout=wait_s) == 0, f"it died by itself: {_errors(folder)}"
                assert kill == kills, f"everything was done before all kills had come (seed {seed})"
            except subprocess.TimeoutExpired:
                assert kill < kills, f"not all jobs ended in time (seed {seed}): {_errors(folder)}"
            finally:
                life.kill()
                life.wait()


def _errors(folder: Path) -> str:
    return (folder / "errors").read_text(errors="replace")[-2000:]


def _records(folder: Path) -> list[JobRecord]:
    journal = Journal(folder / "state" / "journal.db")
    try:
        return [JobRecord.from_plain(stored.record) for stored in journal.jobs()]
    finally:
        journal.close()


def _attempts(diary: str) -> list[list[tuple[str, int]]]:
    """What each process of a job wrote, in order. Two at once would be interleaved, and so come out as more."""
    attempts: list[list[tuple[str, int]]] = []
    before = ""
    for line in diary.splitlines():
        pid, what, number = line.split()
        if pid != before:
            attempts.append([])
        before = pid
        attempts[-1].append((what, int(number)))
    return attempts


def _check_diary(record: JobRecord, diary: str) -> None:
    """The job did every step, ended once, and went on from its last checkpoint wherever it was started again."""
    attempts = _attempts(diary)
    assert [what for attempt in attempts for what, _ in attempt].count("end") == 1, "it ended more than once"
    saved = 0
    for attempt in attempts:
        assert attempt[0] == ("start", saved), "it did not go on from its last checkpoint"
        assert [number for what, number in attempt if what == "step"] == list(
            range(saved, saved + sum(what == "step" for what, _ in attempt))
        )
        saved = max([number for what, number in attempt if what == "saved"], default=saved)
    assert attempts[-1][-1][0] == "end"
    if record.request.preempt == "suspend":
        assert len(attempts) == 1, "a job that stays in memory was started again"
    done = [number for attempt in attempts for what, number in attempt if what == "step"]
    assert sorted(set(done)) == list(range(attempts[-1][-1][1])), "a step was never made"
    redone = len(done) - len(set(done))
    assert redone <= SAVE_EVERY * (len(attempts) - 1), "more was lost than what came after the last checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(SEED, SEED + 28), 1))
@pytest.mark.parametrize(
    ("policy", "round_s", "jobs", "kills"),
    some([("las:levels=1/2/4", 0.0, 40, 25), ("tiresias:queues=1/3", 0.0, 24, 6), ("max_min_fairness", 0.5, 24, 6)], 1),
)
def test_killed_schedulers_complete_every_job_exactly_once(
    folder: Path, policy: str, round_s: float, jobs: int, kills: int, seed: int
) -> None:
    """25 kills by default, 1,036 with all cases."""
    print(f"repeat with FAIRWAY_CRASH_SEED={seed}")
    _live_and_die(folder, policy, round_s, jobs, kills, seed)
    records = _records(folder)
    assert [record.id for record in records] == [str(number + 1) for number in range(jobs)]
    assert {record.state for record in records} == {JobState.COMPLETED}
    for record in records:
        try:
            _check_diary(record, (folder / "diaries" / record.id).read_text())
        except AssertionError as error:
            raise AssertionError(f"job {record.id} ({record.request.preempt}), seed {seed}: {error}") from error
    for way in ("checkpoint", "suspend"):
        times = sum(record.preemptions for record in records if record.request.preempt == way)
        assert times, f"nobody was ever preempted by {way}, so this shows little"
    assert not _processes_of(folder), "something was left behind"
    assert not _errors(folder), "a scheduler complained"
