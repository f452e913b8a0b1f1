"""How a scheduler goes on where an earlier one stopped: from the journal, and from processes that went on meanwhile.

There are three steps. First the state is made again, by replaying the log or, if the log cannot be used, from the
records of jobs. Then what has happened since is found out and written down, in one transaction. Processes are touched
only when the scheduler runs: they are brought to the targets that had been decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairway.core.action import Action
from fairway.core.cluster import Cluster
from fairway.core.errors import EngineError
from fairway.core.event import Event, Woken
from fairway.core.state import State
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.engine import LiveEngine
from fairway.runtime.jobs.commands import Commands
from fairway.runtime.jobs.estimates import speeds_of
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import JobRecord, JobState, JobStore
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


class Recovered:
    """What a journal says: its records, and the state that its log leads to.

    `facts` are those of the journal. If the log cannot be used, the state has no jobs and `anew` is true: the jobs have
    to be queued again. `problem` says why, if the log itself is unsound.
    """

    def __init__(
        self,
        journal: Journal,
        facts: Mapping[str, Any],
        cluster: Cluster,
        devices: Sequence[str] | None,
        new_state: Callable[[], State],
        origin_s: float,
        restart_s: float,
    ) -> None:
        self.facts = facts
        self.problem = ""
        self.store = JobStore()
        self.machine = fingerprint(cluster, devices)
        for stored in journal.jobs():
            self.store.add(JobRecord.from_plain(stored.record))
        self.state = self._known_state(new_state)
        moved = facts.get("machine", self.machine) != self.machine
        self.anew = moved or bool(facts.get("salvaged"))
        told = [] if self.anew else self._replayed(journal, new_state)
        self.observations = Observations(self.store, cluster, self.state, origin_s, restart_s)
        for event in told:
            self.observations.recall(event)
        for record in self.store:
            self.observations.restarts.remember(record)
            if record.state is JobState.COMPLETED:
                self.observations.times.learn(record)

    def _known_state(self, new_state: Callable[[], State]) -> State:
        """A new state that knows what still matters of jobs that have ended."""
        state = new_state()
        state.know_names(self.facts.get("names", ((), (), ())))
        done = [record for record in self.store if record.state is JobState.COMPLETED]
        for record in sorted(done, key=lambda one: one.ended_s or 0.0):
            request = record.request
            state.remember(record.gpu_s, record.ran_s, request.gpus, request.model, request.user)
        return state

    def _replayed(self, journal: Journal, new_state: Callable[[], State]) -> list[Event]:
        """Apply the log to the state. If the log does not cover all jobs, the state stays as new."""
        told: list[Event] = []
        try:
            replay(journal.log(), self.state, self.store, told.append)
            return told
        except EngineError as error:
            self.problem = f"the journal's log is not sound ({error}); all jobs are queued again, those that run go on"
            self.state, self.anew = self._known_state(new_state), True
            return []


class Recovery:
    """Leads from what a journal says to a state that is true now."""

    def __init__(
        self,
        journal: Journal,
        recovered: Recovered,
        jobs: LiveJobs,
        engine: LiveEngine,
        commands: Commands,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._recovered = recovered
        self._facts = recovered.facts
        self._anew = recovered.anew
        self._jobs = jobs
        self._store = jobs.store
        self._state = jobs.state
        self._engine = engine
        self._commands = commands
        self._clock = clock
        self._gone: set[int] = set()

    def take_over(self, policy_text: str, cluster: Cluster) -> None:
        """Find out what has become of all jobs, and write it down. `policy_text` is the policy to go on with."""
        facts, clock, eligibility = self._facts, self._clock, self._jobs.eligibility
        keep = facts.get("policy") == policy_text and not self._anew
        self._state.memory = facts.get("memory", {}) if keep else {}
        self._state.round = int(facts.get("round", 0))
        told = {"origin_s": clock.origin_s, "policy": policy_text, "machine": self._recovered.machine}
        told |= {"salvaged": False, STOOD_STILL: None}
        impossible: set[int] = set()
        # All or nothing: the next scheduler would believe what a half-made state says about GPUs.
        with self._journal.transaction():
            self._journal.set_facts(told if keep else {**told, "memory": {}})
            if self._anew:
                impossible = self._rebuild(cluster)
                eligibility.rule_out(impossible)
            clock.at_least(self._state.now_s)
            for record in self._store:
                if not record.state.ended:
                    eligibility.know(record)
            self._take_in(self._found())
            if self._anew:
                self._book_running(impossible, cluster)
            elif not keep:
                self._note(self._commands.guests_off(clock.now_s()))
            # Jobs that were running come first: in an array with a limit, these are the tasks that go on.
            for record in sorted(self._store, key=lambda one: not one.attempts):
                if not record.state.ended:
                    eligibility.look_at(record, clock.now_s())
            self._journal.save_jobs(record.stored() for record in self._store.take_changed())
        self._journal.compact()

    def go_on(self) -> None:
        """Bring all attempts to their targets, now that everything that stands in the way is known."""
        for job in self._gone:
            self._engine.attempts.stop(job)
        self._engine.converge()
        self._engine.carry_out(self._jobs.take_instructions())
        self._engine.attempts.settle()

    def _found(self) -> list[Event]:
        """What has happened while no scheduler was running, as events that are not yet applied to the state."""
        now_s, events = max(self._clock.now_s(), self._state.now_s), list[Event]()
        for record in self._engine.given_up():
            events += self._commands.cancel(record, now_s)
            self._store.touch(record)
        for happening in self._engine.adopt():
            events += self._jobs.handle(happening)
        return sorted(events, key=lambda event: event.time_s)

    def _rebuild(self, cluster: Cluster) -> set[int]:
        """Queue all jobs again if the log cannot be used. Returns the jobs that cannot run here."""
        seen, before = self._jobs.observations, self._facts.get("machine")
        events, impossible = queued_anew(self._store, cluster, seen, self._clock)
        for event in events:
            seen.recall(event)
            self._state.apply(event)
        self._journal.drop_log()
        self._journal.append(events)
        self._gone = renumber(self._store, before[1] if before else None, self._engine.devices)
        for record in self._store:
            if not record.state.ended or (record.attempt is not None and record.attempt.ended_s is None):
                self._store.touch(record)
        return impossible

    def _book_running(self, impossible: set[int], cluster: Cluster) -> None:
        """Book GPUs for running jobs in a new state, so that they go on undisturbed."""
        engine, live = self._engine, self._engine.attempts.live
        keep = [job for job in live if not (job in self._gone or job in impossible)]
        running = {job: live[job].gpus for job in keep if engine.computes(self._store[job])}
        speeds = {job: speeds_of(self._store[job].request, cluster) for job in running}
        self._commit(launches(running, cluster, speeds, anywhere=engine.devices is None))

    def _take_in(self, events: list[Event]) -> None:
        """Apply what has happened meanwhile. Jobs that were suspended all the time go on where they were."""
        since_s = self._facts.get(STOOD_STILL)
        if since_s is None or self._anew:
            self._note(events)
            return
        back = without_pause(self._state, float(since_s) - self._clock.origin_s, events, self._note)
        self._state.apply(Woken(max(self._clock.now_s(), self._state.now_s)))
        self._commit(back)

    def _commit(self, actions: list[Action]) -> None:
        """Book GPUs in the state and the log."""
        if actions:
            self._state.commit(actions)
            self._journal.append((Woken(self._state.now_s),))
            self._journal.append(actions, max(self._state.round, 1))

    def _note(self, events: list[Event]) -> None:
        """Add events to the state and the log."""
        for event in events:
            self._state.apply(event)
        self._journal.append(events)
