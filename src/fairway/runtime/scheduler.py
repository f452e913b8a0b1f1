"""A live scheduler: the one loop around live processes, with a journal that lets it be killed at any instant.

Every step is written down before it is acted on. A restart replays the log of all jobs that have not ended, which gives
the same state again, finds the processes that went on meanwhile, and takes the next step towards what was decided.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fairway.core.action import Action
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.errors import EngineError, FairwayError, InputError
from fairway.core.event import Event, JobCancelled, JobEvicted, JobUpdated, Woken
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.core.round import Loop
from fairway.core.snapshot import Snapshot, plain_memory
from fairway.core.state import State
from fairway.runtime.arrays import Arrays
from fairway.runtime.clock import Clock
from fairway.runtime.estimates import speeds_of, submitted, why_impossible
from fairway.runtime.gate import Gate, Limits
from fairway.runtime.journal import DiskFullError, Journal, StoredJob
from fairway.runtime.live import LiveEngine
from fairway.runtime.placing import AtHome
from fairway.runtime.reasons import Reasons
from fairway.runtime.rebuild import fingerprint, launches, queued_anew, renumber, replay
from fairway.runtime.records import Book, JobRecord, JobState
from fairway.runtime.request import JobRequest

MEMORY_EVERY_S = 10.0
FULL_RETRY_S = 1.0
UPDATABLE = ("priority", "weight", "limit_s", "deadline_s", "name")
MIN_RUN_S = 5.0
"""A job that was just started is left alone for this long."""


class UnknownJobError(FairwayError):
    """There is no job of this id."""


class WrongStateError(FairwayError):
    """The job is in a state in which this cannot be done."""


class Scheduler:
    """Jobs, processes and the loop between them. `run` blocks; everything public may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        policy: Policy,
        placer: Placer,
        *,
        devices: Sequence[str] | None = None,
        round_s: float | None = None,
        limits: Limits | None = None,
        seed: int = 0,
        min_run_s: float = MIN_RUN_S,
        policy_text: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cluster = cluster
        self.journal = Journal(folder / "journal.db")
        facts = self.journal.facts()
        clock = Clock(float(facts.get("origin_s", time.time())), float(facts.get("last_s", 0.0)))
        self.book = Book()
        self.engine = LiveEngine(cluster, devices, folder / "jobs", self.book, clock)
        length_s = policy.round_s if round_s is None else round_s
        self._new_state = partial(State, cluster, min_run_s=min_run_s, seed=seed, round_s=length_s)
        self.state = self._new_state()
        self.gate = Gate(policy, limits)
        self.gate.blocked = lambda: self.engine.processes.blocked
        self.gate.homes = self.engine.homes
        self.engine.save, self.engine.on_off = self._save, self._note_off
        self.engine.round_s = length_s
        placed = AtHome(placer, self.engine)
        self.loop = Loop(self.engine, self.state, self.gate, placed, round_s=length_s, observer=self)
        self._take_state(self.state)
        self.engine.happened = self._happened
        self.listeners: list[Callable[[Sequence[Event]], None]] = []
        self.watchers: list[Callable[[Decision, Sequence[Action]], None]] = []
        self.reasons = Reasons()
        self.on_full: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None
        self.problem = ""
        self.on_stop: Callable[[], None] = lambda: None
        self.admission: Callable[[list[JobRequest]], list[JobRequest]] = lambda requests: requests
        self.amendment: Callable[[JobRequest, Mapping[str, Any]], Mapping[str, Any]] = lambda request, changes: changes
        self._impossible: set[int] = set()
        self._gone: set[int] = set()
        self._names = 0
        self._dependants: dict[str, set[int]] = {}
        self._arrays = Arrays()
        self._memory_s = 0.0
        self.policy_text = policy_text or policy.name
        self._recover(facts)

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Schedule until `close` is called.

        An error that nobody expected ends the scheduler, not the jobs: what is on disk is sound, and whoever starts it
        again takes up from there.
        """
        try:
            self._take_up()
            if self.state.active:
                self.engine.alarm(self.engine.clock.now_s())
            while self.loop.step():
                pass
            self._save()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.engine.refuse_all(self.failure)
            self.journal.close()
            self.on_stop()

    def start(self) -> threading.Thread:
        """Run in a thread of its own."""
        thread = threading.Thread(target=self.run, name="scheduler", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Stop scheduling; processes go on, and a later scheduler finds them."""
        self.engine.close()

    def end_all(self, seconds: float = 30.0) -> None:
        """Cancel every job that has not ended, and wait until no process of theirs is left, for so long at most."""
        for record in self.book:
            if not record.state.ended:
                self.cancel(record.id)
        deadline_s = time.monotonic() + seconds
        while self.engine.processes.live and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def ask(self, command: Callable[[float], tuple[list[Event], Any]]) -> Any:
        """Carry out a command in the scheduler's thread and wait for its answer."""
        answer: Future[Any] = self.engine.ask(command)
        return answer.result()

    # --- what users ask for ------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[JobRequest], *, array: bool = False) -> list[JobRecord]:
        """Take jobs in; those that were submitted before under the same key are returned as they are."""
        return list(self.submission(requests, array=array).result())

    def submission(self, requests: Sequence[JobRequest], *, array: bool = False) -> Future[list[JobRecord]]:
        """Take jobs in, for whoever cannot wait here: what `submit` returns comes as the result."""
        for request in requests:
            self._refuse_impossible(request)
        self.journal.refuse_if_full()

        def command(now_s: float) -> tuple[list[Event], list[JobRecord]]:
            events, records, base = list[Event](), list[JobRecord](), self.book.next_id
            new = [at for at, request in enumerate(requests) if self._known(request) is None]
            admitted = dict(zip(new, self.admission([requests[at] for at in new]), strict=True))
            for at, asked in enumerate(requests):
                known = self._known(asked)
                if known is not None:
                    records.append(known)
                    continue
                request = admitted[at]
                name = f"{base}_{request.array_task}" if array else str(self.book.next_id)
                record = self._taken(request, name, now_s)
                records.append(record)
                seen = self.engine.seen
                expected_s, restart_s = seen.times.expected_s(request), seen.restarts.expected_s(request)
                event = submitted(record, self.cluster, expected_s, now_s, restart_s)
                seen.recall(event)
                events.append(event)
            return events, records

        return self.engine.ask(command)

    def cancel(self, name: str) -> list[JobRecord]:
        """End jobs; their processes are asked to stop, and killed after their grace period."""
        return self._each(name, self._cancelled)

    def suspend(self, name: str) -> list[JobRecord]:
        """Take a running job off its GPUs until it is resumed."""
        return self._each(name, lambda record, now_s: self._set_aside(record, now_s, suspended=True))

    def requeue(self, name: str) -> list[JobRecord]:
        """Stop a running job and let it wait for its turn again."""
        return self._each(name, self._requeued)

    def hold(self, name: str) -> list[JobRecord]:
        """Do not start a job until it is released."""
        return self._each(name, lambda record, now_s: self._set_aside(record, now_s, suspended=False))

    def release(self, name: str) -> list[JobRecord]:
        """Let a held or suspended job run again."""
        return self._each(name, self._released)

    def update(self, name: str, changes: Mapping[str, Any]) -> list[JobRecord]:
        """Change the terms of a job: its priority, weight, limit_s, deadline_s or name."""
        for one in changes:
            if one not in UPDATABLE:
                raise InputError(f"{one!r} of a job cannot be changed; {', '.join(UPDATABLE)} can")
        return self._each(
            name, lambda record, now_s: self.set_terms(record, now_s, self.amendment(record.request, changes))
        )

    def set_policy(self, policy: Policy, text: str) -> None:
        """Go on with another policy; what the old one remembered is dropped.

        Nobody is stopped by the change itself, except for guests: another policy may not let jobs share GPUs.
        """

        def command(now_s: float) -> tuple[list[Event], None]:
            self.gate.policy = policy
            self.state.memory = {}
            self.policy_text = text
            with self.journal.transaction():
                self.journal.set_facts({"policy": text, "memory": {}})
            self.engine.alarm(now_s)
            return self._guests_off(now_s), None

        self.ask(command)

    def leave_alone(self, blocked: Mapping[int, str]) -> None:
        """Start nobody on some GPUs, by number with the reason; who was to start there is given others."""

        def command(now_s: float) -> tuple[list[Event], None]:
            processes = self.engine.processes
            processes.blocked = blocked
            waiting = [job for job in processes.targets if job not in processes.live and processes.is_blocked(job)]
            events = [event for job in waiting for event in self._off(self.book[job], now_s, "its GPUs are left alone")]
            processes.settle()
            self.engine.alarm(now_s)
            return events, None

        self.engine.ask(command)

    # --- the observer of the loop ------------------------------------------------------------------------------------

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Write down what happened; then those who asked get their answers."""
        self._write([event for event in events if type(event) is not Woken])
        answers, self.engine.answers = self.engine.answers, []
        for answer, result in answers:
            answer.set_result(result)
        for listener in self.listeners:
            listener(events)
        self.engine.settle()

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Write down what was decided, before it is done."""
        now_s = snapshot.now_s
        self.reasons.note(snapshot, decision)
        if actions or now_s >= self._memory_s:
            self._memory_s = now_s + MEMORY_EVERY_S
            facts = {"memory": plain_memory(decision.memory), "round": self.state.round, "last_s": now_s}
            names = self.state.names()
            if sum(map(len, names)) != self._names:
                self._names, facts["names"] = sum(map(len, names)), names
            # The instant of the round, which may be later than the last event.
            self._write((Woken(now_s),) if actions else (), actions=actions, facts=facts)
        for watcher in self.watchers:
            watcher(decision, actions)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _happened(self, events: Sequence[Event]) -> None:
        """Commands were carried out while the loop waits: whoever observes it is told as after any events."""
        assert self.loop.observer is not None
        self.loop.observer.after_events(self.state, events)

    def _write(
        self, events: Sequence[Event], *, actions: Sequence[Action] = (), facts: Mapping[str, Any] | None = None
    ) -> None:
        """One transaction. Where there is no room the scheduler waits for some; running jobs are not affected."""
        changed = [_stored(record) for record in self.book.take_changed()]
        if not (events or actions or changed or facts):
            return
        while True:
            try:
                with self.journal.transaction():
                    self.journal.append(events)
                    self.journal.append(actions, max(self.state.round, 1))
                    self.journal.save_jobs(changed)
                    if facts:
                        self.journal.set_facts(facts)
                self.journal.tidy()
                return
            except DiskFullError:
                self.on_full()
                time.sleep(FULL_RETRY_S)

    def _save(self) -> None:
        """Store records that have changed outside of events."""
        self._write(())

    def _recover(self, facts: Mapping[str, Any]) -> None:
        """Take up where an earlier scheduler stopped."""
        machine = fingerprint(self.cluster, self.engine.devices)
        anew = facts.get("machine", machine) != machine or bool(facts.get("salvaged"))
        for stored in self.journal.jobs():
            record = JobRecord.from_plain(stored.record)
            self.book.add(record)
            self.engine.seen.restarts.remember(record)
            if record.state is JobState.COMPLETED:
                self.engine.seen.times.learn(record)
        self._take_state(self._known_state(facts))
        anew = anew or not self._replayed(facts)
        keep = facts.get("policy") == self.policy_text and not anew
        self.state.memory = facts.get("memory", {}) if keep else {}
        self.state.round = int(facts.get("round", 0))
        told = {"origin_s": self.engine.clock.origin_s, "policy": self.policy_text, "machine": machine}
        # All or nothing: what a half-made state says of GPUs would be taken for the truth next time.
        with self.journal.transaction():
            self.journal.set_facts({**told, "salvaged": False} if keep else {**told, "salvaged": False, "memory": {}})
            if anew:
                self._gone = self._rebuild(facts.get("machine"))
            self.engine.clock.at_least(self.state.now_s)
            for record in self.book:
                if not record.state.ended:
                    self._note_dependencies(record)
            self.journal.append(self._applied(self.engine.adopt()))
            if anew:
                self._book_running()
            elif not keep:
                self.journal.append(self._applied(self._guests_off(self.engine.clock.now_s())))
            # Those that were running first: of an array that is limited, they are the ones that go on.
            for record in sorted(self.book, key=lambda one: not one.attempts):
                if not record.state.ended:
                    self._look_at(record, self.engine.clock.now_s())
            self.journal.save_jobs(_stored(record) for record in self.book.take_changed())
        self.journal.compact()

    def _take_up(self) -> None:
        """Go towards what was decided, now that all is known that stands in the way."""
        for job in self._gone:
            self.engine.processes.stop(job)
        self.engine.converge()
        self.engine.processes.settle()
        self._save()

    def _known_state(self, facts: Mapping[str, Any]) -> State:
        """A new state that knows what is left of jobs that have ended."""
        state = self._new_state()
        state.know_names(facts.get("names", ((), (), ())))
        done = [record for record in self.book if record.state is JobState.COMPLETED]
        for record in sorted(done, key=lambda one: one.ended_s or 0.0):
            request = record.request
            state.remember(record.gpu_s, record.ran_s, request.gpus, request.model, request.user)
        return state

    def _take_state(self, state: State) -> None:
        """Let everybody look at this state from now on."""
        self.state = self.engine.state = self.engine.seen.state = self.loop.state = state

    def _applied(self, events: list[Event]) -> list[Event]:
        for event in events:
            self.state.apply(event)
        return events

    def _book_running(self) -> None:
        """Book GPUs for those that run, in a state that was made anew, so that they go on undisturbed."""
        keep = [job for job in self.engine.processes.live if not (job in self._gone or job in self._impossible)]
        running = {job: self.engine.processes.live[job].gpus for job in keep if self.engine.computes(self.book[job])}
        speeds = {job: speeds_of(self.book[job].request, self.cluster) for job in running}
        actions = launches(running, self.cluster, speeds, anywhere=self.engine.devices is None)
        if actions:
            self.state.commit(actions)
            self.journal.append((Woken(self.state.now_s),))
            self.journal.append(actions, max(self.state.round, 1))

    def _guests_off(self, now_s: float) -> list[Event]:
        """Take jobs that share the GPUs of others off them."""
        snapshot = self.state.snapshot()
        guests = snapshot.jobs[snapshot.host >= 0].tolist()
        return [event for job in guests for event in self._preempted(self.book[job], now_s, "shared a GPU")]

    def _rebuild(self, before: Sequence[Any] | None) -> set[int]:
        """Queue all jobs anew, where the log means nothing any more; returns those that sit on GPUs that are gone."""
        engine, seen = self.engine, self.engine.seen
        events, self._impossible = queued_anew(self.book, self.cluster, seen, engine.clock)
        for event in events:
            seen.recall(event)
            self.state.apply(event)
        self.journal.drop_log()
        self.journal.append(events)
        gone = renumber(self.book, before[1] if before else None, engine.devices)
        for record in self.book:
            if not record.state.ended or (record.attempt is not None and record.attempt.ended_s is None):
                self.book.touch(record)
        return gone

    def _replayed(self, facts: Mapping[str, Any]) -> bool:
        """Apply the log to the state; False, with the state as new, if it does not say of all jobs how they stand."""
        try:
            replay(self.journal.log(), self.state, self.book, self.engine.seen.recall)
            return True
        except EngineError as error:
            self.problem = f"the journal's log is not sound ({error}); all jobs are queued anew, those that run go on"
            self._take_state(self._known_state(facts))
            self.engine.seen.forget_all()
            return False

    def _taken(self, request: JobRequest, name: str, now_s: float) -> JobRecord:
        record = JobRecord(self.book.next_number, name, request, self.engine.clock.date_s(now_s), held=request.hold)
        self.book.add(record)
        self.book.touch(record)
        self._note_dependencies(record)
        self._look_at(record, now_s)
        return record

    def _note_dependencies(self, record: JobRecord) -> None:
        for one in record.request.depends:
            self._dependants.setdefault(one.job, set()).add(record.number)

    def _known(self, request: JobRequest) -> JobRecord | None:
        return self.book.with_key(request.user, request.client_key) if request.client_key else None

    def _refuse_impossible(self, request: JobRequest) -> None:
        if not any(speeds_of(request, self.cluster)):
            raise InputError(why_impossible(request, self.cluster))
        for one in request.depends:
            if not self.book.tasks(one.job):
                raise InputError(f"it is to wait for job {one.job!r}, which does not exist")

    def _each(self, name: str, act: Callable[[JobRecord, float], list[Event]]) -> list[JobRecord]:
        """Do something to a job, or to all tasks of an array."""

        def command(now_s: float) -> tuple[list[Event], list[JobRecord]]:
            records = self.book.tasks(name)
            if not records:
                raise UnknownJobError(f"there is no job {name!r}")
            events: list[Event] = []
            refused: list[FairwayError] = []
            for record in records:
                try:
                    events += act(record, now_s)
                except WrongStateError as error:
                    refused.append(error)
                    continue
                self.book.touch(record)
            # Of an array, those tasks are meant with which it can be done; `act` refuses before it changes anything.
            if len(refused) == len(records):
                raise refused[0]
            return events, records

        return list(self.ask(command))

    def _cancelled(self, record: JobRecord, now_s: float) -> list[Event]:
        if record.state.ended:
            return []
        record.cancelled = True
        record.state, record.reason = JobState.CANCELLED, "cancelled"
        record.ended_s = self.engine.clock.date_s(now_s)
        self.engine.processes.targets.pop(record.number, None)
        if not self.engine.processes.stop(record.number, hurry=True):
            self.engine.seen.forget(record)
        self.gate.outside.pop(record.number, None)
        self._note_off(record)
        return [JobCancelled(now_s, record.number)]

    def _set_aside(self, record: JobRecord, now_s: float, *, suspended: bool) -> list[Event]:
        if record.state.ended:
            raise WrongStateError(f"job {record.id} is {record.state}; it cannot be held or suspended")
        record.held, record.suspended = record.held or not suspended, record.suspended or suspended
        granted = record.number in self.state.held_gpus
        # A job that runs may run on when it is held; one that waits for the last owner of its GPUs does not start.
        leaves = granted and (suspended or record.state is not JobState.RUNNING)
        self._look_at(record, now_s, leaves=leaves)
        if not leaves:
            return []
        if record.state is JobState.RUNNING:
            record.state = JobState.SUSPENDED
        return self._off(record, now_s, f"{'suspended' if suspended else 'held'} by its owner")

    def _off(self, record: JobRecord, now_s: float, why: str) -> list[Event]:
        """Take a job off the GPUs that it has been granted."""
        self.engine.account(record, now_s)
        lives = record.number in self.engine.processes.live
        progress = self.engine.seen.progress(record) if lives else self.engine.seen.saved(record)
        self.engine.processes.set_targets([(record.number, None)])
        self.engine.alarm(now_s)
        return [JobEvicted(now_s, record.number, progress, why)]

    def _released(self, record: JobRecord, now_s: float) -> list[Event]:
        if record.state.ended:
            raise WrongStateError(f"job {record.id} is {record.state}; it cannot be released")
        record.held = record.suspended = False
        self.reasons.forget(record.number)
        self._look_at(record, now_s)
        self.engine.alarm(now_s)
        return []

    def set_terms(self, record: JobRecord, now_s: float, changes: Mapping[str, Any]) -> list[Event]:
        """Change the terms of a job, in the scheduler's thread; the event that tells the state."""
        if record.state.ended:
            raise WrongStateError(f"job {record.id} is {record.state}; it cannot be changed")
        record.request = request = replace(record.request, **changes)
        if "limit_s" in changes:
            self.engine.set_limit(record)
        self.engine.alarm(now_s)
        submitted_s = record.submitted_s - self.engine.clock.origin_s
        deadline_s = math.inf if request.deadline_s is None else submitted_s + request.deadline_s
        return [JobUpdated(now_s, record.number, request.weight, request.priority, deadline_s)]

    def _preempted(self, record: JobRecord, now_s: float, why: str) -> list[Event]:
        """Take a job off its GPUs as a decision of the policy would."""
        self.engine.mark_preempted(record, now_s)
        return self._off(record, now_s, why)

    def _requeued(self, record: JobRecord, now_s: float) -> list[Event]:
        if record.state is not JobState.RUNNING and record.number not in self.state.held_gpus:
            raise WrongStateError(f"job {record.id} is {record.state}; only running jobs can be put back in the queue")
        record.state = JobState.PENDING
        events = self._off(record, now_s, "put back in the queue")
        self.engine.processes.stop(record.number)
        return events

    def _note_off(self, record: JobRecord) -> None:
        """A job has ended or lost its GPUs: those who wait for that may come in, or never will."""
        self._look_at(record, self.engine.clock.now_s(), leaves=True)
        if record.state.ended:
            # Others may wait for this job, or for the whole array that it is a task of.
            for name in {record.id, record.id.partition("_")[0]}:
                for number in self._dependants.get(name, ()):
                    self._look_at(self.book[number], self.engine.clock.now_s())
            self.engine.alarm(self.engine.clock.now_s())

    def _look_at(self, record: JobRecord, now_s: float, *, leaves: bool = False) -> None:
        """Decide whether a job is let in. `leaves`: it is about to give up its GPUs, if it has any."""
        ended = record.state.ended
        why = "" if ended else self._why_outside(record, now_s)
        goes_on = not ended and not leaves and record.number in self.state.held_gpus
        next_in = self._arrays.left(record) if (why or ended) and not goes_on else []
        if goes_on:
            self._arrays.refused(record)
        why = why or ("" if ended else self._arrays.refused(record))
        if why:
            self.gate.outside[record.number] = why
        else:
            self.gate.outside.pop(record.number, None)
        for other in next_in:
            self._look_at(other, now_s)

    def _why_outside(self, record: JobRecord, now_s: float) -> str:
        if record.suspended:
            return "suspended by its owner; `fairway resume` lets it go on"
        if record.held:
            return "held by its owner; `fairway release` lets it run"
        if record.number in self._impossible:
            return "no GPUs that are here now can run it"
        clock, request = self.engine.clock, record.request
        begins = max(request.begin_s or 0.0, record.not_before_s or 0.0) - clock.origin_s
        if begins > now_s:
            self.engine.alarm(begins)
            self.engine.call_at(begins, lambda at_s: self._look_at(record, at_s))
            day_and_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(clock.date_s(begins)))
            return record.reason or f"not before {day_and_time}"
        for one in request.depends:
            why = _blocked(one.kind, self.book.tasks(one.job))
            if why:
                return f"waits for job {one.job}: {why}"
        return ""


def _blocked(kind: str, others: list[JobRecord]) -> str:
    """Why a dependency is not met."""
    if not others:
        return "it does not exist any more"
    if any(not other.state.ended for other in others):
        return "it has not ended"
    good = all(other.state is JobState.COMPLETED for other in others)
    if kind == "afterok" and not good:
        return "it did not complete, so this one never starts"
    if kind == "afternotok" and good:
        return "it completed, so this one never starts"
    return ""


def _stored(record: JobRecord) -> StoredJob:
    key = record.request.client_key
    unique = None if key is None else f"{record.request.user}\0{key}"
    return StoredJob(record.number, record.id, unique, record.state.ended, record.plain())
