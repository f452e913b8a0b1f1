"""A thread that reads the progress of jobs that report nothing off their logs.

It looks at each running job every few seconds, less often the longer the job has run, and reads the new part of the
log of its first rank, or of its last one if only that speaks. However much ranks write and however many jobs run, it
opens at most `MOST_LOGS` logs and reads at most `MOST_EACH_LOOK` bytes each time. What it finds it passes to the
scheduler's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from fairway.models.log_progress import LogProgress, LogReader
from fairway.runtime.daemon.background import Background
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.processes.log_tail import LogTail
from fairway.runtime.processes.site import Moment

EVERY_S, MOST_EVERY_S = 2.0, 30.0
"""How often the log of a job is looked at: at least so many seconds apart, and a hundredth of what the job has run."""
SELDOM = 0.01
MOST_LOGS, MOST_EACH_LOOK = 200, 1 << 18
_MOST_COMMAND = 4096


class FollowedLog:
    """The log of one attempt. Its first rank speaks for it, or its last one if that tells its progress first."""

    def __init__(self, record: JobRecord, folder: Path) -> None:
        attempt = record.attempts[-1]
        self.attempt = attempt.number
        self.next_s = 0.0
        self.told: LogProgress | None = None
        self._read_s = -math.inf
        self._since_s = -math.inf
        settings = " ".join(record.request.command)[:_MOST_COMMAND]
        ranks = sorted({0, max(record.ranks_of(attempt) - 1, 0)})
        logs = [folder / record.id / f"attempt-{attempt.number}" / f"rank-{rank}.log" for rank in ranks]
        self._ranks = [(LogTail(log), LogReader(settings)) for log in logs]

    def look(self, record: JobRecord, clock: Clock, since_s: float) -> int:
        """Read what is new. `told` is what is known then. Returns how many bytes were read."""
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


class LogWatch(Background):
    """Looks at logs until it is closed. `wanted` says whether it should."""

    def __init__(self, scheduler: Scheduler, wanted: Callable[[], bool], tell: Callable[[str], None]) -> None:
        super().__init__("logs", EVERY_S)
        self._scheduler = scheduler
        self._wanted = wanted
        self._tell = tell
        self._followed: dict[int, FollowedLog] = {}

    def work(self) -> None:
        """Look at the logs of the jobs whose turn it is."""
        self.look()

    def failed(self, why: str) -> None:
        """Tell the operator."""
        self._tell(f"a look at logs failed: {why}")

    def look(self) -> None:
        """Look once."""
        scheduler, engine = self._scheduler, self._scheduler.engine
        lives = dict(engine.attempts.live)
        for job in [job for job in self._followed if job not in lives]:
            del self._followed[job]
        if not self._wanted():
            for job, one in self._followed.items():
                engine.note_log(job, one.attempt, None)
            self._followed.clear()
            return
        now_s, left = scheduler.clock.now_s(), MOST_EACH_LOOK
        running = [self._follow(job) for job, live in lives.items() if live.status == "running"]
        due = [(one.next_s, record, one) for record, one in running if one is not None and one.next_s <= now_s]
        for _, record, one in sorted(due, key=lambda turn: turn[0])[:MOST_LOGS]:
            before = one.told
            left -= one.look(record, scheduler.clock, scheduler.observations.measured_since_s(record.number))
            one.next_s = now_s + min(max(SELDOM * engine.ran_s(record, now_s), EVERY_S), MOST_EVERY_S) - 0.5 * EVERY_S
            if one.told != before:
                engine.note_log(record.number, one.attempt, one.told)
            if left <= 0:
                return

    def _follow(self, job: int) -> tuple[JobRecord, FollowedLog | None]:
        """The log of a running job, if it has to be read."""
        record = self._scheduler.store[job]
        if record.progress.is_own or not record.attempts:
            self._followed.pop(job, None)
            return record, None
        known = self._followed.get(job)
        if known is None or known.attempt != record.attempts[-1].number:
            known = self._followed[job] = FollowedLog(record, self._scheduler.jobs_folder)
        return record, known
