"""Every law that a decision must keep has a decision that breaks it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from fairway.core.action import Launch
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.errors import PolicyError
from fairway.core.event import Woken
from fairway.core.snapshot import Snapshot
from fairway.testing import job, snapshot_of, state_of


def decided(grants: list[int], **about: Any) -> Decision:
    gpus = np.array(grants, dtype=np.int64)
    return Decision(gpus, np.where(gpus > 0, 0, int(Reason.OTHER)).astype(np.int8), **about)


def _view(**about: Any) -> Snapshot:
    jobs = [job("a", 2), job("b", 2, gpus_min=1, gpus_max=3), job("c", 4)]
    return snapshot_of(jobs, "v100:2x4", now_s=10.0, **about)


@pytest.mark.parametrize("grants", [[0, 0, 0], [2, 2, 4], [2, 1, 4], [0, 3, 4], [2, 3, 0]])
def test_lawful_grants_pass_and_one_gpu_too_many_does_not(grants: list[int]) -> None:
    view = _view()
    check(view, decided(grants))
    with pytest.raises(PolicyError):
        check(view, decided([*grants[:2], 5]))


@pytest.mark.parametrize(
    ("grants", "law"),
    [
        ([1, 0, 0], "'a' is granted fewer"),
        ([3, 0, 0], "'a' is granted more"),
        ([-2, 0, 0], "'a' is granted fewer"),
        ([0, 4, 0], "'b' is granted more"),
        ([2, 3, 4], "9 GPUs are granted; the cluster has 8"),
    ],
)
def test_gangs_are_whole_and_gpus_are_not_invented(grants: list[int], law: str) -> None:
    with pytest.raises(PolicyError, match=law):
        check(_view(), decided(grants))


def test_a_decision_must_have_a_row_for_every_job() -> None:
    with pytest.raises(PolicyError, match="over 3 jobs"):
        check(_view(), decided([2, 2]))
    with pytest.raises(PolicyError, match="over 3 jobs"):
        check(_view(), Decision(np.zeros(3, dtype=np.int64), np.ones(2, dtype=np.int8)))


@pytest.mark.parametrize("wake_s", [10.0, 9.0, -math.inf, math.nan])
def test_the_wake_up_is_in_the_future(wake_s: float) -> None:
    for view in (_view(), snapshot_of([], "v100:4", now_s=10.0)):
        decision = nothing_granted(len(view))._replace(wake_s=wake_s)
        with pytest.raises(PolicyError, match="is not after now"):
            check(view, decision)


def test_every_wait_has_a_reason_and_no_run_has_one() -> None:
    silent = decided([2, 0, 0])
    silent.reasons[1] = 0
    with pytest.raises(PolicyError, match="'b' waits without a reason"):
        check(_view(), silent)
    needless = decided([2, 0, 0])
    needless.reasons[0] = int(Reason.OTHER)
    with pytest.raises(PolicyError, match="'a' runs with a reason"):
        check(_view(), needless)


def test_a_reason_must_be_one_that_has_a_text() -> None:
    unknown = decided([2, 0, 0])
    unknown.reasons[1] = 77
    with pytest.raises(PolicyError):
        check(_view(), unknown)


@pytest.mark.parametrize("grant", [0, 1, 3])
def test_a_fresh_job_is_neither_stopped_nor_resized(grant: int) -> None:
    view = _view(running={"b": 2}, min_run_s=60.0)
    check(view, decided([0, 2, 0]))
    with pytest.raises(PolicyError, match="'b' was started a moment ago"):
        check(view, decided([0, grant, 0]))


@pytest.mark.parametrize(("cost_s", "until_s"), [(1.0, 5.0), (20.0, 60.0), (1e6, 600.0)])
def test_a_job_is_fresh_for_as_long_as_its_restarts_cost(cost_s: float, until_s: float) -> None:
    jobs = [job("a", 2, checkpoint_s=cost_s), job("b", 2)]
    state = state_of(jobs, "v100:2", min_run_s=5.0, restarts_spared=3.0)
    state.commit([Launch(0, (0, 1), 0)])
    for now_s, fresh in ((until_s - 0.01, True), (until_s, False)):
        state.apply(Woken(now_s))
        with pytest.raises(PolicyError, match="'a' was started a moment ago") if fresh else nullcontext():
            check(state.snapshot(), decided([0, 2]))


def test_a_fresh_job_is_not_moved_to_another_type() -> None:
    view = snapshot_of([job("a", 2)], "v100:2,k80:2", running={"a": (0, 1)}, min_run_s=60.0)
    check(view, decided([2], gpu_types=np.array([0])))
    with pytest.raises(PolicyError, match="started a moment ago"):
        check(view, decided([2], gpu_types=np.array([1])))


def test_types_have_room_and_can_run_the_job() -> None:
    view = snapshot_of([job("a", 2), job("b", 2, gpu_types=("v100",))], "v100:3,k80:3")
    check(view, decided([2, 2], gpu_types=np.array([1, 0])))
    with pytest.raises(PolicyError, match="4 GPUs of type v100 are granted; there are 3"):
        check(view, decided([2, 2], gpu_types=np.array([0, 0])))
    with pytest.raises(PolicyError, match="'b' is granted a GPU type on which it cannot run"):
        check(view, decided([0, 2], gpu_types=np.array([-1, 1])))


@pytest.mark.parametrize("kind", [5, -2])
def test_a_type_must_exist(kind: int) -> None:
    for spec in ("v100:4", "v100:4,k80:2"):
        with pytest.raises(PolicyError):
            check(snapshot_of([job("a", 2)], spec), decided([2], gpu_types=np.array([kind])))


def test_guests_are_at_most_as_large_as_their_hosts() -> None:
    jobs = [job(name, 4) for name in "abc"] + [job("d", 2)]
    view = snapshot_of(jobs, "v100:8")
    check(view, decided([4, 4, 4, 0], partners={1: 0}))
    check(view, decided([4, 4, 4, 2], partners={1: 0, 2: 0, 3: 0}))
    for partners in ({0: 3}, {0: 0}, {1: 0, 2: 1}):
        with pytest.raises(PolicyError, match="cannot share"):
            check(view, decided([4, 4, 4, 2], partners=partners))
    with pytest.raises(PolicyError, match="cannot share"):
        check(view, decided([4, 0, 4, 0], partners={1: 0}))
    for throttle in (0.0, 1.5):
        with pytest.raises(PolicyError, match="throttled"):
            check(view, decided([4, 4, 0, 0], partners={1: 0}, throttles={1: throttle}))


@pytest.mark.parametrize("gpus", [(0, 0), (0, 99), (0,), (0, -1)])
def test_placements_are_real_distinct_gpus(gpus: tuple[int, ...]) -> None:
    with pytest.raises(PolicyError):
        check(snapshot_of([job("a", 2)], "v100:4"), decided([2], placements={0: gpus}))


def test_a_placement_stays_on_one_type() -> None:
    with pytest.raises(PolicyError):
        check(snapshot_of([job("a", 2)], "v100:2,k80:2"), decided([2], placements={0: (1, 2)}))


def test_every_reason_has_a_text() -> None:
    view = _view()
    for reason in Reason:
        decision = nothing_granted(3, reason)
        assert decision.reason(view, 0)
    decision = nothing_granted(3).without([1], texts={1: "its owner is over quota"})
    assert decision.reason(view, 1) == "its owner is over quota"
