"""The policy guard: priorities for every policy, GPUs that nobody can have, and what happens while a policy fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from fairway.core.action import Launch
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies import make_policy, policies
from fairway.runtime.daemon.config import parse_config
from fairway.runtime.guard.limits import Limits
from fairway.runtime.guard.policy_guard import RETRY_S, PolicyGuard
from fairway.testing import job, random_snapshot, state_of


@dataclass(frozen=True)
class Broken:
    name: ClassVar[str] = "broken"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        raise ZeroDivisionError("by itself")


def decided(guard: PolicyGuard, snapshot: Snapshot) -> list[int]:
    decision = guard.decide(snapshot)
    check(snapshot, decision)
    return decision.gpus.tolist()


# A policy that fails.


def _queue(**about: Any) -> Snapshot:
    jobs = [job("a", 2), job("b", 2), job("c", 3), job("d", 1), job("e", 1, gpus_max=4)]
    return state_of(jobs, "v100:1x6", running={"a": (0, 1)}, **about).snapshot()


def test_while_a_policy_fails_waiting_jobs_get_free_gpus_in_the_order_of_submission() -> None:
    guard = PolicyGuard(Broken())
    snapshot = _queue()
    decision = guard.decide(snapshot)
    check(snapshot, decision)
    assert decision.gpus.tolist() == [2, 2, 0, 1, 1]
    assert guard.problem == "the policy broken failed: ZeroDivisionError: by itself"
    assert guard.problem in decision.reason(snapshot, 2)
    assert decision.wake_s == snapshot.now_s + RETRY_S


def test_those_outside_stay_outside_while_a_policy_fails() -> None:
    guard = PolicyGuard(Broken(), outside={1: "held"})
    snapshot = _queue()
    assert decided(guard, snapshot) == [2, 0, 3, 1, 0]
    assert guard.decide(snapshot).reason(snapshot, 1) == "held"


def test_limits_hold_while_a_policy_fails() -> None:
    config = '[users.ann]\nmax_gpus = 2\n[users."*"]\nmax_gpus = 3'
    guard = PolicyGuard(Broken(), Limits(parse_config(config)))
    jobs = [job(f"j{n}", 1, user="ann" if n < 4 else "bob") for n in range(8)]
    assert decided(guard, state_of(jobs, "v100:1x8").snapshot()) == [1, 1, 0, 0, 1, 1, 1, 0]


def test_types_and_blocked_gpus_count_while_a_policy_fails() -> None:
    guard = PolicyGuard(Broken(), blocked=lambda: {0: "taken by others", 4: "taken by others"})
    jobs = [job("a", 2, gpu_types=("v100",)), job("b", 2, gpu_types=("v100",)), job("c", 1)]
    snapshot = state_of(jobs, "v100:1x4,k80:1x2").snapshot()
    decision = guard.decide(snapshot)
    assert decision.gpus.tolist() == [2, 0, 1]
    assert decision.gpu_types is not None
    assert decision.gpu_types.tolist() == [0, -1, 0]


def test_higher_priorities_go_first_while_a_policy_fails_and_nobody_is_stopped() -> None:
    jobs = [job("runs", 2), job("waits", 2, priority=1), job("first", 2, priority=2)]
    assert decided(PolicyGuard(Broken()), state_of(jobs, "v100:4", running={"runs": 2}).snapshot()) == [2, 0, 2]


def test_guests_stay_with_their_hosts_while_a_policy_fails() -> None:
    state = state_of([job("host", 2), job("guest", 2), job("new", 2)], "v100:1x4")
    state.commit([Launch(0, (0, 1), 0), Launch(1, (0, 1), 0, 0, 0.5)])
    decision = PolicyGuard(Broken()).decide(state.snapshot())
    check(state.snapshot(), decision)
    assert decision.gpus.tolist() == [2, 2, 2]
    assert (decision.partners, decision.throttles) == ({1: 0}, {1: 0.5})


def test_random_states_get_lawful_decisions_while_a_policy_fails() -> None:
    for seed in range(40):
        snapshot = random_snapshot(seed)
        decided(PolicyGuard(Broken()), snapshot)


# Priorities.


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "gandiva:pack=1"])
def test_every_policy_serves_higher_priorities_first(policy: str) -> None:
    guard = PolicyGuard(make_policy("antman"))
    guard.use(make_policy(policy))
    state = state_of([job("low", 4), job("high", 4, priority=1)], "v100:1x4", running={"low": 4})
    assert decided(guard, state.snapshot(guard.knows)) == [0, 4]
    assert guard.name == policy.partition(":")[0]


def test_a_job_outside_does_not_take_anything_from_those_of_lower_priority() -> None:
    guard = PolicyGuard(make_policy("fifo"), outside={1: "held"})
    snapshot = state_of([job("low", 4), job("high", 4, priority=1)], "v100:1x4").snapshot()
    decision = guard.decide(snapshot)
    assert decision.gpus.tolist() == [4, 0]
    assert decision.reason(snapshot, 1) == "held"


def test_reasons_come_through_the_guard() -> None:
    guard = PolicyGuard(make_policy("fifo"), Limits(parse_config('[users."*"]\nmax_gpus = 100')), outside={2: "held"})
    snapshot = state_of([job("low", 4), job("high", 4, priority=1), job("out", 1)], "v100:1x4").snapshot()
    decision = guard.decide(snapshot)
    assert decision.reason(snapshot, 0).endswith("job high (4 GPUs) has a higher priority")
    assert decision.reason(snapshot, 2) == "held"


# GPUs that nobody can have.


@pytest.mark.parametrize("name", sorted(policies()))
def test_blocked_gpus_are_given_to_nobody(name: str) -> None:
    guard = PolicyGuard(make_policy(name), blocked=lambda: {0: "taken by others", 5: "taken by others"})
    jobs = [job(f"j{n}", 2, 900.0, priority=n % 2) for n in range(6)]
    snapshot = state_of(jobs, "v100:2x4", now_s=10.0, running={"j0": (1, 2)}).snapshot(guard.knows)
    decision = guard.decide(snapshot)
    check(snapshot, decision)
    assert not guard.problem
    assert all({0, 5}.isdisjoint(gpus) for gpus in decision.placements.values())
    hosts = [row for row in range(len(snapshot)) if row not in decision.partners]
    assert decision.gpus[hosts].sum() <= 6


def test_gpus_on_which_nobody_can_be_started_are_not_called_free() -> None:
    guard = PolicyGuard(make_policy("fifo"), blocked=lambda: {1: "somebody else computes on it"})
    snapshot = state_of([job("a", 2)], "v100:1x2").snapshot()
    decision = guard.decide(snapshot)
    assert decision.reason(snapshot, 0) == "needs 2 GPUs, 1 free"


def test_a_policy_that_is_in_the_layers_already_gets_no_more_of_them() -> None:
    guard = PolicyGuard(make_policy("fifo"))
    layers = guard.policy
    guard.use(layers)
    assert guard.policy == layers
