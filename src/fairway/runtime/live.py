"""The engine of live jobs: processes and commands on one side, events and actions on the other.

`poll` waits for processes to end, for jobs to report and for users to ask for something, and says so in the events that
every engine speaks. `enact` turns actions into targets for the processes. Records of jobs are kept up to date on the
way; the journal stores them together with the events that changed them.
"""

from __future__ import annotations

import heapq
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fairway.core.action import Action, Suspend, Throttle
from fairway.core.cluster import Cluster
from fairway.core.errors import FairwayError
from fairway.core.event import (
    Event,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobStarted,
    JobSubmitted,
    RateChanged,
    RegimeEntered,
    Woken,
)
from fairway.core.state import State
from fairway.runtime import environment, processes
from fairway.runtime.engines.local import Ended, LocalProcesses, Started, Target
from fairway.runtime.estimates import ELASTIC_EXPONENT, RunTimes, announced, speeds_of
from fairway.runtime.outcomes import Verdict, verdict
from fairway.runtime.processes import Outcome, Running
from fairway.runtime.records import Attempt, Book, JobRecord, JobState
from fairway.runtime.reports import ReportReader, take_in
from fairway.runtime.restarts import RestartCosts

REPORTS_EVERY_S = 0.5
RATE_EVERY_S = 5.0
"""How often the measured speed of a job becomes an event."""
BACK_OFF_S, MOST_BACK_OFF_S = 5.0, 600.0
_FOLLOW_S = 1.0
"""By how much the time of day has to be ahead for the clock to follow it."""
MOST_LOST = 10
"""How often a job may lose its processes through no fault of its own before it is given up."""


class StoppedError(FairwayError):
    """The scheduler takes no commands any more."""


