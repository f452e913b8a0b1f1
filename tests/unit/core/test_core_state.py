"""The state: what each event does, what a commit books, and which reports it refuses."""

from __future__ import annotations

import math

import pytest

from fairway.core.action import Launch, Move, Resize, Suspend
from fairway.core.errors import EngineError
from fairway.core.event import (
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobStarted,
    NodeLost,
    NodeRestored,
    RateChanged,
    RegimeEntered,
    Woken,
)
from fairway.core.state import State
from fairway.testing import cluster, job, snapshot_of, state_digest, state_of
from fairway.testing.builders import submitted


def _two_jobs(**about: float) -> State:
    return state_of([job("a", 2, 100.0), job("b", 3, 90.0)], "v100:2x4", **about)


def test_a_submitted_job_waits_with_what_its_owner_said() -> None:
    spec = job("a", 3, 100 / 3, submitted_s=5.0, user="ann", queue="q", weight=2.0, deadline_s=77.0, priority=4)
    view = snapshot_of([spec], "v100:2x4", now_s=6.0)
    row = view.job(0)
    assert (row.id, row.user, row.queue, row.gpus, row.held) == ("a", "ann", "q", 3, 0)
    assert (row.weight, row.submitted_s, row.deadline_s, view.priority[0]) == (2.0, 5.0, 77.0, 4)
    assert view.oracle.remaining_s[0] == pytest.approx(100 / 3)
    assert view.gpu_type[0] == view.host[0] == -1


def test_a_job_without_deadline_has_an_infinite_one() -> None:
    assert snapshot_of([job()], "v100:4").deadline_s[0] == math.inf


def test_progress_and_service_grow_in_closed_form() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(JobStarted(0.0, 0, 1.0, 10.0))
    for time_s, progress in ((5.0, 0.0), (10.0, 0.0), (10 + 1 / 3, 1 / 3), (60.0, 50.0)):
        state.apply(Woken(time_s))
        view = state.snapshot(frozenset({"duration"}))
        assert view.progress[0] == pytest.approx(progress)
        assert view.attained_s[0] == time_s
        assert view.attained_gpu_s[0] == 2 * time_s
        assert view.oracle.remaining_s[0] == pytest.approx(100.0 - progress + max(10.0 - time_s, 0.0))
        assert view.attained_s[1] == view.progress[1] == 0.0


def test_a_share_of_a_gpu_is_charged_as_such_while_a_job_runs_and_afterwards() -> None:
    state = state_of([job("a", 1, 100.0, gpu_share=0.25)], "v100:1", now_s=40.0, running={"a": 1}, attained={"a": 40.0})
    assert state.snapshot().attained_gpu_s[0] == 10.0
    state.commit([Suspend(0)])
    state.apply(Woken(90.0))
    view = state.snapshot()
    assert (view.attained_s[0], view.attained_gpu_s[0]) == (40.0, 10.0)


def test_progress_never_exceeds_the_work_and_does_not_finish_the_job() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(JobStarted(0.0, 0, 1.0, 0.0))
    state.apply(Woken(500.0))
    assert state.snapshot().progress[0] == 100.0
    assert state.active == 2


def test_a_suspended_job_keeps_what_it_has_and_must_restart() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(JobStarted(0.0, 0, 1.0, 0.0))
    state.apply(Woken(40.0))
    state.commit([Suspend(0)])
    state.apply(Woken(70.0))
    view = state.snapshot(frozenset({"duration"}))
    assert (view.progress[0], view.attained_s[0], view.attained_gpu_s[0]) == (40.0, 40.0, 80.0)
    assert view.oracle.remaining_s[0] == 60.0 + 30.0
    assert (view.held[0], view.rate[0], view.preemptions[0], view.launches[0]) == (0, 0.0, 1, 1)
    assert state.busy_gpus == 0


