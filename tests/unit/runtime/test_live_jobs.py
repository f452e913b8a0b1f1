"""The life of a live job as a story: what happened goes in, events and instructions come out. No process is needed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fairway.core.action import Launch
from fairway.core.errors import EngineError
from fairway.core.event import Event, JobCancelled, JobEvicted, JobFailed, JobFinished, JobStarted, RateChanged
from fairway.core.state import State
from fairway.models.log_progress import LogProgress
from fairway.runtime.daemon.scheduler import NoTerms
from fairway.runtime.jobs import life
from fairway.runtime.jobs.commands import Commands, WrongStateError
from fairway.runtime.jobs.life import (
    Asked,
    AttemptEnded,
    AttemptStarted,
    Command,
    Converge,
    Happening,
    ReadOff,
    Reported,
    Settle,
    Stop,
)
from fairway.runtime.jobs.live_jobs import BACK_OFF_S, MOST_LOST, MOST_VAIN_SAVES, LiveJobs
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.store import JobStore
from fairway.runtime.jobs.waiting import Reasons
from fairway.runtime.processes.machine import virtual_machine
from fairway.runtime.processes.site import LOST, REFUSED, Outcome, Report

CLUSTER = virtual_machine(2).cluster


class World:
    """A scheduler's jobs on two GPUs, without the scheduler."""

    def __init__(self) -> None:
        self.store, self.state = JobStore(), State(CLUSTER)
        self.observations = Observations(self.store, self.state, 0.0)
        self.jobs = LiveJobs(self.store, self.state, self.observations, 0.0)
        self.live: set[int] = set()
        self.commands = Commands(
            self.jobs,
            Reasons(),
            NoTerms(),
            piece=2,
            keep=lambda facts: None,
            account="ada",
            lives=self.live.__contains__,
            tell_limit=lambda job, limit_s: None,
        )

    def handle(self, happening: Happening) -> list[Event]:
        """Let something happen."""
        events = self.jobs.handle(happening)
        for event in events:
            self.state.apply(event)
        return events

    def ask(self, command: Command, now_s: float) -> tuple[list[Event], Any]:
        """Let somebody ask for something; the events and the answer."""
        answer: Future[Any] = Future()
        events = self.handle(Asked(now_s, command, answer))
        self.jobs.answer()
        return events, answer.result(0)

    def submit(self, now_s: float = 0.0, **about: Any) -> JobRecord:
        """Take in a job."""
        request = JobRequest(command=("true",), **about)
        _, records = self.ask(self.commands.take_in([request], array=False), now_s)
        record: JobRecord = records[0]
        return record

    def run(self, record: JobRecord, now_s: float = 10.0) -> None:
        """Give a job both GPUs and start it."""
        if record.number not in self.state.held_gpus:
            self.state.commit([Launch(record.number, (0, 1)[: record.request.gpus], 0)])
        self.jobs.begin_attempt(record.number, self.state.held_gpus[record.number], now_s)
        self.live.add(record.number)
        self.handle(AttemptStarted(now_s, record.number, self.state.held_gpus[record.number], resumed=False))

    def end(
        self, record: JobRecord, outcome: Outcome, now_s: float = 30.0, ended_s: float | None = None
    ) -> list[Event]:
        """An attempt is over."""
        self.live.discard(record.number)
        return self.handle(AttemptEnded(now_s, record.number, outcome, now_s if ended_s is None else ended_s))


def running(**about: Any) -> tuple[World, JobRecord]:
    """A world with a job of two GPUs that has run since 10 s."""
    world = World()
    record = world.submit(gpus=2, **about)
    world.run(record)
    return world, record


def test_a_job_that_has_done_its_work_is_completed_and_charged_until_it_ended() -> None:
    world, job = running()
    assert world.end(job, Outcome((0, 0)), ended_s=25.0)[0] == JobFinished(30.0, 0)
    assert (job.state, job.exit_code, job.ran_s, job.gpu_s) == (JobState.COMPLETED, 0, 15.0, 30.0)
    assert world.state.active == 0
    assert world.jobs.take_instructions() == [Settle()]
    assert job in world.store.take_changed()


