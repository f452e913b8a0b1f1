"""Live jobs: happenings in, events and instructions out. Nothing here reads a clock, a file or a process.

`handle` takes a happening. It changes the records of jobs (by the transitions of `life`), returns events for the
scheduler's state, and adds to `instructions` what the engine does once all of that is on disk. The commands of users
are in `commands`.

When an attempt is over, a job that has done its work is completed. A job that was asked to stop goes on later or
elsewhere. A job that failed is tried again if its owner allows it. A job whose machine failed is always tried again, up
to a limit.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fairway.core import columns
from fairway.core.batch import Split
from fairway.core.event import Event, JobEvicted, JobFailed, JobFinished, JobStarted, RateChanged, Woken
from fairway.core.state import State
from fairway.runtime.jobs import life
from fairway.runtime.jobs.job_story import gpus_text
from fairway.runtime.jobs.life import (
    MORE,
    NODE_LOST,
    RECLAIMED,
    WAITS,
    Asked,
    AttemptEnded,
    AttemptStarted,
    Converge,
    Happening,
    Instruction,
    Looked,
    ReadOff,
    Reported,
    RoomLacked,
    Settle,
    TimeOfDaySet,
    Verdict,
    verdict,
)
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.promises import PromiseBook
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState
from fairway.runtime.jobs.store import JobStore
from fairway.runtime.jobs.waiting import Eligibility, Timers
from fairway.runtime.processes.attempts import AttemptTarget, BlockedGpus
from fairway.runtime.processes.ranks import CHECKPOINTED
from fairway.runtime.processes.site import REFUSED

BACK_OFF_S, MOST_BACK_OFF_S = 5.0, 600.0
ROOM_RETRY_S = 10.0
"""How long other jobs go first if a job finds no room in the memory of its GPUs."""
MOST_LOST = 10
"""How often a job may lose its processes through no fault of its own before it counts as failed."""
MOST_VAIN_SAVES, LONG_S = 20, 60.0
"""How often in a row a job may end by itself to run again without progress, and how long an attempt has to be to count
as progress by itself."""


class LiveJobs:
    """All jobs of a scheduler. `origin_s` is the date of the state's instant 0, by the scheduler's clock."""

    def __init__(
        self,
        store: JobStore,
        state: State,
        observations: Observations,
        origin_s: float,
        promises: PromiseBook | None = None,
    ) -> None:
        self.store = store
        self.promises = promises or PromiseBook()
        self.state = state
        self.observations = observations
        self.origin_s = origin_s
        self.timers = Timers()
        self.eligibility = Eligibility(store, state, self.timers, origin_s)
        self.blocked = BlockedGpus()
        self.instructions: list[Instruction] = []
        self._answers: list[tuple[Asked, Any]] = []
        self._long: deque[Asked] = deque()
        self._waiting: list[Asked] = []
        self._ends = AttemptEnds(self)
        self._handle: dict[type[Any], Callable[[Any], list[Event]]] = {
            AttemptStarted: self._started,
            RoomLacked: self._lacks_room,
            AttemptEnded: self._ended,
            Reported: self._reported,
            ReadOff: self._read_off,
            Asked: self._asked,
            Looked: lambda looked: self.observations.overdue(looked.jobs, looked.time_s),
            TimeOfDaySet: self._time_of_day_set,
            Woken: self._woken,
        }

    def handle(self, happening: Happening) -> list[Event]:
        """The events that a happening means for the state. Apply them before you handle the next happening."""
        return self._handle[type(happening)](happening)

    def interpret(self, kind: type[Any], handler: Callable[[Any], list[Event]]) -> None:
        """Have happenings of a kind handled elsewhere."""
        self._handle[kind] = handler

    def take_instructions(self) -> list[Instruction]:
        """Return the collected instructions and forget them. Call this when everything is on disk."""
        instructions, self.instructions = self.instructions, []
        return instructions

    def answer(self) -> None:
        """Everything is on disk: send the answers to the users who asked."""
        answers, self._answers = self._answers, []
        for one, result in answers:
            if result is MORE:
                self._long.append(one)
            elif result is WAITS:
                self._waiting.append(one)
            else:
                one.answer.set_result(result)

    def not_done(self, now_s: float, *, long: bool) -> list[Asked]:
        """Commands that are to be called again, now: all that wait and, if `long`, one of those that take long."""
        again, self._waiting = self._waiting, []
        if long and self._long:
            again.insert(0, self._long.popleft())
        return [one._replace(time_s=now_s) for one in again]

    def refuse_answers(self, error: Exception) -> None:
        """The scheduler ended before everything was done and on disk: users who asked get an error."""
        asked = [*(one for one, _ in self._answers), *self._long, *self._waiting]
        self._answers, self._long, self._waiting = [], deque(), []
        for one in asked:
            one.answer.set_exception(error)

    def preempted(self, record: JobRecord, now_s: float, *, lives: bool) -> None:
        """The policy takes a job off its GPUs. The job waits for others."""
        if lives and not record.state.ended:
            record.preemptions += 1
            life.move(
                record, JobState.SUSPENDED if record.stays else JobState.PREEMPTED, self.date_s(now_s), record.reason
            )
            self.store.touch(record)
        self.eligibility.note_off(record, now_s)

    def off(self, record: JobRecord, now_s: float, why: str, *, lives: bool) -> list[Event]:
        """Take a job off the GPUs that it was granted. `lives`: it has an attempt with processes."""
        self.eligibility.look_at(record, now_s, leaves=True)
        record.count_until(self.date_s(now_s))
        progress = self.observations.progress(record) if lives else self.observations.saved(record)
        self.instructions.append(Converge(record.number))
        return [JobEvicted(now_s, record.number, progress, why)]

    def off_blocked(self, now_s: float) -> list[Event]:
        """Jobs that were to start on GPUs that are blocked now are given others."""
        held = self.state.held_gpus.items()
        granted = [self.store[job] for job, gpus in held if self.blocked.among(gpus)]
        waiting = [record for record in granted if record.open_attempt is None]
        return [event for record in waiting for event in self.off(record, now_s, "its GPUs are blocked", lives=False)]

    def begin_attempt(self, job: int, gpus: tuple[int, ...], now_s: float) -> tuple[JobRecord, Attempt]:
        """Add a new attempt to the record of a job."""
        record = self.store[job]
        resume = record.progress.checkpoint is not None
        date_s = self.date_s(now_s)
        attempt = Attempt(len(record.attempts) + 1, list(gpus), secrets.token_hex(8), date_s, resume=resume, ran_s=0.0)
        attempt.spans = []
        attempt.nodes = self.state.cluster.names_of(sorted(gpus))
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

    def target(self, job: int) -> AttemptTarget | None:
        """The GPUs that the state holds for a job, its host, its part of the time, and the split of its batch."""
        gpus = self.state.held_gpus.get(job)
        if gpus is None:
            return None
        table = self.state.table
        row = table.position(job)
        host, throttle = int(table.i[columns.HOST, row]), float(table.f[columns.THROTTLE, row])
        facts = self.state.facts.get(job)
        return AttemptTarget(gpus, host, throttle, None if facts is None else facts.split)

    def adjusted(self) -> dict[int, tuple[float, Split | None]]:
        """The throttles and batches of all jobs with GPUs, without those that have all of the time and no batch."""
        floats, ints = self.state.table.window()
        rows = (floats[columns.THROTTLE] < 1).nonzero()[0]
        slowed = zip(ints[columns.JOB, rows].tolist(), floats[columns.THROTTLE, rows].tolist(), strict=True)
        found: dict[int, tuple[float, Split | None]] = {job: (throttle, None) for job, throttle in slowed}
        for job in self.state.adaptive:
            split = self.state.facts[job].split
            if split is not None:
                found[job] = found.get(job, (1.0, None))[0], split
        return {job: adjusted for job, adjusted in found.items() if job in self.state.held_gpus}

    def stays(self, job: int) -> bool:
        """Whether a job that loses its GPUs is suspended in place, rather than stopped."""
        return self.store[job].stays

    def date_s(self, time_s: float) -> float:
        """The date of an instant by the scheduler's clock, as records keep it."""
        return self.origin_s + time_s

    def _started(self, one: AttemptStarted) -> list[Event]:
        record = self.store[one.job]
        if record.state.ended or one.job not in self.state.held_gpus:
            # It was cancelled, held or suspended before this was handled.
            return []
        attempt, date_s = record.attempt, self.date_s(one.time_s)
        if attempt is not None:
            # A round that is late has an earlier instant than the launch.
            date_s = max(date_s, attempt.launched_s)
            record.count_until(date_s)
            # Virtual GPUs may be others than those on which it was suspended.
            attempt.take(list(one.gpus), self._host(one.job))
            attempt.started_s = attempt.started_s or date_s
            if record.state is JobState.SUSPENDED and one.resumed:
                where = gpus_text(self.state.cluster, attempt.gpus)
                self.store.note(record, date_s, "resumed", f"resumed on {where}")
        life.move(record, JobState.RUNNING, date_s)
        self.promises.started(record, date_s)
        self.observations.started(record, resumed=one.resumed)
        self.store.touch(record)
        others = self.observations.regrouped(one.time_s, one.job)
        return [*others, JobStarted(one.time_s, one.job, self.observations.rate(record), one.time_s)]

    def _host(self, job: int) -> str | None:
        """The id of the job whose GPUs a job shares."""
        host = int(self.state.table.i[columns.HOST, self.state.table.position(job)])
        return None if host < 0 else self.store[host].id

    def _lacks_room(self, one: RoomLacked) -> list[Event]:
        """Take a job off GPUs whose memory is taken. It is tried again after a while; other jobs go first."""
        record = self.store[one.job]
        if record.state.ended or one.job not in self.state.held_gpus:
            return []
        record.not_before_s = self.date_s(one.time_s) + ROOM_RETRY_S
        record.reason = f"{one.why}; tried again in {ROOM_RETRY_S:.0f} s"
        self.store.note(record, self.date_s(one.time_s), "waits", record.reason)
        # Others are asked about at once, and this one later.
        self.timers.set(one.time_s)
        self.timers.set(one.time_s + ROOM_RETRY_S)
        self.eligibility.note_off(record, one.time_s)
        self.store.touch(record)
        self.instructions.append(Converge(one.job))
        seen = self.observations
        progress = seen.progress(record) if record.state is JobState.SUSPENDED else seen.saved(record)
        return [JobEvicted(one.time_s, one.job, progress, one.why)]

    def _ended(self, one: AttemptEnded) -> list[Event]:
        self.instructions.append(Settle())
        return [*self._ends.over(self.store[one.job], one), *self.observations.regrouped(one.time_s, one.job)]

    def _reported(self, one: Reported) -> list[Event]:
        return self.observations.reported(self.store[one.job], one.report, one.time_s)

    def _read_off(self, one: ReadOff) -> list[Event]:
        record = self.store[one.job]
        # What a cancelled job wrote last is kept. That its log says nothing any more is no news.
        cancelled = record.state.ended and not record.settled and one.found is not None
        if not (record.state is JobState.RUNNING or cancelled) or one.attempt != len(record.attempts):
            return []
        return self.observations.read_off(record, one.found, one.time_s)

    def _asked(self, one: Asked) -> list[Event]:
        try:
            events, result = one.command(one.time_s)
        except Exception as error:
            one.answer.set_exception(error)
            return []
        self._answers.append((one, result))
        return events

    def _time_of_day_set(self, one: TimeOfDaySet) -> list[Event]:
        for job in self.state.held_gpus:
            # The next report may have its time by a clock that was just set: it says nothing about the speed.
            self.store[job].progress.reported_s = None
        return [*self.look_at_begin_times(one.time_s, one.shift_s), Woken(one.time_s)]

    def look_at_begin_times(self, now_s: float, shift_s: float) -> list[Event]:
        """The time of day is ahead by `shift_s` now: find out again whose time has come.

        A job whose time has come no more, and that still waits for its GPUs to be left, loses them.
        """
        self.eligibility.shift_s = shift_s
        events: list[Event] = []
        for record in self.store:
            if record.state.ended or record.request.begin_s is None or record.attempts:
                continue
            early = self.eligibility.is_early(record, now_s)
            self.eligibility.look_at(record, now_s, leaves=early)
            if early and record.number in self.state.held_gpus:
                self.instructions.append(Converge(record.number))
                events.append(JobEvicted(now_s, record.number, 0.0, "its time has not come"))
        return events

    def _woken(self, woken: Woken) -> list[Event]:
        self.timers.ring(woken.time_s)
        return [woken]


