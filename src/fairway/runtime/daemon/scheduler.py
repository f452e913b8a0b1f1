"""A live scheduler: the one loop around live processes, with a journal that lets it be killed at any instant.

This module puts its parts together and runs them. The loop polls the engine for happenings. `jobs` says what they mean.
The journal writer has that on disk before the engine acts on it. `recovery` goes on where an earlier scheduler stopped.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from fairway.core.action import Action, Move
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.errors import FairwayError, InputError
from fairway.core.event import Event, Woken
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.core.round import Loop
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import plain_memory
from fairway.core.state import State
from fairway.placement.at_home import AtHome
from fairway.placement.tenanted import kept_bindings
from fairway.placement.tenants import Tenants
from fairway.runtime.daemon.clock import FACT, SYSTEM_TIME, Clock, TimeSource
from fairway.runtime.daemon.engine import LiveEngine
from fairway.runtime.daemon.gpu_sharing import GpuSharing, SharingWish
from fairway.runtime.guard.incident import Incident, granted
from fairway.runtime.guard.policy_guard import Cut, PolicyGuard
from fairway.runtime.jobs import commands
from fairway.runtime.jobs.commands import Act, Commands, StoppedError
from fairway.runtime.jobs.draining import Drain, Draining
from fairway.runtime.jobs.estimates import RESTART_S
from fairway.runtime.jobs.holdings import Load
from fairway.runtime.jobs.job_course import JobCourses
from fairway.runtime.jobs.job_story import note_decision
from fairway.runtime.jobs.kept_profile import KeptProfile
from fairway.runtime.jobs.life import WAITS, ClusterGrew, Command, Happening, TimeOfDaySet
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.live_nodes import LiveNodes
from fairway.runtime.jobs.records import JobRecord, family_of
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import sharing
from fairway.runtime.jobs.store import RECENT, with_gone
from fairway.runtime.jobs.waiting import Reasons
from fairway.runtime.journal import eras
from fairway.runtime.journal.database import CERTAIN, Journal
from fairway.runtime.journal.job_lists import JobLists
from fairway.runtime.journal.recovery import Recovered, Recovery, fingerprint, no_collection
from fairway.runtime.journal.writer import JournalWriter
from fairway.runtime.processes.environment import LOG_BYTES, own_account
from fairway.runtime.processes.local import LocalSite
from fairway.runtime.processes.movable_memory import half_of_memory
from fairway.runtime.processes.site import Site
from fairway.runtime.processes.startable import Startable

PIECE = 100
"""How many jobs a command deals with before others have their turn."""
MIN_RUN_S = 5.0
"""The seconds for which a job that has just started is protected from preemption at least, if nobody says otherwise."""
RESTARTS_SPARED = 3.0
"""It is protected for as long as this many restarts of it cost. So it computes for most of the time."""
NOTE_EVERY_S = 600.0
"""How often the journal is told the time, if it has nothing else to be told."""


class LiveTerms(commands.AdmissionTerms, Protocol):
    """What the configuration in force says."""

    def limits(self, snapshot: Snapshot, decision: Decision) -> Mapping[int, Cut]:
        """Rows whose grants go beyond what their users may have, and rows that wait while nothing is left for them."""
        ...

    def log_bytes(self) -> int:
        """How large the log of a rank may grow."""
        ...

    def host_bytes(self) -> int:
        """How much host memory may hold the GPU memory of suspended jobs."""
        ...

    def sharing(self) -> SharingWish:
        """How jobs that ask for it share a GPU."""
        ...

    def fit(self, cluster: Cluster, last: Mapping[str, Any] = ...) -> Mapping[str, Any]:
        """Make the virtual clusters of tenants on this cluster. `ConfigError` if it cannot hold them.

        `last` are the facts of the journal. Returns those to keep for the next time.
        """
        ...

    def tenants(self) -> Tenants | None:
        """The virtual clusters of tenants; None if there are no tenants."""
        ...


class NoTerms:
    """The terms without a configuration."""

    def refuse(self, requests: Sequence[JobRequest]) -> None:
        """Refuse nothing."""

    def refuse_too_many(self, load: Load, jobs: LiveJobs, now_s: float) -> None:
        """Refuse nothing."""

    def given(self, requests: Sequence[JobRequest]) -> Sequence[JobRequest]:
        """All requests, as they are."""
        return requests

    def amended(self, request: JobRequest, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """All changes."""
        return changes

    def limits(self, snapshot: Snapshot, decision: Decision) -> Mapping[int, Cut]:
        """No limits."""
        return {}

    def log_bytes(self) -> int:
        """The default size."""
        return LOG_BYTES

    def host_bytes(self) -> int:
        """Half of the machine's memory."""
        return half_of_memory()

    def sharing(self) -> SharingWish:
        """By MPS where it can be had."""
        return "auto"

    def ranked(self, request: JobRequest) -> int:
        """As its owner says."""
        return request.priority

    def fit(self, cluster: Cluster, last: Mapping[str, Any] = MappingProxyType({})) -> Mapping[str, Any]:
        """Every cluster will do."""
        return {}

    def tenants(self) -> Tenants | None:
        """No tenants."""
        return None


