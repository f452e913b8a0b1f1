"""What becomes of jobs when their scheduler is stopped on purpose: they go on, are stopped, or are suspended in place.

This is done while no scheduler runs. The next scheduler finds the processes, or how they ended, and takes over.
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
from fairway.runtime.journal.recovery import STOOD_STILL
from fairway.runtime.processes import hands, keeper
from fairway.runtime.processes.hands import Running

SUSPEND_S = 10.0
"""How long to wait until processes are suspended. A process inside a driver call may take some time."""


class Stopped(NamedTuple):
    """How many jobs were stopped, and how many of these have no checkpoint to go on from."""

    jobs: int
    from_the_beginning: int


def announce(folder: Path, told: Mapping[str, Any], jobs: str) -> None:
    """Tell a scheduler what will become of its jobs, so that it can say so. `told` is what it wrote about itself.

    Nothing else depends on it, so it is no error if this cannot be written.
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
    """Suspend the processes of all jobs in place. Returns how many jobs had been running.

    The next scheduler lets them go on. The time while they are suspended does not count as run time; the journal tells
    the next scheduler when it began.
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
    # A blank journal may be a lost one: it is not touched.
    if is_blank(folder / "journal.db"):
        return []
    with closing(Journal(folder / "journal.db")) as journal:
        return list(journal.jobs(ended=False))


def _begins_again(one: Running, record: JobRecord | None) -> bool:
    """Whether a stopped job has to start from the beginning: it has no checkpoint, and it was not done."""
    outcome = hands.outcome(one.directory)
    codes = () if outcome is None else outcome.codes
    done = bool(codes) and not any(codes)
    return not done and CHECKPOINTED not in codes and (record is None or record.progress.checkpoint is None)


def _book(folder: Path, names: set[str], date_s: float) -> int:
    """Write down how long the jobs that were suspended at a date had run. Returns how many there are."""
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
            # If the jobs are suspended already, the date of the first time stays.
            if journal.facts().get(STOOD_STILL) is None:
                journal.set_facts({STOOD_STILL: date_s})
    return len(stood)
