"""What becomes of a job when its attempt is over.

A job that has done its work is completed. A job that was asked to stop goes on later or elsewhere. A job that failed is
tried again if its owner allows it. A job whose machine failed is always tried again, up to a limit.
"""

from __future__ import annotations

from fairway.core.event import Event, JobEvicted, JobFailed, JobFinished, RateChanged
from fairway.core.state import State
from fairway.runtime.jobs import life
from fairway.runtime.jobs.blocked_gpus import BlockedGpus
from fairway.runtime.jobs.eligibility import Eligibility
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import JobRecord, JobState, JobStore
from fairway.runtime.jobs.timers import Timers
from fairway.runtime.jobs.verdict import RECLAIMED, Verdict, verdict
from fairway.runtime.processes.site import Outcome

BACK_OFF_S, MOST_BACK_OFF_S = 5.0, 600.0
MOST_LOST = 10
"""How often a job may lose its processes through no fault of its own before it counts as failed."""


class AttemptEnds:
    """Updates the records of jobs whose attempts end, and returns events for the state."""

    def __init__(
        self,
        store: JobStore,
        state: State,
        observations: Observations,
        eligibility: Eligibility,
        timers: Timers,
        blocked: BlockedGpus,
        origin_s: float,
    ) -> None:
        self._store = store
        self._state = state
        self._seen = observations
        self._eligibility = eligibility
        self._timers = timers
        self._blocked = blocked
        self._origin_s = origin_s

    def over(self, record: JobRecord, outcome: Outcome, now_s: float, *, found: bool) -> list[Event]:
        """Say what the end of an attempt means for its job. `found`: it ended while no scheduler was running."""
        attempt = record.attempt
        assert attempt is not None
        ended_s = now_s if outcome.ended_s is None else min(now_s, outcome.ended_s - self._origin_s)
        record.count_until(self._date_s(ended_s))
        attempt.ended_s = outcome.ended_s or self._date_s(now_s)
        attempt.codes, attempt.cause = list(outcome.codes), outcome.cause
        self._seen.restarts.ended(record, outcome.stop_s)
        self._store.touch(record)
        if record.state.ended:
            # It was cancelled before, but its processes are gone only now.
            record.ended_s = attempt.ended_s
            self._seen.forget(record)
            return []
        asked = outcome.cause == "request"
        judged = verdict(outcome, asked=asked)
        gpus = self._state.held_gpus.get(record.number)
        moves = gpus is not None and not found and not self._blocked.among(gpus)
        if judged.next == "again" and asked and moves:
            return self._moves(record, judged, now_s)
        # The next decision says whether and where it runs again.
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
        """It was stopped to go on elsewhere or on other GPUs. The state has booked these for it already."""
        life.move(record, JobState.PREEMPTED, self._date_s(now_s), judged.why)
        stands = RateChanged(now_s, record.number, self._seen.saved(record), 0.0)
        return [stands, *self._seen.restart_cost(record, now_s)]

    def _again(self, record: JobRecord, judged: Verdict, now_s: float, *, asked: bool) -> list[Event]:
        """It runs again from its last checkpoint: at once if it was asked to stop, otherwise after a delay."""
        why = record.reason if record.reason == RECLAIMED else judged.why
        life.move(record, JobState.SUSPENDED if record.suspended else JobState.PREEMPTED, self._date_s(now_s), why)
        if not asked:
            record.not_before_s = self._date_s(now_s) + BACK_OFF_S
            self._timers.set(now_s + BACK_OFF_S)
            self._eligibility.note_off(record, now_s)
        evicted = JobEvicted(now_s, record.number, self._seen.saved(record), judged.why)
        return [evicted, *self._seen.restart_cost(record, now_s)]

    def _failed(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It failed, or its machine did. It is tried again after a delay if it may be."""
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
        record.not_before_s = self._date_s(now_s) + wait_s
        life.move(record, JobState.PENDING, self._date_s(now_s), f"{judged.why}; tried again in {wait_s:.0f} s")
        self._timers.set(now_s + wait_s)
        self._eligibility.note_off(record, now_s)
        return [JobEvicted(now_s, record.number, self._seen.saved(record), judged.why)]

    def _leave(self, record: JobRecord, state: JobState, why: str, now_s: float) -> None:
        """End the job for good."""
        life.move(record, state, self._date_s(now_s), why)
        self._seen.forget(record)
        self._eligibility.note_off(record, now_s)

    def _date_s(self, time_s: float) -> float:
        return self._origin_s + time_s
