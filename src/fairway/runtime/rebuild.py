"""A state from the records of jobs alone, where the log cannot be replayed.

That is so when the machine is another one than last time (a GPU more or less, other types) and after a journal was
salvaged. Jobs that have not ended are queued anew, with the progress that they had saved. Their processes go on
until the scheduler, which knows nothing of their GPUs any more, takes them off and gives them some again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fairway.core.cluster import Cluster
from fairway.core.event import Event, JobEvicted
from fairway.runtime.estimates import UNKNOWN_RESTART_S, RunTimes, speeds_of, submitted
from fairway.runtime.live import Clock
from fairway.runtime.records import JobRecord


def fingerprint(cluster: Cluster, devices: Sequence[str] | None) -> list[Any]:
    """What has to be the same for a log to mean the same: types and numbers of GPUs, and which ones they are."""
    nodes = [[node.gpu_type, node.gpus] for node in cluster.nodes]
    return [nodes, None if devices is None else list(devices)]


def queued_anew(
    records: Iterable[JobRecord],
    cluster: Cluster,
    times: RunTimes,
    clock: Clock,
    saved: Callable[[JobRecord], float],
) -> tuple[list[Event], set[int]]:
    """Events that take up all jobs that have not ended, and the numbers of those that cannot run here any more."""
    now_s, events, impossible = clock.now_s(), list[Event](), set[int]()
    for record in records:
        if record.state.ended:
            continue
        event = submitted(record, cluster, times.expected_s(record.request), now_s, UNKNOWN_RESTART_S)
        since_s = max(min(record.submitted_s - clock.origin_s, now_s), 0.0)
        if not any(speeds_of(record.request, cluster)):
            # A state has no place for a job that can run nowhere; it is kept outside until the machine can run it.
            impossible.add(record.number)
            event = event._replace(speeds=(1.0,) * len(cluster.types), prospect=None)
        # Its owner's deadline counts from when it was submitted, not from now.
        deadline_s = None if record.request.deadline_s is None else since_s + record.request.deadline_s
        events.append(event._replace(since_s=since_s, spec=replace(event.spec, deadline_s=deadline_s)))
        progress = saved(record)
        if progress > 0:
            events.append(JobEvicted(now_s, record.number, progress, "the scheduler was set up anew"))
    return events, impossible


def renumber(records: Iterable[JobRecord], before: Sequence[str] | None, devices: Sequence[str] | None) -> set[int]:
    """Give the GPUs of attempts that may still run their present numbers; returns the jobs whose GPUs are gone."""
    if before is None or devices is None or list(before) == list(devices):
        return set()
    at = {name: number for number, name in enumerate(devices)}
    moved = [at.get(name, -1) for name in before]
    gone: set[int] = set()
    for record in records:
        attempt = record.attempt
        if attempt is not None and attempt.ended_s is None:
            attempt.gpus = [moved[gpu] if 0 <= gpu < len(moved) else -1 for gpu in attempt.gpus]
            if -1 in attempt.gpus:
                gone.add(record.number)
    return gone
