"""The commands of users, in terms of records and events.

A command changes records, returns events for the state, and adds instructions for the engine. It does nothing else.
The journal first gets its records and events together; then the instructions are carried out. On their way to the
scheduler's thread, commands wait in the `Inbox`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from fairway.core.cluster import Cluster
from fairway.core.errors import FairwayError, InputError
from fairway.core.event import Event, JobCancelled, JobSubmitted, JobUpdated
from fairway.runtime.jobs import life
from fairway.runtime.jobs.arrivals import Arrival, awaited
from fairway.runtime.jobs.estimates import refuse_too_large, speeds_of, submitted, why_impossible
from fairway.runtime.jobs.holdings import Load
from fairway.runtime.jobs.job_story import by_whom, changes_text
from fairway.runtime.jobs.life import MORE, WAITS, Command, NotDone, Settle, Stop
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.waiting import Reasons
from fairway.runtime.processes.host_size import HostSize

UPDATABLE = ("priority", "weight", "limit_s", "deadline_s", "name")

Act = Callable[[JobRecord, float], list[Event]]
"""What a command does to one job at an instant. It raises its errors before it changes anything."""


class UnknownJobError(FairwayError):
    """There is no job with this id."""


class WrongStateError(FairwayError):
    """The command is not possible in the job's present state."""


class StoppedError(FairwayError):
    """The scheduler has stopped and takes no commands."""


