"""A live scheduler: the one loop around live processes, with a journal that lets it be killed at any instant.

Here its parts are put together and run. `doors` says who may come in, `commands` does what users ask for, the `diary`
writes every step down before it is acted on, and `recovery` takes up where an earlier scheduler stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from fairway.core.action import Action
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.core.round import Loop
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.engine import LiveEngine
from fairway.runtime.daemon.inbox import Command
from fairway.runtime.guard.placing import AtHome
from fairway.runtime.guard.policy_guard import Limits, PolicyGuard
from fairway.runtime.jobs.commands import Act, Commands
from fairway.runtime.jobs.eligibility import Eligibility
from fairway.runtime.jobs.reasons import Reasons
from fairway.runtime.jobs.records import JobRecord, JobStore
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.database import Journal
from fairway.runtime.journal.recovery import Recovery
from fairway.runtime.journal.writer import JournalWriter

MIN_RUN_S = 5.0
"""A job that was just started is left alone for this long."""


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
        self.policy_text = policy_text or policy.name
        self.listeners: list[Callable[[Sequence[Event]], None]] = []
        self.watchers: list[Callable[[Decision, Sequence[Action]], None]] = []
        self.on_stop: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None
        self.journal = Journal(folder / "journal.db")
        facts = self.journal.facts()
        clock = Clock(float(facts.get("origin_s", time.time())), float(facts.get("last_s", 0.0)))
        length_s = policy.round_s if round_s is None else round_s
        self.store = JobStore()
        self.engine = LiveEngine(cluster, devices, folder / "jobs", self.store, clock)
        new_state = partial(State, cluster, min_run_s=min_run_s, seed=seed, round_s=length_s)
        self._recovery = Recovery(self.journal, facts, self.engine, new_state)
        self.state, self.problem = self._recovery.state, self._recovery.problem
        self.writer = JournalWriter(self.journal, self.store, self.state)
        self.eligibility = Eligibility(self.store, self.state, clock, self.engine.timers)
        self.guard = PolicyGuard(policy, limits)
        self.guard.outside, self.guard.homes = self.eligibility.outside, self.engine.homes
        self.guard.blocked = lambda: self.engine.processes.blocked
        self.reasons = Reasons()
        self.commands = Commands(self.engine, self.eligibility, self.reasons)
        placed = AtHome(placer, self.engine)
        self.loop = Loop(self.engine, self.state, self.guard, placed, round_s=length_s, observer=self)
        self.engine.serve(self.state)
        self.engine.round_s = length_s
        self.engine.save, self.engine.happened = self.writer.save, self._happened
        self.engine.ends.on_off = self.eligibility.note_off
        self._recovery.take_over(self.policy_text, self.eligibility, self.commands)

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Schedule until `close` is called.

        An error that nobody expected ends the scheduler, not the jobs: what is on disk is sound, and whoever starts it
        again takes up from there.
        """
        try:
            self._recovery.go_on()
            self.writer.save()
            if self.state.active:
                self.engine.timers.set(self.engine.clock.now_s())
            while self.loop.step():
                pass
            self.writer.save()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.engine.inbox.refuse_all(self.failure)
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
        for record in self.store:
            if not record.state.ended:
                self.cancel(record.id)
        deadline_s = time.monotonic() + seconds
        while self.engine.processes.live and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def ask(self, command: Command) -> Any:
        """Carry out a command in the scheduler's thread and wait for its answer."""
        return self.engine.ask(command).result()

    # --- what users ask for ------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[JobRequest], *, array: bool = False) -> list[JobRecord]:
        """Take jobs in; those that were submitted before under the same key are returned as they are."""
        return list(self.submission(requests, array=array).result())

    def submission(self, requests: Sequence[JobRequest], *, array: bool = False) -> Future[list[JobRecord]]:
        """Take jobs in, for whoever cannot wait here: what `submit` returns comes as the result."""
        for request in requests:
            self.commands.refuse_impossible(request)
        self.journal.refuse_if_full()
        return self.engine.ask(lambda now_s: self.commands.take_in(requests, now_s, array=array))

    def cancel(self, name: str) -> list[JobRecord]:
        """End jobs; their processes are asked to stop, and killed after their grace period."""
        return self._each(name, self.commands.cancel)

    def suspend(self, name: str) -> list[JobRecord]:
        """Take a running job off its GPUs until it is resumed."""
        return self._each(name, self.commands.suspend)

    def requeue(self, name: str) -> list[JobRecord]:
        """Stop a running job and let it wait for its turn again."""
        return self._each(name, self.commands.requeue)

    def hold(self, name: str) -> list[JobRecord]:
        """Do not start a job until it is released."""
        return self._each(name, self.commands.hold)

    def release(self, name: str) -> list[JobRecord]:
        """Let a held or suspended job run again."""
        return self._each(name, self.commands.release)

    def update(self, name: str, changes: Mapping[str, Any]) -> list[JobRecord]:
        """Change the terms of a job: its priority, weight, limit_s, deadline_s or name."""
        return self._each(name, self.commands.changing(changes))

    def leave_alone(self, blocked: Mapping[int, str]) -> None:
        """Start nobody on some GPUs, by number with the reason; who was to start there is given others."""
        self.engine.ask(lambda now_s: (self.commands.leave_alone(blocked, now_s), None))

    def set_policy(self, policy: Policy, text: str) -> None:
        """Go on with another policy; what the old one remembered is dropped.

        Nobody is stopped by the change itself, except for guests: another policy may not let jobs share GPUs.
        """

        def command(now_s: float) -> tuple[list[Event], None]:
            events = self.commands.guests_off(now_s)
            self.guard.policy = policy
            self.state.memory = {}
            self.policy_text = text
            self.engine.timers.set(now_s)
            self.writer.keep({"policy": text, "memory": {}})
            return events, None

        self.ask(command)

    # --- the observer of the loop ------------------------------------------------------------------------------------

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Write down what happened; then those who asked get their answers."""
        self.writer.note_events(events)
        self.engine.inbox.answer()
        for listener in self.listeners:
            listener(events)
        self.engine.settle()

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Write down what was decided, before it is done."""
        self.reasons.note(snapshot, decision)
        self.writer.note_round(snapshot.now_s, decision, actions)
        for watcher in self.watchers:
            watcher(decision, actions)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _each(self, name: str, act: Act) -> list[JobRecord]:
        """Do something to a job, or to all tasks of an array."""
        return list(self.ask(lambda now_s: self.commands.each(name, act, now_s)))

    def _happened(self, events: Sequence[Event]) -> None:
        """Commands were carried out while the loop waits: whoever observes it is told as after any events."""
        assert self.loop.observer is not None
        self.loop.observer.after_events(self.state, events)
