"""Retention: jobs that have ended leave the journal, the memory and the disk after some time, or when there are many.

This goes on in a thread of its own, in small steps. The scheduler's thread deletes a few records at a time, and only
sets the folders of these jobs aside. Their files are deleted outside of it. A scheduler that is killed in between has
lost nothing else: a folder leaves before its record, and the next scheduler goes on with what is left.

An array leaves as a whole. A job that others depend on stays until those have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fairway.runtime.daemon.background import Background
from fairway.runtime.daemon.config import Keep
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.journal.archive import Family

EVERY_S = 300.0
STEP = 50
"""How many jobs leave at a time."""
PAUSE_S = 0.1
"""How long others have the scheduler to themselves between two steps."""


class Collected(NamedTuple):
    """How many jobs are gone, and how many stay only because others depend on them."""

    jobs: int
    awaited: int


def due(families: Sequence[Family], keep: Keep, date_s: float) -> list[Family]:
    """The jobs and arrays that are to leave: those that ended too long ago, and the oldest of those beyond a number.

    `families` are those that have ended, the oldest first.
    """
    left = sum(len(one.jobs) for one in families)
    found: list[Family] = []
    for one in families:
        old = keep.keep_s is not None and one.ended_s < date_s - keep.keep_s
        many = keep.keep_jobs is not None and left > keep.keep_jobs
        if not old and not many:
            break
        found.append(one)
        left -= len(one.jobs)
    return found


class Retention(Background):
    """Lets jobs of a scheduler go. `keep` says what stays, as the configuration has it now."""

    def __init__(self, scheduler: Scheduler, keep: Callable[[], Keep], tell: Callable[[str], None]) -> None:
        super().__init__("retention", EVERY_S)
        self._scheduler = scheduler
        self._keep = keep
        self._tell = tell
        self._alone = threading.Lock()

    def collect(self, keep: Keep | None = None, *, dry_run: bool = False) -> Collected:
        """Let all jobs go that are not to be kept now. `dry_run`: only count them."""
        keep = keep or self._keep()
        with self._alone:
            numbers = [number for one in self._due(keep) for number in one.jobs]
            if dry_run:
                awaited = self._scheduler.awaited(numbers)
                return Collected(len(numbers) - awaited, awaited)
            gone = tried = 0
            try:
                for first in range(0, len(numbers), STEP):
                    if first and self._over.wait(PAUSE_S):
                        break
                    some = numbers[first : first + STEP]
                    tried += len(some)
                    gone += self._scheduler.forget(some)
            finally:
                # Also if the journal could not be written: that makes room.
                self._scheduler.sweep()
            return Collected(gone, tried - gone)

    def _due(self, keep: Keep) -> list[Family]:
        scheduler = self._scheduler
        date_s = scheduler.clock.date_s(scheduler.clock.now_s())
        oldest_s = scheduler.archive.oldest_s()
        many = keep.keep_jobs is not None and sum(scheduler.store.past.states.values()) > keep.keep_jobs
        if oldest_s is None or not (many or (keep.keep_s is not None and oldest_s < date_s - keep.keep_s)):
            return []
        return due(scheduler.archive.families(), keep, date_s)

    def work(self) -> None:
        """Let jobs go, as the configuration says now."""
        self.collect()

    def failed(self, why: str) -> None:
        """Tell the operator."""
        self._tell(f"jobs that have ended could not be deleted: {why}")
