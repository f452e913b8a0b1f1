"""Idle jobs: how they are recognized, and when their owners are warned or they lose their GPUs.

A job is idle while its processes use hardly any CPU, its GPUs compute nothing, and it reports nothing. All three have
to be true, because each of them alone is normal: a job may wait for its GPU, for its data, or may never report.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fairway.runtime.daemon.config import Idle
from fairway.runtime.processes.keeper import descendants, stat_fields

CPU_SHARE = 0.02
"""Processes that use less than this part of one core do no real work: heartbeats and pollers stay below it."""
GPU_PERCENT = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Verdict = Literal["warn", "reclaim", "active"]


class Sample(NamedTuple):
    """What was seen of a job's attempt at an instant. `gpu_percent` is None if it cannot be seen."""

    attempt: int
    cpu_s: float
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

    def look(self, job: int, sample: Sample, now_s: float, terms: Idle) -> Verdict | None:
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
    cpu_s = now.cpu_s - before.cpu_s
    computes = now.gpu_percent is not None and now.gpu_percent >= GPU_PERCENT
    return cpu_s < 0 or cpu_s > CPU_SHARE * passed_s or computes or now.reported_s != before.reported_s


def cpu_s(keeper: int) -> float:
    """CPU time that the processes under a keeper have used so far, with their children that have ended."""
    total = 0
    for pid in descendants(keeper):
        fields = stat_fields(pid)
        total += sum(int(ticks) for ticks in fields[11:15])
    return total / _TICKS_PER_S
