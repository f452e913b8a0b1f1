"""A second thread that checks a few things every few seconds: the configuration's file, foreign processes, idle jobs.

It passes what it finds to the scheduler's thread. The driver may answer slowly, and scheduling must not wait for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from fairway.core.event import Event
from fairway.runtime.daemon.idle import IdleJobs, Sample, Verdict, cpu_s
from fairway.runtime.daemon.inbox import StoppedError
from fairway.runtime.daemon.nvml import ForeignProcesses
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import Settings
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.verdict import RECLAIMED
from fairway.runtime.processes.attempts import Live

EVERY_S = 2.0
JOIN_S = 5.0
"""How long to wait for its end: the driver, or a scheduler whose disk is full, may not answer at all."""


class Watch:
    """Checks until it is closed. `foreign` is None if GPUs are virtual."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: Settings,
        foreign: ForeignProcesses | None,
        *,
        every_s: float = EVERY_S,
        tell: Callable[[str], None] = lambda line: print(f"fairway: {line}", file=sys.stderr, flush=True),
    ) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._foreign = foreign
        self._every_s = every_s
        self.tell = tell
        self._idle = IdleJobs()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Check from now on, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def look(self) -> None:
        """Check once."""
        told = self._settings.poll(self._scheduler)
        if told:
            self.tell(told)
        if self._foreign is not None:
            self._look_at_gpus(self._foreign)
        terms = self._settings.config.idle
        if terms.warn_s is not None or terms.reclaim_s is not None:
            self._look_at_jobs()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self.look()
            except StoppedError:
                # The scheduler has stopped, and the daemon knows.
                return
            except Exception as error:
                self.tell(f"a check failed: {type(error).__name__}: {error}")

    def _look_at_gpus(self, foreign: ForeignProcesses) -> None:
        blocked = foreign.look()
        before = self._scheduler.blocked.why
        if blocked == before:
            return
        for gpu in blocked.keys() - before.keys():
            self.tell(f"GPU {gpu} is blocked: {blocked[gpu]}")
        self._scheduler.block_gpus(blocked)

    def _look_at_jobs(self) -> None:
        running = [live for live in list(self._scheduler.engine.attempts.live.values()) if live.status == "running"]
        self._idle.forget({live.job for live in running})
        for live in running:
            record = self._scheduler.store[live.job]
            verdict = self._idle.look(
                live.job, self._sample(live, record), time.monotonic(), self._settings.config.idle
            )
            if verdict is not None:
                self._act(record, verdict)

    def _sample(self, live: Live, record: JobRecord) -> Sample:
        percent = None if self._foreign is None else self._foreign.busy_percent(live.gpus)
        return Sample(len(record.attempts), cpu_s(live.handle.pid), percent, record.progress.reported_s)

    def _act(self, record: JobRecord, verdict: Verdict) -> None:
        """Do to an idle job what the configuration says. Jobs that are never preempted are only warned."""
        terms, idle_min = self._settings.config.idle, self._idle.idle_s(record.number) / 60
        if verdict == "reclaim" and terms.action == "cancel":
            self.tell(f"job {record.id} of {record.request.user} held GPUs and did nothing; it is cancelled")
            self._scheduler.cancel(record.id)
            self._set_reason(record, "cancelled: it held GPUs and did nothing", lambda: record.state.ended)
        elif verdict == "reclaim" and record.request.preempt != "never":
            self.tell(f"job {record.id} of {record.request.user} held GPUs and did nothing; it is taken off them")
            self._scheduler.suspend(record.id)
            self._set_reason(record, RECLAIMED, lambda: record.suspended)
        elif verdict == "warn":
            self.tell(f"job {record.id} of {record.request.user} holds GPUs and does nothing")
            text = f"holds GPUs and has done nothing for {idle_min:.1f} min"
            self._set_reason(record, text, lambda: record.state is JobState.RUNNING)
        elif verdict == "active":
            self._set_reason(record, "", lambda: record.state is JobState.RUNNING)

    def _set_reason(self, record: JobRecord, why: str, still: Callable[[], bool]) -> None:
        def command(now_s: float) -> tuple[list[Event], None]:
            if still():
                record.reason = why
                self._scheduler.store.touch(record)
            return [], None

        self._scheduler.engine.ask(command)
