"""What the folders of jobs say about them, for use when the journal or a part of it is lost.

With every attempt the scheduler writes down the job's record and its own facts (`launch.json`). So the folder of a job
that was ever started says what the job asked for, which GPUs it got, and how it ended. Only the journal knows whether
the job was held or cancelled since. Reading a folder changes nothing.

If the whole journal is lost, nothing is started. If a part of it is, jobs that run without its knowledge are taken over
as their folders describe them.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fairway.runtime.daemon.clock import Clock
from fairway.runtime.jobs.life import verdict
from fairway.runtime.jobs.records import JobRecord, JobState, StoredJob
from fairway.runtime.journal.database import Journal, JournalError, is_blank
from fairway.runtime.processes import local
from fairway.runtime.processes.local import Running, said_no_memory
from fairway.runtime.processes.site import Moment, Outcome

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
        return local.living_keeper(self.attempt) if self.number else None


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
    outcome = local.outcome_of(folder.attempt)
    if local.is_given_up(folder.attempt):
        state, record.reason = JobState.CANCELLED, "cancelled"
        record.ended_s = _date_s(folder, None if outcome is None else outcome.ended)
    elif folder.keeper is None or (folder.attempt / "stopping").exists():
        record.held = not _ends(record, outcome, folder.attempt)
        record.reason = UNCERTAIN if record.held else ""
    elif _is_paused(folder.attempt):
        state, record.since_s = JobState.SUSPENDED, None
    return replace(record, _state=state)


def _date_s(folder: Folder, moment: Moment | None) -> float:
    """The date of a moment, or of now, by the clock of the scheduler that started the latest attempt."""
    clock = Clock(facts_in(folder))
    return clock.date_s(clock.now_s() if moment is None else clock.instant_s(moment))


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


def refuse_without_journal(folder: Path, root: Path | None = None) -> None:
    """Raise `JournalError` if there are folders of jobs, but the journal of a state directory has no jobs.

    `root` is the directory that has the folders of jobs, if that is another one.
    """
    path, jobs = folder / "journal.db", (root or folder) / "jobs"
    if not is_blank(path):
        return
    found = [opened(one) for one in folders_of(jobs)]
    if not found:
        return
    running = sum(one.keeper is not None for one in found)
    what = "knows of no job" if path.is_file() and path.stat().st_size else "is empty" if path.is_file() else "is gone"
    runs = "which runs" if len(found) == 1 else f"{running:,} of which {'runs' if running == 1 else 'run'}"
    raise JournalError(
        f"{path} {what}, but {jobs} has {_counted(len(found))}{f', {runs}' if running else ''}; nothing was changed. "
        f"`fairway salvage {path} NEW` brings back what can be. To start over, "
        f"{'end what runs (`fairway down --jobs stop`) and ' if running else ''}move {jobs} away"
    )


def _counted(jobs: int) -> str:
    return "the folder of 1 job" if jobs == 1 else f"the folders of {jobs:,} jobs"


def take_over(journal: Journal, jobs: Path) -> list[str]:
    """Add to the journal the running jobs that it does not know, and the jobs that were started since it was written.

    Returns their ids. The scheduler that starts next makes its state from the records alone, as after a salvage:
    running jobs keep their GPUs. `JournalError` if a job runs whose folder has no record.
    """
    ahead, running = _ahead(journal, jobs)
    found = {one.id: record_in(one) for one in ahead}
    unclear = [one for one in running if found[one.id] is None]
    if unclear:
        who = ", ".join(f"{one.id} (pid {one.keeper})" for one in unclear)
        pids = " ".join(str(one.keeper) for one in unclear)
        raise JournalError(
            f"{journal.path} knows nothing of processes that run in {jobs}, and {jobs} does not say what they are: job "
            f"{who}; nothing was changed. `kill {pids}` ends them"
        )
    told = [record for record in found.values() if record is not None]
    if not told:
        return []
    places = Places(journal.jobs())
    stored = [places.settle(record).stored() for record in told]
    with journal.transaction():
        journal.save_jobs(stored)
        journal.set_facts({"salvaged": True})
    return [job.id for job in stored]


class Places:
    """The numbers and keys of all jobs. A job that is brought back gets none that belongs to another job."""

    def __init__(self, known: Iterable[StoredJob]) -> None:
        jobs = list(known)
        self._numbers = {job.id: job.number for job in jobs}
        self._owners = {job.number: job.id for job in jobs}
        self._keys = {job.client_key: job.id for job in jobs if job.client_key is not None}

    def settle(self, record: JobRecord) -> JobRecord:
        """Give a record its old number and key, or new ones if another job has them by now."""
        number = self._numbers.get(record.id, record.number)
        if self._owners.get(number, record.id) != record.id:
            number = max(self._owners) + 1
        record.number = number
        self._numbers[record.id], self._owners[number] = number, record.id
        key = record.stored().client_key
        if key is not None and self._keys.setdefault(key, record.id) != record.id:
            record.request = dataclasses.replace(record.request, client_key=None)
        return record


def _ahead(journal: Journal, jobs: Path) -> tuple[list[Folder], list[Folder]]:
    """The folders with a later attempt than the journal has, because it is an older copy or has lost its end. First
    those of jobs in the journal that have not ended and of all jobs that run; then only those of jobs that run."""
    ended = journal.names()
    known = {job.id: len(job.record["attempts"]) for job in journal.jobs(ended=False)}
    suspects = [opened(one) for one in folders_of(jobs) if not ended.get(one.name, False)]
    ahead = [one for one in suspects if one.number > known.get(one.id, 0)]
    # `find` makes sure that a keeper that is about to begin does not begin later.
    running = [one for one in ahead if _runs(one)]
    return [one for one in ahead if one.id in known or one in running], running


def _runs(folder: Folder) -> bool:
    found = local.find_attempt(folder.attempt)
    if isinstance(found, Running):
        found.close()
        return True
    return False
