"""The time in which all jobs stood still with their scheduler, taken out of a state."""

from __future__ import annotations

import math

import pytest

from fairway.core.action import Launch
from fairway.core.event import Event, JobEvicted, JobFinished, JobStarted, RestartMeasured, Woken
from fairway.core.state import State
from fairway.policies import make_policy
from fairway.runtime.journal.recovery import without_pause
from fairway.testing import job, state_of


class Noted:
    """A state, and the log of what it is told."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.log: list[Event] = []

    def note(self, events: list[Event]) -> None:
        for event in events:
            self.state.apply(event)
        self.log += events

    def paused(self, since_s: float, until_s: float, *events: Event) -> list[Launch]:
        """Stand still from one instant to another, and go on."""
        back = without_pause(self.state, since_s, events, self.note)
        self.state.apply(Woken(until_s))
        self.state.commit(back)
        return [one for one in back if isinstance(one, Launch)]


def _two() -> Noted:
    jobs = [job("a", 2, 9000.0), job("b", 1, 9000.0), job("c", 1, 500.0)]
    return Noted(state_of(jobs, "v100:1x4", now_s=100.0, running={"a": (0, 1), "b": (3,)}, attained={"a": 100.0}))


def test_neither_service_nor_progress_grows_while_nobody_computes() -> None:
    noted = _two()
    before = dict(noted.state.held_gpus)
    noted.paused(150.0, 7000.0)
    snapshot = noted.state.snapshot()
    assert noted.state.held_gpus == before
    assert snapshot.attained_s.tolist() == [150.0, 50.0, 0.0]
    assert snapshot.attained_gpu_s.tolist() == [300.0, 50.0, 0.0]
    assert snapshot.progress.tolist() == pytest.approx([150.0, 50.0, 0.0])
    assert snapshot.preemptions.tolist() == [0, 0, 0]
    noted.note([JobStarted(7000.0, 0, 1.0, 7000.0), Woken(7010.0)])
    assert noted.state.snapshot().attained_s.tolist() == [160.0, 60.0, 0.0]
    assert noted.state.snapshot().progress.tolist() == pytest.approx([160.0, 50.0, 0.0])


def test_nobody_is_demoted_for_a_pause() -> None:
    policy = make_policy("tiresias:queues=1000")
    # If it counted, both that run would be behind the one that waits.
    for since_s, first in ((None, [2, 0, 1]), (150.0, [2, 1, 0])):
        jobs = [job("a", 2, 9000.0), job("b", 1, 9000.0), job("c", 1, 500.0)]
        noted = Noted(state_of(jobs, "v100:1x3", now_s=100.0, running={"a": (0, 1), "b": (2,)}, attained={"a": 100.0}))
        if since_s is None:
            noted.state.apply(Woken(7000.0))
        else:
            noted.paused(since_s, 7000.0)
        decision = policy.decide(noted.state.snapshot(policy.knows))
        assert decision.gpus.tolist() == first


def test_guests_go_on_beside_their_hosts() -> None:
    state = state_of([job("host", 2, 9000.0), job("guest", 1, 9000.0)], "v100:1x4")
    state.commit([Launch(0, (0, 1), 0), Launch(1, (1,), 0, 0, 0.5)])
    noted = Noted(state)
    noted.paused(50.0, 900.0)
    snapshot = state.snapshot()
    assert state.held_gpus == {0: (0, 1), 1: (1,)}
    assert snapshot.host.tolist() == [-1, 0]
    assert snapshot.throttle.tolist() == [1.0, 0.5]
    assert snapshot.attained_s.tolist() == [50.0, 50.0]
    assert state.busy_gpus == 2


def test_who_ended_in_the_meantime_is_not_put_back() -> None:
    noted = _two()
    lost = JobEvicted(400.0, 1, 20.0, "lost")
    cost = RestartMeasured(400.0, 0, 3.0)
    back = noted.paused(150.0, 7000.0, JobFinished(120.0, 0), lost)
    assert back == []
    assert noted.state.held_gpus == {}
    snapshot = noted.state.snapshot()
    assert (snapshot.jobs.tolist(), snapshot.attained_s.tolist()) == ([1, 2], [50.0, 0.0])
    assert snapshot.progress.tolist() == [20.0, 0.0]
    assert [event.time_s for event in noted.log] == [120.0, 150.0, 400.0]
    noted = _two()
    assert [one.job for one in noted.paused(150.0, 7000.0, lost, cost)] == [0], "news of a job are not its end"


def test_a_clock_that_was_set_back_turns_no_time_back() -> None:
    noted = _two()
    noted.paused(-50.0, 130.0)
    assert noted.state.snapshot().attained_s.tolist() == [100.0, 0.0, 0.0]
    assert math.isfinite(noted.state.now_s)


def test_a_job_that_is_found_running_keeps_the_work_it_has_done() -> None:
    state = state_of([job("a", 2, 9000.0)], "v100:1x4", now_s=100.0, running={"a": (0, 1)}, attained={"a": 100.0})
    state.apply(JobStarted(130.0, 0, 1.0, 130.0))
    state.apply(Woken(140.0))
    assert state.snapshot().progress.tolist() == pytest.approx([140.0])
    assert state.snapshot(frozenset({"duration"})).oracle.remaining_s.tolist() == pytest.approx([8860.0])
