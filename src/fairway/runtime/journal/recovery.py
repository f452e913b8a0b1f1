"""How a scheduler goes on where an earlier one stopped: from the journal, and from processes that went on meanwhile.

There are three steps. First the state is made again, by replaying the log or, if the log cannot be used, from the
records of jobs. Then what has happened since is found out and written down, in one transaction. Processes are touched
only when the scheduler runs: they are brought to the targets that had been decided.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fairway.core.action import Action, Launch
from fairway.core.cluster import Cluster
from fairway.core.errors import EngineError
from fairway.core.event import (
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobSubmitted,
    RegimeEntered,
    Woken,
)
from fairway.core.state import State
from fairway.runtime.daemon.clock import FACT, Clock
from fairway.runtime.daemon.engine import LiveEngine
from fairway.runtime.jobs.arrivals import unfinished
from fairway.runtime.jobs.commands import Commands
from fairway.runtime.jobs.estimates import on_cluster, speeds_of, submitted
from fairway.runtime.jobs.kept_profile import KeptProfile
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.promises import PromiseBook
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.store import RECENT, JobStore
from fairway.runtime.journal import eras
from fairway.runtime.journal.archive import JobArchive, Wanted
from fairway.runtime.journal.database import Journal, LogEntry

LEARNT_FROM = 5000
"""How many of the jobs that ended last tell a new scheduler how long jobs run."""
STOOD_STILL = "stood_still_s"
"""The fact of the journal with the date, by the scheduler's clock, since which all processes are suspended because no
scheduler runs."""


def fingerprint(cluster: Cluster, devices: Sequence[str] | None) -> list[Any]:
    """What the journal knows of the machines: the type, the number of GPUs and the name of each node, and which devices
    the GPUs are. Earlier versions wrote no names."""
    nodes = [[node.gpu_type, node.gpus, node.name] for node in cluster.nodes]
    return [nodes, None if devices is None else list(devices)]


def is_usable(before: Any, now: Any) -> bool:
    """Whether a log of the machines `before` is good for those that are here now: more may have joined, and all that
    were known are still listed first, with the same GPUs. Their names may be others."""
    known, devices = _parts(before)
    present, present_devices = _parts(now)
    if known is None or present is None or known != present[: len(known)]:
        return False
    if devices is None or present_devices is None:
        return devices is present_devices
    return devices == present_devices[: len(devices)]


def _parts(machine: Any) -> tuple[list[Any] | None, list[str] | None]:
    """The types and sizes of nodes, and the devices, of machines as the journal has them; None if it has nonsense."""
    try:
        nodes, devices = machine
        return [list(node[:2]) for node in nodes], None if devices is None else list(devices)
    except (TypeError, ValueError):
        return None, None


def _gpu_names(machine: Any) -> list[str] | None:
    """What tells the GPUs apart: their devices or, if they are virtual, their nodes. None if they are all alike."""
    nodes, devices = machine
    if devices is not None:
        return list(devices)
    if len(nodes) == 1 or any(len(node) < 3 for node in nodes):
        return None
    return [f"{node[2]}/{number}" for node in nodes for number in range(node[1])]


def replay(
    log: Iterable[LogEntry], state: State, records: Iterable[JobRecord], recall: Callable[[Event], None]
) -> None:
    """Apply the log to a new state: events one by one, the actions of a round together.

    `EngineError` if it is not the log of these jobs.
    """
    actions: list[Action] = []
    round_number = 0
    for entry in log:
        if entry.round != round_number and actions:
            state.commit(actions)
            actions = []
        round_number = entry.round
        if entry.round:
            actions.append(entry.thing)
        else:
            recall(entry.thing)
            state.apply(entry.thing)
    if actions:
        state.commit(actions)
    state.settle_guests()
    for record in records:
        if not record.state.ended and record.number not in state.specs:
            raise EngineError(f"the log has no entry of job {record.id}")


def launches(
    running: Mapping[int, tuple[int, ...]],
    cluster: Cluster,
    speeds: Mapping[int, tuple[float, ...]],
    *,
    anywhere: bool,
) -> list[Action]:
    """The actions that book GPUs for jobs that run on them. `anywhere`: other GPUs will do as well.

    `speeds` are by GPU type, 0 where a job cannot run: its gang may be larger than what is left of a type.
    """
    actions: list[Action] = []
    free = set(range(cluster.gpu_count))
    for job, held in running.items():
        gpus = held
        if anywhere and not free.issuperset(held):
            gpus = tuple(sorted(free)[: len(held)])
        kinds = {cluster.node_type[cluster.node_of_gpu[gpu]] for gpu in gpus if gpu in free}
        if len(gpus) == len(held) and free.issuperset(gpus) and len(kinds) == 1 and speeds[job][min(kinds)]:
            free.difference_update(gpus)
            actions.append(Launch(job, gpus, kinds.pop()))
    return actions


def without_pause(
    state: State, since_s: float, events: Sequence[Event], note: Callable[[list[Event]], None]
) -> list[Action]:
    """Take all jobs off their GPUs at the instant `since_s` at which all were suspended. Returns the actions that put
    them back.

    `events` are what has happened since the last scheduler, in order. `note` adds events to the state and the log. A
    job that has ended in the meantime, or whose host has, is not put back.
    """
    since_s = max(since_s, state.now_s)
    note([event for event in events if event.time_s <= since_s])
    state.apply(Woken(since_s))
    snapshot = state.snapshot()
    host, jobs = snapshot.host.tolist(), snapshot.jobs.tolist()
    kinds, throttle, progress = snapshot.gpu_type.tolist(), snapshot.throttle.tolist(), snapshot.progress.tolist()
    # Hosts first: guests are put on the GPUs of their hosts.
    rows = sorted(snapshot.running_rows.tolist(), key=lambda row: host[row] >= 0)
    back = [
        Launch(jobs[row], snapshot.gpus_held(row), kinds[row], host[row], throttle[row], snapshot.facts(row).split)
        for row in rows
    ]
    why = "suspended with its scheduler"
    note([JobEvicted(since_s, jobs[row], progress[row], why) for row in reversed(rows)])
    later = [event for event in events if event.time_s > since_s]
    note(later)
    ended = {event.job for event in later if isinstance(event, JobEvicted | JobFinished | JobFailed | JobCancelled)}
    return [one for one in back if one.job not in ended and one.host not in ended]


def queued_again(
    records: Iterable[JobRecord],
    cluster: Cluster,
    seen: Observations,
    clock: Clock,
) -> tuple[list[Event], set[int]]:
    """Events that add all jobs that have not ended, and the numbers of those that cannot run here any more."""
    now_s, events, impossible = clock.now_s(), list[Event](), set[int]()
    for record in records:
        if record.state.ended:
            continue
        restart_s = seen.restarts.expected_s(record.request, record.attempts)
        event = submitted(record, seen.relative(record), seen.times.expected_s(record.request), now_s, restart_s)
        since_s = max(min(record.submitted_s - clock.origin_s, now_s), 0.0)
        if not any(speeds_of(record.request, cluster)):
            # The state needs a speed for every job. This one is not eligible until the machine can run it.
            impossible.add(record.number)
            event = event._replace(speeds=(1.0,) * len(cluster.types), prospect=None)
        # The deadline counts from the submission, not from now.
        deadline_s = None if record.request.deadline_s is None else since_s + record.request.deadline_s
        events.append(event._replace(since_s=since_s, spec=replace(event.spec, deadline_s=deadline_s)))
        progress = seen.saved(record)
        if progress > 0:
            events.append(JobEvicted(now_s, record.number, progress, "the scheduler's state was rebuilt"))
    return events, impossible


def renumber(records: Iterable[JobRecord], before: Any, now: Any) -> set[int]:
    """Give the GPUs of attempts that may still run their present numbers. Returns the jobs whose GPUs are gone.

    `before` and `now` are the machines as the journal has them.
    """
    old, new = None if before is None else _gpu_names(before), _gpu_names(now)
    if old is None or new is None or old == new:
        return set()
    at = {name: number for number, name in enumerate(new)}
    moved = [at.get(name, -1) for name in old]
    gone: set[int] = set()
    for record in records:
        attempt = record.open_attempt
        if attempt is not None:
            attempt.gpus = [moved[gpu] if 0 <= gpu < len(moved) else -1 for gpu in attempt.gpus]
            if -1 in attempt.gpus:
                gone.add(record.number)
    return gone


@contextmanager
def no_collection() -> Iterator[None]:
    """While many records are read, Python's collector finds no garbage, and takes a quarter of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def collect_rarely() -> None:
    """Let Python's collector look for garbage a hundred times less often, in this whole process.

    A decision about 10,000 jobs makes that many small objects, all of which go without the collector. To look through
    everything else that is in memory took longer than the decision.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


class Recovered:
    """What a journal says: its records, and the state that its log leads to.

    `facts` are those of the journal. If the log cannot be used, the state has no jobs and `requeue` is true: the jobs
    have to be queued again. `problem` says why, if the log itself is unsound.
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
        recent: int = RECENT,
        measured: KeptProfile | None = None,
    ) -> None:
        self.facts = facts
        self.problem = "" if measured is None else measured.problem
        self.archive = JobArchive(journal.path)
        self.store = JobStore(self.archive, recent=recent)
        self.machine = fingerprint(cluster, devices)
        unsettled = [JobRecord.from_plain(stored.record) for stored in journal.unsettled()]
        latest = self._fill(unsettled, recent)
        self._done = [record for record in latest if record.state is JobState.COMPLETED]
        self.state = self._known_state(new_state)
        self.requeue = not is_usable(facts.get("machine", self.machine), self.machine) or bool(facts.get("salvaged"))
        told = [] if self.requeue else self._replayed(journal, new_state)
        self.observations = Observations(self.store, self.state, origin_s, restart_s, measured)
        for event in told:
            self.observations.recall(event)
        self.promises = PromiseBook(facts, [*latest, *unsettled])
        for record in sorted([*latest, *unsettled], key=lambda one: one.number):
            self.observations.restarts.remember(record)
            if record.state is JobState.COMPLETED:
                self.observations.times.learn(record)

    def _fill(self, unsettled: list[JobRecord], recent: int) -> list[JobRecord]:
        """Fill the store. Returns the jobs that ended last, from which the scheduler learns again."""
        numbers = [number for number, _ in self.archive.listed(Wanted(), LEARNT_FROM, by_end=True)]
        kept = list(self.archive.records(numbers[:recent]))
        latest = [*kept, *self.archive.records(numbers[recent:], environments=False)]
        for record in sorted([*kept, *unsettled], key=lambda one: one.number):
            self.store.add(record)
        self.store.some_away = len(numbers) > min(recent, LEARNT_FROM - 1)
        self.store.past = self.archive.past()
        self.store.past.add_gone(self.facts.get("gone"))
        self.store.skip(*self.archive.next())
        self.store.skip(*(self.facts.get("next") or (0, 1)))
        for arrival in unfinished(self.facts):
            self.store.promise(arrival)
        return latest

    def _known_state(self, new_state: Callable[[], State]) -> State:
        """A new state that knows what still matters of jobs that have ended."""
        state = new_state()
        state.know_names(self.facts.get("names", ((), (), ())))
        for record in sorted(self._done, key=lambda one: one.ended_s or 0.0):
            request = record.request
            state.remember(record.gpu_s, record.ran_s, request.gpus, request.model, request.user)
        return state

    def _replayed(self, journal: Journal, new_state: Callable[[], State]) -> list[Event]:
        """Apply the log to the state. If the log does not cover all jobs, the state stays as new."""
        told: list[Event] = []
        try:
            replay(self._on_present(journal.log()), self.state, self.store, told.append)
            return told
        except EngineError as error:
            self.problem = f"the journal's log is not sound ({error}); all jobs are queued again, those that run go on"
            self.state, self.requeue = self._known_state(new_state), True
            return []

    def _on_present(self, log: Iterable[LogEntry]) -> Iterator[LogEntry]:
        """The log as it would be if all nodes had been there from the beginning."""
        for entry in log:
            thing = entry.thing
            if isinstance(thing, JobSubmitted | RegimeEntered):
                thing = on_cluster(thing, self.store[thing.job].request, self.state.cluster)
            yield entry._replace(thing=thing)


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
        self._requeue = recovered.requeue
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
        keep = facts.get("policy") == policy_text and not self._requeue and not self._has_new_types()
        self._state.memory = facts.get("memory", {}) if keep else {}
        self._state.round = int(facts.get("round", 0))
        told = {"origin_s": clock.origin_s, "policy": policy_text, "machine": self._recovered.machine}
        told |= {"salvaged": False, STOOD_STILL: None}
        told[eras.FACT] = eras.with_era(facts.get(eras.FACT), clock.date_s(clock.now_s()), policy_text, cluster)
        impossible: set[int] = set()
        # All or nothing: the next scheduler would believe what a half-made state says about GPUs.
        with self._journal.transaction():
            self._journal.set_facts(told if keep else {**told, "memory": {}})
            if self._requeue:
                impossible = self._rebuild(cluster)
                eligibility.rule_out(impossible)
            clock.at_least(self._state.now_s)
            eligibility.shift_s = clock.shift_s
            self._take_in(self._found())
            if self._requeue:
                self._book_running(impossible, cluster)
            elif facts.get("policy") != policy_text:
                self._note(self._commands.guests_off(clock.now_s()))
            # Jobs with GPUs come first: in an array with a limit, these are the tasks that go on.
            held = self._state.held_gpus
            for record in sorted(self._store, key=lambda one: (one.number not in held, not one.attempts)):
                if not record.state.ended:
                    eligibility.look_at(record, clock.now_s())
            self._note(self._jobs.look_at_begin_times(max(clock.now_s(), self._state.now_s), clock.shift_s))
            self._journal.set_facts({FACT: clock.fact(), "last_s": clock.now_s()})
            changed = self._store.take_changed()
            self._journal.save_jobs(record.stored() for record in changed)
        self._store.settle(changed)
        self._journal.compact()

    def _has_new_types(self) -> bool:
        """Whether there are GPU types that the last scheduler did not know: what a policy remembers is by type."""
        before, now = self._facts.get("machine", self._recovered.machine), self._recovered.machine
        return {node[0] for node in before[0]} != {node[0] for node in now[0]}

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
        events, impossible = queued_again(self._store, cluster, seen, self._clock)
        for event in events:
            seen.recall(event)
            self._state.apply(event)
        self._journal.drop_log()
        self._journal.append(events)
        self._gone = renumber(self._store, before, self._recovered.machine)
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
        self._commit(launches(running, cluster, speeds, anywhere=engine.attempts.anywhere))

    def _take_in(self, events: list[Event]) -> None:
        """Apply what has happened meanwhile. Jobs that were suspended all the time go on where they were."""
        since_s = self._facts.get(STOOD_STILL)
        if since_s is None or self._requeue:
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
