"""A batch in a decision: its limits, how it is carried out without a restart, and where it is kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fairway.core.action import Launch, Move, Resize, SetBatch
from fairway.core.batch import Adaptive, BatchLimits, Split, Timing, limits_of
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.errors import PolicyError
from fairway.core.event import JobMeasured, Woken
from fairway.core.plan import plan
from fairway.core.reconcile import reconcile
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.core.state import State
from fairway.core.state_from_snapshot import resumed
from fairway.placement import placement
from fairway.runtime.journal.entries import from_plain, to_plain
from fairway.testing import job, state_of

LIMITS = limits_of(128, 1024, 16, 256, True)


def two_jobs(**about: Any) -> State:
    """Job a may be adapted, job b may not; both may have 1 to 8 GPUs."""
    jobs = [job("a", 4, gpus_min=1, gpus_max=8), job("b", 1, gpus_min=1, gpus_max=8)]
    state = state_of(jobs, "v100:2x4", now_s=10.0, **about)
    state.apply(JobMeasured(10.0, 0, limits=LIMITS))
    return state


def decided(a: int, b: int = 0, **about: Any) -> Decision:
    gpus = np.array([a, b], dtype=np.int64)
    return Decision(gpus, np.where(gpus > 0, 0, int(Reason.OTHER)).astype(np.int8), **about)


def carried_out(state: State, decision: Decision) -> list[Any]:
    """The actions of a decision, which the state has then noted."""
    snapshot = state.snapshot()
    check(snapshot, decision)
    planned = plan(snapshot, decision, state.occupancy, placement("packed"))
    actions = reconcile(snapshot, planned.kept(decision), planned)
    state.commit(actions, planned.occupancy)
    return actions


@pytest.mark.parametrize(
    ("row", "gpus", "split", "why"),
    [
        (0, 2, Split(300), "300 samples per GPU are more than its 256"),
        (0, 8, Split(8, 1), "8 samples per GPU are fewer than its 16"),
        (0, 4, Split(256, 1), "a batch of 2048 is larger than its 1024"),
        (0, 2, Split(32), "a batch of 64 is smaller than its first of 128"),
        (0, 2, Split(64, -1), "its steps cannot have 0 passes"),
        (0, 0, Split(64), "it gets no GPUs"),
        (1, 2, Split(64), "it has not said that it may be adapted"),
    ],
)
def test_a_batch_outside_of_the_limits_is_refused_with_one_reason(row: int, gpus: int, split: Split, why: str) -> None:
    decision = decided(*((gpus, 0) if row == 0 else (0, gpus)), batches={row: split})
    with pytest.raises(PolicyError, match=f"job '{'ab'[row]}' cannot train with {split.local} samples per GPU: {why}"):
        check(two_jobs().snapshot(), decision)


def test_a_batch_limit_below_the_gang_is_refused() -> None:
    state = two_jobs()
    state.apply(JobMeasured(10.0, 0, limits=limits_of(4, 4)))
    check(state.snapshot(), decided(4, batches={0: Split(1)}))
    with pytest.raises(PolicyError, match="its batch of at most 4 is too small for 8 GPUs"):
        check(state.snapshot(), decided(8, batches={0: Split(1)}))


def test_a_row_that_does_not_exist_gets_no_batch() -> None:
    with pytest.raises(PolicyError, match="there is no row 7"):
        check(two_jobs().snapshot(), decided(2, batches={7: Split(64)}))


def test_a_batch_may_be_below_the_first_by_what_does_not_divide_evenly() -> None:
    limits = limits_of(128, 128)
    assert limits.problem(Split(42), 3) is None
    assert limits.problem(Split(41), 3) == "a batch of 123 is smaller than its first of 128"


def test_a_start_carries_the_batch_and_a_new_batch_alone_restarts_nothing() -> None:
    state = two_jobs()
    (launch,) = carried_out(state, decided(4, batches={0: Split(64)}))
    assert isinstance(launch, Launch)
    assert launch.batch == Split(64)
    assert state.snapshot().facts(0).split == Split(64)
    assert state.snapshot().batch_size[0] == 64
    assert carried_out(state, decided(4, batches={0: Split(64)})) == []
    launches, gpus = int(state.snapshot().launches[0]), state.held_gpus[0]
    assert carried_out(state, decided(4, batches={0: Split(128, 1)})) == [SetBatch(0, Split(128, 1))]
    assert state.snapshot().facts(0).split == Split(128, 1)
    assert (int(state.snapshot().launches[0]), state.held_gpus[0]) == (launches, gpus)


def test_other_gpus_and_another_batch_are_one_action() -> None:
    state = two_jobs()
    carried_out(state, decided(4, batches={0: Split(64)}))
    (resize,) = carried_out(state, decided(2, batches={0: Split(128)}))
    assert isinstance(resize, Resize)
    assert resize.batch == Split(128)
    (move,) = carried_out(state, decided(2, batches={0: Split(100)}, placements={0: (6, 7)}))
    assert isinstance(move, Move)
    assert state.snapshot().facts(0).split == move.batch == Split(100)


def test_a_running_job_without_a_batch_in_the_decision_keeps_its_own() -> None:
    state = two_jobs()
    carried_out(state, decided(4, batches={0: Split(64)}))
    assert carried_out(state, decided(4)) == []
    assert state.snapshot().facts(0).split == Split(64)
    carried_out(state, decided(2))
    assert state.snapshot().facts(0).split is None


def test_what_follows_from_a_decision_keeps_its_batches() -> None:
    decision = decided(4, 2, batches={0: Split(64)})
    assert decision.without([1]).batches == {0: Split(64)}
    assert decision.without([0]).batches == {}
    whole = Decision.composed([(np.array([1, 3]), decided(4)), (np.array([2, 4]), decision)], 5)
    assert whole.batches == {2: Split(64)}


def test_a_refused_start_keeps_no_batch() -> None:
    state = two_jobs(running={"b": (0,)})
    decision = decided(4, 1, batches={0: Split(64)}, placements={0: (0, 1, 2, 3)})
    planned = plan(state.snapshot(), decision, state.occupancy, placement("packed"))
    assert planned.kept(decision).batches == {}


def test_timings_of_the_same_allocation_replace_each_other() -> None:
    known = Adaptive(LIMITS).timed(Timing(1, 1, 64, 0, 0.2)).timed(Timing(1, 2, 64, 0, 0.3))
    again = known.timed(Timing(1, 1, 64, 0, 0.25, 0.2))
    assert [timing.step_s for timing in again.timings] == [0.3, 0.25]
    assert again.reports == 3


def test_what_a_job_measures_is_in_the_snapshot_its_json_and_a_state_made_of_it() -> None:
    state = two_jobs()
    carried_out(state, decided(4, batches={0: Split(64)}))
    state.apply(JobMeasured(20.0, 0, timing=Timing(1, 4, 64, 0, 0.3), noise_scale=300.0))
    state.apply(JobMeasured(20.0, 1, timing=Timing(1, 4, 64, 0, 0.3), noise_scale=-2.0))
    found = [state.snapshot().copy(), from_json(to_json(state.snapshot()))]
    found.append(resumed(state.snapshot().copy(), state.specs).snapshot())
    for snapshot in found:
        facts = snapshot.facts(0)
        assert facts.adaptive is not None
        assert facts.adaptive[:2] == (LIMITS, Split(64))
        assert [timing[:5] for timing in facts.adaptive.timings] == [(1, 4, 64, 0, 0.3)]
        assert math.isnan(facts.adaptive.timings[0].gradient_s)
        assert facts.noise_scale == 300.0
        # A job that has announced no limits is not adaptive, whatever it measures.
        assert (snapshot.facts(1).adaptive, snapshot.facts(1).noise_scale) == (None, -2.0)


def test_the_journal_keeps_batches() -> None:
    for thing in (
        Launch(0, (0, 1), 0, batch=Split(64, 1)),
        Resize(0, (0,), 0, batch=Split(64)),
        Move(0, (0,), 0),
        SetBatch(3, Split(128, 2)),
        JobMeasured(1.0, 0, limits=LIMITS, noise_scale=5.0),
    ):
        assert from_plain(*to_plain(thing)) == thing
    kind, fields = to_plain(JobMeasured(1.0, 0, timing=Timing(1, 2, 64, 0, 0.3), noise_scale=math.inf))
    read = from_plain(kind, fields)
    assert read.timing[:5] == (1, 2, 64, 0, 0.3)
    assert math.isnan(read.timing.gradient_s)
    assert read.noise_scale == math.inf
    assert fields["timing"] == [1, 2, 64, 0, 0.3, None, ""]


def test_a_job_that_has_left_is_forgotten() -> None:
    from fairway.core.event import JobFinished

    state = two_jobs()
    carried_out(state, decided(4, batches={0: Split(64)}))
    state.apply(JobFinished(20.0, 0))
    state.apply(Woken(21.0))
    snapshot: Snapshot = state.snapshot()
    assert len(snapshot) == 1
    assert snapshot.facts(0).adaptive is None


@pytest.mark.parametrize(
    ("limits", "batch", "gpus", "split"),
    [
        (BatchLimits(8, 512, 4, 8, True), 64, 4, Split(8, 1)),
        (BatchLimits(128, 4096, 32, 1024, True), 128, 1, Split(128)),
        (BatchLimits(128, 4096, 32, 1024, True), 256, 1, Split(128, 1)),
        (BatchLimits(128, 4096, 32, 1024, True), 130, 4, Split(33)),
        (BatchLimits(128, 128), 128, 3, Split(42)),
        (BatchLimits(128, 0), 128, 2, Split(64)),
    ],
)
def test_a_gang_splits_a_batch_evenly(limits: BatchLimits, batch: int, gpus: int, split: Split) -> None:
    assert limits.split(batch, gpus) == split
