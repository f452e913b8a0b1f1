"""A second thread that checks a few things every few seconds: the configuration's file, foreign processes, idle jobs,
and jobs that have more memory than their share of a GPU.

It passes what it finds to the scheduler's thread. The driver may answer slowly, and scheduling must not wait for it.

A job is idle while its processes use hardly any CPU, its GPUs compute nothing, and it reports nothing. All three have
to be true, because each of them alone is normal: a job may wait for its GPU, for its data, or may never report.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fairway.core.event import Event
from fairway.runtime.daemon import clock
from fairway.runtime.daemon.background import Background
from fairway.runtime.daemon.config import Idle
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import Settings
from fairway.runtime.jobs.job_story import THE_SCHEDULER
from fairway.runtime.jobs.life import RECLAIMED
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.processes.attempts import SEEN, blocked_words
from fairway.runtime.processes.live_attempt import Live
from fairway.runtime.processes.site import Site

EVERY_S = 2.0
"""How long to wait for its end: the driver, or a scheduler whose disk is full, may not answer at all."""
CPU_SHARE = 0.02
"""Processes that use less than this part of one core do no real work: heartbeats and pollers stay below it."""
GPU_PERCENT = 1.0

IdleVerdict = Literal["warn", "reclaim", "active"]


class Sample(NamedTuple):
    """What was seen of a job's attempt at an instant. What cannot be seen is None."""

    attempt: int
    cpu_s: float | None
    gpu_percent: float | None
    reported_s: float | None


@dataclass
class _Seen:
    sample: Sample
    time_s: float
    active_s: float
    warned: bool = False


