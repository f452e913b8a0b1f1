"""Clusters that get more nodes: logs and states of the smaller cluster go on, on the larger one."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.core.action import Launch
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import EngineError
from fairway.core.event import JobStarted, NodeLost, RegimeEntered
from fairway.core.state import State
from fairway.runtime.jobs.estimates import grown_speeds, on_cluster, speeds_of, submitted
from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.recovery import fingerprint, is_usable, renumber

TYPES = [GpuType("fast", 0, 0.0, 1.0), GpuType("slow", 0, 0.0, 0.5)]
SMALL = Cluster.of([Node("n0", "slow", 2)], TYPES)
LARGE = Cluster.of([Node("n0", "slow", 2), Node("n1", "fast", 4), Node("n2", "slow", 2)], TYPES)


def record(number: int = 0, **about: Any) -> JobRecord:
    return JobRecord(number, str(number + 1), JobRequest(command=("true",), **about), 0.0)


@pytest.mark.parametrize(
    ("before", "now", "usable"),
    [
        ([[["cpu", 4]], None], [[["cpu", 4, "here"]], None], True),
        ([[["cpu", 4, "there"]], None], [[["cpu", 4, "here"]], None], True),
        ([[["cpu", 4, "a"]], None], [[["cpu", 4, "a"], ["cpu", 2, "b"]], None], True),
        ([[["h100", 1, "a"]], ["x"]], [[["h100", 1, "a"], ["h100", 1, "b"]], ["x", "y"]], True),
        ([[["h100", 1, "a"]], ["x"]], [[["h100", 1, "a"], ["h100", 1, "b"]], ["y", "x"]], False),
        ([[["cpu", 4, "a"]], None], [[["cpu", 8, "a"]], None], False),
        ([[["cpu", 4, "a"], ["cpu", 4, "b"]], None], [[["cpu", 4, "a"]], None], False),
        ([[["h100", 1, "a"]], ["x"]], [[["h100", 1, "a"]], None], False),
        ("nonsense", [[["cpu", 4, "a"]], None], False),
    ],
)
def test_a_log_is_usable_if_all_known_nodes_are_there(before: Any, now: Any, usable: bool) -> None:
    assert is_usable(before, now) is usable
    assert is_usable(now, now)


def test_virtual_gpus_are_told_apart_by_their_nodes() -> None:
    before = fingerprint(Cluster.of([Node("a", "slow", 2), Node("b", "slow", 2)], TYPES), None)
    now = fingerprint(Cluster.of([Node("a", "slow", 4), Node("b", "slow", 1)], TYPES), None)
    stays, gone = record(0), record(1)
    stays.attempts = [Attempt(1, [2], "", 0.0)]
    gone.attempts = [Attempt(1, [1, 3], "", 0.0)]
    assert renumber([stays, gone], before, now) == {1}
    assert stays.attempts[0].gpus == [4]
    # On one node all of them are alike.
    assert renumber([stays], fingerprint(SMALL, None), fingerprint(LARGE, None)) == set()


def test_a_state_grows_and_keeps_what_it_knows() -> None:
    state, one, other = State(SMALL), record(0), record(1, gpus=2)
    for job in (one, other):
        state.apply(submitted(job, speeds_of(job.request, SMALL), 100.0, 0.0, 1.0))
    state.commit([Launch(0, (1,), 0)])
    state.apply(JobStarted(1.0, 0, 1.0, 1.0))
    speeds = {0: speeds_of(one.request, LARGE), 1: speeds_of(other.request, LARGE)}
    state.grow(LARGE, speeds)
    assert state.capacity.tolist() == [4, 4]
    assert state.occupancy.free_by_type == [3, 4]
    assert state.speeds() == {0: [0.5, 1.0], 1: [0.5, 1.0]}
    snapshot = state.snapshot()
    assert snapshot.cluster is LARGE
    assert snapshot.gpus_held(0) == (1,)
    assert state.facts[0].prospect is not None
    assert state.facts[0].prospect.stages[0].speeds == (0.5, 1.0)
    state.commit([Launch(1, (2, 3), 1)])
    state.apply(NodeLost(2.0, 2))
    assert state.capacity.tolist() == [2, 4]
    assert state.occupancy.free_by_type == [1, 2]
    with pytest.raises(EngineError):
        state.grow(SMALL, {})


def test_events_of_a_smaller_cluster_have_the_speeds_of_the_larger_one() -> None:
    job = record()
    event = submitted(job, speeds_of(job.request, SMALL), 100.0, 0.0, 1.0)
    assert event.speeds == (1.0,)
    grown = on_cluster(event, job.request, LARGE)
    assert grown == submitted(job, speeds_of(job.request, LARGE), 100.0, 0.0, 1.0)
    assert on_cluster(grown, job.request, LARGE) is grown


def test_measured_speeds_stay_and_others_follow_from_them() -> None:
    job = record(gpu_types=("slow", "fast"))
    event = RegimeEntered(1.0, 0, 5.0, 3.0, 8, (3.0,), 100.0, 0.0, scaling=(3.0,))
    grown = on_cluster(event, job.request, LARGE)
    assert grown.speeds == (3.0, 6.0)
    # A gang that was too large for a type may fit by now.
    assert grown_speeds((0.0, 4.0), (0.5, 1.0), in_steps=True) == (2.0, 4.0)
    # One that was measured on a type is expected to be as much faster on another as the catalogue says.
    assert grown_speeds((1.0, 0.8), (0.5, 0.25, 1.0), in_steps=False) == (0.5, 0.4, 1.0)
    assert grown_speeds((0.0,), (0.0, 0.0), in_steps=False) == (1.0, 1.0)


def test_a_type_that_a_job_may_not_use_is_no_reason_to_forget_what_was_measured() -> None:
    job = record(gpu_types=("slow",))
    event = submitted(job, (1.0, 0.0), 100.0, 0.0, 1.0)
    assert on_cluster(event, job.request, LARGE) is event
