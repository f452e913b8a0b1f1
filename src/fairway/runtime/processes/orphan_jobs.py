"""Jobs that have folders but are unknown or out of date in the journal: it was replaced, or lost its end.

Their processes may still run on GPUs that no other job may get. If the whole journal is lost, the scheduler does not
start. If a part of it is lost, running jobs are taken over from their folders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.journal.database import Journal, JournalError, StoredJob, is_blank
from fairway.runtime.processes import hands
from fairway.runtime.processes.folders import Folder, folders_of, opened, record_in
from fairway.runtime.processes.hands import Running


def refuse_without_journal(folder: Path) -> None:
    """Raise `JournalError` if a state directory has folders of jobs, but its journal has no jobs."""
    path, jobs = folder / "journal.db", folder / "jobs"
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
    found = hands.find(folder.attempt)
    if isinstance(found, Running):
        found.close()
        return True
    return False
