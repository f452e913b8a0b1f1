"""A thread that reads the progress of jobs that report nothing off their logs.

It looks at each running job every few seconds, less often the longer the job has run, and reads the new part of the
log of its first rank, or of its last one if only that speaks. However much ranks write and however many jobs run, it
opens at most `MOST_LOGS` logs and reads at most `MOST_EACH_LOOK` bytes each time. What it finds it passes to the
scheduler's thread, which reads what is left when an attempt has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from fairway.runtime.daemon.background import Background
from fairway.runtime.daemon.followed_logs import FollowedLog
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord

EVERY_S, MOST_EVERY_S = 2.0, 30.0
"""How often the log of a job is looked at: at least so many seconds apart, and a hundredth of what the job has run."""
SELDOM = 0.01
MOST_LOGS, MOST_EACH_LOOK = 200, 1 << 18


class LogWatch(Background):
    """Looks at logs until it is closed. `wanted` says whether it should."""

    def __init__(self, scheduler: Scheduler, wanted: Callable[[], bool], tell: Callable[[str], None]) -> None:
        super().__init__("logs", EVERY_S)
        self._scheduler = scheduler
        self._wanted = wanted
        self._tell = tell
        self._logs = scheduler.engine.logs

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
        self._logs.prune()
        if not self._wanted():
            for job in self._logs.jobs():
                log = self._logs.drop(job)
                if log is not None:
                    engine.note_log(job, log.attempt, None)
            return
        now_s, left = scheduler.clock.now_s(), MOST_EACH_LOOK
        running = [self._follow(job) for job, live in lives.items() if live.status == "running"]
        due = [(one.next_s, record, one) for record, one in running if one is not None and one.next_s <= now_s]
        for _, record, one in sorted(due, key=lambda turn: turn[0])[:MOST_LOGS]:
            before = one.told
            left -= one.look(scheduler.clock, scheduler.observations.measured_since_s(record.number))
            one.next_s = now_s + min(max(SELDOM * engine.ran_s(record, now_s), EVERY_S), MOST_EVERY_S) - 0.5 * EVERY_S
            if one.told != before:
                engine.note_log(record.number, one.attempt, one.told)
            if left <= 0:
                return

    def _follow(self, job: int) -> tuple[JobRecord, FollowedLog | None]:
        """The log of a running job, if it has to be read."""
        record = self._scheduler.store[job]
        if record.progress.is_own or not record.attempts:
            self._logs.drop(job)
            return record, None
        return record, self._logs.follow(record)
