"""The logs that are followed because their jobs report nothing, each with the reader that knows what it has said.

A thread reads the new part of a log now and then, and the scheduler's thread reads what is left when the attempt has
ended, so a log has a lock.
"""

from __future__ import annotations

import math
from pathlib import Path
from threading import Lock

from fairway.models.log_progress import LogProgress, LogReader
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.processes.log_tail import LogTail
from fairway.runtime.processes.site import Moment

_MOST_COMMAND = 4096


class FollowedLog:
    """The log of one attempt. Its first rank speaks for it, or its last one if that tells its progress first."""

    def __init__(self, record: JobRecord, folder: Path) -> None:
        attempt = record.attempts[-1]
        self.attempt = attempt.number
        self.next_s = 0.0
        self._record = record
        self.told: LogProgress | None = None
        self._lock = Lock()
        self._read_s = -math.inf
        self._since_s = -math.inf
        command = " ".join(record.request.command)[:_MOST_COMMAND]
        ranks = sorted({0, max(record.ranks_of(attempt) - 1, 0)})
        logs = [folder / record.id / f"attempt-{attempt.number}" / f"rank-{rank}.log" for rank in ranks]
        self._ranks = [(LogTail(log), LogReader(command)) for log in logs]

    @property
    def is_over(self) -> bool:
        """Whether the attempt has ended."""
        return self._record.open_attempt is None or self._record.attempts[-1].number != self.attempt

    def look(self, clock: Clock, since_s: float) -> int:
        """Read what is new. `told` is what is known then. Returns how many bytes were read."""
        with self._lock:
            return self._look(clock, since_s)

    def _look(self, clock: Clock, since_s: float) -> int:
        record = self._record
        counted = record.ran_s, record.since_s
        found, size = self.told, 0
        for tail, reader in list(self._ranks):
            if since_s > self._since_s:
                reader.changed(record.ran_until_s(since_s))
            pieces = tail.new_pieces()
            for text, wrote_s, gap in pieces:
                self._read_s = min(max(clock.instant_s(Moment(wrote_s)), self._read_s), clock.now_s())
                found = reader.read(text, record.ran_until_s(clock.date_s(self._read_s)), gap=gap)
                size += len(text)
            if not pieces and found is not None:
                found = reader.look(record.ran_until_s(clock.date_s(clock.now_s())))
            if found is not None:
                self._ranks = [(tail, reader)]
                break
        self._since_s = max(since_s, self._since_s)
        if counted == (record.ran_s, record.since_s):
            # Otherwise the scheduler has just counted, and the run time may be that before or after it.
            self.told = found
        return size


class FollowedLogs:
    """The logs of all jobs that are followed, by job. `folder` has the folders of jobs."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self._logs: dict[int, FollowedLog] = {}

    def follow(self, record: JobRecord) -> FollowedLog:
        """The log of the latest attempt of a job, from now on."""
        log = self._logs.get(record.number)
        if log is None or log.attempt != record.attempts[-1].number:
            log = self._logs[record.number] = FollowedLog(record, self._folder)
        return log

    def drop(self, job: int) -> FollowedLog | None:
        """Follow the log of a job no more. Returns it, if it was followed."""
        return self._logs.pop(job, None)

    def jobs(self) -> list[int]:
        """The jobs whose logs are followed."""
        return list(self._logs)

    def prune(self) -> None:
        """Follow the logs of attempts that have ended no more."""
        for job, log in list(self._logs.items()):
            if log.is_over:
                self._logs.pop(job, None)

    def last_words(self, record: JobRecord, since_s: float) -> LogProgress | None:
        """What the log of an attempt that has ended says in the end, if it was followed. It is followed no more."""
        log = self.drop(record.number)
        if log is None or log.is_over:
            return None
        log.look(self._clock, since_s)
        return log.told
