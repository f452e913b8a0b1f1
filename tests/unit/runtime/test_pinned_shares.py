"""Jobs with shares whose memory is on a GPU: they go on there beside others, and wait nowhere in vain."""

from __future__ import annotations

from fairway.core.action import Launch, Suspend
from fairway.core.event import JobStarted
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.policies import make_policy
from fairway.runtime.guard.policy_guard import PolicyGuard
from fairway.testing import job, state_of


def _run(state: State, number: int, gpu: int, host: int = -1) -> None:
    state.commit([Launch(number, (gpu,), 0, host)])
    state.apply(JobStarted(state.now_s, number, 1.0, state.now_s))


def _decided(snapshot: Snapshot, homes: dict[int, tuple[int, ...]]) -> tuple[list[int], dict[int, int], PolicyGuard]:
    guard = PolicyGuard(make_policy("fifo"), homes=lambda: homes)
    decision = guard.decide(snapshot)
    assert not guard.problem
    return decision.gpus.tolist(), dict(decision.partners), guard


def test_a_suspended_job_goes_on_beside_two_others_on_its_gpu() -> None:
    state = state_of([job(name, gpu_share=0.3) for name in "abc"], "v100:1x2")
    _run(state, 0, 1)
    _run(state, 1, 1, host=0)
    homes = dict.fromkeys(range(3), (1,))
    assert _decided(state.snapshot(), homes)[:2] == ([1, 1, 1], {1: 0, 2: 0})


def test_jobs_suspended_on_one_gpu_go_on_together() -> None:
    state = state_of([job(name, gpu_share=0.5) for name in "ab"], "v100:1x2")
    _run(state, 0, 0)
    _run(state, 1, 0, host=0)
    state.commit([Suspend(0), Suspend(1)])
    assert _decided(state.snapshot(), {0: (0,), 1: (0,)})[:2] == ([1, 1], {1: 0})


def test_jobs_suspended_on_two_gpus_do_not_wait_for_each_other() -> None:
    state = state_of([job(name, gpu_share=0.5) for name in "ab"], "v100:1x2")
    assert _decided(state.snapshot(), {0: (0,), 1: (1,)})[:2] == ([1, 1], {})


def test_a_job_does_not_go_on_beside_a_whole_job() -> None:
    state = state_of([job("w"), job("a", gpu_share=0.5)], "v100:1x2")
    _run(state, 0, 0)
    assert _decided(state.snapshot(), {0: (0,), 1: (0,)})[:2] == ([1, 0], {})
