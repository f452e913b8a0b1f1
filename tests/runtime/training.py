"""Trainings under a live scheduler on virtual GPUs, whose every move a test dictates."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fairway.core.cluster import Cluster
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.placement import placement
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import virtual_machine
from fairway.testing.waiting import WAIT_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TRAINING_S = 5 * WAIT_S
"""How long a whole training is waited for: on a busy machine one takes minutes."""
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


class Dictated:
    """A policy that gives every job the number of GPUs that a test says."""

    name: ClassVar[str] = "dictated"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def decide(self, snapshot: Snapshot) -> Decision:
        reason = Reason.RUNS if self.gpus else Reason.OTHER
        jobs = len(snapshot)
        return Decision(np.full(jobs, self.gpus, dtype=np.int64), np.full(jobs, int(reason), dtype=np.int8))


TORCH_ABORTS = "terminate called without an active exception"


class Stage:
    """A scheduler with one job at a time, and the policy that says how many GPUs that has."""

    def __init__(self, folder: Path, gpus: int, cluster: Cluster | None = None, **about: Any) -> None:
        self.policy = Dictated(gpus)
        cluster = cluster or virtual_machine(gpus).cluster
        self.scheduler = Scheduler(folder, cluster, self.policy, placement("packed"), min_run_s=0.0, **about)
        self.folder = folder
        self.jobs = self.scheduler.jobs_folder
        self._thread = self.scheduler.start()

    def submit(self, *command: str, **about: Any) -> JobRecord:
        """Start a training."""
        about = {"preempt": "checkpoint", "grace_s": 60.0, "cwd": str(self.folder)} | about
        about["env"] = ENVIRONMENT | about.get("env", {})
        return self.scheduler.submit([JobRequest(command=command, **about)])[0]

    def give(self, gpus: int) -> None:
        """From now on the job is to have so many GPUs."""
        self.policy.gpus = gpus
        self.scheduler.ask(lambda now_s: ([], None))

    def log(self, record: JobRecord, attempt: int = 1, rank: int = 0) -> str:
        """What a rank has printed."""
        path = self.jobs / record.id / f"attempt-{attempt}" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def logs(self, record: JobRecord) -> str:
        """Everything that a job has printed, for failure messages."""
        logs = sorted((self.jobs / record.id).glob("attempt-*/rank-*.log"))
        return "\n".join(f"{log.parent.name}/{log.name}: {log.read_text()}" for log in logs)

    def completed(self, record: JobRecord) -> JobRecord:
        """Wait for a training to end, and see that it ended well.

        PyTorch may abort while a process exits, after all of its work. That is nothing of ours.
        """
        wait_for(lambda: record.state.ended, f"the end of job {record.id}", TRAINING_S)
        logs = self.logs(record)
        aborted = "SIGABRT" in record.reason and TORCH_ABORTS in logs and "last loss" in logs
        assert record.state is JobState.COMPLETED or aborted, f"{record.state}: {record.reason}\n{logs}"
        return record

    def close(self) -> None:
        """End what still runs, and the scheduler."""
        for record in self.scheduler.store:
            self.scheduler.cancel(record.id)
        wait_for(lambda: not self.scheduler.engine.attempts.live, "processes to end")
        self.scheduler.close()
        self._thread.join(WAIT_S)


@contextmanager
def staged(folder: Path, gpus: int = 1) -> Iterator[Stage]:
    """A stage, cleared at the end."""
    stage = Stage(folder, gpus)
    try:
        yield stage
    finally:
        stage.close()


def alone(*command: str) -> str:
    """Run a training as a user would without Fairway; what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRWAY_", "RANK", "WORLD_"))}
    done = subprocess.run(
        command, env={**kept, **ENVIRONMENT}, capture_output=True, text=True, timeout=TRAINING_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str, python: str = sys.executable) -> tuple[str, str]:
    """The command of an example."""
    return python, str(EXAMPLES / name / "train.py")
