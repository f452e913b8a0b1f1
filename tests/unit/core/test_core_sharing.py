"""Several jobs on the same GPUs: who is whose guest, what is throttled, who stays when somebody leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fairway.core.action import Action, Launch, Move, Suspend, Throttle
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.errors import PolicyError
from fairway.core.event import JobFinished, Woken
from fairway.core.facts import REMEMBERED_JOBS, History
from fairway.core.plan import plan
from fairway.core.reconcile import reconcile
from fairway.core.sharing import heirs
from fairway.core.snapshot_json import from_json, to_json
from fairway.core.state import State
from fairway.placement import placement
from fairway.testing import Invariants, job, state_of


def decided(gpus: list[int], partners: Mapping[int, int], **about: Any) -> Decision:
    grants = np.array(gpus, dtype=np.int64)
    return Decision(grants, (grants == 0).astype(np.int8) * 7, partners=partners, **about)


def enacted(state: State, decision: Decision) -> list[Action]:
    """Carry a decision out and return its actions."""
    view = state.snapshot()
    check(view, decision)
    planned = plan(view, decision, state.occupancy, placement("packed"))
    actions = reconcile(view, decision, planned)
    state.commit(actions, planned.occupancy)
    Invariants().check_state(state)
    return actions


def shared_by_three() -> State:
    state = state_of([job(name, 2, 1000.0) for name in "abc"], "v100:2x4")
    enacted(state, decided([2, 2, 2], {1: 0, 2: 0}))
    return state


def test_three_jobs_share_the_same_gpus() -> None:
    state = shared_by_three()
    assert state.snapshot().host.tolist() == [-1, 0, 0]
    assert [state.occupancy.tenants(gpu) for gpu in range(3)] == [3, 3, 0]
    assert state.busy_gpus == 2


def test_the_first_guest_becomes_the_host_of_the_others_when_theirs_leaves() -> None:
    state = shared_by_three()
    state.apply(JobFinished(9.0, 0))
    Invariants().check_state(state)
    assert state.snapshot().host.tolist() == [-1, 1]
    assert enacted(state, decided([2, 2], {1: 0})) == []


def test_guests_of_one_host_may_be_listed_the_other_way_round() -> None:
    state = shared_by_three()
    assert enacted(state, decided([2, 2, 2], {0: 1, 2: 1})) == []


def test_a_guest_that_shall_share_no_longer_moves_away() -> None:
    state = shared_by_three()
    assert enacted(state, decided([2, 2, 2], {1: 0})) == [Move(2, (2, 3), 0)]


def test_small_guests_sit_on_different_gpus_of_a_large_host() -> None:
    state = state_of([job("big", 4), job("s", 1), job("t", 2)], "v100:4")
    enacted(state, decided([4, 1, 2], {1: 0, 2: 0}))
    assert state.held_gpus == {0: (0, 1, 2, 3), 1: (0,), 2: (1, 2)}
    state.apply(JobFinished(5.0, 0))
    Invariants().check_state(state)
    assert state.snapshot().host.tolist() == [-1, -1]
    assert state.busy_gpus == 3


def test_another_throttle_does_not_interrupt_a_guest() -> None:
    state = state_of([job("a", 2), job("b", 2)], "v100:2")
    assert enacted(state, decided([2, 2], {1: 0}, throttles={1: 0.5}))[1] == Launch(1, (0, 1), 0, 0, 0.5)
    assert state.snapshot().throttle.tolist() == [1.0, 0.5]
    assert enacted(state, decided([2, 2], {1: 0}, throttles={1: 0.25})) == [Throttle(1, 0.25, 0)]
    assert enacted(state, decided([2, 2], {1: 0}, throttles={1: 0.25})) == []
    assert enacted(state, decided([0, 2], {})) == [Suspend(0)]
    assert state.snapshot().throttle[1] == 1.0


def test_a_warm_decision_suspends_and_moves_warm() -> None:
    state = state_of([job("a", 2), job("b", 2)], "v100:2x2", running={"a": (0, 1), "b": (2, 3)})
    decision = decided([0, 2], {}, placements={1: (0, 1)}, warm=True)
    assert enacted(state, decision) == [Suspend(0, warm=True), Move(1, (0, 1), 0, warm=True)]


def test_gangs_are_placed_in_the_order_that_the_policy_asks_for() -> None:
    state = state_of([job("a", 4), job("b", 2)], "v100:2x4")
    enacted(state, decided([4, 2], {}, order=[1, 0]))
    assert state.held_gpus == {0: (4, 5, 6, 7), 1: (0, 1)}


def test_jobs_of_negative_priority_are_not_protected() -> None:
    state = state_of([job("a", 2, priority=-1), job("b", 2)], "v100:4", min_run_s=60.0)
    enacted(state, decided([2, 2], {}))
    assert state.snapshot().protected_rows.tolist() == [1]


def test_ended_jobs_are_remembered_with_what_they_attained() -> None:
    state = state_of([job("a", 2, 100.0), job("b", 1, 100.0)], "v100:4", running={"a": (0, 1)})
    state.apply(JobFinished(30.0, 0))
    view = state.snapshot()
    assert (view.finished.gpu_s.tolist(), view.finished.seconds.tolist()) == ([60.0], [30.0])
    assert (view.finished.gpus.tolist(), view.finished_count) == ([2], 1)
    copied = from_json(to_json(view))
    assert copied.finished.gpu_s.tolist() == [60.0]
    assert copied.finished_count == 1


def test_only_the_latest_ended_jobs_are_remembered() -> None:
    history = History()
    for number in range(3 * REMEMBERED_JOBS + 1):
        history.add(float(number), 1.0, 1, 0, 0)
    latest = history.latest().gpu_s
    assert history.count == 3 * REMEMBERED_JOBS + 1
    assert (len(latest), latest[-1]) == (REMEMBERED_JOBS, 3.0 * REMEMBERED_JOBS)
    assert not latest.flags.writeable


def test_first_starts_are_noted_once() -> None:
    state = state_of([job("a", 2), job("b", 2)], "v100:2")
    assert state.snapshot().first_start_s.tolist() == [math.inf, math.inf]
    enacted(state, decided([2, 0], {}))
    first = state.snapshot().first_start_s.tolist()
    assert first == [state.now_s, math.inf]
    enacted(state, decided([0, 2], {}))
    assert state.snapshot().first_start_s[0] == first[0]


@pytest.mark.parametrize("what", ["scaling", "losses"])
def test_what_only_some_may_know_is_behind_a_declaration(what: str) -> None:
    view = state_of([job("a", 2)], "v100:2").snapshot()
    with pytest.raises(PolicyError, match="knows"):
        view.scaling(0) if what == "scaling" else view.losses()


def test_guests_that_sit_inside_another_stay_with_it() -> None:
    assert heirs({1: (0,), 2: (1,), 3: (0, 1)}) == {3: -1, 1: 3, 2: 3}
    assert heirs({1: (0, 1), 2: (2,), 3: (0, 1)}) == {1: -1, 3: 1, 2: -1}


def test_small_guests_do_not_sit_on_each_other() -> None:
    state = state_of([job("big", 3), job("s", 2), job("t", 2)], "v100:4")
    decision = decided([3, 2, 2], {1: 0, 2: 0})
    assert plan(state.snapshot(), decision, state.occupancy, placement("packed")).refused == {2}
    enacted(state, decision)
    assert state.held_gpus == {0: (0, 1, 2), 1: (0, 1)}


def test_a_protected_guest_is_not_moved_with_its_host() -> None:
    state = state_of([job("host", 1), job("guest", 1)], "v100:4", now_s=0.0, min_run_s=60.0)
    enacted(state, decided([1, 0], {}, placements={0: (0,)}))
    state.apply(Woken(100.0))
    enacted(state, decided([1, 1], {1: 0}))
    state.apply(Woken(110.0))
    with pytest.raises(PolicyError, match="moved"):
        check(state.snapshot(), decided([1, 1], {1: 0}, placements={0: (3,)}))


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"partners": {1: -2}}, "no row"),
        ({"partners": {1: 7}}, "no row"),
        ({"partners": {1: 0}, "placements": {1: (1,)}}, "placed by itself"),
        ({"partners": {}, "throttles": {0: 0.5}}, "shares no GPU"),
    ],
)
def test_impossible_seats_are_refused(about: dict[str, Any], message: str) -> None:
    view = state_of([job("a", 1), job("b", 1)], "v100:4").snapshot()
    with pytest.raises(PolicyError, match=message):
        check(view, decided([1, 1], **about))


def test_nobody_reads_the_future_in_the_facts() -> None:
    facts = state_of([job("a", 2, skew=0.5)], "v100:2").snapshot().facts(0)
    assert (facts.skew, facts.scaling, facts.loss) == (0.5, (), None)
    assert math.isnan(facts.steps_left)
