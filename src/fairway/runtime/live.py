"""The engine of live jobs: processes and commands on one side, events and actions on the other.

`poll` waits for processes to end, for jobs to report and for users to ask for something, and says so in the events that
every engine speaks. `enact` turns actions into targets for the processes. Records of jobs are kept up to date on the
way; the journal stores them together with the events that changed them. What jobs report of their training is read by
`seen`.
"""

from __future__ import annotations

import heapq
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fairway.core import columns
from fairway.core.action import Action, Suspend, Throttle
from fairway.core.cluster import Cluster
from fairway.core.errors import FairwayError
from fairway.core.event import (
    Event,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobStarted,
    RateChanged,
    Woken,
)
from fairway.core.state import State
from fairway.runtime import environment, processes
from fairway.runtime.clock import Clock
from fairway.runtime.engines.local import Ended, LocalProcesses, Started, Target
from fairway.runtime.idle import RECLAIMED
from fairway.runtime.outcomes import Verdict, verdict
from fairway.runtime.processes import Outcome, Running
from fairway.runtime.records import Attempt, Book, JobRecord, JobState
from fairway.runtime.seen import Seen

REPORTS_EVERY_S = 0.5
BACK_OFF_S, MOST_BACK_OFF_S = 5.0, 600.0
REST_S, MOST_REST_S = 0.05, 0.1
"""Time between rounds that only commands ask for: four times what a round takes, within these limits."""
MOST_LOST = 10
"""How often a job may lose its processes through no fault of its own before it is given up."""


class StoppedError(FairwayError):
    """The scheduler takes no commands any more."""


Command = Callable[[float], tuple[list[Event], Any]]
"""What a user asks for: given the present instant, it changes records and returns events and the answer."""