class AttemptEnds:
    """Updates the records of jobs whose attempts end, and returns events for the state."""

    def __init__(self, jobs: LiveJobs) -> None:
        self._jobs = jobs
        self._seen = jobs.observations

    def over(self, record: JobRecord, end: AttemptEnded) -> list[Event]:
        """Say what the end of an attempt means for its job."""
        attempt, outcome, now_s = record.attempt, end.outcome, end.time_s
        assert attempt is not None
        attempt.ended_s = max(self._jobs.date_s(end.ended_s), attempt.launched_s)
        if outcome.ran_s is not None:
            record.count_attempt(outcome.ran_s)
        record.count_until(attempt.ended_s)
        # One that had done its work, or had run for its time, is no worse off for the loss of a node.
        ended = outcome.cause == "limit" or verdict(outcome, asked=True).next == "done"
        broken = not ended and (attempt.cause == NODE_LOST or (outcome.cause == "lost" and self._is_down(attempt)))
        attempt.codes, attempt.cause = list(outcome.codes), NODE_LOST if broken else outcome.cause
        self._seen.restarts.ended(record, outcome.stop_s)
        self._jobs.store.touch(record)
        if record.state.ended:
            # It was cancelled before, but its processes are gone only now.
            record.ended_s = attempt.ended_s
            self._seen.forget(record)
            return []
        asked = outcome.cause == "request"
        judged = verdict(outcome, asked=asked)
        if broken:
            # Whatever became of its other ranks, that is not its fault: it goes on at once, from its last checkpoint.
            why = record.reason or "a node that it ran on is lost"
            judged, asked = Verdict("again", JobState.PREEMPTED, -1, why), True
        gpus = self._jobs.state.held_gpus.get(record.number)
        moves = gpus is not None and not end.found and not self._jobs.blocked.among(gpus)
        if judged.next == "again" and asked and moves:
            return self._moves(record, judged, now_s)
        # The next decision says whether and where it runs again.
        if judged.next == "done":
            return self._done(record, now_s)
        if judged.next == "again":
            if not asked and self._is_in_vain(record):
                why = f"has ended with code {CHECKPOINTED} {record.vain_saves} times in a row, without progress"
                return self._failed(record, Verdict("failed", JobState.FAILED, CHECKPOINTED, why), now_s)
            return self._again(record, judged, now_s, asked=asked)
        return self._failed(record, judged, now_s)

    def _note(self, record: JobRecord, what: str, text: str) -> None:
        """Tell what the end of the latest attempt of a job means. A job that has lost a node was told already."""
        attempt = record.attempts[-1]
        if attempt.cause != NODE_LOST and attempt.ended_s is not None:
            self._jobs.store.note(record, attempt.ended_s, what, text)

    def _is_down(self, attempt: Attempt) -> bool:
        """Whether a node of an attempt is lost."""
        down, cluster = self._jobs.state.occupancy.down, self._jobs.state.cluster
        return bool(down) and any(cluster.node_of_gpu[gpu] in down for gpu in attempt.gpus if gpu >= 0)

    def _is_in_vain(self, record: JobRecord) -> bool:
        """Whether a job ends again and again to run again, but gets nowhere."""
        attempt, step = record.attempts[-1], record.progress.step
        ran_s = (attempt.ended_s or attempt.launched_s) - attempt.launched_s
        moved = step > record.saved_step or ran_s >= LONG_S
        record.vain_saves, record.saved_step = 0 if moved else record.vain_saves + 1, max(step, record.saved_step)
        return record.vain_saves >= MOST_VAIN_SAVES

    def _done(self, record: JobRecord, now_s: float) -> list[Event]:
        record.exit_code = 0
        learnt = self._seen.learn(record, now_s)
        record.progress.complete(record.request.steps)
        self._leave(record, JobState.COMPLETED, "", now_s)
        return [JobFinished(now_s, record.number), *learnt]

    def _moves(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It was stopped to go on elsewhere or on other GPUs. The state has booked these for it already."""
        self._fall_back(record)
        life.move(record, JobState.PREEMPTED, self._jobs.date_s(now_s), judged.why)
        self._note(record, "stopped", judged.why)
        stands = RateChanged(now_s, record.number, self._seen.saved(record), 0.0)
        return [stands, *self._seen.restart_cost(record, now_s)]

    def _again(self, record: JobRecord, judged: Verdict, now_s: float, *, asked: bool) -> list[Event]:
        """It runs again from its last checkpoint: at once if it was asked to stop, otherwise after a delay."""
        self._fall_back(record)
        why = record.reason if record.reason == RECLAIMED else judged.why
        life.move(record, JobState.SUSPENDED if record.suspended else JobState.PREEMPTED, self._jobs.date_s(now_s), why)
        self._note(record, "stopped", judged.why + ("" if asked else f"; runs again in {BACK_OFF_S:.0f} s"))
        if not asked:
            record.not_before_s = self._jobs.date_s(now_s) + BACK_OFF_S
            self._jobs.timers.set(now_s + BACK_OFF_S)
            self._jobs.eligibility.note_off(record, now_s)
        evicted = JobEvicted(now_s, record.number, self._seen.saved(record), judged.why)
        return [evicted, *self._seen.restart_cost(record, now_s)]

    def _failed(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It failed, or its machine did. It is tried again after a delay if it may be."""
        lost = judged.next in ("lost", "refused")
        record.failures += not lost
        losses = self._losses(record, judged)
        again = losses <= MOST_LOST if lost else judged.next == "retry" and record.failures <= record.request.retries
        if not again:
            record.exit_code = judged.code
            self._leave(record, judged.state, judged.why, now_s)
            return [JobFailed(now_s, record.number, judged.why)]
        self._fall_back(record)
        tries = losses if lost else record.failures
        wait_s = 0.0 if lost and losses == 1 else min(BACK_OFF_S * 2 ** (tries - 1), MOST_BACK_OFF_S)
        record.not_before_s = self._jobs.date_s(now_s) + wait_s
        life.move(record, JobState.PENDING, self._jobs.date_s(now_s), f"{judged.why}; tried again in {wait_s:.0f} s")
        self._note(record, "lost" if lost else "failed", record.reason)
        self._jobs.timers.set(now_s + wait_s)
        self._jobs.eligibility.note_off(record, now_s)
        return [JobEvicted(now_s, record.number, self._seen.saved(record), judged.why)]

    def _fall_back(self, record: JobRecord) -> None:
        """Its next attempt starts from its last checkpoint. One that has saved its state, but does not say where, goes
        on from the step that it had reached."""
        if record.progress.checkpoint is not None or CHECKPOINTED not in record.attempts[-1].codes:
            record.progress.fall_back()

    def _losses(self, record: JobRecord, judged: Verdict) -> int:
        """How often the machine has failed it. A machine that could not even start it is asked as long as it takes."""
        if judged.next != "refused":
            return sum(attempt.cause == "lost" for attempt in record.attempts)
        started = [number for number, one in enumerate(record.attempts) if one.cause != REFUSED]
        return min(len(record.attempts) - (started[-1] + 1 if started else 0), MOST_LOST)

    def _leave(self, record: JobRecord, state: JobState, why: str, now_s: float) -> None:
        """End the job for good."""
        life.move(record, state, self._jobs.date_s(now_s), why)
        self._jobs.promises.ended(record, self._jobs.date_s(now_s))
        self._seen.forget(record)
        self._jobs.eligibility.note_off(record, now_s)
