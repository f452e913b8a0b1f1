"""Admission, held against a naive walk over the jobs one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core import admission
from fairway.core.admission import admit
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.testing import job, snapshot_of
from fairway.testing.strategies import snapshots


def naive_walk(view: Snapshot, order: list[int], held: dict[int, int], strict: bool) -> list[int]:
    """Grants by walking the order; `held` rows keep what they have. One GPU type."""
    free = int(view.capacity[0]) - sum(held.values())
    grants = [held.get(row, 0) for row in range(len(view))]
    for row in order:
        if row in held:
            continue
        if view.gpus[row] <= free:
            grants[row] = int(view.gpus[row])
            free -= grants[row]
        elif strict:
            break
    return grants


def naive(view: Snapshot, key: list[float] | None, preempt: bool, strict: bool) -> list[int]:
    keys = [0.0] * len(view) if key is None else key
    order = sorted(range(len(view)), key=lambda row: (keys[row], row))
    now = {row: int(view.held[row]) for row in range(len(view)) if view.held[row]}
    if not preempt:
        return naive_walk(view, order, now, strict)
    ideal = naive_walk(view, order, {}, strict)
    spared = [row for row in view.protected_rows.tolist() if ideal[row] != view.held[row]]
    if not spared:
        return ideal
    stay = {row: held for row, held in now.items() if row in spared or ideal[row]}
    return naive_walk(view, order, stay, strict)


@given(view=snapshots(mixed=False, max_jobs=14), data=st.data(), preempt=st.booleans(), strict=st.booleans())
def test_admission_is_a_walk_in_order(view: Snapshot, data: st.DataObject, preempt: bool, strict: bool) -> None:
    keys = st.none() | st.lists(st.integers(0, 3).map(float), min_size=len(view), max_size=len(view))
    key = data.draw(keys)
    decision = admit(view, None if key is None else np.array(key), preempt=preempt, strict=strict)
    assert decision.gpus.tolist() == naive(view, key, preempt, strict)
    check(view, decision)


@given(view=snapshots(mixed=False), data=st.data())
def test_whole_number_keys_order_like_floats(view: Snapshot, data: st.DataObject) -> None:
    key = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=len(view), max_size=len(view))), dtype=np.int64)
    whole = admit(view, key, preempt=True)
    assert whole.gpus.tolist() == admit(view, key.astype(np.float64), preempt=True).gpus.tolist()


@given(view=snapshots(mixed=True), data=st.data(), preempt=st.booleans(), strict=st.booleans())
def test_on_several_types_each_gang_gets_one_type_with_room(
    view: Snapshot, data: st.DataObject, preempt: bool, strict: bool
) -> None:
    key = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(view), max_size=len(view))), dtype=np.float64)
    decision = admit(view, key, preempt=preempt, strict=strict)
    check(view, decision)
    assert decision.gpu_types is not None
    free = view.capacity.copy()
    for row in decision.gpus.nonzero()[0]:
        free[decision.gpu_types[row]] -= decision.gpus[row]
        assert view.speeds[decision.gpu_types[row], row] > 0
    assert (free >= 0).all()
    if not strict:
        for row in (decision.gpus == 0).nonzero()[0]:
            assert not ((free >= view.gpus[row]) & (view.speeds[:, row] > 0)).any()
    if not preempt:
        running = view.running_rows
        assert (decision.gpus[running] == view.held[running]).all()
        assert (decision.gpu_types[running] == view.gpu_type[running]).all()


def test_ties_keep_the_order_of_submission() -> None:
    view = snapshot_of([job(name, 2) for name in "abcd"], "v100:4")
    assert admit(view, np.zeros(4), preempt=True).gpus.tolist() == [2, 2, 0, 0]
    assert admit(view, np.array([1.0, 0.0, 1.0, 0.0]), preempt=True).gpus.tolist() == [0, 2, 0, 2]


def test_a_long_queue_is_walked_like_a_short_one() -> None:
    """More jobs than twice the GPUs: only the head of the order is sorted, and that must not show."""
    random = np.random.default_rng(0)
    sizes = random.choice([1, 2, 3, 5], 200)
    jobs = [job(f"job-{at}", int(size), 100.0) for at, size in enumerate(sizes)]
    view = snapshot_of(jobs, "v100:2x4")
    for _ in range(20):
        key = random.integers(0, 6, 200).astype(np.float64)
        assert admit(view, key, preempt=True).gpus.tolist() == naive(view, key.tolist(), True, False)


def test_no_gpu_idles_beside_a_job_that_was_spared_in_a_long_queue() -> None:
    jobs = [*(job(name, 2) for name in "abc"), job("small", 1), job("fresh", 1)]
    view = snapshot_of(jobs, "v100:2", now_s=1.0, running={"fresh": 1}, attained={"fresh": 1.0}, min_run_s=60.0)
    assert admit(view, np.zeros(5), preempt=True).gpus.tolist() == [0, 0, 0, 1, 1]


def test_a_job_that_has_just_started_is_left_alone_and_the_decision_wakes_when_it_may_go() -> None:
    jobs = [job("old", 4, 1000.0), job("new", 4, 10.0, submitted_s=30.0)]
    view = snapshot_of(jobs, "v100:4", now_s=30.0, running={"old": 4}, attained={"old": 20.0}, min_run_s=60.0)
    decision = admit(view, np.array([1.0, 0.0]), preempt=True)
    assert decision.gpus.tolist() == [4, 0]
    assert decision.wake_s == pytest.approx(70.0, abs=1e-6)
    assert decision.reasons.tolist() == [Reason.RUNS, Reason.OUTRANKED]
    assert decision.reason(view, 1) == "needs 4 GPUs; job old (4 GPUs) has just started and cannot be stopped yet"


def test_the_reason_names_the_jobs_that_are_served_first() -> None:
    jobs = [job("a", 2), job("b", 1), job("c", 4)]
    view = snapshot_of(jobs, "v100:4", now_s=90.0, running={"a": 2, "b": 1})
    decision = admit(view, np.array([0.0, 1.0, 2.0]), preempt=True)
    assert decision.reason(view, 2) == "needs 4 GPUs; jobs a (2 GPUs) and b (1 GPU) are served first"
    many = [*(job(f"small-{number}", 1) for number in range(5)), job("large", 8)]
    view = snapshot_of(many, "v100:8", now_s=90.0, running={f"small-{number}": 1 for number in range(5)})
    named = "small-0 (1 GPU), small-1 (1 GPU), small-2 (1 GPU) and 2 more"
    assert admit(view, np.arange(6), preempt=True).reason(view, 5) == f"needs 8 GPUs; jobs {named} are served first"


def test_only_jobs_on_gpus_that_it_can_use_are_named() -> None:
    jobs = [job("a", 2, gpu_types=("v100",)), job("b", 2, gpu_types=("k80",)), job("c", 2, gpu_types=("k80",))]
    view = snapshot_of(jobs, "v100:2,k80:2", running={"a": (0, 1), "b": (2, 3)})
    reasons = np.array([0, 0, int(Reason.OUTRANKED)], dtype=np.int8)
    decision = Decision(np.array([2, 2, 0]), reasons, gpu_types=np.array([0, 1, -1]))
    assert decision.reason(view, 2) == "needs 2 GPUs; job b (2 GPUs) is served first"


def test_a_job_that_never_ran_is_not_said_to_have_had_its_share() -> None:
    view = snapshot_of([job("a", 1), job("b", 1)], "v100:1", running={"a": 1})
    decision = Decision(np.array([1, 0]), np.array([0, int(Reason.NOT_ITS_TURN)], dtype=np.int8))
    assert decision.reason(view, 1) == "job a (1 GPU) is served first; waits for its turn"


def test_nobody_is_stopped_in_the_stead_of_a_protected_job() -> None:
    jobs = [job("old", 2, 1000.0), job("fresh", 2, 1000.0), job("new", 2, 10.0, submitted_s=100.0)]
    about = {"running": {"old": 2, "fresh": 2}, "attained": {"old": 100.0, "fresh": 1.0}}
    view = snapshot_of(jobs, "v100:4", now_s=100.0, min_run_s=60.0, **about)
    decision = admit(view, np.array([1.0, 2.0, 0.0]), preempt=True)
    assert decision.gpus.tolist() == [2, 2, 0]
    assert decision.wake_s == pytest.approx(159.0, abs=1e-6)


def test_a_newcomer_blocked_by_a_protected_move_gets_a_wake_up() -> None:
    """The ideal would move the fresh job to the slower type; it may not move yet, so the newcomer must be told when."""
    jobs = [job("fresh", 2, 1000.0), job("large", 3, 10.0, submitted_s=10.0)]
    view = snapshot_of(jobs, "v100:3,k80:2", now_s=10.0, running={"fresh": (0, 1)}, min_run_s=60.0)
    decision = admit(view, np.array([1.0, 0.0]), preempt=True)
    assert decision.gpus.tolist() == [2, 0]
    assert decision.wake_s == pytest.approx(70.0, abs=1e-6)


def test_strict_names_the_job_that_blocks_the_line() -> None:
    jobs = [job("a", 3), job("b", 4), job("c", 1)]
    view = snapshot_of(jobs, "v100:4")
    decision = admit(view, preempt=False, strict=True)
    assert decision.gpus.tolist() == [3, 0, 0]
    assert decision.reason(view, 1) == "needs 4 GPUs, 1 free"
    assert "behind job b" in decision.reason(view, 2)


def test_strict_with_a_key_names_the_first_of_that_order() -> None:
    view = snapshot_of([job("a", 1), job("b", 4), job("c", 3)], "v100:4")
    decision = admit(view, np.array([3.0, 2.0, 1.0]), preempt=True, strict=True)
    assert decision.gpus.tolist() == [0, 0, 3]
    assert decision.reasons.tolist() == [Reason.BEHIND, Reason.NO_FREE_GPUS, Reason.RUNS]
    assert "behind job b" in decision.reason(view, 0)


def test_nothing_to_admit() -> None:
    for spec in ("v100:4", "v100:4,k80:2"):
        decision = admit(snapshot_of([], spec), preempt=True)
        assert (len(decision.gpus), decision.wake_s) == (0, math.inf)


@pytest.mark.parametrize("preempt", [True, False])
def test_on_a_mixed_cluster_the_fastest_type_with_room_is_taken(preempt: bool) -> None:
    jobs = [job("a", 2), job("b", 2), job("only-k80", 1, gpu_types=("k80",))]
    decision = admit(snapshot_of(jobs, "k80:3,v100:2"), preempt=preempt)
    assert decision.gpu_types is not None
    assert decision.gpu_types.tolist() == [1, 0, 0]


def test_no_array_is_kept_for_every_length_that_a_queue_has_had() -> None:
    grown = admission._all_rows(5_000)
    assert grown.tolist() == list(range(5_000))
    assert not grown.flags.writeable
    assert all(np.shares_memory(grown, admission._all_rows(count)) for count in (1, 17, 4_999))