def _reported(world: World, job: JobRecord, step: float, now_s: float = 20.0, **more: Any) -> None:
    """A job reports a step of 200."""
    world.handle(Reported(now_s, job.number, Report([{"step": step, "steps": 200.0, **more}], 1)))


def _read_off(world: World, job: JobRecord, step: float, now_s: float = 20.0) -> None:
    """The log of a job says a step of 200."""
    progress = LogProgress("tqdm", "step", step, 200.0, 2.0)
    world.handle(ReadOff(now_s, job.number, len(job.attempts), progress))


@pytest.mark.parametrize("tell", [_reported, _read_off])
def test_a_job_that_has_done_its_work_has_done_all_of_it(tell: Callable[[World, JobRecord, float], None]) -> None:
    world, job = running()
    tell(world, job, 190.0)
    world.end(job, Outcome((0, 0)))
    assert (job.progress.step, job.progress.steps) == (200.0, 200.0)


def test_a_job_that_only_announced_its_steps_has_done_them_too() -> None:
    world, job = running(steps=500.0)
    world.end(job, Outcome((0, 0)))
    assert job.progress.step == 500.0


def test_a_job_that_fails_for_good_stays_where_it_was() -> None:
    world, job = running()
    _reported(world, job, 190.0)
    world.end(job, Outcome((3, 3)))
    assert (job.state, job.progress.step) == (JobState.FAILED, 190.0)


@pytest.mark.parametrize("tell", [_reported, _read_off])
@pytest.mark.parametrize(
    ("outcome", "about"),
    [
        (Outcome((143, 143), "request"), {}),
        (Outcome((143, 143), "request"), {"preempt": "restart"}),
        (Outcome((143, 143), "request"), {"preempt": "checkpoint"}),
        (Outcome((3, 3)), {"retries": 1}),
        (LOST, {}),
    ],
)
def test_a_job_that_starts_from_the_beginning_shows_no_progress(
    tell: Callable[[World, JobRecord, float], None], outcome: Outcome, about: dict[str, Any]
) -> None:
    world, job = running(**about)
    tell(world, job, 39.0)
    world.end(job, outcome)
    assert not job.state.ended
    assert job.progress.step == 0.0


def test_a_job_that_has_a_checkpoint_shows_that_step_until_it_is_further() -> None:
    world, job = running()
    _reported(world, job, 30.0, checkpoint="/saved")
    _reported(world, job, 39.0, 21.0)
    world.end(job, Outcome((143, 143), "request"))
    assert job.progress.step == 30.0
    assert job.progress.is_own, "its log is not asked"


def test_a_job_that_saved_and_does_not_say_where_keeps_its_step() -> None:
    world, job = running(preempt="checkpoint")
    _read_off(world, job, 39.0)
    world.end(job, Outcome((75, 75), "request"))
    assert job.progress.step == 39.0


@pytest.mark.parametrize(("preempt", "step"), [("suspend", 0.0), ("restart", 0.0), ("checkpoint", 39.0)])
def test_a_job_that_is_put_back_in_the_queue_shows_where_it_starts_again(preempt: str, step: float) -> None:
    world, job = running(preempt=preempt)
    _read_off(world, job, 39.0)
    assert job.loses_its_work is (preempt != "checkpoint")
    world.ask(world.commands.each(job.id, world.commands.requeue), 21.0)
    # One that saves on request has not done so yet.
    assert job.progress.step == step


def test_what_a_cancelled_job_wrote_last_is_kept() -> None:
    world, job = running()
    _read_off(world, job, 39.0)
    world.ask(world.commands.each(job.id, world.commands.cancel), 21.0)
    _read_off(world, job, 44.0, 22.0)
    world.end(job, Outcome((143, 143), "request"))
    assert (job.state, job.progress.step) == (JobState.CANCELLED, 44.0)


def test_a_cancelled_job_that_begins_to_report_needs_no_work_of_another_kind() -> None:
    world, job = running()
    _read_off(world, job, 39.0)
    assert world.observations.counts_steps(job.number)
    world.ask(world.commands.each(job.id, world.commands.cancel), 21.0)
    # Its log says no step any more, and it reports one itself: neither is news for the state, which has forgotten it.
    assert world.handle(ReadOff(22.0, job.number, len(job.attempts), None)) == []
    _reported(world, job, 40.0, 23.0)
    world.end(job, Outcome((143, 143), "request"))
    assert job.state is JobState.CANCELLED