def test_jobs_may_trade_places_in_one_commit() -> None:
    state = state_of([job("a", 4, 100.0), job("b", 4, 100.0)], "v100:2x4", running={"a": 4, "b": 4})
    first, second = state.held_gpus[0], state.held_gpus[1]
    state.commit([Move(0, second, 0), Move(1, first, 0)])
    assert (state.held_gpus[0], state.held_gpus[1]) == (second, first)
    assert [state.occupancy.tenants(gpu) for gpu in range(8)] == [1] * 8


def test_a_resize_settles_the_old_size_first() -> None:
    state = state_of([job("a", 2, 100.0, gpus_min=1, gpus_max=4)], "v100:4", now_s=0.0, running={"a": 2})
    state.apply(Woken(10.0))
    state.commit([Resize(0, (0, 1, 2, 3), 0)])
    state.apply(Woken(15.0))
    view = state.snapshot()
    assert view.attained_gpu_s[0] == 2 * 10.0 + 4 * 5.0
    assert view.attained_s[0] == 15.0
    assert view.preemptions[0] == 0


@pytest.mark.parametrize("gone", [JobFinished(50.0, 0), JobFailed(50.0, 0, "why"), JobCancelled(50.0, 0)])
def test_a_job_that_leaves_holds_nothing(gone: JobFinished | JobFailed | JobCancelled) -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0), Launch(1, (2, 3, 4), 0)])
    state.apply(gone)
    assert state.held_gpus == {1: (2, 3, 4)}
    assert state.snapshot().jobs.tolist() == [1]
    assert state.ids == {1: "b"}
    assert state.busy_gpus == 3


def test_an_evicted_job_falls_back_and_waits() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(JobStarted(0.0, 0, 1.0, 0.0))
    state.apply(JobEvicted(50.0, 0, 30.0, "its node failed"))
    view = state.snapshot()
    assert (view.progress[0], view.held[0], view.attained_s[0], view.preemptions[0]) == (30.0, 0, 50.0, 0)


def test_a_waiting_job_can_be_refused_without_harm() -> None:
    state = _two_jobs()
    state.apply(JobEvicted(3.0, 1, 0.0, "refused"))
    assert state.snapshot().held.tolist() == [0, 0]


def test_a_lost_node_takes_its_gpus_along_and_brings_them_back() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(NodeLost(5.0, 0))
    state.apply(JobEvicted(5.0, 0, 0.0, "its node failed"))
    assert state.snapshot().capacity.tolist() == [4]
    assert (state.occupancy.free_by_type, state.busy_gpus) == ([4], 0)
    state.apply(NodeLost(6.0, 0))
    assert state.snapshot().capacity.tolist() == [4]
    state.apply(NodeRestored(9.0, 0))
    state.apply(NodeRestored(9.0, 0))
    assert (state.snapshot().capacity.tolist(), state.occupancy.free_by_type) == ([8], [8])


def test_a_new_rate_counts_from_now_but_not_before_the_job_is_ready() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(JobStarted(0.0, 0, 1.0, 20.0))
    state.apply(RateChanged(10.0, 0, 0.0, 0.5))
    state.apply(Woken(30.0))
    assert state.snapshot().progress[0] == pytest.approx(5.0)


def test_a_new_regime_changes_speed_batch_size_and_what_is_left() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(JobStarted(0.0, 0, 1.0, 0.0))
    state.apply(RegimeEntered(40.0, 0, 40.0, 2.0, 256, (2.0,), 100.0, 0.0))
    state.apply(Woken(50.0))
    view = state.snapshot(frozenset({"duration"}))
    assert (view.progress[0], view.batch_size[0], view.rate[0], view.best_speed[0]) == (60.0, 256, 2.0, 2.0)
    assert view.oracle.remaining_s[0] == pytest.approx(20.0)


