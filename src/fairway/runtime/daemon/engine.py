"""The engine of live jobs: processes and commands on one side, events and actions on the other.

`poll` waits for processes to end, for jobs to report and for users to ask for something, and says so in the events that
every engine speaks. `enact` turns actions into targets for the processes. Records of jobs are kept up to date on the
way; the journal stores them together with the events that changed them. What jobs report of their training is read by
`seen`, and what becomes of those that lose their GPUs is for `ends` to say.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fairway.core import columns
from fairway.core.action import Action, Suspend, Throttle
from fairway.core.cluster import Cluster
from fairway.core.event import Event, JobCancelled, JobStarted, Woken
from fairway.core.state import State
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.inbox import Command, Inbox
from fairway.runtime.daemon.timers import Timers
from fairway.runtime.jobs.attempt_ends import AttemptEnds
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState, JobStore
from fairway.runtime.processes import attempts as processes
from fairway.runtime.processes import environment
from fairway.runtime.processes.attempts import Outcome, Running
from fairway.runtime.processes.folders import FACTS, RECORD
from fairway.runtime.processes.local import Ended, LocalProcesses, Started, Target

REPORTS_EVERY_S = 0.5
REST_S, MOST_REST_S = 0.01, 0.1
"""Time between rounds that only commands ask for: four times what a round takes, within these limits."""


class LiveEngine:
    """This machine's jobs. One thread calls `poll` and `enact`; `ask` may be called from any."""

    def __init__(
        self, cluster: Cluster, devices: Sequence[str] | None, folder: Path, store: JobStore, clock: Clock
    ) -> None:
        self.cluster = cluster
        self.devices = devices
        self.folder = folder
        self.store = store
        self.clock = clock
        self.state: State
        self.seen = Observations(store, cluster, self._folder, self.ran_s)
        self.save: Callable[[], None] = lambda: None
        self.happened: Callable[[Sequence[Event]], None] = lambda events: None
        self.facts: Callable[[], dict[str, Any]] = dict
        self.processes = LocalProcesses(self._prepare, self._stays, anywhere=devices is None)
        self.inbox = Inbox()
        self.timers = Timers()
        self.ends = AttemptEnds(store, clock, self.seen, self.processes, self.timers)
        self.round_s = 0.0
        self.log_bytes = environment.LOG_BYTES
        self._next_reports_s = 0.0
        self._left_s = math.nan
        self._rested_s = 0.0
        self._freed = False

    def ask(self, command: Command) -> Future[Any]:
        """Have a command carried out by the scheduler's thread; the answer comes when what it changed is on disk."""
        answer = self.inbox.put(command)
        self.processes.wake()
        return answer

    def serve(self, state: State) -> None:
        """Have the state that events are meant for and that jobs are looked up in."""
        self.state = self.seen.state = state

    def close(self) -> None:
        """Make `poll` say that there is nothing left to wait for."""
        self.inbox.closed = True
        self.processes.wake()

    def poll(self, until_s: float) -> Sequence[Event]:
        """Wait for something to happen, until `until_s` at the latest.

        What users ask for is done, written down and answered here at once. The round that it calls for comes at once
        as well, except right after another one: a stream of commands is not to wait for a round with each.
        """
        self._follow_guests()
        until_s = self._latest_round_s(until_s)
        rested_s, asked = self._rested(), False
        while not self.inbox.closed:
            now_s = self._now_s(until_s)
            asked |= self._commands(now_s)
            round_s = min(until_s, rested_s if asked else math.inf)
            wait_s = min(round_s, self.timers.next_s, self._next_reports_s) - now_s
            notices, events = self.processes.wait(wait_s), list[Event]()
            if wait_s > 0:
                # Not otherwise: the instant of a round may have passed while commands from before it were written down.
                now_s = self._now_s(until_s)
            for notice in notices:
                events += self._noticed(notice, now_s)
            self._freed |= any(isinstance(notice, Ended) for notice in notices)
            if self._freed and not events:
                # They had been cancelled: all that is to be written down is that they are gone.
                self.save()
                self.settle()
            if now_s >= self._next_reports_s:
                self._next_reports_s = now_s + REPORTS_EVERY_S
                events += self.seen.events(now_s)
            # An alarm of a command is that command's, and rests with it.
            if (self.timers.rang(now_s) and not asked) or events or now_s >= round_s:
                self._left_s = self.clock.now_s() if asked and not events else math.nan
                return events or [Woken(now_s)]
        return ()

    def settle(self) -> None:
        """Start whoever waits for GPUs that have become free, now that it is written down who has left them."""
        if self._freed:
            self._freed = False
            self.processes.settle()

    def _rested(self) -> float:
        """When commands may have their next round, if they had the last one, which is over now."""
        # Where rounds come at their own times, the loop has to work out anew when the next one is.
        if not self.round_s and not math.isnan(self._left_s):
            now_s = self.clock.now_s()
            self._rested_s = now_s + min(max(4.0 * (now_s - self._left_s), REST_S), MOST_REST_S)
        return self._rested_s

    def _latest_round_s(self, until_s: float) -> float:
        """Of several rounds that should have been by now the last: after a pause, not all of them are made up for."""
        late_s = self.clock.now_s() - until_s
        return until_s + self.round_s * math.floor(late_s / self.round_s) if 0 < self.round_s <= late_s else until_s

    def _now_s(self, until_s: float) -> float:
        """The present instant, but none beyond the one that is waited for: a round that is due must not be missed."""
        return max(min(self.clock.now_s(), until_s), self.state.now_s)

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """Set the processes their targets; who can be started at once is."""
        targets: list[tuple[int, Target | None]] = []
        for action in actions:
            if isinstance(action, Throttle):
                # The state has it, and guests follow the state.
                continue
            if isinstance(action, Suspend):
                self.ends.preempted(self.store[action.job], now_s)
                targets.append((action.job, None))
            else:
                targets.append((action.job, Target(action.gpus, action.host, action.throttle)))
        self.processes.set_targets(targets)
        events: list[Event] = []
        for notice in self.processes.noticed():
            events += self._noticed(notice, now_s)
        self.save()
        return events

    def adopt(self) -> list[Event]:
        """After a restart: find the processes of all jobs again, and what has happened in the meantime."""
        now_s, events, ends = self.clock.now_s(), list[Event](), list[tuple[float, JobRecord, Outcome]]()
        for record in self.store:
            attempt = record.attempt
            if attempt is None or attempt.ended_s is not None:
                continue
            found = processes.find(self._directory(record))
            if not record.cancelled and processes.is_given_up(self._directory(record)):
                # Somebody has cancelled it, of which the journal had no word yet, or has none any more.
                events += self._given_up(record, max(now_s, self.state.now_s))
            if isinstance(found, Running):
                paused = record.state is JobState.SUSPENDED
                self.processes.adopt(record.number, tuple(attempt.gpus), found, attempt.token, paused=paused)
                self.seen.watch(record)
                if record.cancelled:
                    self.processes.stop(record.number, hurry=True)
            elif isinstance(found, Outcome):
                if found.cause == "lost":
                    processes.kill_strays(self._directory(record), attempt.token)
                # The state takes note of it when it was, not when it is found: nobody is charged for the time between.
                ended_s = now_s if found.ended_s is None else found.ended_s - self.clock.origin_s
                ends.append((max(min(now_s, ended_s), self.state.now_s), record, found))
            else:
                attempt.ended_s, attempt.cause = self.clock.date_s(now_s), "not started"
                record.since_s = None
                if record.state is JobState.RUNNING:
                    record.state = JobState.PENDING
                self.store.touch(record)
        # In the order in which they ended: what is learnt from one is about those that still ran then.
        for at_s, record, outcome in sorted(ends, key=lambda end: end[0]):
            events += self.ends.over(record, outcome, self._directory(record), at_s)
        return sorted(events, key=lambda event: event.time_s)

    def _given_up(self, record: JobRecord, now_s: float) -> list[Event]:
        record.cancelled, record.ended_s = True, self.clock.date_s(now_s)
        record.state, record.reason = JobState.CANCELLED, "cancelled"
        self.store.touch(record)
        return [JobCancelled(now_s, record.number)]

    def converge(self) -> None:
        """After a restart: go towards what the state says of every job."""
        held = self.state.held_gpus
        wanted = {job: Target(gpus, *self._shared(job)) for job, gpus in held.items()}
        others = [(job, None) for job in self.processes.live if job not in wanted]
        for job, _ in others:
            if self.store[job].state is JobState.RUNNING:
                # It was taken off its GPUs, and the earlier scheduler had no time to write that down.
                self.ends.preempted(self.store[job], self.clock.now_s())
        self.processes.set_targets([*others, *wanted.items()])

    def _shared(self, job: int) -> tuple[int, float]:
        """The host of an active job, or -1, and the part of the time in which it may compute."""
        table = self.state.table
        row = table.position(job)
        return int(table.i[columns.HOST, row]), float(table.f[columns.THROTTLE, row])

    def _follow_guests(self) -> None:
        """Guests get what the state says of them: it is not only actions that change it, but also hosts that leave."""
        targets = self.processes.targets
        for job in [job for job, target in targets.items() if target.host >= 0 and job in self.state.held_gpus]:
            self.processes.follow(job, *self._shared(job))

    def keepers(self) -> dict[int, set[int]]:
        """The pids of the keepers that have attempts on each GPU. May be called from any thread."""
        found: dict[int, set[int]] = {}
        for live in list(self.processes.live.values()):
            for gpu in live.gpus:
                found.setdefault(gpu, set()).add(live.running.pid)
        return found

    def home(self, job: int) -> tuple[int, ...]:
        """The GPUs that hold the state of a job which would lose it elsewhere; none where all GPUs are alike."""
        live = self.processes.live.get(job)
        if self.devices is None or live is None or live.status == "stopping" or -1 in live.gpus:
            return ()
        return live.gpus if live.status == "paused" or self._stays(job) else ()

    def homes(self) -> dict[int, tuple[int, ...]]:
        """The homes of all jobs that have one, by job number."""
        return {job: home for job in self.processes.live if (home := self.home(job))}

    def computes(self, record: JobRecord) -> bool:
        """Whether an attempt of a job lives, and is neither suspended nor about to end."""
        live = self.processes.live.get(record.number)
        return live is not None and live.status == "running" and not record.suspended

    def set_limit(self, record: JobRecord, limit_s: float | None) -> None:
        """Hold an attempt that lives to a new time limit of its job. `OSError` or `ValueError` where that fails."""
        if record.number in self.processes.live and record.attempt is not None:
            processes.set_limit(self._directory(record), limit_s)

    def ran_s(self, record: JobRecord, now_s: float) -> float:
        """For how long a job has run by now."""
        return record.ran_until_s(self.clock.date_s(now_s))

    def _commands(self, now_s: float) -> bool:
        """Carry out what users have asked for since the last time, and tell the state; whether there was anything."""
        events = self.inbox.carry_out(now_s, self.state.apply)
        if events is None:
            return False
        self.happened(events)
        return True

    def _noticed(self, notice: Started | Ended, now_s: float) -> list[Event]:
        record = self.store[notice.job]
        if isinstance(notice, Ended):
            return self.ends.over(record, notice.outcome, self._directory(record), now_s)
        if record.state.ended or notice.job not in self.processes.targets:
            # It was cancelled or set aside before this was looked at.
            return []
        attempt, live = record.attempt, self.processes.live.get(notice.job)
        date_s = self.clock.date_s(now_s)
        if attempt is not None and attempt.started_s is None:
            attempt.started_s = date_s
        if attempt is not None and live is not None:
            # GPUs that are all alike may be others than those on which it was suspended.
            attempt.gpus = list(live.gpus)
        if notice.resumed:
            # The time in which it stood still says nothing about its speed.
            record.progress.reported_s = None
        record.started_s = record.started_s or date_s
        record.state, record.reason = JobState.RUNNING, ""
        record.count_until(date_s)
        record.since_s = date_s
        self.seen.started(record)
        self.store.touch(record)
        return [JobStarted(now_s, record.number, self.seen.rate(record), now_s)]

    def _stays(self, job: int) -> bool:
        return self.store[job].stays

    def _prepare(self, job: int, gpus: tuple[int, ...]) -> tuple[Path, str, dict[str, Any]]:
        """Note a new attempt, durably, before its processes are started."""
        record = self.store[job]
        number = len(record.attempts) + 1
        resume = record.progress.checkpoint is not None
        date_s = self.clock.date_s(self.clock.now_s())
        attempt = Attempt(number, list(gpus), secrets.token_hex(8), date_s, resume=resume)
        record.attempts.append(attempt)
        self.store.touch(record)
        self.save()
        folder = self._folder(record)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        environment.hand_over(folder, environment.account_of(record))
        names = None if self.devices is None else [self.devices[gpu] for gpu in gpus]
        launch = environment.launch_of(record, attempt, folder, names, log_bytes=self.log_bytes)
        # For whoever loses the journal: a job that was ever started can be brought back by its folder alone.
        kept = {RECORD: record.plain(), FACTS: self.facts()}
        return self._directory(record), attempt.token, {**launch, **kept}

    def _folder(self, record: JobRecord) -> Path:
        return self.folder / record.id

    def _directory(self, record: JobRecord) -> Path:
        """Where the files of the latest attempt are."""
        return self._folder(record) / f"attempt-{record.attempts[-1].number}"
