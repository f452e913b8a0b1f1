"""Jobs of which the journal knows nothing, or not all, although they have folders: it was replaced, or lost its end.

Their processes may still run, and then hold GPUs that nobody else may get. Where the whole journal is lost nothing is
started; where a part of it is, those that run are taken over as their folders have them.
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
    """Raise `JournalError` if there are jobs in a state directory, and a journal that knows of none."""
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
        f"`fairway salvage {path} NEW` brings back what can be. To begin anew, "
        f"{'end what runs (`fairway down --jobs stop`) and ' if running else ''}move {jobs} away"
    )


def _counted(jobs: int) -> str:
    return "the folder of 1 job" if jobs == 1 else f"the folders of {jobs:,} jobs"


def take_over(journal: Journal, jobs: Path) -> list[str]:
    """Write down the jobs that run without the journal's knowing, and those that it takes to wait although they were
    started since; their ids.

    The scheduler that starts then makes its state from the records alone, as after a salvage: whoever runs keeps its
    GPUs. `JournalError` if one runs whose folder does not tell what it is.
    """
    ahead, running = _ahead(journal, jobs)
    found = {one.id: record_in(one) for one in ahead}
    unclear = [one for one in running if found[one.id] is None]
    if unclear:
        who = ", ".join(f"{one.id} (pid {one.keeper})" for one in unclear)
        pids = " ".join(str(one.keeper) for one in unclear)
        raise JournalError(
            f"{journal.path} knows nothing of processes that run in {jobs}, and these do not tell what they are: job "
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
    """The numbers and keys that jobs have, so that one which is brought back gets none that is another's."""

    def __init__(self, known: Iterable[StoredJob]) -> None:
        jobs = list(known)
        self._numbers = {job.id: job.number for job in jobs}
        self._owners = {job.number: job.id for job in jobs}
        self._keys = {job.client_key: job.id for job in jobs if job.client_key is not None}

    def settle(self, record: JobRecord) -> JobRecord:
        """Give a record its place: the one that it had, unless somebody else has that by now."""
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
    """The folders of jobs that know of a later attempt than the journal, which is an older copy or has lost its end: of
    jobs that are in it and not over, and of all that run. Then those of them that run."""
    ended = journal.names()
    known = {job.id: len(job.record["attempts"]) for job in journal.jobs(ended=False)}
    suspects = [opened(one) for one in folders_of(jobs) if not ended.get(one.name, False)]
    ahead = [one for one in suspects if one.number > known.get(one.id, 0)]
    # `find` makes sure that a keeper which was about to begin does not begin later.
    running = [one for one in ahead if _runs(one)]
    return [one for one in ahead if one.id in known or one in running], running


def _runs(folder: Folder) -> bool:
    found = hands.find(folder.attempt)
    if isinstance(found, Running):
        found.close()
        return True
    return False