def test_a_guest_knows_its_host_until_one_leaves() -> None:
    state = state_of([job("a", 2, 100.0), job("b", 2, 100.0)], "v100:4")
    state.commit([Launch(0, (0, 1), 0), Launch(1, (0, 1), 0, host=0)])
    assert state.snapshot().host.tolist() == [-1, 0]
    assert (state.occupancy.tenants(0), state.busy_gpus) == (2, 2)
    state.apply(JobFinished(9.0, 0))
    assert state.snapshot().host.tolist() == [-1]
    assert (state.occupancy.tenants(0), state.busy_gpus) == (1, 2)


def test_the_turn_of_a_job_begins_when_others_have_left_its_gpus() -> None:
    state = _two_jobs(min_run_s=5.0)
    state.commit([Launch(0, (0, 1), 0)])
    state.apply(JobStarted(60.0, 0, 1.0, 60.0))
    state.apply(Woken(70.0))
    snapshot = state.snapshot()
    assert (snapshot.attained_s[0], snapshot.since_s[0]) == (70.0, 60.0)
    assert snapshot.protected_until_s[0] == pytest.approx(65.0)


@pytest.mark.parametrize("start_s", [120.0, 200.0])
def test_a_job_that_lost_its_turn_before_it_could_start_is_protected_until_it_has_started(start_s: float) -> None:
    state = _two_jobs(min_run_s=5.0)
    for time_s, until_s in ((0.0, 5.0), (120.0, math.inf)):
        state.apply(Woken(time_s))
        state.commit([Launch(0, (0, 1), 0)])
        assert state.snapshot().protected_until_s[0] == pytest.approx(until_s)
        if time_s == 0.0:
            state.apply(Woken(60.0))
            state.commit([Suspend(0)])
    state.apply(JobStarted(start_s, 0, 1.0, start_s))
    assert state.snapshot().protected_until_s[0] == pytest.approx(start_s + 5.0)


def test_protection_ends_after_the_minimum_run() -> None:
    state = _two_jobs(min_run_s=60.0)
    state.commit([Launch(0, (0, 1), 0)])
    assert state.snapshot().protected_rows.tolist() == [0]
    state.apply(Woken(59.9))
    assert state.snapshot().protected_rows.tolist() == [0]
    state.apply(Woken(60.0))
    assert state.snapshot().protected_rows.tolist() == []


@pytest.mark.parametrize(
    "event",
    [JobFinished(1.0, 9), JobStarted(1.0, 9, 1.0, 1.0), JobEvicted(1.0, 9, 0.0, ""), RateChanged(1.0, 9, 0.0, 1.0)],
)
def test_an_event_for_an_unknown_job_is_refused(event: JobFinished) -> None:
    with pytest.raises(EngineError, match="9 is not active"):
        _two_jobs().apply(event)


def test_time_never_goes_back() -> None:
    state = _two_jobs()
    state.apply(Woken(10.0))
    with pytest.raises(EngineError, match="comes after"):
        state.apply(Woken(9.999))


def test_job_numbers_must_rise() -> None:
    state = _two_jobs()
    with pytest.raises(EngineError, match="not above"):
        state.apply(submitted(job("c"), 1, cluster("v100:2x4")))


def test_the_number_of_a_job_that_has_left_is_not_used_again() -> None:
    state = _two_jobs()
    state.apply(JobFinished(1.0, 1))
    with pytest.raises(EngineError):
        state.apply(submitted(job("c"), 1, cluster("v100:2x4"), 2.0))


def test_gpus_cannot_be_given_back_twice() -> None:
    state = _two_jobs()
    state.commit([Launch(0, (0, 1), 0)])
    with pytest.raises(EngineError, match="given back twice"):
        state.occupancy.give((4, 5))


def test_digests_are_equal_for_equal_states_only() -> None:
    one, other = _two_jobs(), _two_jobs()
    assert state_digest(one) == state_digest(other)
    other.commit([Launch(0, (0, 1), 0)])
    assert state_digest(one) != state_digest(other)
    one.commit([Launch(0, (0, 2), 0)])
    assert state_digest(one) != state_digest(other)