class Scheduler:
    """Jobs, processes and the loop between them. `run` blocks. Any thread may call the public methods.

    A job that has just started is protected for `min_run_s`; None: by what restarts of it cost. Until these are seen,
    one is assumed to cost `restart_s`. `site` is where attempts run, and `time` is the source of the clock; by default
    both are this machine. The folders of jobs are in `jobs_folder`. `recent` jobs that
    have ended stay in memory. Commands deal with `piece` jobs at a time. `here`: all GPUs are this machine's.
    """

    failure: BaseException | None = None

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        policy: Policy,
        placer: Placer,
        *,
        jobs_folder: Path | None = None,
        devices: Sequence[str] | None = None,
        round_s: float | None = None,
        terms: LiveTerms | None = None,
        min_run_s: float | None = None,
        restart_s: float = RESTART_S,
        policy_text: str = "",
        journal: Journal | None = None,
        site: Site | None = None,
        time: TimeSource = SYSTEM_TIME,
        recent: int = RECENT,
        piece: int = PIECE,
        here: bool = True,
    ) -> None:
        self._terms = terms = terms or NoTerms()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.jobs_folder = folder, jobs_folder or folder / "jobs"
        self.policy_text = policy_text or policy.name
        self.listeners: list[Callable[[Sequence[Event]], None]] = []
        self.watchers: list[Callable[[Decision, Sequence[Action]], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        self.journal = journal or Journal(folder / "journal.db")
        facts = self.journal.facts()
        terms.fit(cluster, facts)
        self.clock = clock = Clock(facts, time)
        self._note_at_s = clock.now_s() + NOTE_EVERY_S
        length_s = policy.round_s if round_s is None else round_s
        self.measured = KeptProfile(facts)
        pairs = self.measured.pairing
        spared = RESTARTS_SPARED if min_run_s is None else 0.0
        least_s = MIN_RUN_S if min_run_s is None else min_run_s
        protected = partial(State, cluster, min_run_s=least_s, restarts_spared=spared)
        new_state = partial(protected, round_s=length_s, pairing=pairs, measured=pairs)
        known = (cluster, devices, new_state, clock.origin_s, restart_s, recent, self.measured)
        with no_collection():
            recovered = Recovered(self.journal, facts, *known)
        self.state, self.store, self.problem = recovered.state, recovered.store, recovered.problem
        self.observations, self.archive = recovered.observations, recovered.archive
        self.observations.courses = JobCourses(self.store, self.journal.course)
        self.lists = JobLists(self.store, self.archive)
        self.writer = JournalWriter(self.journal, self.store, self.state, sleep=time.sleep)
        self.writer.on_full.append(self._cancel_without_journal)
        self.promises = recovered.promises
        self.jobs = LiveJobs(self.store, self.state, self.observations, clock.origin_s, self.promises)
        self.nodes = LiveNodes(self.jobs, self._grown)
        self.blocked = self.jobs.blocked
        self.sharing = GpuSharing(folder, devices, terms.sharing, here=here)
        self.site = site or LocalSite()
        self.engine = self._made_engine(self.site, terms, devices, length_s)
        self.guard = self._guard(policy, placer, terms)
        self.reasons = Reasons()
        self._cancelling: dict[Future[list[JobRecord]], str] = {}
        self.commands = self._commands(terms, piece)
        self.draining = Draining(self.jobs, self.commands, facts, self.writer.keep)
        placed = AtHome(placer, self.engine.home, lambda: self.blocked.why)
        self.loop = Loop(self.engine, self.state, self.guard, placed, round_s=length_s, observer=self, interpreter=self)
        self._recovery = Recovery(self.journal, recovered, self.jobs, self.engine, self.commands, clock)
        self._recovery.take_over(self.policy_text, cluster)
        self._known_eras: list[Any] = self.journal.facts((eras.FACT,))[eras.FACT]

    @property
    def cluster(self) -> Cluster:
        """The machines, also those that have joined since the start."""
        return self.state.cluster

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Schedule until `close` is called.

        An unexpected error ends the scheduler, not the jobs. What is on disk is sound, and the next scheduler goes on
        from there.
        """
        try:
            self.begin()
            while self.loop.step():
                pass
            kept = {**self.measured.facts(math.inf), **self.promises.facts(math.inf)}
            self.writer.keep({"last_s": self.clock.now_s(), **kept})
            self.observations.courses.keep_all()
            self.writer.save()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.stop()

    def begin(self) -> None:
        """Carry out what an earlier scheduler had decided, except on nodes that are away now."""
        events: list[Event] = []
        for happening in self.engine.look():
            for event in self.handle(happening):
                self.state.apply(event)
                events.append(event)
        self.after_events(self.state, events)
        self._recovery.go_on()
        self.writer.save()
        for arrival in self.store.arriving:
            self.engine.ask(self.commands.go_on(arrival))
        if self.state.active:
            self.jobs.timers.set(self.clock.now_s())

    def stop(self) -> None:
        """The scheduler has stopped: release everything, and answer waiting commands with an error."""
        error = StoppedError(f"the scheduler has stopped{f': {self.failure}' if self.failure else ''}")
        self.engine.refuse_all(error)
        self.jobs.refuse_answers(error)
        self.archive.close()
        self.journal.close()
        for told in self.on_stop:
            told()

    def start(self) -> threading.Thread:
        """Run in a thread of its own."""

        def run() -> None:
            # `failure` has it, and it says in one line what is wrong. Other errors are ours, with a traceback.
            with suppress(FairwayError):
                self.run()

        thread = threading.Thread(target=run, name="scheduler", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Stop scheduling. Processes go on, and a later scheduler finds them."""
        self.journal.give_up()
        self.engine.close()

    def end_all(self, seconds: float = 30.0) -> None:
        """Cancel all jobs that have not ended, and wait until none of their processes is left, at most `seconds`."""
        self.ask(lambda now_s: ([], WAITS if self.store.arriving else None))
        for record in self.store:
            if not record.state.ended:
                self.cancel(record.id)
        time = self.clock.source
        deadline_s = time.uptime() + seconds
        while self.engine.attempts.live and time.uptime() < deadline_s:
            time.sleep(0.02)

    def ask(self, command: Command) -> Any:
        """Run a command in the scheduler's thread and wait for its answer."""
        return self.engine.ask(command).result()

    # --- what users ask for ------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[JobRequest], *, array: bool = False) -> list[JobRecord]:
        """Add jobs. Those that were submitted before under the same key are returned as they are."""
        return list(self.submission(requests, array=array).result())

    def submission(self, requests: Sequence[JobRequest], *, array: bool = False) -> Future[list[JobRecord]]:
        """Add jobs without waiting: all of them, or none. The result of the future is what `submit` returns."""
        self.commands.refuse_impossible(requests)
        self.journal.refuse_if_full()
        made = sharing(requests, account=self.commands.account)
        return self.engine.ask(self.commands.take_in(made, array=array))

    def refuse_unstartable(self, requests: Sequence[JobRequest]) -> None:
        """Raise `InputError` if the program or the directory of a job is missing where it would run. It may wait.

        A job that waits for others is taken as it is: they may make what it runs.
        """
        for wish in dict.fromkeys(_startable(one) for one in requests if not one.depends):
            problem = self.site.start_problem(wish)
            if problem:
                raise InputError(problem)

    def cancel(self, name: str, by: str = "") -> list[JobRecord]:
        """End jobs. Their processes are asked to stop, and killed after their grace period.

        `by` is who asks for it, here and below: a user, or a part of the scheduler. The jobs are told.
        """
        return list(self.cancellation(name, by).result())

    def cancellation(self, name: str, by: str = "") -> Future[list[JobRecord]]:
        """End jobs without waiting. The result of the future is what `cancel` returns.

        While the disk is full, the journal waits. The processes of the jobs are asked to stop all the same. That is the
        answer, too, once every attempt has a mark on disk by which the next scheduler would know.
        """
        answer: Future[list[JobRecord]] = Future()
        self._cancelling[answer] = name

        def pass_on(done: Future[list[JobRecord]]) -> None:
            self._cancelling.pop(answer, None)
            if answer.done():
                return
            error = done.exception()
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(error)

        try:
            asked = self.engine.ask(self.commands.each(name, self.commands.cancel, "cancelled", by))
        except BaseException:
            del self._cancelling[answer]
            raise
        asked.add_done_callback(pass_on)
        return answer

    def _cancel_without_journal(self) -> None:
        """The disk is full: stop what is to be cancelled, since it may be what fills the disk."""
        for answer, name in list(self._cancelling.items()):
            records = [record for record in self.store.present(name) if not record.settled]
            stopped = [self.engine.give_up(record) for record in records]
            if records and all(stopped) and not (self.store.is_arriving(name) or answer.done()):
                answer.set_result(records)

    def suspend(self, name: str, by: str = "") -> list[JobRecord]:
        """Take a running job off its GPUs until it is resumed."""
        return self._each(name, self.commands.suspend, "suspended", by)

    def requeue(self, name: str, by: str = "") -> list[JobRecord]:
        """Stop a running job and put it back in the queue."""
        return self._each(name, self.commands.requeue, "requeued", by)

    def hold(self, name: str, by: str = "") -> list[JobRecord]:
        """Keep a job from starting until it is released."""
        return self._each(name, self.commands.hold, "held", by)

    def release(self, name: str, by: str = "") -> list[JobRecord]:
        """Let a held or suspended job run again."""
        return self._each(name, self.commands.release, "released", by)

    def update(self, name: str, changes: Mapping[str, Any], by: str = "") -> list[JobRecord]:
        """Change the terms of a job: its priority, weight, limit_s, deadline_s or name."""
        return self._each(name, self.commands.changing(changes), "changed", by)

    def awaited(self, numbers: Sequence[int]) -> int:
        """How many of these jobs cannot be forgotten, because others depend on them."""
        families = self.ask(lambda now_s: ([], self.jobs.eligibility.awaited()))
        return sum(family_of(one.id) in families for one in self.archive.records(numbers, environments=False))

    def forget(self, numbers: Sequence[int]) -> int:
        """Delete jobs that have ended from the journal and the memory, and set their folders aside.

        Jobs that others depend on stay. Returns how many are gone.
        """
        return int(self.ask(self.forgetting(numbers)))

    def forgetting(self, numbers: Sequence[int]) -> Command:
        """The command that forgets jobs."""

        def command(now_s: float) -> tuple[list[Event], int]:
            families = self.jobs.eligibility.awaited()
            found = self.archive.records(numbers, environments=False)
            records = [one for one in found if not (family_of(one.id) in families or self.store.is_arriving(one.id))]
            if not records:
                return [], 0
            # The folder first: a folder without a record would look like a job that the journal has lost.
            for record in records:
                self.engine.discard(record)
            with self.journal.transaction():
                self.journal.forget([record.number for record in records])
                gone = with_gone(self.journal.facts(("gone",)).get("gone"), records)
                self.journal.set_facts({"next": [self.store.next_number, self.store.next_id], "gone": gone})
            self.store.drop(records)
            return [], len(records)

        return command

    def sweep(self) -> None:
        """Delete the files of jobs that are gone. Any thread but the scheduler's may call this: it can take long."""
        self.engine.sweep()

    def incident(self) -> str:
        """Everything that a decision depends on now, and the decision, as the text of a file."""

        def command(now_s: float) -> tuple[list[Event], tuple[Incident, Decision]]:
            self.state.apply(Woken(max(self.state.now_s, now_s)))
            snapshot = self.state.snapshot(self.guard.knows)
            config = str(self.journal.facts(("config",)).get("config", ""))
            about = (dict(self.guard.outside), dict(self.blocked.why), self.engine.homes(), config)
            decision = self.guard.decide(snapshot)
            more = (self.sharing.by_user(), self.loop.placer.name)
            return [], (Incident(snapshot.copy(), self.policy_text, *about, (), *more), decision)

        # What takes long is done in the caller's thread.
        incident, decision = self.ask(command)
        return str(incident._replace(decided=granted(incident.snapshot, decision)).text())

    def block_gpus(self, blocked: Mapping[int, str]) -> None:
        """Block GPUs, by number with the reason. Jobs that were to start on them are given others."""
        self.engine.ask(lambda now_s: (self.commands.block_gpus(blocked, now_s), None))

    def drain(self, name: str, *, by: str, why: str = "", move: bool = False) -> list[JobRecord]:
        """Start nothing on a node any more. Its jobs end by themselves; with `move`, those that can leave now.

        Returns the jobs that do.
        """
        return list(self.ask(self.draining.drain(name, Drain(by, why), move=move)))

    def undrain(self, name: str) -> None:
        """Let jobs start on a node again."""
        self.ask(self.draining.undrain(name))

    def set_policy(self, policy: Policy, text: str) -> None:
        """Change to another policy. The memory of the old one is dropped; tenants keep their cells."""
        self.ask(self.policy_change(policy, text))

    def policy_change(self, policy: Policy, text: str) -> Command:
        """The command that changes to another policy.

        The change itself stops no jobs except guests: the new policy may not let jobs share GPUs.
        """

        def command(now_s: float) -> tuple[list[Event], None]:
            events = self.commands.guests_off(now_s)
            self.guard.use(policy)
            self.state.memory = kept_bindings(self.state.memory)
            self.policy_text = text
            memory = plain_memory(self.state.memory)
            self.writer.keep({"policy": text, "memory": memory, eras.FACT: self._eras(now_s, self.cluster)})
            return events, None

        return command

    # --- the interpreter and the observer of the loop ----------------------------------------------------------------

    def handle(self, happening: Happening) -> Sequence[Event]:
        """The events that a happening means for the state."""
        if isinstance(happening, TimeOfDaySet) or happening.time_s >= self._note_at_s:
            # After a reboot, the clock goes on from here.
            self._note_at_s = happening.time_s + NOTE_EVERY_S
            self.writer.keep({FACT: self.clock.fact(), "last_s": happening.time_s})
        self.writer.keep({**self.measured.facts(happening.time_s), **self.promises.facts(happening.time_s)})
        return self.jobs.handle(happening)

    def owed_s(self, happened: Sequence[Happening], events: Sequence[Event]) -> float:
        """When a round is due after these happenings."""
        return self.engine.owed_s(happened, events)

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Write down what happened. Then users get the answers to their commands."""
        self.writer.note_events(events)
        self.jobs.answer()
        if events:
            for listener in self.listeners:
                listener(events)
        self.engine.carry_out(self.jobs.take_instructions())

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Write down what was decided, before it is done."""
        self.reasons.note(snapshot, decision)
        if actions:
            date_s = self.clock.date_s(snapshot.now_s)
            # Virtual GPUs of one node are only numbers: a job that gets others goes on.
            told = [one for one in actions if not (self.engine.attempts.anywhere and isinstance(one, Move))]
            note_decision(self.store, self.guard.policy.name, snapshot, decision, told, date_s)
        self.writer.note_round(snapshot.now_s, decision, actions)
        for watcher in self.watchers:
            watcher(decision, actions)
        if actions:
            self.engine.attempts.note_plan(self.guard.plan(snapshot, decision))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _made_engine(self, site: Site, terms: LiveTerms, devices: Sequence[str] | None, round_s: float) -> LiveEngine:
        return LiveEngine(
            site,
            self.jobs,
            self.jobs_folder,
            self.clock,
            devices=devices,
            round_s=round_s,
            save=self.writer.save,
            facts=partial(self.journal.facts, CERTAIN),
            log_bytes=terms.log_bytes,
            host_bytes=terms.host_bytes,
            sharing=self.sharing,
        )

    def _guard(self, policy: Policy, placer: Placer, terms: LiveTerms) -> PolicyGuard:
        return PolicyGuard(
            policy,
            terms.limits,
            tenants=terms.tenants,
            placer=placer,
            outside=self.jobs.eligibility.outside,
            blocked=lambda: self.blocked.why,
            homes=self.engine.homes,
            in_turns=self.sharing.in_turns,
            by_user=self.sharing.by_user,
        )

    def _commands(self, terms: LiveTerms, piece: int) -> Commands:
        return Commands(
            self.jobs,
            self.reasons,
            terms,
            piece=piece,
            keep=self.writer.keep,
            account=own_account(),
            lives=self.engine.lives,
            tell_limit=self.engine.tell_limit,
            largest=self.site.largest,
        )

    def _grown(self, one: ClusterGrew) -> None:
        """The cluster has more nodes. The next scheduler is to know them, too."""
        cluster, devices = one.joined
        self.engine.know_devices(devices)
        self.draining.block()
        grown = {"machine": fingerprint(cluster, devices), eras.FACT: self._eras(one.time_s, cluster)}
        self.writer.keep({**grown, **self._terms.fit(cluster)})
        if not self.state.memory:
            self.writer.keep({"memory": {}})

    def _eras(self, now_s: float, cluster: Cluster) -> list[Any]:
        """The eras with one that begins now."""
        self._known_eras = eras.with_era(self._known_eras, self.clock.date_s(now_s), self.policy_text, cluster)
        return self._known_eras

    def _each(self, name: str, act: Act, what: str, by: str) -> list[JobRecord]:
        """Act on a job, or on all tasks of an array."""
        return list(self.ask(self.commands.each(name, act, what, by)))


def _startable(request: JobRequest) -> Startable:
    """What a job would start, and as whom."""
    account = request.account if os.geteuid() == 0 and request.account != own_account() else ""
    path = request.env.get("PATH") or os.environ.get("PATH") or os.defpath
    return Startable(request.command[0], request.cwd, path, account)