class Clock:
    """Seconds since the scheduler's first start.

    When the time of day is set back it goes on at its pace; when that is set forward, or the machine has slept, it
    follows.
    """

    def __init__(self, origin_s: float, at_least_s: float = 0.0) -> None:
        self.origin_s = origin_s
        self._base = (time.monotonic(), max(at_least_s, time.time() - origin_s))

    def now_s(self) -> float:
        """The present instant."""
        ticks_s, (base_ticks_s, base_s) = time.monotonic(), self._base
        now_s = max(base_s + ticks_s - base_ticks_s, base_s)
        today_s = time.time() - self.origin_s
        if today_s > now_s + _FOLLOW_S:
            now_s = today_s
            self._base = (ticks_s, now_s)
        return now_s

    def at_least(self, time_s: float) -> None:
        """Be no earlier than an instant of the past that is known."""
        if self.now_s() < time_s:
            self._base = (time.monotonic(), time_s)

    def date_s(self, time_s: float) -> float:
        """An instant as seconds since 1970."""
        return self.origin_s + time_s


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
        self.times = RunTimes()
        self.restarts = RestartCosts()
        self.state: State
        self.save: Callable[[], None] = lambda: None
        self.processes = LocalProcesses(self._prepare, self._stays, anywhere=devices is None)
        self.closing = False
        self.round_s = 0.0
        self.log_bytes = environment.LOG_BYTES
        self.answers: list[tuple[Future[Any], Any]] = []
        self.on_end: Callable[[JobRecord], None] = lambda record: None
        self._inbox: list[tuple[Command, Future[Any]]] = []
        self._lock = threading.Lock()
        self._readers: dict[int, ReportReader] = {}
        self._rated_s: dict[int, float] = {}
        self._in_steps: set[int] = set()
        self.expected_s: dict[int, float] = {}
        self._alarms: list[float] = []
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._calls = 0
        self._next_reports_s = 0.0

    def ask(self, command: Command) -> Future[Any]:
        """Have a command carried out by the scheduler's thread; the answer comes when what it changed is on disk."""
        answer: Future[Any] = Future()
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
        """Wait for something to happen, until `until_s` at the latest."""
        until_s = self._latest_round_s(until_s)
        while not self.closing:
            now_s = self._now_s(until_s)
            events = self._commands(now_s)
            if not events and not self.answers:
                wait_s = min(until_s, self._next_alarm_s(), self._next_reports_s) - now_s
                notices = self.processes.wait(0.0 if self._inbox else wait_s)
                now_s = self._now_s(until_s)
                for notice in notices:
                    events += self._noticed(notice, now_s)
                if any(isinstance(notice, Ended) for notice in notices):
                    self.processes.settle()
            if now_s >= self._next_reports_s:
                self._next_reports_s = now_s + REPORTS_EVERY_S
                events += self._reports(now_s)
            if self._alarms and self._alarms[0] <= now_s:
                while self._alarms and self._alarms[0] <= now_s:
                    heapq.heappop(self._alarms)
                while self._due and self._due[0][0] <= now_s:
                    heapq.heappop(self._due)[2](now_s)
                events = events or [Woken(now_s)]
            if events or self.answers or now_s >= until_s:
                return events or [Woken(now_s)]
        return ()

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
                continue
            if isinstance(action, Suspend):
                self._mark_preempted(self.book[action.job], now_s)
                targets.append((action.job, None))
            else:
                targets.append((action.job, Target(action.gpus, action.host)))
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
                self._watch_reports(record)
                if record.cancelled:
                    self.processes.stop(record.number)
            elif isinstance(found, Outcome):
                if found.cause == "lost":
                    processes.kill_strays(self._directory(record, attempt), attempt.token)
                events += self._ended(record, found, now_s)
            else:
                attempt.ended_s, attempt.cause = self.clock.date_s(now_s), "not started"
                self.book.touch(record)
        return events

    def converge(self) -> None:
        """After a restart: go towards what the state says of every job."""
        held = self.state.held_gpus
        hosts = {int(job): int(host) for job, host in zip(*self._guests(), strict=True)}
        wanted = {job: Target(gpus, hosts.get(job, -1)) for job, gpus in held.items()}
        others = [(job, None) for job in self.processes.live if job not in wanted]
        self.processes.set_targets([*others, *wanted.items()])

    def _guests(self) -> tuple[Any, Any]:
        snapshot = self.state.snapshot()
        return snapshot.jobs, snapshot.host

    def recall(self, event: Event) -> None:
        """Take note of an event of the past that is replayed."""
        if isinstance(event, JobSubmitted):
            self.expected_s[event.job] = event.work
        elif isinstance(event, RegimeEntered) and not math.isnan(event.work):
            if self.book[event.job].progress.steps_per_s is None:
                self.expected_s[event.job] = event.work
            else:
                self._in_steps.add(event.job)

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
        """The GPUs on which a job is suspended in place, where it matters which they are."""
        live = self.processes.live.get(job)
        return live.gpus if live is not None and live.status == "paused" and self.devices is not None else ()

    def progress(self, record: JobRecord) -> float:
        """Work that a job has done, in the unit that the state counts in, if its processes stay or save it now."""
        return record.progress.step if record.number in self._in_steps else record.ran_s

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

    def _commands(self, now_s: float) -> list[Event]:
        """Carry out what users have asked for since the last time."""
        with self._lock:
            inbox, self._inbox = self._inbox, []
        events: list[Event] = []
        for command, answer in inbox:
            try:
                told, result = command(now_s)
            except Exception as error:
                answer.set_exception(error)
                continue
            events += told
            self.answers.append((answer, result))
        return events

    def _noticed(self, notice: Started | Ended, now_s: float) -> list[Event]:
        record = self.book[notice.job]
        if isinstance(notice, Ended):
            return self._ended(record, notice.outcome, now_s)
        if record.state.ended or notice.job not in self.processes.targets:
            # It was cancelled or set aside before this was looked at.
            return []
        attempt = record.attempt
        date_s = self.clock.date_s(now_s)
        if attempt is not None and attempt.started_s is None:
            attempt.started_s = date_s
        if notice.resumed:
            # The time in which it stood still says nothing about its speed.
            record.progress.reported_s = None
        record.started_s = record.started_s or date_s
        record.state, record.reason = JobState.RUNNING, ""
        self.account(record, now_s)
        record.since_s = date_s
        self._watch_reports(record)
        self.book.touch(record)
        return [JobStarted(now_s, record.number, self._rate(record), now_s)]

    def _rate(self, record: JobRecord) -> float:
        """Work per second that a job is expected to make where it runs now."""
        if record.number in self._in_steps and record.progress.steps_per_s:
            return record.progress.steps_per_s
        gpus = self.state.held_gpus.get(record.number, ())
        if not gpus:
            return 1.0
        kind = self.cluster.node_type[self.cluster.node_of_gpu[gpus[0]]]
        scale = float((len(gpus) / record.request.gpus) ** ELASTIC_EXPONENT)
        return max(speeds_of(record.request, self.cluster)[kind], 1e-6) * scale

    def _ended(self, record: JobRecord, outcome: Outcome, now_s: float) -> list[Event]:
        """An attempt is over: what it means for the job."""
        attempt = record.attempt
        assert attempt is not None
        ended_s = now_s if outcome.ended_s is None else min(now_s, outcome.ended_s - self.clock.origin_s)
        self.account(record, ended_s)
        attempt.ended_s = outcome.ended_s or self.clock.date_s(now_s)
        attempt.codes, attempt.cause = list(outcome.codes), outcome.cause
        self.restarts.ended(record)
        self._watch_reports(record)
        self._read_reports(record)
        self.book.touch(record)
        if record.state.ended:
            # It was cancelled before; only now its processes are gone.
            record.ended_s = attempt.ended_s
            self.forget(record)
            return []
        asked = outcome.cause == "request"
        logs = [self._log(record, attempt, rank) for rank in range(len(outcome.codes))]
        judged = verdict(outcome, asked=asked, logs=logs)
        if judged.next == "again" and asked and record.number in self.processes.targets:
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
        self.times.learn(record)
        self._leave(record, JobState.COMPLETED, "", now_s)
        return [JobFinished(now_s, record.number)]

    def _moves(self, record: JobRecord, judged: Verdict, now_s: float) -> list[Event]:
        """It was stopped to go on elsewhere, or with other GPUs, which the state holds for it already."""
        record.state, record.reason = JobState.PREEMPTED, judged.why
        return [RateChanged(now_s, record.number, self.saved(record), 0.0)]

    def _again(self, record: JobRecord, judged: Verdict, now_s: float, *, asked: bool) -> list[Event]:
        """It will run again, from its last checkpoint; at once if it was asked to stop, else after a while."""
        if not asked:
            record.not_before_s = self.clock.date_s(now_s) + BACK_OFF_S
            self.alarm(now_s + BACK_OFF_S)
            self.on_end(record)
        if not record.suspended:
            record.state = JobState.PREEMPTED
        record.reason = judged.why
        return [JobEvicted(now_s, record.number, self.saved(record), judged.why)]

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
        self.on_end(record)
        return [JobEvicted(now_s, record.number, self.saved(record), judged.why)]

    def _leave(self, record: JobRecord, state: JobState, why: str, now_s: float) -> None:
        """The job is over for good."""
        record.state, record.reason, record.ended_s = state, why, self.clock.date_s(now_s)
        self.processes.targets.pop(record.number, None)
        self.forget(record)
        self.book.touch(record)
        self.on_end(record)

    def forget(self, record: JobRecord) -> None:
        """Nothing more is to be expected of a job."""
        for kept in (self._readers, self._rated_s, self.expected_s):
            kept.pop(record.number, None)
        self._in_steps.discard(record.number)

    def saved(self, record: JobRecord) -> float:
        """Progress that a new attempt begins with, in the unit that the state counts in."""
        if record.number in self._in_steps:
            return record.progress.checkpoint_step
        if record.request.preempt == "checkpoint" and record.progress.checkpoint is None:
            return 0.0
        return 0.0 if record.request.preempt == "restart" else record.ran_s

    def _mark_preempted(self, record: JobRecord, now_s: float) -> None:
        self.account(record, now_s)
        record.preemptions += 1
        self.restarts.asked(record, self.clock.date_s(now_s))
        stays = self._stays(record.number)
        record.state = JobState.SUSPENDED if stays else JobState.PREEMPTED
        self.book.touch(record)

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

    def _watch_reports(self, record: JobRecord) -> None:
        if record.number not in self._readers:
            self._readers[record.number] = ReportReader(
                self._folder(record) / "reports.jsonl", record.progress.read_bytes
            )

    def _read_reports(self, record: JobRecord) -> tuple[bool, bool]:
        """Take in what a job has reported since; whether that was anything, and whether its batch size changed."""
        reader, any_new, changed = self._readers.get(record.number), False, False
        if reader is not None:
            now_s = time.time()
            for report in reader.new_lines():
                changed |= take_in(record.progress, report, now_s)
                self.restarts.reported(record)
                any_new = True
            record.progress.read_bytes = reader.offset
        return any_new, changed

    def _reports(self, now_s: float) -> list[Event]:
        """What jobs have reported, as events: now and then their speed, at once another batch size."""
        events = self._overdue(now_s)
        for job in list(self._readers):
            record = self.book[job]
            new, changed = self._read_reports(record)
            if not new:
                continue
            self.book.touch(record)
            if job in self.state.held_gpus and record.state is JobState.RUNNING:
                due = changed or now_s >= self._rated_s.get(job, 0.0)
                if due and record.progress.steps_per_s:
                    self._rated_s[job] = now_s + RATE_EVERY_S
                    events.append(self._seen(record, changed, now_s))
        return events

    def _overdue(self, now_s: float) -> list[Event]:
        """Jobs that report nothing and have run as long as expected are expected to go on as long again."""
        events: list[Event] = []
        for job in self.state.held_gpus.keys() - self._in_steps:
            record = self.book[job]
            ran_s = self.ran_s(record, now_s)
            expected_s = self.expected_s.get(job, math.inf)
            if record.state is JobState.RUNNING and ran_s > expected_s:
                twice_s = self.expected_s[job] = 2.0 * ran_s
                speeds, batch = speeds_of(record.request, self.cluster), record.request.batch_size or 0
                rate = self._rate(record)
                events.append(RegimeEntered(now_s, job, ran_s, rate, batch, speeds, twice_s, 0.0, work=twice_s))
        return events

    def _seen(self, record: JobRecord, changed: bool, now_s: float) -> Event:
        """A job was seen to train. The first time its work comes to be counted in steps, if it has told how many."""
        progress, job = record.progress, record.number
        speed = progress.steps_per_s or 0.0
        total = progress.steps or record.request.steps
        if job in self._in_steps and not changed:
            return RateChanged(now_s, job, progress.step, speed)
        if total is None:
            return RateChanged(now_s, job, self.ran_s(record, now_s), self._rate(record))
        self._in_steps.add(job)
        kind = self.cluster.node_type[self.cluster.node_of_gpu[self.state.held_gpus[job][0]]]
        relative = speeds_of(record.request, self.cluster)
        speeds = tuple(speed * one / relative[kind] if relative[kind] else 0.0 for one in relative)
        batch = progress.batch_size or record.request.batch_size or 0
        prospect = announced(progress, record.request.epochs, speed / total, tuple(one / speed for one in speeds))
        return RegimeEntered(now_s, job, progress.step, speed, batch, speeds, total, 0.0, work=total, prospect=prospect)
