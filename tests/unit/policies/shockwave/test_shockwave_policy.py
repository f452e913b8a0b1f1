"""The policy as a whole: rounds, what happens between them, protection, knobs, and that decisions can be repeated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from shockwave_samples import steady, through_json, told

from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.job import JobSpec
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.policies import make_policy
from fairway.policies.shockwave import Shockwave
from fairway.testing import check_policy, job
from fairway.testing.builders import random_snapshot
from fairway.testing.contract import _no_waste, decision_digest
from fairway.testing.seeds import ALL, some

POLICY = Shockwave()
VARIANTS = (
    "shockwave:program=published,makespan_weight=0.001,ftf_power=12",
    "shockwave:program=published,makespan_weight=100000,share=gpus",
    "shockwave:window_rounds=1",
    "shockwave:window_rounds=60,replan_rounds=100,forecast=bayes",
    "shockwave:ftf_power=100,makespan_weight=1e9,forecast=agnostic",
    "shockwave:ftf_power=0,makespan_weight=0,forecast=reactive",
)


def instant(jobs: list[JobSpec], machines: str = "v100:1x4", memory: Any = None, **about: Any) -> Snapshot:
    prospects = {spec.id: steady(spec.duration_s or 1.0) for spec in jobs}
    return told(jobs, machines, prospects, memory=memory, **about)


def asked(snapshot: Snapshot, policy: Shockwave = POLICY) -> Decision:
    """A decision that keeps the laws and wastes nothing."""
    decision = policy.decide(snapshot)
    check(snapshot, decision)
    _no_waste(snapshot, decision)
    return decision


@pytest.mark.parametrize("spec", some(VARIANTS, 2))
def test_the_contract_is_kept_with_other_knobs(spec: str) -> None:
    check_policy(spec, seeds=[0], work_conserving=True, other_processes=ALL)


@pytest.mark.parametrize("seed", some(range(40), 16))
def test_no_gpu_idles_beside_a_job_that_fits_in_a_round_and_between_rounds(seed: int) -> None:
    snapshot = random_snapshot(seed, knows=("regimes",))
    first = asked(snapshot)
    if len(snapshot):
        began_s = first.memory["shockwave"]["began_s"]
        assert began_s == snapshot.now_s
    snapshot.memory = first.memory
    again = asked(snapshot)
    running = snapshot.running_rows
    assert (again.gpus[running] == snapshot.held[running]).all()


def test_a_round_lasts_two_minutes_and_the_policy_wants_to_be_asked_at_its_end() -> None:
    jobs = [job(f"j{at}", 1, 5000.0) for at in range(6)]
    decision = asked(instant(jobs, now_s=50.0))
    assert np.count_nonzero(decision.gpus) == 4
    assert decision.wake_s == 170.0


def test_nobody_is_woken_where_nobody_waits_or_nobody_could_run() -> None:
    assert asked(instant([job("a", 1, 5000.0)])).wake_s == np.inf
    down = instant([job("a", 1, 5000.0)])
    down.capacity = np.zeros(1, dtype=np.int64)
    assert asked(down).wake_s == np.inf


def test_rounds_of_the_rules_take_the_place_of_its_own() -> None:
    """Where rounds are fixed the policy is only asked at their beginnings: each time the next round begins."""
    jobs = [job(f"j{at}", 1, 5000.0) for at in range(6)]
    memory: dict[str, Any] = {}
    for at in range(3):
        snapshot = instant(jobs, memory=memory, now_s=7.0 * at)
        snapshot.frame = snapshot.frame._replace(round_s=7.0)
        memory = dict(asked(snapshot).memory)
        assert memory["shockwave"]["at"] == at + 1


def running_pair(now_s: float, memory: Any, extra: list[JobSpec] | None = None, **about: Any) -> Snapshot:
    """Two gangs of two that have run since 0 s, two that wait, and others."""
    jobs = [job(f"j{at}", 2, 5000.0) for at in range(4)]
    on: dict[str, Any] = {"running": {"j0": 2, "j1": 2}, "attained": {"j0": now_s, "j1": now_s}}
    return instant([*jobs, *(extra or [])], memory=memory, now_s=now_s, **(on | about))


def test_between_rounds_nobody_is_stopped_however_urgent_a_newcomer_is() -> None:
    memory = asked(running_pair(0.0, None)).memory
    newcomer = job("urgent", 1, 10.0, submitted_s=60.0, weight=1e6)
    between = asked(running_pair(60.0, memory, [newcomer]))
    assert between.gpus.tolist() == [2, 2, 0, 0, 0]
    assert between.wake_s == 120.0
    later = asked(running_pair(120.0, between.memory, [newcomer]))
    assert later.gpus[4] == 1


def test_between_rounds_gpus_that_become_idle_are_given_to_who_is_next() -> None:
    memory = asked(running_pair(0.0, None)).memory
    about = {"running": {"j0": 2}, "attained": {"j0": 60.0}}
    between = asked(running_pair(60.0, memory, **about))
    assert between.gpus[0] == 2
    assert between.gpus.sum() == 4
    assert between.memory["shockwave"]["at"] == memory["shockwave"]["at"]
    assert between.memory["shockwave"]["began_s"] == 0.0


def test_a_job_that_was_started_a_moment_ago_is_kept_at_the_end_of_the_round() -> None:
    """j1 was started 20 s before the round ends; the others are far more urgent."""
    heavy = [job(f"h{at}", 2, 500.0, weight=1e6) for at in range(2)]
    about = {"attained": {"j0": 120.0, "j1": 20.0}, "min_run_s": 60.0}
    memory = asked(running_pair(0.0, None, heavy)).memory
    decision = asked(running_pair(120.0, memory, heavy, **about))
    assert decision.gpus[1] == 2
    assert decision.gpus[4:].sum() == 2
    free_to_stop = asked(running_pair(120.0, memory, heavy))
    assert free_to_stop.gpus[4:].sum() == 4


def test_waits_have_reasons_and_texts() -> None:
    snapshot = running_pair(0.0, None)
    decision = asked(snapshot)
    waiting = (decision.gpus == 0).nonzero()[0].tolist()
    assert waiting
    for row in waiting:
        assert decision.reasons[row] in (Reason.OUTRANKED, Reason.NOT_ITS_TURN)
        assert "planned to run in" in decision.reason(snapshot, row)


def test_plans_are_followed_for_so_many_rounds_and_made_anew_at_once_when_a_job_comes() -> None:
    jobs = [job(f"j{at}", 1, 50_000.0) for at in range(6)]
    policy, memory, at = Shockwave(replan_rounds=3), None, []
    for now_s in (0.0, 120.0, 240.0, 360.0, 480.0):
        snapshot = instant(jobs, memory=memory, now_s=now_s)
        memory = dict(asked(snapshot, policy).memory)
        at.append(memory["shockwave"]["at"])
    assert at == [1, 2, 3, 1, 2]
    more = instant([*jobs, job("new", 1, 100.0, submitted_s=500.0)], memory=memory, now_s=600.0)
    assert asked(more, policy).memory["shockwave"]["at"] == 1


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ("window_rounds=0", "window_rounds must be from 1 to 500"),
        ("window_rounds=501", "window_rounds must be from 1 to 500"),
        ("replan_rounds=0", "replan_rounds must be at least 1"),
        ("makespan_weight=-1", "makespan_weight must be from 0 to 1e9"),
        ("makespan_weight=nan", "makespan_weight"),
        ("ftf_power=101", "ftf_power must be from 0 to 100"),
        ("ftf_power=nan", "ftf_power"),
        ("forecast=crystal", "forecast"),
        ("share=users", "share"),
        ("program=best", "program"),
        ("windows=3", "windows"),
    ],
)
def test_senseless_knobs_are_refused_by_name(knobs: str, text: str) -> None:
    with pytest.raises(Exception, match=text) as error:
        make_policy(f"shockwave:{knobs}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("memory", [{"shares": [1, 2]}, {"shockwave": None}, {"shockwave": {"began_s": 1e9}}])
def test_memory_of_others_changes_nothing(memory: dict[str, Any]) -> None:
    clean, other = running_pair(300.0, None), running_pair(300.0, memory)
    assert decision_digest(asked(other)) == decision_digest(asked(clean))


@pytest.mark.parametrize("seed", some(range(6), 3))
def test_decisions_are_repeated_from_json_in_the_middle_of_a_plan(seed: int) -> None:
    snapshot = random_snapshot(seed, knows=("regimes",), jobs=12)
    for wait_s in (0.0, 30.0, 90.0, 120.0, 120.0):
        snapshot.now_s += wait_s
        snapshot = snapshot.copy()
        decision = asked(snapshot)
        again = POLICY.decide(from_json(to_json(snapshot)))
        assert decision_digest(again) == decision_digest(decision) == decision_digest(POLICY.decide(snapshot))
        snapshot.memory = decision.memory


def test_memory_does_not_grow_with_the_jobs_that_have_been() -> None:
    memory, sizes = None, []
    for at in range(30):
        jobs = [job(f"j{at + more}", 1, 3000.0) for more in range(8)]
        snapshot = instant(jobs, memory=memory, now_s=130.0 * at)
        snapshot.ints = snapshot.ints.copy()
        snapshot.ints[0] += at
        assert snapshot.jobs.tolist() == list(range(at, at + 8))
        memory = dict(asked(snapshot).memory)
        sizes.append(len(json.dumps(through_json(memory))))
    assert max(sizes[5:]) < 1.5 * sizes[1]


def test_decisions_do_not_write_into_the_memory_they_are_given() -> None:
    memory = asked(running_pair(0.0, None)).memory
    before = json.dumps(through_json(memory))
    for now_s in (60.0, 120.0, 1000.0):
        asked(running_pair(now_s, memory))
    assert json.dumps(through_json(memory)) == before


def test_jobs_are_planned_on_the_gpu_type_that_they_live_on_and_take_idle_gpus_of_others() -> None:
    jobs = [job(f"j{at}", 4, 5000.0) for at in range(3)]
    snapshot = instant(jobs, "v100:1x4,k80:1x4")
    snapshot.frame = snapshot.frame._replace(facts={})
    decision = asked(snapshot)
    assert sorted(decision.gpu_types[decision.gpus > 0].tolist()) == [0, 1]
    picky = [job("p0", 4, 5000.0, gpu_types=("k80",)), job("p1", 4, 5000.0, gpu_types=("k80",))]
    only = told(picky, "v100:1x4,k80:1x4")
    assert sorted(asked(only).gpus.tolist()) == [0, 4]