class LiveEngine:
    """This machine's jobs. One thread calls `poll` and `enact`; `ask` may be called from any."""

    def __init__(self, cluster: Cluster, devices: Sequence[str] | None, folder: Path, book: Book, clock: Clock) -> None:
        self.cluster = cluster
        self.devices = devices
        self.folder = folder
        self.book = book
        self.clock = clock
        self.state: State
        self.seen = Seen(book, cluster, self._folder, self.ran_s)
        self.save: Callable[[], None] = lambda: None
        self.happened: Callable[[Sequence[Event]], None] = lambda events: None
        self.processes = LocalProcesses(self._prepare, self._stays, anywhere=devices is None)
        self.closing = False
        self.round_s = 0.0
        self.log_bytes = environment.LOG_BYTES
        self.answers: list[tuple[Future[Any], Any]] = []
        self.on_off: Callable[[JobRecord], None] = lambda record: None
        self._inbox: list[tuple[Command, Future[Any]]] = []
        self._lock = threading.Lock()
        self._alarms: list[float] = []
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._calls = 0
        self._next_reports_s = 0.0
        self._left_s = math.nan
        self._rested_s = 0.0
        self._freed = False

    def ask(self, command: Command) -> Future[Any]:
        """Have a command carried out by the scheduler's thread; the answer comes when what it changed is on disk."""
        answer: Future[Any] = Future()
        # Whoever stops waiting for the answer does not take the command back.
        answer.set_running_or_notify_cancel()
        with self._lock:
            if self.closing:
                raise StoppedError("the scheduler has stopped")
            self._inbox.append((command, answer))
        self.processes.wake()
        return answer

    def refuse_all(self, error: BaseException | None) -> None:
        """The scheduler has ended: nobody is to wait for an answer."""
        self.closing = True
        with self._lock:
            waiting, self._inbox = [answer for _, answer in self._inbox], []
        for answer in [*waiting, *(answer for answer, _ in self.answers)]:
            answer.set_exception(StoppedError(f"the scheduler has stopped{f': {error}' if error else ''}"))
        self.answers = []

    def close(self) -> None:
        """Make `poll` say that there is nothing left to wait for."""
        self.closing = True
        self.processes.wake()

    def alarm(self, time_s: float) -> None:
        """Ask for a round at an instant."""
        heapq.heappush(self._alarms, time_s)

    def poll(self, until_s: float) -> Sequence[Event]:
        """Wait for something to happen, until `until_s` at the latest.

        What users ask for is done, written down and answered here at once. The round that it calls for comes at once
        as well, except right after another one: a stream of commands is not to wait for a round with each.
        """
        self._follow_guests()
        until_s = self._latest_round_s(until_s)
        rested_s, asked = self._rested(), False
        while not self.closing:
            now_s = self._now_s(until_s)
            asked |= self._commands(now_s)
            round_s = min(until_s, rested_s if asked else math.inf)
            wait_s = min(round_s, self._next_alarm_s(), self._next_reports_s) - now_s
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
            if (self._rang(now_s) and not asked) or events or now_s >= round_s:
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

    def _rang(self, now_s: float) -> bool:
        """Whether an alarm was due; what was to be done then is done."""
        if self._next_alarm_s() > now_s:
            return False
        while self._alarms and self._alarms[0] <= now_s:
            heapq.heappop(self._alarms)
        while self._due and self._due[0][0] <= now_s:
            heapq.heappop(self._due)[2](now_s)
        return True

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
                self.mark_preempted(self.book[action.job], now_s)
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
        now_s, events = self.clock.now_s(), list[Event]()
        for record in self.book:
            attempt = record.attempt
            if attempt is None or attempt.ended_s is not None:
                continue
            found = processes.find(self._directory(record, attempt))
            if isinstance(found, Running):
                paused = record.state is JobState.SUSPENDED
                self.processes.adopt(record.number, tuple(attempt.gpus), found, attempt.token, paused=paused)
                self.seen.watch(record)
                if record.cancelled:
                    self.processes.stop(record.number, hurry=True)
            elif isinstance(found, Outcome):
                if found.cause == "lost":
                    processes.kill_strays(self._directory(record, attempt), attempt.token)
                # The state takes note of it when it was, not when it is found: nobody is charged for the time between.
                ended_s = now_s if found.ended_s is None else found.ended_s - self.clock.origin_s
                events += self._ended(record, found, max(min(now_s, ended_s), self.state.now_s))
            else:
                attempt.ended_s, attempt.cause = self.clock.date_s(now_s), "not started"
                record.since_s = None
                if record.state is JobState.RUNNING:
                    record.state = JobState.PENDING
                self.book.touch(record)
        return sorted(events, key=lambda event: event.time_s)

    def converge(self) -> None:
        """After a restart: go towards what the state says of every job."""
        held = self.state.held_gpus
        wanted = {job: Target(gpus, *self._shared(job)) for job, gpus in held.items()}
        others = [(job, None) for job in self.processes.live if job not in wanted]
        for job, _ in others:
            if self.book[job].state is JobState.RUNNING:
                # It was taken off its GPUs, and the earlier scheduler had no time to write that down.
                self.mark_preempted(self.book[job], self.clock.now_s())
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

    def call_at(self, time_s: float, act: Callable[[float], None]) -> None:
        """Do something at an instant, before the round that is then."""
        self._calls += 1
        heapq.heappush(self._due, (time_s, self._calls, act))
        self.alarm(time_s)

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

    def set_limit(self, record: JobRecord) -> None:
        """Hold an attempt that lives to the job's new time limit."""
        if record.number in self.processes.live and record.attempt is not None:
            processes.set_limit(self._directory(record, record.attempt), record.request.limit_s)

    def ran_s(self, record: JobRecord, now_s: float) -> float:
        """For how long a job has run by now."""
        since_s = record.since_s
        return record.ran_s + (0.0 if since_s is None else max(self.clock.date_s(now_s) - since_s, 0.0))

    def _next_alarm_s(self) -> float:
        return self._alarms[0] if self._alarms else math.inf

    def _commands(self, now_s: float) -> bool:
        """Carry out what users have asked for since the last time, and tell the state; whether there was anything."""
        with self._lock:
            inbox, self._inbox = self._inbox, []
        events: list[Event] = []
        for command, answer in inbox:
            try:
                told, result = command(now_s)
            except Exception as error:
                answer.set_exception(error)
                continue
            self.answers.append((answer, result))
            for event in told:
                self.state.apply(event)
            events += told
        if not self.answers:
            return False
        self.happened(events)
        return True

    def _noticed(self, notice: Started | Ended, now_s: float) -> list[Event]:
        record = self.book[notice.job]
        if isinstance(notice, Ended):
            return self._ended(record, notice.outcome, now_s)
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
        self.account(record, now_s)
        record.since_s = date_s
        self.seen.started(record)
        self.book.touch(record)
        return [JobStarted(now_s, record.number, self.seen.rate(record), now_s)]

    def _ended(self, record: JobRecord, outcome: Outcome, now_s: float) -> list[Event]:
        """An attempt is over: what it means for the job."""
        attempt = record.attempt
        assert attempt is not None
        ended_s = now_s if outcome.ended_s is None else min(now_s, outcome.ended_s - self.clock.origin_s)
        self.account(record, ended_s)
        attempt.ended_s = outcome.ended_s or self.clock.date_s(now_s)
        attempt.codes, attempt.cause = list(outcome.codes), outcome.cause
        self.seen.restarts.ended(record, outcome.stop_s)
        self.seen.watch(record)
        self.seen.read(record)
        self.book.touch(record)
        if record.state.ended:
            # It was cancelled before; only now its processes are gone.
            record.ended_s = attempt.ended_s
            self.seen.forget(record)
            return []
        asked = outcome.cause == "request"
        logs = [self._log(record, attempt, rank) for rank in range(len(outcome.codes))]
        judged = verdict(outcome, asked=asked, logs=logs)
        moves = record.number in self.processes.targets and not self.processes.is_blocked(record.number)
        if judged.next == "again" and asked and moves:
            return self._moves(record, judged, now_s)
        # It is for the next decision to say whether and where it runs again.
        self.processes.targets.pop(record.number, None)
        if judged.next == "done":
            return self._done(record, now_s)
        if judged.next == "again":
            return self._again(record, judged, now_s, asked=asked)
        return self._failed(record, judged, now_s)

    def _done(self, record: JobRecord, now_s: float) -> list[Event]:
        record.exit_code = 0
        learnt = self.seen.learn(record, now_s)
        self._leave(record, JobState.COMPLETED, "", now_s)
        return [JobFinished(now_s, record.number), *learnt]

    def _moves(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It was stopped to go on elsewhere, or with other GPUs, which the state holds for it already."""
        record.state, record.reason = JobState.PREEMPTED, judged.why
        return [RateChanged(now_s, record.number, self.seen.saved(record), 0.0), *self.seen.restart_cost(record, now_s)]

    def _again(self, record: JobRecord, judged: Verdict, now_s: float, *, asked: bool) -> list[Event]:
        """It will run again, from its last checkpoint; at once if it was asked to stop, else after a while."""
        if not asked:
            record.not_before_s = self.clock.date_s(now_s) + BACK_OFF_S
            self.alarm(now_s + BACK_OFF_S)
            self.on_off(record)
        if not record.suspended:
            record.state = JobState.PREEMPTED
        if record.reason != RECLAIMED:
            record.reason = judged.why
        evicted = JobEvicted(now_s, record.number, self.seen.saved(record), judged.why)
        return [evicted, *self.seen.restart_cost(record, now_s)]

    def _failed(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It failed, or its machine did; it is tried again after a while if it may be."""
        lost = judged.next == "lost"
        record.failures += not lost
        losses = sum(attempt.cause == "lost" for attempt in record.attempts)
        again = losses <= MOST_LOST if lost else judged.next == "retry" and record.failures <= record.request.retries
        if not again:
            record.exit_code = judged.code
            self._leave(record, judged.state, judged.why, now_s)
            return [JobFailed(now_s, record.number, judged.why)]
        tries = losses if lost else record.failures
        wait_s = 0.0 if lost and losses == 1 else min(BACK_OFF_S * 2 ** (tries - 1), MOST_BACK_OFF_S)
        record.not_before_s = self.clock.date_s(now_s) + wait_s
        record.state, record.reason = JobState.PENDING, f"{judged.why}; tried again in {wait_s:.0f} s"
        self.alarm(now_s + wait_s)
        self.on_off(record)
        return [JobEvicted(now_s, record.number, self.seen.saved(record), judged.why)]

    def _leave(self, record: JobRecord, state: JobState, why: str, now_s: float) -> None:
        """The job is over for good."""
        record.state, record.reason, record.ended_s = state, why, self.clock.date_s(now_s)
        self.processes.targets.pop(record.number, None)
        self.seen.forget(record)
        self.book.touch(record)
        self.on_off(record)

    def mark_preempted(self, record: JobRecord, now_s: float) -> None:
        """Note that a job is taken off its GPUs and will be given some again."""
        if record.number in self.processes.live:
            self.account(record, now_s)
            record.preemptions += 1
            stays = self._stays(record.number)
            record.state = JobState.SUSPENDED if stays else JobState.PREEMPTED
            self.book.touch(record)
        self.on_off(record)

    def account(self, record: JobRecord, now_s: float) -> None:
        """Book the time that the job has run since it was last looked at."""
        if record.since_s is not None and record.attempt is not None:
            passed_s = max(self.clock.date_s(now_s) - record.since_s, 0.0)
            record.ran_s += passed_s
            record.gpu_s += passed_s * len(record.attempt.gpus)
            record.since_s = None

    def _stays(self, job: int) -> bool:
        record = self.book[job]
        return record.request.preempt == "suspend" and not record.cancelled

    def _prepare(self, job: int, gpus: tuple[int, ...]) -> tuple[Path, str, dict[str, Any]]:
        """Note a new attempt, durably, before its processes are started."""
        record = self.book[job]
        number = len(record.attempts) + 1
        resume = record.progress.checkpoint is not None
        date_s = self.clock.date_s(self.clock.now_s())
        attempt = Attempt(number, list(gpus), secrets.token_hex(8), date_s, resume=resume)
        record.attempts.append(attempt)
        self.book.touch(record)
        self.save()
        folder = self._folder(record)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        environment.hand_over(folder, environment.account_of(record))
        names = None if self.devices is None else [self.devices[gpu] for gpu in gpus]
        return (
            self._directory(record, attempt),
            attempt.token,
            environment.launch_of(record, attempt, folder, names, log_bytes=self.log_bytes),
        )

    def _folder(self, record: JobRecord) -> Path:
        return self.folder / record.id

    def _directory(self, record: JobRecord, attempt: Attempt) -> Path:
        return self._folder(record) / f"attempt-{attempt.number}"

    def _log(self, record: JobRecord, attempt: Attempt, rank: int) -> Path:
        return self._directory(record, attempt) / f"rank-{rank}.log"
