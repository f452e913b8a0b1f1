"""Pollux: batches and GPUs chosen together, exploration by doubling, rigid jobs, and jobs that report nonsense."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairway.core.action import Launch
from fairway.core.batch import BatchLimits, Split, Timing, limits_of
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.event import JobMeasured, JobStarted, Woken
from fairway.core.state import State
from fairway.models.step_time import StepModel, gradient_s, step_s
from fairway.policies import make_policy
from fairway.policies.pollux.splits import first_split
from fairway.testing import job, state_of

LIMITS = limits_of(128, 4096, 32, 1024, True)
TRUE = StepModel(0.02, 0.0007, 0.015, 0.012, 0.082, 0.0007, 1.24)


def timed(nodes: int, replicas: int, local: int) -> Timing:
    """What a job measures on an allocation."""
    step, gradient = float(step_s(TRUE, nodes, replicas, local)), float(gradient_s(TRUE, local))
    return Timing(nodes, replicas, local, 0, step, gradient)


def cluster_of(jobs: int, *, where: str = "t4:4x4", now_s: float = 600.0, **about: Any) -> State:
    """Jobs that ask for one GPU, may have up to 64, and have come at 0 s."""
    specs = [job(f"job-{at}", 1, 1000.0, gpus_min=1, gpus_max=64) for at in range(jobs)]
    return state_of(specs, where, now_s=now_s, **about)


def adapt(state: State, at: int, *timings: Timing, noise: float = 5000.0, limits: BatchLimits = LIMITS) -> None:
    """Let a job say what it allows and what it has measured."""
    state.apply(JobMeasured(state.now_s, at, limits=limits, noise_scale=noise))
    for timing in timings:
        state.apply(JobMeasured(state.now_s, at, timing=timing, noise_scale=noise))


def decided(state: State, policy: str = "pollux") -> Decision:
    """A lawful decision of the policy."""
    chosen = make_policy(policy)
    snapshot = state.snapshot(chosen.knows)
    decision = chosen.decide(snapshot)
    check(snapshot, decision)
    return decision


def test_a_new_job_begins_with_few_gpus_and_its_first_batch() -> None:
    state = cluster_of(1)
    adapt(state, 0, noise=math.nan)
    assert decided(state).gpus.tolist() == [2]
    assert decided(state).batches == {0: Split(64)}
    paper = decided(state, "pollux:begin_gpus=1")
    assert paper.gpus.tolist() == [1]
    assert paper.batches == {0: Split(128)}
    assert paper.texts[0] == "trains with a batch of 128 on 1 GPU; its step times are not known yet"


@pytest.mark.parametrize("seen", [1, 2, 4])
def test_a_job_grows_to_twice_the_gpus_that_it_ever_had(seen: int) -> None:
    state = cluster_of(1, running={"job-0": tuple(range(seen))})
    adapt(state, 0, *(timed(1, count, 128) for count in (1, 2, 4) if count <= seen))
    assert decided(state).gpus.tolist() == [2 * seen]


def test_a_batch_grows_with_the_noise_of_the_gradients() -> None:
    batches = []
    for noise in (10.0, 1000.0, 1e5, math.inf):
        state = cluster_of(1, running={"job-0": (0, 1, 2, 3)})
        adapt(state, 0, *(timed(1, count, 128) for count in (1, 2, 4)), noise=noise)
        decision = decided(state)
        batches.append(decision.batches[0].batch(int(decision.gpus[0])))
    assert batches == sorted(batches)
    assert batches[0] < batches[-1] == 4096


def test_all_jobs_get_gpus_before_one_gets_many() -> None:
    state = cluster_of(16)
    for at in range(16):
        adapt(state, at, timed(1, 1, 128), timed(1, 2, 128), timed(1, 4, 128))
    assert decided(state).gpus.tolist() == [1] * 16


def test_a_node_has_at_most_one_distributed_job() -> None:
    state = cluster_of(3, where="t4:3x4")
    for at in range(3):
        adapt(state, at, *(timed(1, count, 128) for count in (1, 2, 4)), timed(2, 8, 128))
    decision, node_of_gpu = decided(state), state.cluster.node_of_gpu
    nodes = [{node_of_gpu[gpu] for gpu in gpus} for gpus in decision.placements.values()]
    spread = [node for used in nodes if len(used) > 1 for node in used]
    assert len(spread) == len(set(spread))


def test_a_job_that_would_gain_little_is_not_restarted() -> None:
    state = cluster_of(1, now_s=60.0, running={"job-0": (0, 1, 2, 3)})
    adapt(state, 0, *(timed(1, count, 128) for count in (1, 2, 4)), timed(2, 5, 128), timed(2, 8, 128), noise=20.0)
    state.apply(Woken(62.0))
    decision = decided(state)
    assert decision.gpus.tolist() == [4]
    assert not decision.placements


def test_a_rigid_job_gets_its_gang_and_no_batch() -> None:
    specs = [job("rigid", 3, 1000.0, gpus_min=1, gpus_max=8), job("large", 9, 1000.0)]
    state = state_of(specs, "t4:4x4", now_s=600.0)
    decision = decided(state)
    assert decision.gpus.tolist() == [3, 9]
    assert not decision.batches


def test_a_rigid_job_that_finds_no_room_says_what_it_needs() -> None:
    state = state_of([job("a", 4, 1000.0), job("b", 4, 1000.0)], "t4:1x4", now_s=600.0, running={"a": 4})
    decision = decided(state)
    assert decision.gpus.tolist() == [4, 0]
    assert decision.reason(state.snapshot(), 1) == "needs 4 GPUs; other jobs gain more from them now"


@pytest.mark.parametrize(
    ("noise", "timings", "limits", "why"),
    [
        (-3.0, [timed(1, 1, 128)], LIMITS, "it reports a noise scale of -3"),
        (50.0, [Timing(1, 1, 128, 0, -0.1)], LIMITS, "none of the step times that it reports can be"),
        (50.0, [Timing(1, 1, 128, 0, math.nan)], LIMITS, "none of the step times that it reports can be"),
        (50.0, [Timing(4, 1, 0, -1, 0.1)], LIMITS, "none of the step times that it reports can be"),
        (50.0, [timed(1, 1, 128)], BatchLimits(128, 64), "the largest batch 64 is below the first batch 128"),
        (50.0, [timed(1, 1, 128)], BatchLimits(0, 64), "the first batch must be at least 1, not 0"),
    ],
)
def test_a_job_that_reports_nonsense_is_rigid_and_why_says_so(
    noise: float, timings: list[Timing], limits: BatchLimits, why: str
) -> None:
    state = cluster_of(2)
    adapt(state, 0, timed(1, 1, 128))
    adapt(state, 1, *timings, noise=noise, limits=limits)
    decision = decided(state)
    assert decision.gpus[1] == 1
    assert list(decision.batches) == [0]
    assert decision.texts[1] == f"it runs; it is not adapted: {why}"


def test_a_batch_limit_below_the_gang_makes_a_job_rigid() -> None:
    state = state_of([job("a", 8, 100.0)], "t4:4x4", now_s=600.0)
    adapt(state, 0, timed(1, 1, 4), limits=limits_of(4, 4))
    decision = decided(state)
    assert decision.gpus.tolist() == [8]
    assert decision.texts[0].endswith("its batch of at most 4 is too small for its 8 GPUs")


def test_one_bad_timing_among_good_ones_is_left_out() -> None:
    state, other = cluster_of(1), cluster_of(1)
    adapt(state, 0, timed(1, 1, 128), timed(1, 2, 128), Timing(1, 2, 64, 0, -1.0))
    adapt(other, 0, timed(1, 1, 128), timed(1, 2, 128))
    assert decided(state).batches == decided(other).batches


def test_why_tells_batch_efficiency_and_speedup() -> None:
    state = cluster_of(1, running={"job-0": (0, 1, 2, 3)})
    adapt(state, 0, *(timed(1, count, 128) for count in (1, 2, 4)), timed(2, 8, 128), noise=5000.0)
    decision = decided(state)
    gpus = int(decision.gpus[0])
    batch = decision.batches[0].batch(gpus)
    assert decision.texts[0].startswith(f"trains with a batch of {batch:,} on {gpus} GPUs: efficiency 0.")
    assert decision.texts[0].endswith(" times the goodput of one GPU")


def test_models_are_fitted_only_when_something_new_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairway.policies.pollux import jobs as module

    fits: list[int] = []
    fit = module.fit
    monkeypatch.setattr(module, "fit", lambda seen: fits.append(len(seen.step_s)) or fit(seen))
    state = cluster_of(2)
    adapt(state, 0, timed(1, 1, 128))
    adapt(state, 1, timed(1, 1, 128))
    state.memory = decided(state).memory
    assert fits == [1, 1]
    state.apply(Woken(700.0))
    state.memory = decided(state).memory
    assert fits == [1, 1]
    adapt(state, 1, timed(1, 2, 128))
    state.memory = decided(state).memory
    assert fits == [1, 1, 2]


def test_jobs_that_may_not_be_stopped_keep_their_gpus() -> None:
    state = cluster_of(4, where="t4:1x4", running={"job-0": (0, 1, 2, 3)}, min_run_s=3600.0)
    for at in range(4):
        adapt(state, at, timed(1, 1, 128), timed(1, 2, 128), timed(1, 4, 128))
    decision = decided(state)
    assert decision.gpus.tolist() == [4, 0, 0, 0]
    assert not decision.placements


def test_guests_of_another_policy_get_gpus_of_their_own() -> None:
    state = cluster_of(2, where="t4:1x4", running={"job-0": (0, 1)})
    state.commit([Launch(1, (0,), 0, host=0)])
    state.apply(JobStarted(600.0, 1, 0.5, 600.0))
    state.apply(Woken(700.0))
    decision = decided(state)
    assert decision.gpus.tolist() == [1, 1]
    assert not decision.partners


def test_on_a_mixed_cluster_a_job_has_gpus_of_one_type() -> None:
    state = cluster_of(6, where="v100:1x4,t4:2x2", running={"job-0": (0, 1)})
    for at in range(6):
        adapt(state, at, timed(1, 1, 128), timed(1, 2, 128), timed(1, 4, 128))
    decision = decided(state)
    assert (decision.gpus > 0).all()
    assert decision.gpu_types is not None
    assert set(decision.gpu_types.tolist()) == {0, 1}


@pytest.mark.parametrize("policy", ["pollux:p=1", "pollux:p=0", "pollux:p=-inf", "pollux:search=genetic"])
def test_every_knob_gives_lawful_decisions_that_can_be_repeated(policy: str) -> None:
    state = cluster_of(5)
    for at in range(5):
        adapt(state, at, timed(1, 1, 128), timed(1, 2, 128), noise=100.0 * 4.0**at)
    first, second = decided(state, policy), decided(state, policy)
    assert first.gpus.tolist() == second.gpus.tolist()
    assert first.batches == second.batches
    assert (first.gpus > 0).all()


def test_p_of_1_favours_the_jobs_that_scale_best() -> None:
    def gpus(p: str) -> list[int]:
        state = cluster_of(2, where="t4:2x4")
        for at, noise in enumerate((20.0, 1e6)):
            adapt(state, at, *(timed(1, count, 128) for count in (1, 2, 4)), timed(2, 8, 64), noise=noise)
        return [int(count) for count in decided(state, f"pollux:p={p}").gpus]

    assert gpus("1")[1] >= gpus("-1")[1]
    assert min(gpus("-1")) > 0


@pytest.mark.parametrize(
    ("knob", "why"),
    [("p=2", "at most 1"), ("p=inf", "must be finite"), ("p=x", "a number"), ("begin_gpus=0", "at least 1")],
)
def test_senseless_knobs_are_refused(knob: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        make_policy(f"pollux:{knob}")


@pytest.mark.parametrize("gpus", range(1, 65))
def test_the_first_split_is_lawful_on_any_gang(gpus: int) -> None:
    for limits in (LIMITS, limits_of(20, 640, 10, 80, True), limits_of(8, 512, 4, 8, True)):
        assert limits.problem(first_split(limits, gpus), gpus) is None


def test_without_rounds_it_asks_to_be_woken() -> None:
    policy = make_policy("pollux")
    snapshot = cluster_of(1).snapshot(policy.knows)
    assert policy.decide(snapshot).wake_s == snapshot.now_s + 60.0
    in_rounds = cluster_of(1, round_s=60.0).snapshot(policy.knows)
    assert policy.decide(in_rounds).wake_s == math.inf


def test_a_job_of_priority_keeps_the_words_of_the_policy() -> None:
    from fairway.policies.priorities import by_priority

    specs = [replace(job(f"job-{at}", 1, 1000.0, gpus_min=1, gpus_max=64), priority=at) for at in range(2)]
    state = state_of(specs, "t4:2x4", now_s=600.0)
    for at in range(2):
        adapt(state, at, timed(1, 1, 128), timed(1, 2, 128))
    policy = by_priority(make_policy("pollux"))
    snapshot = state.snapshot(policy.knows)
    decision = policy.decide(snapshot)
    check(snapshot, decision)
    assert np.array_equal(sorted(decision.batches), [0, 1])
    assert all(decision.reason(snapshot, row).startswith("trains with a batch of") for row in range(2))