def test_a_job_that_was_stopped_to_go_on_elsewhere_keeps_its_gpus() -> None:
    world, job = running()
    assert isinstance(world.end(job, Outcome((143,), "request"))[0], RateChanged)
    assert job.state is JobState.PREEMPTED
    assert world.jobs.target(job.number) is not None


def test_but_not_where_its_gpus_are_blocked() -> None:
    world, job = running()
    world.jobs.blocked.set({0: "somebody else computes there"})
    assert isinstance(world.end(job, Outcome((143,), "request"))[0], JobEvicted)
    assert world.jobs.target(job.number) is None


def test_a_job_that_stopped_by_itself_waits_outside_with_what_it_did_as_the_reason() -> None:
    world, job = running()
    assert isinstance(world.end(job, Outcome((75,)))[0], JobEvicted)
    assert job.reason == "saved its state and stopped"
    assert world.jobs.eligibility.outside[job.number] == job.reason


def test_failures_are_tried_again_after_longer_and_longer_waits() -> None:
    world, job = running(retries=2)
    now_s = 30.0
    for wait_s in (BACK_OFF_S, 2 * BACK_OFF_S):
        assert isinstance(world.end(job, Outcome((9,)), now_s)[0], JobEvicted)
        assert (job.state, job.not_before_s) == (JobState.PENDING, now_s + wait_s)
        assert world.jobs.timers.next_s == now_s + wait_s
        now_s += wait_s
        world.jobs.timers.ring(now_s)
        assert job.number not in world.jobs.eligibility.outside
        world.run(job, now_s)
        now_s += 1.0
    assert isinstance(world.end(job, Outcome((9,)), now_s)[0], JobFailed)
    assert (job.state, job.exit_code, job.failures) == (JobState.FAILED, 9, 3)


def test_a_machine_that_loses_a_job_is_not_its_fault_but_not_for_ever() -> None:
    world, job = running()
    now_s = 30.0
    for loss in range(MOST_LOST):
        world.end(job, LOST, now_s)
        assert (job.state, job.failures) == (JobState.PENDING, 0)
        assert loss or job.not_before_s == now_s
        now_s = (job.not_before_s or 0.0) + 1.0
        world.jobs.timers.ring(now_s)
        world.run(job, now_s)
    world.end(job, LOST, now_s + 1.0)
    assert job.state is JobState.NODE_FAIL


def test_a_machine_that_cannot_start_a_job_is_asked_as_long_as_it_takes() -> None:
    world, job = running()
    now_s = 30.0
    for _ in range(3 * MOST_LOST):
        world.end(job, Outcome((), REFUSED, problem="cannot be started here: too many open files"), now_s)
        assert (job.state, job.failures) == (JobState.PENDING, 0)
        assert "too many open files" in job.reason
        now_s = (job.not_before_s or 0.0) + 1.0
        world.jobs.timers.ring(now_s)
        world.run(job, now_s)
    world.end(job, Outcome((0, 0)), now_s + 1.0)
    assert job.state is JobState.COMPLETED


def _saves_again_and_again(times: int, step: float = 0.0, ran_s: float = 1.0) -> JobRecord:
    """A job that ends by itself with 75, this often, and reports so many more steps each time."""
    world, job = running()
    now_s = 30.0
    for _ in range(times):
        job.progress.step += step
        world.end(job, Outcome((75, 75)), now_s + ran_s)
        if job.state.ended:
            break
        now_s = (job.not_before_s or 0.0) + 1.0
        world.jobs.timers.ring(now_s)
        world.run(job, now_s)
    return job


def test_a_job_that_saves_without_end_and_gets_nowhere_has_failed() -> None:
    job = _saves_again_and_again(MOST_VAIN_SAVES + 5)
    assert (job.state, job.exit_code, len(job.attempts)) == (JobState.FAILED, 75, MOST_VAIN_SAVES)
    assert "without progress" in job.reason


