"""What becomes of jobs when their scheduler is stopped on purpose: they go on, are stopped, or are suspended in place.

All of this is done while no scheduler runs. The next one finds the processes, or how they ended, and takes over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fairway.runtime.daemon.daemon import locked
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.verdict import CHECKPOINTED
from fairway.runtime.journal.database import Journal, StoredJob, is_blank
from fairway.runtime.journal.rebuild import STOOD_STILL
from fairway.runtime.processes import hands, keeper
from fairway.runtime.processes.hands import Running

SUSPEND_S = 10.0
"""How long is waited for processes to stand still; one in the hands of a driver may take its time."""


class Stopped(NamedTuple):
    """How many jobs were stopped, and how many of these have saved nothing to go on from."""

    jobs: int
    from_the_beginning: int


def announce(folder: Path, told: Mapping[str, Any], jobs: str) -> None:
    """Leave word to the scheduler that `told` is about of what will become of its jobs, so that it can say so.

    What is done about them does not depend on it, so it is no error if that cannot be written.
    """
    with suppress(OSError):
        keeper.write_over(folder / "daemon.json", {**told, "parting": jobs})


def stop_jobs(folder: Path) -> Stopped:
    """Ask the processes of all jobs to save and stop, and wait for them. The next scheduler starts them again."""
    with _alone(folder):
        running = _running(folder)
        for one in running:
            one.stop()
        for one in running:
            while not one.ended:
                time.sleep(0.05)
            one.close()
        records = {job.id: JobRecord.from_plain(job.record) for job in _jobs(folder)}
        return Stopped(len(running), sum(_begins_again(one, records.get(one.directory.parent.name)) for one in running))


def suspend_jobs(folder: Path) -> int:
    """Suspend the processes of all jobs in place; how many jobs had been running. The next scheduler lets them go on.

    The time in which they stand still is not booked as run time, and the next scheduler is told since when that is.
    """
    with _alone(folder):
        running = _running(folder)
        for one in running:
            one.pause()
        deadline_s = time.monotonic() + SUSPEND_S
        for one in running:
            while _moves(one) and not one.ended and time.monotonic() < deadline_s:
                time.sleep(0.02)
            one.close()
        return _book(folder, {one.directory.parent.name for one in running}, time.time())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    if not folder.is_dir():
        yield
        return
    lock = locked(folder)
    try:
        yield
    finally:
        os.close(lock)


def _running(folder: Path) -> list[Running]:
    found = [hands.find(attempt) for attempt in sorted(folder.glob("jobs/*/attempt-*"))]
    return [one for one in found if isinstance(one, Running)]


def _moves(one: Running) -> bool:
    states = [(keeper.stat_fields(pid) or "X")[0] for pid in keeper.descendants(one.pid)]
    return any(state not in "TtZX" for state in states)


def _jobs(folder: Path) -> list[StoredJob]:
    """The jobs that have not ended."""
    # One that is blank may have been lost: it is left as it is.
    if is_blank(folder / "journal.db"):
        return []
    with closing(Journal(folder / "journal.db")) as journal:
        return list(journal.jobs(ended=False))


def _begins_again(one: Running, record: JobRecord | None) -> bool:
    """Whether a job that was stopped has nothing to go on from: no checkpoint, and it was not done by then either."""
    outcome = hands.outcome(one.directory)
    codes = () if outcome is None else outcome.codes
    done = bool(codes) and not any(codes)
    return not done and CHECKPOINTED not in codes and (record is None or record.progress.checkpoint is None)


def _book(folder: Path, names: set[str], date_s: float) -> int:
    """Write down how long those had run that were suspended at a date; how many there are."""
    stood = []
    for job in _jobs(folder):
        record = JobRecord.from_plain(job.record)
        if job.id not in names or record.state is not JobState.RUNNING:
            continue
        record.count_until(date_s)
        stood.append(record.stored())
    if stood:
        with closing(Journal(folder / "journal.db")) as journal, journal.transaction():
            journal.save_jobs(stood)
            # Asked for once more, it is still so since the first time.
            if journal.facts().get(STOOD_STILL) is None:
                journal.set_facts({STOOD_STILL: date_s})
    return len(stood)
