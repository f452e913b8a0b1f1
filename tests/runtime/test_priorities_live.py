"""Priorities of real jobs: a higher one takes over, whoever made room goes on afterwards, and nobody is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_scheduler import clear, ended, live_scheduler, submit, until
from real_processes import wait_for

from fairway.runtime.daemon.explain import explain
from fairway.runtime.jobs.records import JobState


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    clear(tmp_path)


def _waits_for(path: Path) -> list[str]:
    """A command that ends when a file is there."""
    return ["bash", "-c", f"until [ -e {path} ]; do sleep 0.05; done"]


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "gandiva:pack=1"])
def test_a_job_of_higher_priority_takes_over_and_the_others_go_on_afterwards(folder: Path, policy: str) -> None:
    done, over = folder / "done", folder / "over"
    with live_scheduler(folder / "state", 2, policy) as scheduler:
        lower = [submit(scheduler, _waits_for(done)) for _ in range(2)]
        for record in lower:
            until(record, JobState.RUNNING)
        high = submit(scheduler, _waits_for(over), gpus=2, priority=10)
        until(high, JobState.RUNNING)
        wait_for(lambda: all(record.state is JobState.SUSPENDED for record in lower), "the others to make room")
        why = explain(scheduler, lower[0].id)["reason"]
        assert f"job {high.id} (2 GPUs) has a higher priority" in why
        over.touch()
        assert ended(high).state is JobState.COMPLETED
        for record in lower:
            until(record, JobState.RUNNING)
        done.touch()
        assert [ended(record).state for record in lower] == [JobState.COMPLETED] * 2
        assert all(len(record.attempts) == 1 for record in lower)


def test_only_as_many_make_room_as_have_to(folder: Path) -> None:
    done = folder / "done"
    with live_scheduler(folder / "state", 2, "fifo") as scheduler:
        lower = [submit(scheduler, _waits_for(done)) for _ in range(2)]
        for record in lower:
            until(record, JobState.RUNNING)
        high = submit(scheduler, _waits_for(done), priority=1)
        until(high, JobState.RUNNING)
        until(lower[1], JobState.SUSPENDED)
        assert lower[0].state is JobState.RUNNING
        done.touch()
        assert [ended(record).state for record in (*lower, high)] == [JobState.COMPLETED] * 3


def test_a_job_that_was_just_started_is_left_alone_for_a_while_and_one_that_is_never_preempted_for_good(
    folder: Path,
) -> None:
    done = folder / "done"
    with live_scheduler(folder / "state", 2, "fifo", min_run_s=3.0) as scheduler:
        never = submit(scheduler, _waits_for(done), preempt="never", priority=-5)
        low = submit(scheduler, _waits_for(done))
        until(never, JobState.RUNNING)
        until(low, JobState.RUNNING)
        both = submit(scheduler, _waits_for(done), gpus=2, priority=9)
        high = submit(scheduler, _waits_for(done), priority=5)
        until(high, JobState.RUNNING)
        assert low.state is JobState.SUSPENDED
        assert high.attempts[0].started_s - low.attempts[0].started_s >= 2.5
        assert (never.state, both.state) == (JobState.RUNNING, JobState.PENDING)
        assert "have a lower priority, but cannot be stopped now" in explain(scheduler, both.id)["reason"]
        done.touch()
        assert [ended(record).state for record in (never, high, both, low)] == [JobState.COMPLETED] * 4


def test_a_new_priority_counts_at_once(folder: Path) -> None:
    done = folder / "done"
    with live_scheduler(folder / "state", 1, "fifo") as scheduler:
        first = submit(scheduler, _waits_for(done))
        until(first, JobState.RUNNING)
        second = submit(scheduler, _waits_for(done))
        scheduler.update(second.id, {"priority": 1})
        until(second, JobState.RUNNING)
        until(first, JobState.SUSPENDED)
        done.touch()
        assert [ended(record).state for record in (first, second)] == [JobState.COMPLETED] * 2
