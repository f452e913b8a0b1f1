"""Whose turn is next on a GPU: the policy is asked as if the present jobs had ended, and nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies import make_policy, policies
from fairway.runtime.guard.policy_guard import PolicyGuard
from fairway.testing import job, random_snapshot, state_of

SERVED_S = {"a": 400.0, "b": 100.0, "c": 300.0, "d": 200.0, "r": 10.0}
LAS = "las:levels=50/150/250/350"


def _snapshot(machines: str = "v100:1x1") -> Snapshot:
    """One job runs, the others have been suspended."""
    jobs = [job(name, 1) for name in SERVED_S]
    return state_of(jobs, machines, now_s=1000.0, running={"r": (0,)}, attained=SERVED_S).snapshot()


def _plan(guard: PolicyGuard, snapshot: Snapshot) -> dict[str, int]:
    found = guard.plan(snapshot, guard.decide(snapshot))
    return {snapshot.job_id(number): place for number, place in found.items()}


def test_the_plan_is_the_order_of_the_policy() -> None:
    homes = dict.fromkeys(range(5), (0,))
    assert _plan(PolicyGuard(make_policy(LAS), homes=lambda: homes), _snapshot()) == {"b": 0, "d": 1, "c": 2}
    assert _plan(PolicyGuard(make_policy("fifo"), homes=lambda: homes), _snapshot()) == {"a": 0, "b": 1, "c": 2}


def test_a_job_that_loses_its_gpu_now_is_in_the_plan_of_the_next() -> None:
    guard = PolicyGuard(make_policy("las:levels=5/10"), homes=lambda: dict.fromkeys(range(3), (0,)))
    jobs, served_s = [job("new", 1), job("r", 1), job("a", 1)], {"r": 100.0, "a": 200.0}
    snapshot = state_of(jobs, "v100:1x1", now_s=1000.0, running={"r": (0,)}, attained=served_s).snapshot()
    assert guard.decide(snapshot).gpus.tolist() == [1, 0, 0]
    assert _plan(guard, snapshot) == {"r": 0, "a": 1}


def test_each_gpu_has_a_plan_of_its_own() -> None:
    homes = {0: (0,), 1: (1,), 2: (0,), 3: (1,), 4: (0,)}
    snapshot = state_of(
        [job(name, 1) for name in SERVED_S], "v100:1x2", now_s=1000.0, running={"r": (0,)}, attained=SERVED_S
    ).snapshot()
    guard = PolicyGuard(make_policy(LAS), homes=lambda: homes)
    plan = _plan(guard, snapshot)
    # The second GPU is free, so one of its jobs goes on at once.
    assert guard.decide(snapshot).gpus.tolist() == [0, 1, 0, 0, 1]
    assert plan == {"c": 0, "a": 1, "d": 0}


def test_a_job_that_is_held_has_no_turn() -> None:
    homes = dict.fromkeys(range(5), (0,))
    guard = PolicyGuard(make_policy(LAS), homes=lambda: homes, outside={1: "held"})
    assert _plan(guard, _snapshot()) == {"d": 0, "c": 1, "a": 2}


@dataclass(frozen=True)
class Failing:
    name: ClassVar[str] = "failing"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        raise ZeroDivisionError("by itself")


def test_a_policy_is_asked_only_where_several_jobs_wait_and_may_fail() -> None:
    snapshot = _snapshot()
    assert _plan(PolicyGuard(Failing(), homes=lambda: {1: (0,)}), snapshot) == {"b": 0}
    assert _plan(PolicyGuard(Failing(), homes=lambda: dict.fromkeys(range(5), (0,))), snapshot) == {}
    assert _plan(PolicyGuard(Failing()), snapshot) == {}


@pytest.mark.parametrize("name", sorted(policies()))
def test_every_policy_can_be_asked_what_is_next_and_nothing_changes(name: str) -> None:
    for seed in range(4):
        policy = make_policy(name)
        snapshot = random_snapshot(seed, knows=policy.knows, mixed=False)
        guard = PolicyGuard(policy, homes=lambda: dict.fromkeys(range(200), (0,)))
        decision = guard.decide(snapshot)
        problem, took_s = guard.problem, guard.took_s
        plan = guard.plan(snapshot, decision)
        waits = {int(snapshot.jobs[row]) for row in range(len(snapshot)) if not decision.gpus[row]}
        assert plan.keys() <= waits
        assert sorted(plan.values()) == list(range(len(plan)))
        assert (guard.problem, guard.took_s) == (problem, took_s)
        again = guard.decide(snapshot)
        assert again.gpus.tolist() == decision.gpus.tolist()
