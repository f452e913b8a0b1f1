"""Live jobs: happenings in, events and instructions out. Nothing here reads a clock, a file or a process.

`handle` takes a happening. It changes the records of jobs (by the transitions of `life`), returns events for the
scheduler's state, and adds to `instructions` what the engine does once all of that is on disk. The commands of users
are in `commands`. What becomes of a job whose attempt has ended is in `attempt_ends`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from fairway.core import columns
from fairway.core.event import Event, JobStarted, Woken
from fairway.core.state import State
from fairway.runtime.jobs import life
from fairway.runtime.jobs.attempt_ends import AttemptEnds
from fairway.runtime.jobs.blocked_gpus import BlockedGpus
from fairway.runtime.jobs.eligibility import Eligibility
from fairway.runtime.jobs.happenings import (
    Asked,
    AttemptEnded,
    AttemptMoved,
    AttemptStarted,
    Happening,
    Instruction,
    Looked,
    Reported,
    Settle,
)
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState, JobStore
from fairway.runtime.jobs.timers import Timers
from fairway.runtime.processes.attempts import Target


class LiveJobs:
    """All jobs of a scheduler. `origin_s` is the date of the state's instant 0."""

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
        self.store = store
        self.state = state
        self.observations = observations
        self.eligibility = eligibility
        self.timers = timers
        self.blocked = blocked
        self.origin_s = origin_s
        self.instructions: list[Instruction] = []
        self._answers: list[tuple[Any, Any]] = []
        self._ends = AttemptEnds(store, state, observations, eligibility, timers, blocked, origin_s)
        self._handle: dict[type[Any], Callable[[Any], list[Event]]] = {
            AttemptStarted: self._started,
            AttemptMoved: self._moved,
            AttemptEnded: self._ended,
            Reported: self._reported,
            Asked: self._asked,
            Looked: lambda looked: self.observations.overdue(looked.time_s),
            Woken: self._woken,
        }

    def handle(self, happening: Happening) -> list[Event]:
        """The events that a happening means for the state. Apply them before you handle the next happening."""
        return self._handle[type(happening)](happening)

    def take_instructions(self) -> list[Instruction]:
        """Return the collected instructions and forget them. Call this when everything is on disk."""
        instructions, self.instructions = self.instructions, []
        return instructions

    def answer(self) -> None:
        """Everything is on disk: send the answers to the users who asked."""
        answers, self._answers = self._answers, []
        for future, result in answers:
            future.set_result(result)

    def refuse_answers(self, error: Exception) -> None:
        """The scheduler ended before everything was on disk: users who asked get an error."""
        answers, self._answers = self._answers, []
        for future, _ in answers:
            future.set_exception(error)

    def preempted(self, record: JobRecord, now_s: float, *, lives: bool) -> None:
        """The policy takes a job off its GPUs. The job waits for others."""
        if lives and not record.state.ended:
            record.preemptions += 1
            life.move(
                record, JobState.SUSPENDED if record.stays else JobState.PREEMPTED, self.date_s(now_s), record.reason
            )
            self.store.touch(record)
        self.eligibility.note_off(record, now_s)

    def begin_attempt(self, job: int, gpus: tuple[int, ...], now_s: float) -> tuple[JobRecord, Attempt]:
        """Add a new attempt to the record of a job."""
        record = self.store[job]
        resume = record.progress.checkpoint is not None
        date_s = self.date_s(now_s)
        attempt = Attempt(len(record.attempts) + 1, list(gpus), secrets.token_hex(8), date_s, resume=resume)
        record.attempts.append(attempt)
        self.store.touch(record)
        return record, attempt

    def never_began(self, record: JobRecord, now_s: float) -> None:
        """An attempt in the record has no processes and never will."""
        attempt, date_s = record.attempt, self.date_s(now_s)
        assert attempt is not None
        attempt.ended_s, attempt.cause = date_s, "not started"
        record.since_s = None
        if record.state is JobState.RUNNING:
            life.move(record, JobState.PENDING, date_s)
        self.store.touch(record)

    def wanted(self) -> Iterable[int]:
        """The jobs that the state holds GPUs for."""
        return self.state.held_gpus

    def target(self, job: int) -> Target | None:
        """The GPUs that the state holds for a job, its host, and the part of the time in which it may compute."""
        gpus = self.state.held_gpus.get(job)
        if gpus is None:
            return None
        table = self.state.table
        row = table.position(job)
        return Target(gpus, int(table.i[columns.HOST, row]), float(table.f[columns.THROTTLE, row]))

    def stays(self, job: int) -> bool:
        """Whether a job that loses its GPUs is suspended in place, rather than stopped."""
        return self.store[job].stays

    def date_s(self, time_s: float) -> float:
        """An instant as seconds since 1970."""
        return self.origin_s + time_s

    def _started(self, one: AttemptStarted) -> list[Event]:
        record = self.store[one.job]
        if record.state.ended or one.job not in self.state.held_gpus:
            # It was cancelled, held or suspended before this was handled.
            return []
        attempt, date_s = record.attempt, self.date_s(one.time_s)
        if attempt is not None:
            # Virtual GPUs may be others than those on which it was suspended.
            attempt.started_s, attempt.gpus = attempt.started_s or date_s, list(one.gpus)
        if one.resumed:
            # The time while it was suspended says nothing about its speed.
            record.progress.reported_s = None
        life.move(record, JobState.RUNNING, date_s)
        self.observations.started(record)
        self.store.touch(record)
        return [JobStarted(one.time_s, one.job, self.observations.rate(record), one.time_s)]

    def _moved(self, one: AttemptMoved) -> list[Event]:
        record = self.store[one.job]
        if record.attempt is not None:
            record.attempt.gpus = list(one.gpus)
            self.store.touch(record)
        return []

    def _ended(self, one: AttemptEnded) -> list[Event]:
        self.instructions.append(Settle())
        return self._ends.over(self.store[one.job], one.outcome, one.time_s, found=one.found)

    def _reported(self, one: Reported) -> list[Event]:
        return self.observations.reported(self.store[one.job], one.report, one.time_s)

    def _asked(self, one: Asked) -> list[Event]:
        try:
            events, result = one.command(one.time_s)
        except Exception as error:
            one.answer.set_exception(error)
            return []
        self._answers.append((one.answer, result))
        return events

    def _woken(self, woken: Woken) -> list[Event]:
        self.timers.ring(woken.time_s)
        return [woken]
