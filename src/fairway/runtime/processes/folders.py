"""What the folders of jobs say about them, for use when the journal or a part of it is lost.

With every attempt the scheduler writes down the job's record and its own facts (`launch.json`). So the folder of a job
that was ever started says what the job asked for, which GPUs it got, and how it ended. Only the journal knows whether
the job was held or cancelled since. Reading a folder changes nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.verdict import verdict
from fairway.runtime.processes import hands
from fairway.runtime.processes.log_ends import said_no_memory
from fairway.runtime.processes.site import Outcome

RECORD, FACTS = "record", "facts"
"""The keys in `launch.json` for the job's record and the scheduler's facts."""
UNCERTAIN = "brought back from its folder, which does not say whether it was cancelled"


class Folder(NamedTuple):
    """The folder of a job: its id, and the number and directory of its latest attempt; 0 if it was never started."""

    id: str
    number: int
    attempt: Path

    @property
    def keeper(self) -> int | None:
        """The pid of the keeper of the latest attempt, if it still runs."""
        return hands.living_keeper(self.attempt) if self.number else None


def folders_of(jobs: Path) -> Iterator[Path]:
    """The folders of jobs in the directory `jobs`. Anything else there is skipped."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(jobs) as found:
        for one in found:
            array, mark, task = one.name.partition("_")
            if array.isdecimal() and (task.isdecimal() or not mark) and one.is_dir():
                yield Path(one.path)


def opened(path: Path) -> Folder:
    """The folder of a job, with its latest attempt."""
    numbers = [one.name.partition("-")[2] for one in path.glob("attempt-*")]
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return Folder(path.name, last, path / f"attempt-{last}")


def facts_in(folder: Folder) -> dict[str, Any]:
    """The scheduler's facts at the time of the latest attempt; empty if they were not kept."""
    found = _launch(folder).get(FACTS)
    return found if isinstance(found, dict) else {}


def record_in(folder: Folder) -> JobRecord | None:
    """The record of a job from its folder alone: as it was at its last start, with the state that follows from there.

    A job that is certainly over is ended now or when it is next looked at. A job whose keeper lives runs on. Any other
    job is held: it may have been cancelled meanwhile, and must not start by itself. None if the folder has no record.
    """
    try:
        record = JobRecord.from_plain(_launch(folder)[RECORD])
        attempt = record.attempts[-1]
    except Exception:
        # Written by an earlier version, or damaged: it is not a record.
        return None
    if record.id != folder.id or attempt.number != folder.number or record.number < 0:
        return None
    attempt.started_s, record.since_s = attempt.launched_s, attempt.launched_s
    record.started_s = record.started_s or attempt.launched_s
    state, record.reason = JobState.RUNNING, ""
    outcome = hands.outcome(folder.attempt)
    if hands.is_given_up(folder.attempt):
        state, record.reason = JobState.CANCELLED, "cancelled"
        record.ended_s = time.time() if outcome is None else outcome.ended_s
    elif folder.keeper is None or (folder.attempt / "stopping").exists():
        record.held = not _ends(record, outcome, folder.attempt)
        record.reason = UNCERTAIN if record.held else ""
    elif _is_paused(folder.attempt):
        state, record.since_s = JobState.SUSPENDED, None
    return replace(record, _state=state)


def _ends(record: JobRecord, outcome: Outcome | None, directory: Path) -> bool:
    """Whether an attempt with this outcome was the job's last one, whatever its owner has asked for since."""
    if outcome is None:
        return False
    words = said_no_memory(directory, len(outcome.codes))
    judged = verdict(outcome._replace(said_no_memory=words), asked=outcome.cause == "request")
    spent = judged.next == "retry" and record.failures + 1 > record.request.retries
    return judged.next in ("done", "failed") or spent


def _is_paused(directory: Path) -> bool:
    try:
        return (directory / "paused").read_text(encoding="ascii") == "yes"
    except (OSError, ValueError):
        return False


def _launch(folder: Folder) -> dict[str, Any]:
    try:
        told = json.loads((folder.attempt / "launch.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
