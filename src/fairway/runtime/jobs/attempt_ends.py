"""What becomes of jobs that lose their GPUs: those that are preempted, and those whose attempt is over.

A job that has done its work is completed, one that was asked to stop goes on later or elsewhere, one that failed is
tried again if its owner allows it, and one that its machine has lost is tried again in any case, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairway.core.event import Event, JobEvicted, JobFailed, JobFinished, RateChanged
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.idle import RECLAIMED
from fairway.runtime.daemon.timers import Timers
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import JobRecord, JobState, JobStore
from fairway.runtime.jobs.verdict import Verdict, verdict
from fairway.runtime.processes.attempts import Outcome
from fairway.runtime.processes.local import LocalProcesses

BACK_OFF_S, MOST_BACK_OFF_S = 5.0, 600.0
MOST_LOST = 10
"""How often a job may lose its processes through no fault of its own before it is given up."""


class AttemptEnds:
    """Keeps the records of jobs that lose their GPUs, and says what happened in events for the state.

    `on_off` is called with every job that has ended, or has lost its GPUs and does not go on elsewhere at once.
    """

    def __init__(
        self, store: JobStore, clock: Clock, seen: Observations, processes: LocalProcesses, timers: Timers
    ) -> None:
        self._store = store
        self._clock = clock
        self._seen = seen
        self._processes = processes
        self._timers = timers
        self.on_off: Callable[[JobRecord], None] = lambda record: None

    def preempted(self, record: JobRecord, now_s: float) -> None:
        """Note that a job is taken off its GPUs and will be given some again."""
        if record.number in self._processes.live:
            record.count_until(self._clock.date_s(now_s))
            record.preemptions += 1
            record.state = JobState.SUSPENDED if record.stays else JobState.PREEMPTED
            self._store.touch(record)
        self.on_off(record)

    def over(self, record: JobRecord, outcome: Outcome, directory: Path, now_s: float) -> list[Event]:
        """An attempt is over, whose files are in `directory`: what it means for the job."""
        attempt = record.attempt
        assert attempt is not None
        ended_s = now_s if outcome.ended_s is None else min(now_s, outcome.ended_s - self._clock.origin_s)
        record.count_until(self._clock.date_s(ended_s))
        attempt.ended_s = outcome.ended_s or self._clock.date_s(now_s)
        attempt.codes, attempt.cause = list(outcome.codes), outcome.cause
        self._seen.restarts.ended(record, outcome.stop_s)
        self._seen.watch(record)
        self._seen.read(record)
        self._store.touch(record)
        if record.state.ended:
            # It was cancelled before; only now its processes are gone.
            record.ended_s = attempt.ended_s
            self._seen.forget(record)
            return []
        asked = outcome.cause == "request"
        logs = [directory / f"rank-{rank}.log" for rank in range(len(outcome.codes))]
        judged = verdict(outcome, asked=asked, logs=logs)
        moves = record.number in self._processes.targets and not self._processes.is_blocked(record.number)
        if judged.next == "again" and asked and moves:
            return self._moves(record, judged, now_s)
        # It is for the next decision to say whether and where it runs again.
        self._processes.targets.pop(record.number, None)
        if judged.next == "done":
            return self._done(record, now_s)
        if judged.next == "again":
            return self._again(record, judged, now_s, asked=asked)
        return self._failed(record, judged, now_s)

    def _done(self, record: JobRecord, now_s: float) -> list[Event]:
        record.exit_code = 0
        learnt = self._seen.learn(record, now_s)
        self._leave(record, JobState.COMPLETED, "", now_s)
        return [JobFinished(now_s, record.number), *learnt]

    def _moves(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It was stopped to go on elsewhere, or with other GPUs, which the state holds for it already."""
        record.state, record.reason = JobState.PREEMPTED, judged.why
        stands = RateChanged(now_s, record.number, self._seen.saved(record), 0.0)
        return [stands, *self._seen.restart_cost(record, now_s)]

    def _again(self, record: JobRecord, judged: Verdict, now_s: float, *, asked: bool) -> list[Event]:
        """It will run again, from its last checkpoint; at once if it was asked to stop, else after a while."""
        if not record.suspended:
            record.state = JobState.PREEMPTED
        if record.reason != RECLAIMED:
            record.reason = judged.why
        if not asked:
            record.not_before_s = self._clock.date_s(now_s) + BACK_OFF_S
            self._timers.set(now_s + BACK_OFF_S)
            self.on_off(record)
        evicted = JobEvicted(now_s, record.number, self._seen.saved(record), judged.why)
        return [evicted, *self._seen.restart_cost(record, now_s)]

    def _failed(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It failed, or its machine did; it is tried again after a while if it may be."""
        lost = judged.next == "lost"
        record.failures += not lost
        losses = sum(attempt.cause == "lost" for attempt in record.attempts)
        again = losses <= MOST_LOST if lost else judged.next == "retry" and record.failures <= record.request.retries
        if not again:
            record.exit_code = judged.code
            self._leave(record, judged.state, judged.why, now_s)
            return [JobFailed(now_s, record.number, judged.why)]
        tries = losses if lost else record.failures
        wait_s = 0.0 if lost and losses == 1 else min(BACK_OFF_S * 2 ** (tries - 1), MOST_BACK_OFF_S)
        record.not_before_s = self._clock.date_s(now_s) + wait_s
        record.state, record.reason = JobState.PENDING, f"{judged.why}; tried again in {wait_s:.0f} s"
        self._timers.set(now_s + wait_s)
        self.on_off(record)
        return [JobEvicted(now_s, record.number, self._seen.saved(record), judged.why)]

    def _leave(self, record: JobRecord, state: JobState, why: str, now_s: float) -> None:
        """The job is over for good."""
        record.state, record.reason, record.ended_s = state, why, self._clock.date_s(now_s)
        self._processes.targets.pop(record.number, None)
        self._seen.forget(record)
        self._store.touch(record)
        self.on_off(record)