@pytest.mark.parametrize(("step", "ran_s"), [(1.0, 1.0), (0.0, 100.0)])
def test_but_not_if_it_gets_further_or_runs_for_long(step: float, ran_s: float) -> None:
    assert not _saves_again_and_again(MOST_VAIN_SAVES + 5, step, ran_s).state.ended


def test_a_cancelled_job_has_ended_at_once_and_its_processes_are_told_later() -> None:
    world, job = running()
    events, _ = world.ask(world.commands.each(job.id, world.commands.cancel), 20.0)
    assert events == [JobCancelled(20.0, job.number)]
    assert world.jobs.take_instructions() == [Stop(job.number, hurry=True)]
    assert (job.state, job.ended_s, job.ran_s) == (JobState.CANCELLED, 20.0, 10.0)
    assert world.end(job, Outcome((0,)), ended_s=28.0) == []
    assert (job.state, job.ended_s) == (JobState.CANCELLED, 28.0)


def test_a_job_that_its_owner_suspends_gives_up_its_gpus_and_comes_back() -> None:
    world, job = running(preempt="suspend")
    events, _ = world.ask(world.commands.each(job.id, world.commands.suspend), 20.0)
    assert [type(event) for event in events] == [JobEvicted]
    assert world.jobs.take_instructions() == [Converge(job.number)]
    assert (job.state, job.ran_s) == (JobState.SUSPENDED, 10.0)
    world.ask(world.commands.each(job.id, world.commands.release), 25.0)
    world.state.commit([Launch(job.number, (0, 1), 0)])
    assert isinstance(world.handle(AttemptStarted(26.0, job.number, (0, 1), resumed=True))[0], JobStarted)
    assert (job.state, job.ran_s, job.since_s) == (JobState.RUNNING, 10.0, 26.0)


@pytest.mark.parametrize(("preempt", "state"), [("suspend", "SUSPENDED"), ("checkpoint", "PREEMPTED")])
def test_a_job_that_the_policy_preempts_is_charged_if_it_ran(preempt: str, state: str) -> None:
    world = World()
    job = world.submit(preempt=preempt)
    world.jobs.preempted(job, 5.0, lives=False)
    assert (job.state, job.preemptions) == (JobState.PENDING, 0)
    world.run(job, 5.0)
    world.jobs.preempted(job, 8.0, lives=True)
    assert (job.state, job.preemptions, job.ran_s, job.since_s) == (JobState(state), 1, 3.0, None)


def test_a_command_that_fails_says_so_and_changes_nothing() -> None:
    world, job = running()
    world.end(job, Outcome((0, 0)))
    answer: Future[Any] = Future()
    assert not world.handle(Asked(40.0, world.commands.each(job.id, world.commands.hold), answer))
    with pytest.raises(WrongStateError, match="COMPLETED"):
        answer.result(0)


def test_a_start_that_was_overtaken_by_a_cancellation_is_not_one() -> None:
    world, job = running()
    world.ask(world.commands.each(job.id, world.commands.cancel), 20.0)
    assert world.handle(AttemptStarted(21.0, job.number, (0, 1), resumed=False)) == []
    assert job.state is JobState.CANCELLED


def test_no_way_leads_out_of_an_end() -> None:
    job = JobRecord(0, "1", JobRequest(command=("true",)), 0.0, JobState.COMPLETED)
    for state in JobState:
        with pytest.raises(EngineError, match="COMPLETED"):
            life.move(job, state, 1.0)
    with pytest.raises(AttributeError):
        job.state = JobState.RUNNING  # type: ignore[misc]


def test_every_way_out_of_a_state_in_which_a_job_lives_is_named() -> None:
    places = ("pending", "running", "suspended", "preempted", "ended")
    assert all(before in places[:4] and after in places for before, after in life.TRANSITIONS)
    assert all((place, "ended") in life.TRANSITIONS and (place, "running") in life.TRANSITIONS for place in places[:4])


def test_the_table_in_the_docs_is_the_one_that_the_code_has() -> None:
    page = Path(__file__).parents[3] / "docs" / "ARCHITECTURE.md"
    assert life.table() in page.read_text(encoding="utf-8")
