"""Taking up where an earlier scheduler stopped: what it had written down, then the processes that went on meanwhile.

Three steps. The state is made again, by replaying the log or, where the log means nothing, from the records of jobs.
Then what has happened since is found out and written down, in one transaction. Only when the scheduler runs are
processes touched, on the way to what had been decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairway.core.action import Action
from fairway.core.errors import EngineError
from fairway.core.event import Event, Woken
from fairway.core.state import State
from fairway.runtime.daemon.engine import LiveEngine
from fairway.runtime.jobs.commands import Commands
from fairway.runtime.jobs.eligibility import Eligibility
from fairway.runtime.jobs.estimates import speeds_of
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.journal.database import Journal
from fairway.runtime.journal.rebuild import (
    STOOD_STILL,
    fingerprint,
    launches,
    queued_anew,
    renumber,
    replay,
    without_pause,
)


class Recovery:
    """The way from what a journal says to a state that holds now.

    `facts` are those of the journal. `state` is the scheduler's from here on: as the log says, or without any job
    where these are to be queued anew. `problem` says why that is so, if the log itself is to blame.
    """

    def __init__(
        self, journal: Journal, facts: Mapping[str, Any], engine: LiveEngine, new_state: Callable[[], State]
    ) -> None:
        self.problem = ""
        self._journal = journal
        self._facts = facts
        self._engine = engine
        self._store = engine.store
        self._new_state = new_state
        self._machine = fingerprint(engine.cluster, engine.devices)
        self._gone: set[int] = set()
        self._remember_jobs()
        self.state = self._known_state()
        moved = facts.get("machine", self._machine) != self._machine
        self._anew = moved or bool(facts.get("salvaged")) or not self._replayed()

    def take_over(self, policy_text: str, eligibility: Eligibility, commands: Commands) -> None:
        """Find out how all jobs stand now, and write that down. `policy_text` is the policy that goes on."""
        facts, clock = self._facts, self._engine.clock
        keep = facts.get("policy") == policy_text and not self._anew
        self.state.memory = facts.get("memory", {}) if keep else {}
        self.state.round = int(facts.get("round", 0))
        told = {"origin_s": clock.origin_s, "policy": policy_text, "machine": self._machine, "salvaged": False}
        told[STOOD_STILL] = None
        # All or nothing: what a half-made state says of GPUs would be taken for the truth next time.
        with self._journal.transaction():
            self._journal.set_facts(told if keep else {**told, "memory": {}})
            if self._anew:
                eligibility.impossible = self._rebuild()
            clock.at_least(self.state.now_s)
            for record in self._store:
                if not record.state.ended:
                    eligibility.know(record)
            self._take_in(self._engine.adopt())
            if self._anew:
                self._book_running(eligibility.impossible)
            elif not keep:
                self._note(commands.guests_off(clock.now_s()))
            # Those that were running first: of an array that is limited, they are the ones that go on.
            for record in sorted(self._store, key=lambda one: not one.attempts):
                if not record.state.ended:
                    eligibility.look_at(record, clock.now_s())
            self._journal.save_jobs(record.stored() for record in self._store.take_changed())
        self._journal.compact()

    def go_on(self) -> None:
        """Go towards what was decided, now that all is known that stands in the way."""
        for job in self._gone:
            self._engine.processes.stop(job)
        self._engine.converge()
        self._engine.processes.settle()

    def _remember_jobs(self) -> None:
        seen = self._engine.seen
        for stored in self._journal.jobs():
            record = JobRecord.from_plain(stored.record)
            self._store.add(record)
            seen.restarts.remember(record)
            if record.state is JobState.COMPLETED:
                seen.times.learn(record)

    def _known_state(self) -> State:
        """A new state that knows what is left of jobs that have ended."""
        state = self._new_state()
        state.know_names(self._facts.get("names", ((), (), ())))
        done = [record for record in self._store if record.state is JobState.COMPLETED]
        for record in sorted(done, key=lambda one: one.ended_s or 0.0):
            request = record.request
            state.remember(record.gpu_s, record.ran_s, request.gpus, request.model, request.user)
        return state

    def _replayed(self) -> bool:
        """Apply the log to the state; False, with the state as new, if it does not say of all jobs how they stand."""
        try:
            replay(self._journal.log(), self.state, self._store, self._engine.seen.recall)
            return True
        except EngineError as error:
            self.problem = f"the journal's log is not sound ({error}); all jobs are queued anew, those that run go on"
            self.state = self._known_state()
            self._engine.seen.forget_all()
            return False

    def _rebuild(self) -> set[int]:
        """Queue all jobs anew, where the log means nothing any more; returns those that cannot run here."""
        engine, seen, before = self._engine, self._engine.seen, self._facts.get("machine")
        events, impossible = queued_anew(self._store, engine.cluster, seen, engine.clock)
        for event in events:
            seen.recall(event)
            self.state.apply(event)
        self._journal.drop_log()
        self._journal.append(events)
        self._gone = renumber(self._store, before[1] if before else None, engine.devices)
        for record in self._store:
            if not record.state.ended or (record.attempt is not None and record.attempt.ended_s is None):
                self._store.touch(record)
        return impossible

    def _book_running(self, impossible: set[int]) -> None:
        """Book GPUs for those that run, in a state that was made anew, so that they go on undisturbed."""
        engine = self._engine
        keep = [job for job in engine.processes.live if not (job in self._gone or job in impossible)]
        running = {job: engine.processes.live[job].gpus for job in keep if engine.computes(self._store[job])}
        speeds = {job: speeds_of(self._store[job].request, engine.cluster) for job in running}
        actions = launches(running, engine.cluster, speeds, anywhere=engine.devices is None)
        self._commit(actions)

    def _take_in(self, events: list[Event]) -> None:
        """Take in what has happened meanwhile; who stood still all the time goes on where it was."""
        since_s = self._facts.get(STOOD_STILL)
        if since_s is None or self._anew:
            self._note(events)
            return
        clock = self._engine.clock
        back = without_pause(self.state, float(since_s) - clock.origin_s, events, self._note)
        self.state.apply(Woken(max(clock.now_s(), self.state.now_s)))
        self._commit(back)

    def _commit(self, actions: list[Action]) -> None:
        """Book GPUs in the state and the log."""
        if actions:
            self.state.commit(actions)
            self._journal.append((Woken(self.state.now_s),))
            self._journal.append(actions, max(self.state.round, 1))

    def _note(self, events: list[Event]) -> None:
        """Take events into the state and the log."""
        for event in events:
            self.state.apply(event)
        self._journal.append(events)