class IdleJobs:
    """Since when each job has done nothing, and what follows from that."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, job: int, sample: Sample, now_s: float, terms: Idle) -> IdleVerdict | None:
        """Take in a sample. Returns "warn" and "reclaim" once, and "active" when a warned job works again."""
        seen = self._seen.get(job)
        if seen is None or seen.sample.attempt != sample.attempt:
            self._seen[job] = _Seen(sample, now_s, now_s)
            return None
        at_work = _at_work(seen.sample, sample, now_s - seen.time_s)
        seen.sample, seen.time_s = sample, now_s
        if at_work:
            was_warned, seen.active_s, seen.warned = seen.warned, now_s, False
            return "active" if was_warned else None
        idle_s = now_s - seen.active_s
        if terms.reclaim_s is not None and idle_s >= terms.reclaim_s:
            del self._seen[job]
            return "reclaim"
        if terms.warn_s is not None and idle_s >= terms.warn_s and not seen.warned:
            seen.warned = True
            return "warn"
        return None

    def idle_s(self, job: int) -> float:
        """How long a job has done nothing, in seconds."""
        seen = self._seen.get(job)
        return 0.0 if seen is None else seen.time_s - seen.active_s

    def forget(self, others_than: set[int]) -> None:
        """Drop all jobs except these. The others do not run any more."""
        for job in self._seen.keys() - others_than:
            del self._seen[job]


def _at_work(before: Sample, now: Sample, passed_s: float) -> bool:
    """Whether anything was done between two samples. Less CPU than before means that processes came or went."""
    if now.cpu_s is None or before.cpu_s is None:
        # Nobody can say. A job on a node that does not answer is not taken for idle.
        return True
    cpu_s = now.cpu_s - before.cpu_s
    computes = now.gpu_percent is not None and now.gpu_percent >= GPU_PERCENT
    return cpu_s < 0 or cpu_s > CPU_SHARE * passed_s or computes or now.reported_s != before.reported_s


class Watch(Background):
    """Checks until it is closed. What it sees of GPUs and processes comes from `site`."""

    def __init__(self, scheduler: Scheduler, settings: Settings, site: Site) -> None:
        super().__init__("watch", EVERY_S)
        self._scheduler = scheduler
        self._settings = settings
        self._site = site
        self._idle = IdleJobs()
        self._oversized: set[tuple[int, int]] = set()
        self._jump: clock.Jump | None = None

    def tell(self, line: str) -> None:
        """Write a line for the operator. If that fails, everything goes on: it is only talk."""
        with suppress(OSError, ValueError, AttributeError):
            print(f"fairway: {line}", file=sys.stderr, flush=True)

    def look(self) -> None:
        """Check once."""
        self._look_at_clock()
        told = self._settings.poll(self._scheduler)
        if told:
            self.tell(told)
        for line in self._site.lines():
            self.tell(line)
        # Who asks how busy GPUs are finds an answer. This does not wait.
        self._site.gpu_loads()
        self._look_at_gpus()
        self._look_at_memory()
        terms = self._settings.config.idle
        if terms.warn_s is not None or terms.reclaim_s is not None:
            self._look_at_jobs()

    def work(self) -> None:
        """Check everything once."""
        self.look()

    def failed(self, why: str) -> None:
        """Tell the operator."""
        self.tell(f"a check failed: {why}")

    def _look_at_clock(self) -> None:
        jump = self._scheduler.clock.jump
        if jump is not None and jump is not self._jump:
            self._jump = jump
            self.tell(clock.told(jump))

    def _look_at_gpus(self) -> None:
        blocked = self._site.blocked()
        before = self._scheduler.blocked.of(SEEN)
        if blocked == before:
            return
        for line in blocked_words({gpu: why for gpu, why in blocked.items() if before.get(gpu) != why}):
            self.tell(line)
        freed = sorted(before.keys() - blocked.keys())
        if freed:
            self.tell(f"GPU {freed[0]} is free again" if len(freed) == 1 else f"{len(freed)} GPUs are free again")
        self._scheduler.block_gpus(blocked)

    def _look_at_memory(self) -> None:
        """Note how much memory jobs have on a GPU, for those who need room beside them. Find jobs with more than their
        share: MPS does not let that happen; turns do."""
        scheduler = self._scheduler
        cluster = scheduler.cluster
        for live in list(scheduler.engine.attempts.live.values()) if scheduler.engine.devices else ():
            has = self._site.sight(live.handle).gpu_bytes
            scheduler.engine.note_memory(live.job, has)
            record = scheduler.store[live.job]
            whole = cluster.types[cluster.node_type[cluster.node_of_gpu[live.gpus[0]]]].memory_bytes
            may = max(int(whole * record.request.gpu_share), record.request.memory_bytes)
            shares = record.request.gpu_share < 1 and live.status != "stopping"
            attempt = (live.job, len(record.attempts))
            if shares and has > may and attempt not in self._oversized and self._is_shared(live):
                self._oversized.add(attempt)
                self._act_on_memory(record, has, may)

    def _is_shared(self, one: Live) -> bool:
        """Whether other attempts share the GPU of an attempt."""
        others = list(self._scheduler.engine.attempts.live.values())
        return any(other is not one and other.gpus[0] == one.gpus[0] and other.status != "stopping" for other in others)

    def _act_on_memory(self, record: JobRecord, has: int, may: int) -> None:
        """Do to a job with more memory than its share what the configuration says."""
        what = f"has {has / 2**30:.1f} GiB on a GPU that it shares, and may have {may / 2**30:.1f} GiB"
        self.tell(f"job {record.id} of {record.request.user} {what}")
        if self._settings.config.over_share == "cancel":
            self._scheduler.cancel(record.id, f"{THE_SCHEDULER}: it {what}")
            self._set_reason(record, f"cancelled: it {what}", lambda: record.state.ended)
        else:
            self._set_reason(record, what, lambda: record.state is JobState.RUNNING)

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
        seen = self._site.sight(live.handle)
        return Sample(len(record.attempts), seen.cpu_s, seen.gpu_percent, record.progress.reported_s)

    def _act(self, record: JobRecord, verdict: IdleVerdict) -> None:
        """Do to an idle job what the configuration says. Jobs that are never preempted are only warned."""
        terms, idle_min = self._settings.config.idle, self._idle.idle_s(record.number) / 60
        if verdict == "reclaim" and terms.action == "cancel":
            self.tell(f"job {record.id} of {record.request.user} held GPUs and did nothing; it is cancelled")
            self._scheduler.cancel(record.id, f"{THE_SCHEDULER}: it held GPUs and did nothing")
            self._set_reason(record, "cancelled: it held GPUs and did nothing", lambda: record.state.ended)
        elif verdict == "reclaim" and record.request.preempt != "never":
            self.tell(f"job {record.id} of {record.request.user} held GPUs and did nothing; it is taken off them")
            self._scheduler.suspend(record.id, f"{THE_SCHEDULER}: it held GPUs and did nothing")
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
