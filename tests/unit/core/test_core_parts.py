"""Parts of snapshots, as a policy sees some of the rows, and decisions about them made whole again."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.action import Suspend
from fairway.core.decision import Decision, Reason
from fairway.core.event import JobFinished
from fairway.core.snapshot_json import from_json, to_json
from fairway.testing import job, random_snapshot, state_of
from fairway.testing.builders import submitted

COLUMNS = ("held", "host", "attained_s", "attained_gpu_s", "progress", "rate", "idle_since_s", "throttle")


def test_a_part_has_the_rows_the_capacity_and_the_memory_that_were_asked_for() -> None:
    state = state_of([job("a", 2), job("b", 1), job("c", 4)], "v100:2x4", running={"a": (0, 1), "b": (4,)})
    whole = state.snapshot()
    part = whole.part(np.array([0, 2]), capacity=np.array([5]), withheld=frozenset({7}), memory={"x": 1})
    assert [part.job(row).id for row in range(len(part))] == ["a", "c"]
    assert (part.capacity.tolist(), part.free, part.demand, part.memory) == ([5], 3, 6, {"x": 1})
    assert (part.withheld_gpus, part.node_sizes) == ({7}, [4, 3])
    assert (whole.withheld_gpus, whole.node_sizes) == (frozenset(), [4, 4])
    with pytest.raises(ValueError, match="read-only"):
        part.held[...] = 0


def test_rows_that_are_stopped_in_a_part_look_as_if_they_had_been_stopped() -> None:
    jobs = [job("a", 2, 500.0), job("b", 1, 500.0), job("c", 4, 500.0)]
    state = state_of(jobs, "v100:2x4", now_s=100.0, running={"a": (0, 1), "b": (4,)}, attained={"a": 60.0, "b": 90.0})
    part = state.snapshot(frozenset({"duration"})).part(np.arange(3), stopped=[0])
    before = state.snapshot().part(np.arange(3))
    state.commit([Suspend(0)])
    after = state.snapshot(frozenset({"duration"}))
    for name in COLUMNS:
        assert getattr(part, name).tolist() == getattr(after, name).tolist(), name
    assert part.oracle.remaining_s.tolist() == after.oracle.remaining_s.tolist()
    assert (part.gpus_held(0), part.gpus_held(1), part.free) == ((), (4,), 7)
    assert before.held.tolist() == [2, 1, 0]


def test_types_are_barred_for_single_rows() -> None:
    whole = state_of([job("a"), job("b"), job("c")], "v100:2,k80:2").snapshot()
    part = whole.part(np.array([1, 2]), barred={1: {0}, 0: {1}})
    assert (part.speeds > 0).tolist() == [[False, True], [True, True]]
    assert (whole.speeds > 0).all()


def test_withheld_gpus_go_through_json_and_copies() -> None:
    part = random_snapshot(1).part(np.arange(0), withheld=frozenset({1, 0}))
    assert from_json(to_json(part)).withheld_gpus == {0, 1}
    assert part.copy().withheld_gpus == {0, 1}


def test_the_same_instant_with_another_memory() -> None:
    whole = random_snapshot(2)
    other = whole.part(memory={"y": 2})
    assert (other.memory, other.now_s, other.free) == ({"y": 2}, whole.now_s, whole.free)
    assert other.ints is whole.ints


def test_a_decision_about_some_rows_becomes_one_about_all() -> None:
    part = Decision(
        np.array([2, 2, 0]),
        np.array([0, 0, 1], dtype=np.int8),
        np.array([1, 1, -1]),
        ahead=9,
        wake_s=50.0,
        memory={"m": 1},
        partners={1: 0},
        placements={0: (4, 5)},
        throttles={1: 0.5},
        order=[1, 0],
        warm=True,
        texts={2: "later"},
    )
    whole = Decision.composed([(np.array([1, 3, 4]), part)], 6)
    assert whole.gpus.tolist() == [0, 2, 0, 2, 0, 0]
    assert whole.reasons.tolist() == [Reason.OTHER, 0, Reason.OTHER, 0, Reason.NO_FREE_GPUS, Reason.OTHER]
    assert whole.gpu_types is not None
    assert whole.gpu_types.tolist() == [-1, 1, -1, 1, -1, -1]
    assert (whole.ahead, whole.wake_s, whole.memory, whole.warm) == (9, 50.0, {}, True)
    assert (whole.partners, whole.placements, whole.throttles, whole.order) == ({3: 1}, {1: (4, 5)}, {3: 0.5}, [3, 1])
    assert dict(whole.texts) == {4: "later"}
    assert 0 not in whole.texts
    assert 5 not in whole.texts


def test_parts_are_composed_in_their_order_and_rows_of_no_part_wait() -> None:
    first = Decision(np.array([2]), np.zeros(1, dtype=np.int8), wake_s=50.0, memory={"m": 1}, order=[0])
    second = Decision(
        np.array([0, 1]),
        np.array([int(Reason.BEHIND), 0], dtype=np.int8),
        gpu_types=np.array([-1, 1]),
        ahead=7,
        wake_s=40.0,
        order=[1],
        warm=True,
        texts={0: "behind the first"},
    )
    whole = Decision.composed([(np.array([3]), first), (np.array([0, 2]), second)], 4, Reason.NO_FREE_GPUS)
    assert whole.gpus.tolist() == [0, 0, 1, 2]
    assert whole.reasons.tolist() == [Reason.BEHIND, Reason.NO_FREE_GPUS, 0, 0]
    assert whole.gpu_types is not None
    assert whole.gpu_types.tolist() == [-1, -1, 1, -1]
    assert (whole.ahead, whole.wake_s, whole.order, whole.warm, whole.memory) == (7, 40.0, [3, 2], True, {})
    assert dict(whole.texts) == {0: "behind the first"}
    nothing = Decision.composed([], 2)
    assert (nothing.gpus.tolist(), nothing.wake_s, dict(nothing.texts)) == ([0, 0], np.inf, {})


def test_what_was_remembered_of_jobs_is_recalled_by_row() -> None:
    state = state_of([job(name) for name in "abcd"], "v100:4")
    state.memory = {"jobs": state.snapshot().jobs.copy(), "debt_s": [1.0, 2.0, 3.0, 4.0], "seen": [5, 6, 7, 8]}
    state.apply(JobFinished(10.0, 1))
    state.apply(submitted(job("e"), 4, state.cluster, 10.0))
    snapshot = state.snapshot()
    assert snapshot.jobs.tolist() == [0, 2, 3, 4]
    assert snapshot.recall("debt_s", 0.5).tolist() == [1.0, 3.0, 4.0, 0.5]
    assert snapshot.recall("seen", np.array([-1, -2, -3, -4])).tolist() == [5, 7, 8, -4]
    assert snapshot.recall("never", -1).tolist() == [-1] * 4
    assert snapshot.recall("debt_s", 0.0, {}).tolist() == [0.0] * 4
    pairs = {"jobs": [3, 9], "pair": [[1.0, 2.0], [3.0, 4.0]]}
    assert snapshot.recall("pair", np.zeros((4, 2)), pairs).tolist() == [[0, 0], [0, 0], [1, 2], [0, 0]]


def test_rows_of_jobs_that_are_gone_are_none() -> None:
    snapshot = state_of([job("a"), job("b")], "v100:4").snapshot()
    assert snapshot.rows_of([[1, 5], [-1, 0]]).tolist() == [[1, -1], [-1, 0]]
    assert state_of([], "v100:4").snapshot().rows_of([0, 1]).tolist() == [-1, -1]
    assert state_of([], "v100:4").snapshot().recall("x", 0.0, {"jobs": [1], "x": [2.0]}).tolist() == []
