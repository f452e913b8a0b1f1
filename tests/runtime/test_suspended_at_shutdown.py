"""Jobs that are suspended when their scheduler ends: the time until the next one starts does not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from live_scheduler import clear, live_scheduler, submit, until
from real_processes import wait_for

from fairway.core.event import Event, Woken
from fairway.runtime.daemon.clock import FACT
from fairway.runtime.daemon.daemon import suspend_jobs
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.journal.database import Journal
from fairway.runtime.journal.recovery import STOOD_STILL

LONG_S = 100_000.0
TIRESIAS = "tiresias:queues=20000"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    clear(tmp_path)


def let_pass(folder: Path, seconds: float) -> None:
    """As if everything that is written down had been so much earlier."""
    with closing(Journal(folder / "journal.db")) as journal, journal.transaction():
        clock = journal.facts((FACT,))[FACT]
        journal.set_facts({FACT: {**clock, "offset_s": clock["offset_s"] + seconds}})


def columns(scheduler: Scheduler) -> dict[str, list[float]]:
    """What policies see of all jobs now."""

    def look(now_s: float) -> tuple[list[Event], dict[str, list[float]]]:
        scheduler.state.apply(Woken(max(now_s, scheduler.state.now_s)))
        snapshot = scheduler.state.snapshot()
        names = ("attained_s", "attained_gpu_s", "progress", "held")
        return [], {name: getattr(snapshot, name).tolist() for name in names}

    told: dict[str, list[float]] = scheduler.ask(look)
    return told


def computes(folder: Path, record: JobRecord) -> None:
    """Wait until a job has begun for good: a scheduler that leaves sooner takes it for one that never did."""
    until(record, JobState.RUNNING)
    wait_for((folder / "jobs" / record.id / "attempt-1" / "rank-0.log").exists, "its first process")


def begun(folder: Path, policy: str, **about: Any) -> dict[int, tuple[int, ...]]:
    """Two jobs that run and one that waits, suspended with their scheduler; returns who had which GPUs."""
    with live_scheduler(folder, 3, policy) as scheduler:
        for gpus in (2, 1):
            computes(folder, submit(scheduler, ["sleep", "600"], gpus=gpus, grace_s=0.5, **about))
        submit(scheduler, ["sleep", "600"], gpus=1, grace_s=0.5)
        held = dict(scheduler.state.held_gpus)
    assert suspend_jobs(folder) == 2
    return held


@pytest.mark.parametrize("preempt", ["checkpoint", "suspend", "never"])
def test_a_pause_is_no_service_and_nobody_is_demoted_for_it(folder: Path, preempt: str) -> None:
    held = begun(folder, TIRESIAS, preempt=preempt)
    assert suspend_jobs(folder) == 2, "asked once more, nothing changes"
    let_pass(folder, LONG_S)
    for _ in range(2):
        # The second time the log of the first restart is replayed.
        with live_scheduler(folder, 3, TIRESIAS) as scheduler:
            until(scheduler.store[0], JobState.RUNNING)
            wait_for(lambda: all(scheduler.engine.computes(scheduler.store[job]) for job in (0, 1)), "them to go on")
            told = columns(scheduler)
            assert max(told["attained_s"]) < 0.1 * LONG_S
            assert max(told["attained_gpu_s"]) < 0.1 * LONG_S
            assert max(told["progress"]) < 0.1 * LONG_S
            assert told["held"] == [2, 1, 0], "the one that waits has not passed the others"
            assert dict(scheduler.state.held_gpus) == held
            assert [len(scheduler.store[job].attempts) for job in (0, 1)] == [1, 1]
            assert [scheduler.store[job].preemptions for job in (0, 1)] == [0, 0]
            assert STOOD_STILL not in scheduler.journal.facts()
    with live_scheduler(folder, 3, TIRESIAS) as scheduler:
        scheduler.end_all()


def test_who_ended_before_all_stood_still_ended_then(folder: Path) -> None:
    with live_scheduler(folder, 2, "fifo") as scheduler:
        record = submit(scheduler, ["sleep", "0.5"], grace_s=0.5)
        computes(folder, submit(scheduler, ["sleep", "600"], grace_s=0.5))
    wait_for((folder / "jobs" / record.id / "attempt-1" / "exit.json").exists, "the end of a job without a scheduler")
    assert suspend_jobs(folder) == 1
    with live_scheduler(folder, 2, "fifo") as scheduler:
        done = scheduler.store[record.number]
        assert done.state is JobState.COMPLETED
        with closing(Journal(folder / "journal.db")) as journal:
            assert list(scheduler.state.held_gpus) == [record.number + 1]
            assert not [entry for entry in journal.log() if getattr(entry.thing, "job", None) == record.number]
        assert done.ended_s is not None
        assert done.ended_s == pytest.approx(done.attempts[0].ended_s, abs=0.5)
        scheduler.end_all()


def test_with_other_gpus_the_pause_is_forgotten_with_the_log(folder: Path) -> None:
    begun(folder, "fifo")
    let_pass(folder, LONG_S)
    with live_scheduler(folder, 4, "fifo") as scheduler:
        until(scheduler.store[0], JobState.RUNNING)
        assert max(columns(scheduler)["attained_s"]) < 0.1 * LONG_S
        assert STOOD_STILL not in scheduler.journal.facts()
        scheduler.end_all()


def test_a_job_that_reports_nothing_keeps_its_progress_over_a_restart(folder: Path) -> None:
    with live_scheduler(folder, 1, "fifo") as scheduler:
        record = submit(scheduler, ["sleep", "600"], expected_s=2 * LONG_S, grace_s=0.5)
        computes(folder, record)
    let_pass(folder, LONG_S)
    with live_scheduler(folder, 1, "fifo") as scheduler:
        wait_for(lambda: scheduler.store[0].since_s not in (None, record.since_s), "it to be found")
        assert columns(scheduler)["progress"] == pytest.approx([LONG_S], abs=0.1 * LONG_S)
        scheduler.end_all()
