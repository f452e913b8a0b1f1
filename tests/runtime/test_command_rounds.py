"""Commands and rounds: each command is answered at once, and a stream of them does not pay for a round each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_scheduler import clear, cluster_of, live_scheduler, submit, until
from real_processes import wait_for

from fairway.core.event import Event, JobSubmitted
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.database import Journal

QUIET_S = 0.3


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    clear(tmp_path)


def quiet(scheduler: Scheduler) -> None:
    """Wait until the scheduler has nothing to do any more."""

    def still() -> bool:
        before = scheduler.state.round
        time.sleep(QUIET_S)
        return scheduler.state.round == before

    wait_for(still, "rounds to end")


def test_what_is_answered_is_in_the_journal_once(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        for _ in range(20):
            submit(scheduler, ["true"], hold=True)
    journal = Journal(folder / "journal.db")
    things = [entry.thing for entry in journal.log()]
    journal.close()
    assert [one.job for one in things if isinstance(one, JobSubmitted)] == list(range(20))
    with live_scheduler(folder, gpus=1) as again:
        assert again.state.active == 20


def test_a_job_starts_at_once_where_nothing_else_goes_on(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        quiet(scheduler)
        rounds = []
        scheduler.watchers.append(lambda decision, actions: rounds.append(len(actions)))
        record = submit(scheduler, ["true"])
        until(record, JobState.RUNNING, JobState.COMPLETED)
        assert rounds[0] == 1


def test_a_command_without_events_gets_its_round(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        record = submit(scheduler, ["true"], hold=True)
        quiet(scheduler)
        before = scheduler.state.round
        scheduler.set_policy(make_policy("fifo"), "fifo")
        wait_for(lambda: scheduler.state.round > before, "a round of the new policy")
        assert record.state is JobState.PENDING
        scheduler.release(record.id)
        until(record, JobState.COMPLETED)


def test_a_command_sees_what_the_one_before_it_did(folder: Path) -> None:
    scheduler = Scheduler(folder, cluster_of(1), make_policy("fifo"), placement("packed"))
    request = JobRequest(command=("true",), hold=True)

    def active(now_s: float) -> tuple[list[Event], tuple[int, bool]]:
        return [], (scheduler.state.active, scheduler.state.now_s <= now_s)

    # Both are there before the scheduler looks, so they are taken in one go.
    first, second = scheduler.submission([request]), scheduler.engine.ask(active)
    thread = scheduler.start()
    try:
        assert [record.id for record in first.result(30)] == ["1"]
        assert second.result(30) == (1, True)
    finally:
        scheduler.close()
        thread.join(60)


def test_whoever_stops_waiting_for_an_answer_does_no_harm(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        assert not scheduler.submission([JobRequest(command=("true",), hold=True)]).cancel()
        assert submit(scheduler, ["true"], hold=True).id == "2"