class AdmissionTerms(Protocol):
    """What the configuration says about jobs."""

    def refuse(self, requests: Sequence[JobRequest]) -> None:
        """Raise `InputError` if a request is not allowed."""
        ...

    def refuse_too_many(self, load: Load, jobs: LiveJobs, now_s: float) -> None:
        """Raise `InputError` if so many new jobs are not allowed."""
        ...

    def given(self, requests: Sequence[JobRequest]) -> Sequence[JobRequest]:
        """Requests that are allowed, with the terms that they get."""
        ...

    def amended(self, request: JobRequest, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The changes as they are made to a request; `InputError` if its owner may not make one of them."""
        ...

    def ranked(self, request: JobRequest) -> int:
        """The priority that counts for a request."""
        ...


class Commands:
    """What can be done to jobs.

    What is done to many jobs is done to `piece` of them at a time. `keep` writes facts down, together with the records
    and events of a command. `account` is the user that processes run as if a submission does not say it. `lives(job)`
    says whether a job has an attempt with processes. `tell_limit(job, limit_s)` gives a running attempt a new time
    limit. It is the only thing done before it is in the journal, so that the owner gets its error (`OSError`).
    `largest` is the size of the largest machine, if that is known.
    """

    def __init__(
        self,
        jobs: LiveJobs,
        reasons: Reasons,
        terms: AdmissionTerms,
        *,
        piece: int,
        keep: Callable[[Mapping[str, Any]], None],
        account: str,
        lives: Callable[[int], bool],
        tell_limit: Callable[[int, float | None], None],
        largest: Callable[[], HostSize | None] = lambda: None,
    ) -> None:
        self._jobs = jobs
        self._store = jobs.store
        self._reasons = reasons
        self._terms = terms
        self._piece = piece
        self._keep = keep
        self.account = account
        self._lives = lives
        self._tell_limit = tell_limit
        self._largest = largest

    @property
    def _cluster(self) -> Cluster:
        return self._jobs.state.cluster

    def refuse_impossible(self, requests: Sequence[JobRequest], cluster: Cluster | None = None) -> None:
        """Raise `InputError` if a job can never run here, or on another cluster. Any thread may call this."""
        cluster = cluster or self._cluster
        for request in requests:
            if not any(speeds_of(request, cluster)):
                raise InputError(why_impossible(request, cluster))
            refuse_too_large(request, self._largest())
        self._refuse_unknown(requests)

    def _refuse_unknown(self, requests: Sequence[JobRequest]) -> None:
        """Raise `InputError` if a job depends on one that is not there."""
        for name in awaited(requests):
            if not self._store.has(name):
                raise InputError(f"depends: there is no job {name!r} to wait for")

    def take_in(self, requests: Sequence[JobRequest], *, array: bool) -> Command:
        """The command that adds jobs, except for those that were submitted before under the same key.

        Any thread may call this.
        """
        arrival = Arrival(requests, array=array)
        if len(requests) > self._piece:
            arrival.prepare()

        def command(now_s: float) -> tuple[list[Event], Any]:
            not_done = self._check(arrival, now_s) if arrival.first_id is None else None
            if not_done is not None:
                return [], not_done
            events = self._add_some(arrival, now_s)
            return events, MORE if arrival.left else arrival.answer()

        return command

    def go_on(self, arrival: Arrival) -> Command:
        """The command that adds the rest of a submission that an earlier scheduler had accepted."""

        def command(now_s: float) -> tuple[list[Event], Any]:
            return self._add_some(arrival, now_s), MORE if arrival.left else None

        return command

    def _check(self, arrival: Arrival, now_s: float) -> NotDone | None:
        """Check the next requests of a submission. Returns None if all of it may come at once.

        A submission that comes piece by piece is accepted when it is in the journal.
        """
        store = self._store
        if not arrival.known and store.is_to_wait(arrival):
            return WAITS
        try:
            new = arrival.note_known(store.known(arrival.unchecked(self._piece)))
            if len(arrival.known) < len(arrival.requests):
                self._terms.refuse(new)
                store.begin_arrival(arrival)
                return MORE
            # Once more: a job may be gone since its request was checked.
            self._refuse_unknown(arrival.new)
            if arrival.new:
                self._terms.refuse_too_many(arrival.load, self._jobs, now_s)
            self._terms.refuse(new)
        except BaseException:
            store.end_arrival(arrival)
            raise
        arrival.first_id = store.next_id
        if len(arrival.new) <= self._piece:
            return None
        store.promise(arrival)
        self._keep(arrival.facts())
        return MORE

    def _add_some(self, arrival: Arrival, now_s: float) -> list[Event]:
        """Add the next jobs of a submission that was accepted."""
        events: list[Event] = []
        some = arrival.next_requests(self._piece)
        for asked, request in zip(some, self._terms.given(some), strict=True):
            if arrival.promised:
                self._store.held.keep_promise(asked)
            record = self._taken(request, arrival.next_name(), now_s)
            arrival.note(record)
            events.append(self._submitted(record, now_s))
        if arrival.promised:
            # The numbers of jobs do not say what the next id is: other jobs have come in between.
            self._keep({"next": [self._store.next_number, self._store.next_id], **arrival.facts()})
        if not arrival.left:
            self._store.end_arrival(arrival)
        return events

    def each(self, name: str, act: Act, what: str = "", by: str = "") -> Command:
        """The command that acts on a job, or on all tasks of an array for which that is possible.

        The jobs that it changes are told `what` happened to them, and by whom.
        """
        records: list[JobRecord] = []
        left: list[JobRecord] = []
        refused: list[WrongStateError] = []

        def command(now_s: float) -> tuple[list[Event], Any]:
            if not records:
                if self._store.is_arriving(name):
                    return [], WAITS
                records.extend(self._meant(name))
                held = self._jobs.state.held_gpus
                # Those with GPUs come last: until then, their GPUs do not go to other tasks of the same array.
                left.extend(sorted(records, key=lambda one: one.number in held))
            events = self._act_on(left[: self._piece], self._telling(act, what, by) if what else act, now_s, refused)
            del left[: self._piece]
            if not left and len(refused) == len(records):
                raise refused[0]
            return events, MORE if left else records

        return command

    def _meant(self, name: str) -> list[JobRecord]:
        """The job with an id, or all tasks of the array with this id."""
        # The tasks of an array that are only on disk have ended long ago.
        records = self._store.present(name) or self._store.tasks(name)
        if not records:
            raise UnknownJobError(f"there is no job {name!r}")
        return records

    def _telling(self, act: Act, what: str, by: str) -> Act:
        """The same act, of which the jobs that it changes are told."""

        def told(record: JobRecord, now_s: float) -> list[Event]:
            before, request = (record.state, record.held, record.suspended), record.request
            events = act(record, now_s)
            changes = changes_text(request, record.request, UPDATABLE)
            if changes or before != (record.state, record.held, record.suspended):
                told = f"{what}{f': {changes}' if changes else ''}{by_whom(by, record)}"
                self._store.note(record, self._jobs.date_s(now_s), what, told)
            return events

        return told

    def _act_on(
        self, records: Sequence[JobRecord], act: Act, now_s: float, refused: list[WrongStateError]
    ) -> list[Event]:
        """Act on some jobs. Adds the refusals of those for which it is not possible."""
        events: list[Event] = []
        for record in records:
            ended = record.state.ended
            try:
                events += act(record, now_s)
            except WrongStateError as error:
                refused.append(error)
                continue
            if not ended:
                self._jobs.promises.void(record, self._jobs.date_s(now_s))
                self._store.touch(record)
        return events

    def cancel(self, record: JobRecord, now_s: float) -> list[Event]:
        """End a job."""
        if record.state.ended:
            return []
        life.move(record, JobState.CANCELLED, self._jobs.date_s(now_s), "cancelled")
        if self._lives(record.number):
            self._jobs.instructions.append(Stop(record.number, hurry=True))
        else:
            self._jobs.observations.forget(record)
        self._jobs.eligibility.note_off(record, now_s)
        return [JobCancelled(now_s, record.number)]

    def suspend(self, record: JobRecord, now_s: float) -> list[Event]:
        """Take a job off its GPUs until it is released."""
        return self._set_aside(record, now_s, suspended=True)

    def hold(self, record: JobRecord, now_s: float) -> list[Event]:
        """Keep a job from starting until it is released."""
        return self._set_aside(record, now_s, suspended=False)

    def release(self, record: JobRecord, now_s: float) -> list[Event]:
        """Let a held or suspended job run again."""
        if record.state.ended:
            raise WrongStateError(f"job {record.id} is {record.state}; it cannot be released")
        record.held = record.suspended = False
        self._reasons.forget(record.number)
        self._jobs.eligibility.look_at(record, now_s)
        return []

    def requeue(self, record: JobRecord, now_s: float) -> list[Event]:
        """Stop a running job and put it back in the queue."""
        if record.state is not JobState.RUNNING and record.number not in self._jobs.state.held_gpus:
            raise WrongStateError(f"job {record.id} is {record.state}; only running jobs can be put back in the queue")
        life.move(record, JobState.PENDING, self._jobs.date_s(now_s), record.reason)
        events = self._off(record, now_s, "put back in the queue")
        if not record.saves_when_asked:
            record.progress.fall_back()
        self._jobs.instructions.append(Stop(record.number))
        return events

    def changing(self, changes: Mapping[str, Any]) -> Act:
        """The act that changes the terms of a job; `InputError` if owners cannot change one of these terms.

        Any thread may call this.
        """
        for one in changes:
            if one not in UPDATABLE:
                raise InputError(f"{one!r} of a job cannot be changed; {', '.join(UPDATABLE)} can")
        return lambda record, now_s: self.set_terms(record, now_s, self._terms.amended(record.request, changes))

    def set_terms(self, record: JobRecord, now_s: float, changes: Mapping[str, Any]) -> list[Event]:
        """Change the terms of a job."""
        if record.state.ended:
            raise WrongStateError(f"job {record.id} is {record.state}; it cannot be changed")
        request = replace(record.request, **changes)
        if "limit_s" in changes and self._lives(record.number):
            try:
                self._tell_limit(record.number, request.limit_s)
            except OSError as error:
                raise WrongStateError(f"job {record.id} runs, and its time limit cannot be changed: {error}") from None
        record.request = request
        submitted_s = record.submitted_s - self._jobs.origin_s
        deadline_s = math.inf if request.deadline_s is None else submitted_s + request.deadline_s
        return [JobUpdated(now_s, record.number, request.weight, self._terms.ranked(request), deadline_s)]

    def guests_off(self, now_s: float) -> list[Event]:
        """Take guests off the GPUs of their hosts, as a decision of the policy would. Jobs with shares stay."""
        snapshot = self._jobs.state.snapshot()
        guests = (snapshot.host >= 0).nonzero()[0]
        hosts = snapshot.rows_of(snapshot.host[guests])
        whole = (snapshot.share[guests] >= 1) | (snapshot.share[hosts] >= 1)
        events: list[Event] = []
        for job in snapshot.jobs[guests[whole]].tolist():
            self._jobs.preempted(self._store[job], now_s, lives=self._lives(job))
            text = "taken off the GPUs that it shared: another policy decides from now on"
            self._store.note(self._store[job], self._jobs.date_s(now_s), "preempted", text)
            events += self._off(self._store[job], now_s, "shared a GPU")
        return events

    def block_gpus(self, blocked: Mapping[int, str], now_s: float) -> list[Event]:
        """Block GPUs, by number with the reason. Jobs that were to start on them are given others."""
        self._jobs.blocked.set(blocked)
        self._jobs.instructions.append(Settle())
        return self._jobs.off_blocked(now_s)

    def _taken(self, request: JobRequest, name: str, now_s: float) -> JobRecord:
        date_s = self._jobs.date_s(now_s)
        if not request.account:
            request = replace(request, account=self.account)
        record = JobRecord(self._store.next_number, name, request, date_s, held=request.hold)
        self._store.add(record)
        self._store.touch(record)
        self._jobs.eligibility.look_at(record, now_s)
        return record

    def _submitted(self, record: JobRecord, now_s: float) -> JobSubmitted:
        seen = self._jobs.observations
        expected_s, restart_s = seen.times.expected_s(record.request), seen.restarts.expected_s(record.request)
        event = submitted(record, seen.relative(record), expected_s, now_s, restart_s)
        priority = self._terms.ranked(record.request)
        if priority != event.spec.priority:
            event = event._replace(spec=replace(event.spec, priority=priority))
        seen.recall(event)
        return event

    def _set_aside(self, record: JobRecord, now_s: float, *, suspended: bool) -> list[Event]:
        if record.state.ended:
            verb = "suspended" if suspended else "held"
            raise WrongStateError(f"job {record.id} is {record.state}; it cannot be {verb}")
        record.held, record.suspended = record.held or not suspended, record.suspended or suspended
        granted = record.number in self._jobs.state.held_gpus
        # A running job that is held runs on. A job that still waits for its GPUs to be left does not start.
        leaves = granted and (suspended or record.state is not JobState.RUNNING)
        if not leaves:
            self._jobs.eligibility.look_at(record, now_s)
            return []
        if record.state is JobState.RUNNING:
            life.move(record, JobState.SUSPENDED, self._jobs.date_s(now_s), record.reason)
        return self._off(record, now_s, f"{'suspended' if suspended else 'held'} by its owner")

    def _off(self, record: JobRecord, now_s: float, why: str) -> list[Event]:
        """Take a job off the GPUs that it was granted."""
        return self._jobs.off(record, now_s, why, lives=self._lives(record.number))


class Inbox:
    """Commands from any thread wait here for the scheduler's thread."""

    def __init__(self) -> None:
        self.closed = False
        self._asked: list[tuple[Command, Future[Any]]] = []
        self._lock = threading.Lock()

    def put(self, command: Command) -> Future[Any]:
        """Add a command. Any thread may call this."""
        answer: Future[Any] = Future()
        # If the caller stops waiting for the answer, the command still runs.
        answer.set_running_or_notify_cancel()
        with self._lock:
            if self.closed:
                raise StoppedError("the scheduler has stopped")
            self._asked.append((command, answer))
        return answer

    def take(self) -> list[tuple[Command, Future[Any]]]:
        """The commands since the last time, in order."""
        with self._lock:
            asked, self._asked = self._asked, []
        return asked

    def close(self) -> None:
        """Accept no more commands."""
        self.closed = True

    def refuse_all(self, error: Exception) -> None:
        """The scheduler has ended: answer all waiting commands with an error."""
        self.closed = True
        for _, answer in self.take():
            answer.set_exception(error)
