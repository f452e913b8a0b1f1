"""Sia: GPU types, GPUs and batches chosen together; types that were not tried, rigid jobs, and strange reports."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fairway.core.batch import BatchLimits, Split, Timing, limits_of
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.errors import InputError, PolicyError
from fairway.core.event import JobMeasured, Woken
from fairway.core.facts import Facts
from fairway.core.state import State
from fairway.models.step_time import StepModel, gradient_s, step_s
from fairway.policies import make_policy
from fairway.runtime.journal.entries import from_plain, to_plain
from fairway.testing import job, state_of

MIXED = "t4:2x4,a100:1x8"
LIMITS = limits_of(128, 4096, 32, 1024, True)
LOCAL = (("t4", 32, 512), ("a100", 32, 4096))
SLOW = StepModel(0.02, 0.0007, 0.3, 0.012, 0.082, 0.0007, 1.24)
FAST = StepModel(0.005, 0.00012, 0.05, 0.002, 0.01, 0.0002, 1.24)


def timed(kind: str, replicas: int, local: int = 128, nodes: int = 1) -> Timing:
    """What a job measures on an allocation."""
    model = FAST if kind == "a100" else SLOW
    step, gradient = float(step_s(model, nodes, replicas, local)), float(gradient_s(model, local))
    return Timing(nodes, replicas, local, 0, step, gradient, kind)


def cluster_of(jobs: int, *, where: str = MIXED, now_s: float = 6000.0, **about: Any) -> State:
    specs = [job(f"job-{at}", 1, 1000.0, gpus_min=1, gpus_max=64) for at in range(jobs)]
    return state_of(specs, where, now_s=now_s, **about)


def adapt(state: State, at: int, *timings: Timing, noise: float = 5000.0, limits: BatchLimits = LIMITS) -> None:
    """Let a job say what it allows and what it has measured."""
    state.apply(JobMeasured(state.now_s, at, limits=limits, noise_scale=noise, local_limits=LOCAL))
    for timing in timings:
        state.apply(JobMeasured(state.now_s, at, timing=timing, noise_scale=noise))


def decided(state: State, policy: str = "sia") -> Decision:
    """A lawful decision of the policy."""
    chosen = make_policy(policy)
    snapshot = state.snapshot(chosen.knows)
    decision = chosen.decide(snapshot)
    check(snapshot, decision)
    return decision


def types(state: State, decision: Decision) -> list[str]:
    assert decision.gpu_types is not None
    return [state.cluster.types[kind].name if kind >= 0 else "" for kind in decision.gpu_types.tolist()]


def test_a_new_job_begins_with_few_gpus_on_one_node() -> None:
    state = cluster_of(1)
    adapt(state, 0, noise=math.nan)
    assert decided(state).gpus.tolist() == [2]
    paper = decided(state, "sia:begin_gpus=1,p=-0.5")
    assert paper.gpus.tolist() == [1]
    assert paper.batches == {0: Split(128)}
    assert paper.texts[0] == "trains with a batch of 128 on 1 GPU; its step times are not known yet"


def test_a_job_that_has_tried_both_types_gets_the_better_one() -> None:
    state = cluster_of(1)
    adapt(state, 0, timed("t4", 1), timed("a100", 1), timed("a100", 2))
    decision = decided(state)
    assert types(state, decision) == ["a100"]
    assert decision.gpus.tolist() == [4]


def test_a_type_that_was_not_tried_is_projected_from_one_that_was() -> None:
    """An A100 is known to be faster than a T4, so a job that has only seen T4s goes there."""
    state = cluster_of(1)
    adapt(state, 0, timed("t4", 1), timed("t4", 2), timed("t4", 4))
    decision = decided(state)
    assert types(state, decision) == ["a100"]
    assert decision.gpus.tolist() == [8]


def test_jobs_share_the_types_by_what_each_gains() -> None:
    state = cluster_of(10)
    for at in range(10):
        adapt(state, at, *(timed(kind, count) for kind in ("t4", "a100") for count in (1, 2, 4)))
    decision = decided(state)
    assert (decision.gpus > 0).all()
    assert set(types(state, decision)) == {"t4", "a100"}
    assert int(decision.gpus.sum()) == 16


def test_gpus_are_powers_of_two_on_a_node_or_whole_nodes() -> None:
    state = cluster_of(5, where="t4:4x4,a100:2x8")
    for at in range(5):
        adapt(state, at, *(timed(kind, count) for kind in ("t4", "a100") for count in (1, 2, 4)), noise=10.0 * 8**at)
    decision, node_of_gpu = decided(state), state.cluster.node_of_gpu
    for row, gpus in decision.placements.items():
        nodes = {node_of_gpu[gpu] for gpu in gpus}
        size = state.cluster.nodes[min(nodes)].gpus
        assert len(gpus) == len(nodes) * size if len(nodes) > 1 else len(gpus) in (1, 2, 4, 8)
        assert len(gpus) == decision.gpus[row]


def test_the_batch_keeps_the_limits_of_the_type() -> None:
    state = cluster_of(1, where="t4:2x4,a100:1x1")
    adapt(state, 0, timed("t4", 1), timed("a100", 1), timed("a100", 1, 4096), noise=math.inf)
    decision = decided(state)
    name = types(state, decision)[0]
    most = {kind: largest for kind, _, largest in LOCAL}[name]
    assert decision.batches[0].local <= most
    wrong = decision._replace(batches={0: Split(1024)}, gpus=np.array([1]), gpu_types=np.array([0]), placements={})
    with pytest.raises(PolicyError, match="more than its 512"):
        check(state.snapshot(), wrong)


def test_a_job_that_would_gain_little_stays_where_it_is() -> None:
    state = cluster_of(1, where="t4:2x4", now_s=60.0, running={"job-0": (0, 1, 2, 3)})
    adapt(state, 0, *(timed("t4", count) for count in (1, 2, 4)), timed("t4", 8, nodes=2), noise=20.0)
    state.apply(Woken(62.0))
    decision = decided(state)
    assert decision.gpus.tolist() == [4]
    assert not decision.placements


def test_rigid_jobs_get_their_gang_beside_elastic_ones() -> None:
    specs = [job("rigid", 3, 1000.0), job("large", 6, 1000.0), job("elastic", 1, 1000.0, gpus_min=1, gpus_max=16)]
    state = state_of(specs, MIXED, now_s=600.0)
    adapt(state, 2, timed("t4", 1), timed("t4", 2))
    decision = decided(state)
    assert decision.gpus[:2].tolist() == [3, 6]
    assert decision.gpus[2] > 0
    assert list(decision.batches) == [2]


def test_a_gang_that_is_fixed_may_have_its_batch_chosen() -> None:
    state = state_of([job("three", 3, 1000.0)], MIXED, now_s=600.0)
    adapt(state, 0, timed("t4", 3))
    decision = decided(state)
    assert decision.gpus.tolist() == [3]
    assert list(decision.batches) == [0]


def test_a_job_cannot_use_a_type_on_which_it_has_no_speed() -> None:
    state = state_of([job("a", 1, 1000.0, gpus_min=1, gpus_max=16, gpu_types=("t4",))], MIXED, now_s=600.0)
    adapt(state, 0, timed("t4", 1), timed("t4", 2), timed("t4", 4))
    assert types(state, decided(state)) == ["t4"]


@pytest.mark.parametrize(
    ("noise", "timings", "limits", "why"),
    [
        (-3.0, [timed("t4", 1)], LIMITS, "it reports a noise scale of -3"),
        (50.0, [Timing(1, 1, 128, 0, -0.1, math.nan, "t4")], LIMITS, "none of the step times that it reports can be"),
        (50.0, [Timing(1, 1, 128, 0, math.nan, 0.1, "t4")], LIMITS, "none of the step times that it reports can be"),
        (50.0, [timed("t4", 1)], BatchLimits(128, 64), "the largest batch 64 is below the first batch 128"),
    ],
)
def test_a_job_that_reports_nonsense_is_rigid_and_why_says_so(
    noise: float, timings: list[Timing], limits: BatchLimits, why: str
) -> None:
    state = cluster_of(2)
    adapt(state, 0, timed("t4", 1))
    adapt(state, 1, *timings, noise=noise, limits=limits)
    decision = decided(state)
    assert decision.gpus[1] == 1
    assert list(decision.batches) == [0]
    assert decision.texts[1] == f"it runs; it is not adapted: {why}"


def test_timings_of_a_type_that_is_gone_are_forgotten() -> None:
    state = cluster_of(1)
    adapt(state, 0, timed("v100", 4))
    decision = decided(state)
    assert decision.gpus.tolist() == [2]
    assert decision.texts[0].endswith("its step times are not known yet")


def test_models_of_a_type_are_fitted_only_when_something_new_was_reported_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fairway.policies.pollux import jobs as module

    fits: list[int] = []
    fit = module.fit
    monkeypatch.setattr(module, "fit", lambda seen: fits.append(len(seen.step_s)) or fit(seen))
    state = cluster_of(2)
    adapt(state, 0, timed("t4", 1), timed("a100", 1))
    adapt(state, 1, timed("t4", 1))
    state.memory = decided(state).memory
    assert fits == [1, 1, 1]
    state.memory = decided(state).memory
    assert fits == [1, 1, 1]
    adapt(state, 0, timed("t4", 2))
    first = decided(state)
    assert fits == [1, 1, 1, 2]
    state.memory = {}
    again = decided(state)
    assert fits[4:] == [2, 1, 1]
    assert first.gpus.tolist() == again.gpus.tolist()
    assert first.batches == again.batches


def test_jobs_that_may_not_be_stopped_keep_their_gpus() -> None:
    state = cluster_of(4, where="t4:1x4", running={"job-0": (0, 1, 2, 3)}, min_run_s=36000.0)
    for at in range(4):
        adapt(state, at, *(timed("t4", count) for count in (1, 2, 4)))
    decision = decided(state)
    assert decision.gpus.tolist() == [4, 0, 0, 0]
    assert not decision.placements
    assert decision.texts[1] == "needs 1 GPU; other jobs gain more from them now"


def test_all_jobs_get_gpus_before_one_gets_many_and_the_oldest_first() -> None:
    state = cluster_of(24)
    for at in range(24):
        adapt(state, at, *(timed(kind, count) for kind in ("t4", "a100") for count in (1, 2, 4)))
    assert decided(state).gpus.tolist() == [1] * 16 + [0] * 8


def test_a_timing_is_of_the_type_that_the_job_holds() -> None:
    state = cluster_of(1, running={"job-0": (8, 9)})
    adapt(state, 0, timed("a100", 2)._replace(gpu_type=""))
    adaptive = state.snapshot().facts(0).adaptive
    assert adaptive is not None
    assert [timing.gpu_type for timing in adaptive.timings] == ["a100"]


def test_limits_and_timings_by_type_survive_the_journal_and_json() -> None:
    event = JobMeasured(1.0, 0, LIMITS, timed("a100", 2), 7.0, LOCAL)
    kind, fields = to_plain(event)
    assert from_plain(kind, json.loads(json.dumps(fields))) == event
    state = cluster_of(1)
    adapt(state, 0, timed("t4", 1), timed("a100", 1))
    facts = state.snapshot().facts(0)
    again = Facts.from_plain(json.loads(json.dumps(facts.plain())))
    assert again.adaptive == facts.adaptive
    assert again.adaptive is not None
    assert again.adaptive.limits_on("a100").largest_local == 4096
    assert again.adaptive.limits_on("k80") == LIMITS


@pytest.mark.parametrize(("knob", "why"), [("p=0", "negative"), ("p=x", "a number"), ("begin_gpus=0", "at least 1")])
def test_senseless_knobs_are_refused(knob: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        make_policy(f"sia:{knob}")


def test_without_rounds_it_asks_to_be_woken() -> None:
    policy = make_policy("sia")
    snapshot = cluster_of(1).snapshot(policy.knows)
    assert policy.decide(snapshot).wake_s == snapshot.now_s + 60.0
    in_rounds = cluster_of(1, round_s=60.0).snapshot(policy.knows)
    assert policy.decide(in_rounds).wake_s == math.inf
