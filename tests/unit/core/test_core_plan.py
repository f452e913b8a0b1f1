"""From grants to actions: what is unchanged stays, what changes is placed, what is achieved needs nothing more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.action import Action, Launch, Move, Resize, Suspend
from fairway.core.admission import admit
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.plan import Plan, plan
from fairway.core.reconcile import reconcile
from fairway.core.state import State
from fairway.placement import placement
from fairway.testing import Invariants, cluster, job, state_of
from fairway.testing.builders import random_cluster, random_workload


def decided(grants: list[int], **about: Any) -> Decision:
    gpus = np.array(grants, dtype=np.int64)
    return Decision(gpus, np.where(gpus > 0, 0, int(Reason.OTHER)).astype(np.int8), **about)


def actions_for(state: State, decision: Decision, placer: str = "packed") -> list[Action]:
    view = state.snapshot()
    return reconcile(view, decision, planned_for(state, decision, placer))


def planned_for(state: State, decision: Decision, placer: str = "packed") -> Plan:
    view = state.snapshot()
    check(view, decision)
    return plan(view, decision, state.occupancy, placement(placer))


def _four(running: dict[str, Any], spec: str = "v100:2x4") -> State:
    return state_of([job(name, 2, 100.0, gpus_min=1, gpus_max=4) for name in "abcd"], spec, running=running)


def test_what_is_unchanged_stays_where_it_is() -> None:
    state = _four({"a": (1, 6), "b": 2})
    assert actions_for(state, decided([2, 2, 0, 0])) == []


def test_a_waiting_job_is_launched_and_a_displaced_one_suspended() -> None:
    state = _four({"a": (0, 1)}, "v100:2")
    assert actions_for(state, decided([0, 2, 0, 0])) == [Suspend(0), Launch(1, (0, 1), 0)]


def test_another_size_is_a_resize_and_other_gpus_are_a_move() -> None:
    state = _four({"a": (0, 1), "b": (2, 3)})
    assert actions_for(state, decided([4, 2, 0, 0])) == [Resize(0, (4, 5, 6, 7), 0)]
    placed = decided([2, 2, 0, 0], placements={0: (4, 7)})
    assert actions_for(state, placed) == [Move(0, (4, 7), 0)]


def test_two_jobs_can_trade_places() -> None:
    state = _four({"a": (0, 1), "b": (4, 5)})
    swap = decided([2, 2, 0, 0], placements={0: (4, 5), 1: (0, 1)})
    actions = actions_for(state, swap)
    assert sorted(actions) == [Move(0, (4, 5), 0), Move(1, (0, 1), 0)]
    state.commit(actions)
    Invariants().check_state(state)
    assert actions_for(state, swap) == []


def test_a_placement_on_taken_gpus_makes_the_job_wait_with_a_reason() -> None:
    state = _four({"a": (0, 1)})
    decision = decided([2, 2, 0, 0], placements={1: (1, 2)})
    planned = planned_for(state, decision)
    assert (planned.targets, planned.refused) == ([], {1})
    kept = planned.kept(decision)
    assert (kept.gpus.tolist(), kept.placements) == ([2, 0, 0, 0], {})
    assert kept.reasons[1] == Reason.NO_PLACEMENT
    assert "not where this gang may be placed" in kept.reason(state.snapshot(), 1)
    assert decision.gpus.tolist() == [2, 2, 0, 0], "a decision stays as it was made"


def test_large_gangs_are_placed_first() -> None:
    jobs = [job("small", 1), job("large", 4), job("middle", 3)]
    actions = actions_for(state_of(jobs, "v100:2x4"), decided([1, 4, 3]))
    nodes = {action.job: {gpu // 4 for gpu in action.gpus} for action in actions if isinstance(action, Launch)}
    assert [len(nodes[at]) for at in range(3)] == [1, 1, 1]
    assert nodes[0] == nodes[2]


def test_another_type_is_a_move() -> None:
    state = state_of([job("a", 2)], "v100:2,k80:2", running={"a": (0, 1)})
    assert actions_for(state, decided([2], gpu_types=np.array([1]))) == [Move(0, (2, 3), 1)]
    assert actions_for(state, decided([2], gpu_types=np.array([-1]))) == []


def test_without_a_type_the_fastest_with_room_is_taken() -> None:
    state = state_of([job("a", 2), job("b", 2)], "k80:2,v100:2")
    assert actions_for(state, decided([2, 2])) == [Launch(0, (2, 3), 1), Launch(1, (0, 1), 0)]


def test_a_guest_joins_a_host_that_runs() -> None:
    state = _four({"a": (0, 1)})
    decision = decided([2, 2, 0, 0], partners={1: 0})
    actions = actions_for(state, decision)
    assert actions == [Launch(1, (0, 1), 0, host=0)]
    state.commit(actions)
    Invariants().check_state(state)
    assert actions_for(state, decided([2, 2, 0, 0], partners={1: 0})) == []


def test_a_pair_can_start_together_and_swap_roles_without_a_stir() -> None:
    state = _four({}, "v100:2")
    state.commit(actions_for(state, decided([2, 2, 0, 0], partners={1: 0})))
    Invariants().check_state(state)
    assert actions_for(state, decided([2, 2, 0, 0], partners={0: 1})) == []


def test_a_guest_follows_a_host_that_is_moved() -> None:
    state = _four({"a": (0, 1)})
    state.commit(actions_for(state, decided([2, 2, 0, 0], partners={1: 0})))
    actions = actions_for(state, decided([2, 2, 0, 0], partners={1: 0}, placements={0: (4, 5)}))
    assert actions == [Move(0, (4, 5), 0), Move(1, (4, 5), 0, host=0)]
    state.commit(actions)
    Invariants().check_state(state)


def test_a_running_guest_joins_a_host_that_starts_in_the_same_round() -> None:
    state = _four({"b": (0, 1)})
    decision = decided([2, 2, 0, 0], partners={1: 0})
    actions = actions_for(state, decision)
    state.commit(actions)
    Invariants().check_state(state)
    assert state.snapshot().host.tolist() == [-1, 0, -1, -1]
    at = [type(action).__name__ + str(action.job) for action in actions]
    assert at.index("Launch0") < at.index("Move1") if "Move1" in at else True


def test_partners_that_part_get_gpus_of_their_own() -> None:
    state = _four({"a": (0, 1)})
    state.commit(actions_for(state, decided([2, 2, 0, 0], partners={1: 0})))
    actions = actions_for(state, decided([2, 2, 0, 0]))
    state.commit(actions)
    assert state.busy_gpus == 4
    assert state.snapshot().host.tolist() == [-1, -1, -1, -1]


def test_a_guest_stays_when_its_host_stops() -> None:
    state = _four({"a": (0, 1)})
    state.commit(actions_for(state, decided([2, 2, 0, 0], partners={1: 0})))
    actions = actions_for(state, decided([0, 2, 0, 0]))
    assert actions == [Suspend(0)]
    state.commit(actions)
    Invariants().check_state(state)


def test_a_guest_whose_host_finds_no_place_waits() -> None:
    state = _four({"c": (0, 1)}, "v100:4")
    decision = decided([2, 2, 2, 0], partners={1: 0}, placements={0: (1, 2)})
    planned = planned_for(state, decision)
    assert (planned.targets, planned.refused) == ([], {0, 1})
    kept = planned.kept(decision)
    assert (kept.partners, kept.reasons[:2].tolist()) == ({}, [Reason.NO_PLACEMENT] * 2)


@pytest.mark.parametrize("placer", ["packed", "spread", "count"])
@given(seed=st.integers(0, 10**6))
def test_reconcile_of_an_achieved_target_is_empty(placer: str, seed: int) -> None:
    """Random histories of random grants: after every commit the laws hold and nothing is left to do."""
    random, where = np.random.default_rng(seed), random_cluster(seed)
    jobs = random_workload(seed, where, jobs=8, elastic=False).jobs
    state = state_of(jobs, where, now_s=2000.0)
    invariants = Invariants()
    for _ in range(6):
        decision = admit(state.snapshot(), random.random(len(jobs)), preempt=bool(random.random() < 0.7))
        state.commit(actions_for(state, decision, placer))
        invariants.check_state(state)
        assert actions_for(state, decision, placer) == []
        assert state.snapshot().held.tolist() == decision.gpus.tolist()


def test_actions_free_gpus_before_they_take_some() -> None:
    state = _four({"a": (0, 1), "b": (2, 3)}, "v100:4")
    kinds = [type(action) for action in actions_for(state, decided([0, 1, 2, 1]))]
    assert kinds == [Suspend, Resize, Launch, Launch]


def test_clusters_are_built_from_a_word() -> None:
    where = cluster("v100:2x4,k80:3")
    assert (where.gpu_count, where.gpus_by_type.tolist(), len(where.nodes)) == (11, [8, 3], 3)
