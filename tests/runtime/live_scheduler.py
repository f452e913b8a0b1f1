"""Live schedulers for tests: started, left as if they had crashed, started again, and cleaned up after."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from real_processes import processes_of

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.waiting import WAIT_S, wait_for


def cluster_of(gpus: int, kind: str = "cpu") -> Cluster:
    """One node of virtual GPUs."""
    return Cluster.of([Node("here", kind, gpus)], [GpuType(kind, 0, 0.0, 1.0)])


@contextmanager
def live_scheduler(folder: Path, gpus: int = 2, policy: str = "fifo", **about: Any) -> Iterator[Scheduler]:
    """A scheduler while the block runs; its jobs go on afterwards."""
    cluster = about.pop("cluster", None) or cluster_of(gpus)
    about.setdefault("min_run_s", 0.0)
    scheduler = Scheduler(folder, cluster, make_policy(policy), placement("packed"), **about)
    thread = scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def clear(folder: Path) -> list[int]:
    """Kill whatever a test has left running in its folder; returns what that was."""
    # A keeper that has written down how its attempt ended is gone a moment later.
    with suppress(AssertionError):
        wait_for(lambda: not processes_of(str(folder)), seconds=20.0)
    left = processes_of(str(folder))
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def submit(scheduler: Scheduler, command: Sequence[str], **about: Any) -> JobRecord:
    """Submit one job."""
    return scheduler.submit([JobRequest(command=tuple(command), **about)])[0]


def until(record: JobRecord, *states: JobState) -> JobRecord:
    """Wait until a job is in one of some states."""
    wait_for(lambda: record.state in states, f"{states}; it is {record.state}: {record.reason}")
    return record


def ended(record: JobRecord) -> JobRecord:
    """Wait until a job is over and its processes are gone."""
    wait_for(lambda: record.state.ended, f"the end; it is {record.state}: {record.reason}")
    wait_for(lambda: record.attempt is None or record.attempt.ended_s is not None, "its processes to go")
    return record


def log_of(scheduler: Scheduler, record: JobRecord, attempt: int = 1, rank: int = 0) -> str:
    """What a rank has written."""
    path = scheduler.folder / "jobs" / record.id / f"attempt-{attempt}" / f"rank-{rank}.log"
    return path.read_text(errors="replace") if path.exists() else ""
