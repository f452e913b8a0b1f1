"""The engine of rounds: whole steps, rounds that end with their last job, restarts, batch sizes, pairs, failures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairway import Faults, JobSpec, Workload, simulate
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.core.tenant import TenantSpec
from fairway.models.gavel_profile import GavelProfile
from fairway.policies import make_policy
from fairway.published.rounds import RoundEngine
from fairway.simulator.faults import Outage
from fairway.simulator.result import Result
from fairway.simulator.rules import GAVEL, RULES, SHOCKWAVE, Rules
from fairway.testing import Invariants, cluster
from fairway.testing.harness import run_policy, unfinished
from fairway.traces import shockwave_like

HUNDRED = replace(GAVEL, name="hundred", round_s=100.0)
"""Gavel's rules in rounds of 100 s."""


def profile(**rates: Any) -> GavelProfile:
    """Speeds on a V100 by "model_batch_gpus"; a value that is a dictionary also has pairs."""
    rows: dict[str, Any] = {}
    for name, rate in rates.items():
        rows[_text(name)] = {
            "null": rate if isinstance(rate, float) else rate["null"],
            **({_text(k): v for k, v in rate.items() if k != "null"} if isinstance(rate, dict) else {}),
        }
    return GavelProfile({"v100": rows}, "test.json")


def _text(name: str) -> str:
    model, batch, gpus = name.rsplit("_", 2)
    return f"('{model.replace('_', '-')} (batch size {batch})', {gpus})"


class Scripted:
    """Grants by a function of the snapshot; keeps what it has seen."""

    name, knows, round_s = "scripted", frozenset[str](), 0.0

    def __init__(self, grant: Callable[[Snapshot], dict[str, int]], **more: Any) -> None:
        self.grant = grant
        self.more = more
        self.seen: list[dict[str, Any]] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        ids = [snapshot.job_id(int(job)) for job in snapshot.jobs]
        self.seen.append(
            {
                "now_s": snapshot.now_s,
                "progress": dict(zip(ids, snapshot.progress.tolist(), strict=True)),
                "ran_s": {name: snapshot.facts(row).ran_s for row, name in enumerate(ids)},
                "batch": dict(zip(ids, snapshot.batch_size.tolist(), strict=True)),
                "speed": dict(zip(ids, snapshot.speeds[0].tolist(), strict=True)),
                "rate": dict(zip(ids, snapshot.rate.tolist(), strict=True)),
                "submitted_s": dict(zip(ids, snapshot.submitted_s.tolist(), strict=True)),
            }
        )
        granted = self.grant(snapshot)
        gpus = np.array([granted.get(name, 0) for name in ids], dtype=np.int64)
        partners = {
            ids.index(guest): ids.index(host)
            for guest, host in self.more.get("partners", {}).items()
            if granted.get(guest) and granted.get(host) and guest in ids and host in ids
        }
        wake_s = self.more.get("wake_s", math.inf)
        wake_s = wake_s if wake_s > snapshot.now_s else math.inf
        return Decision(gpus, (gpus == 0).astype(np.int8) * 7, partners=partners, wake_s=wake_s)


def everybody(gpus: int = 1) -> Callable[[Snapshot], dict[str, int]]:
    return lambda snapshot: {snapshot.job_id(int(job)): gpus for job in snapshot.jobs}


def run(jobs: list[JobSpec], policy: Any, *, rules: Rules = HUNDRED, where: Any = "v100:1x4", **more: Any) -> Result:
    return simulate(Workload.of(jobs), cluster=where, policy=policy, rules=rules, observer=Invariants(), **more)


def steps(name: str, number: float, submitted_s: float = 0.0, **more: Any) -> JobSpec:
    about = {"model": "ResNet-50", "batch_size": 16, **more}
    return JobSpec(name, submitted_s, steps=number, **about)


def test_a_round_holds_whole_steps_and_ends_with_its_last_job() -> None:
    table = profile(ResNet_50_16_1=0.128, ResNet_50_32_1=0.5)
    policy = Scripted(everybody())
    jobs = [steps("slow", 25), steps("short", 20, batch_size=32), steps("late", 10, 30.0, batch_size=32)]
    result = run(jobs, policy, profile=table)
    # Twelve steps of 1 / 0.128 s fit into 100 s, so a round lasts 93.75 s; `short` ends after 40 s of the first one.
    assert [seen["now_s"] for seen in policy.seen] == pytest.approx([0, 93.75, 187.5])
    assert policy.seen[1]["progress"] == {"slow": 12.0, "late": 0.0}
    assert result.finished_s.tolist() == pytest.approx([187.5 + 1 / 0.128, 40.0, 93.75 + 20.0])
    assert result.makespan_s == pytest.approx(195.3125)


def test_gpus_are_held_until_the_round_ends_and_arrivals_wait_for_that() -> None:
    table = profile(ResNet_50_16_1=1.0)
    policy = Scripted(lambda snapshot: {"a": 1, "b": 1} if len(snapshot) > 1 else everybody()(snapshot))
    jobs = [steps("a", 150), steps("b", 10), steps("c", 10, 20.0)]
    result = run(jobs, policy, profile=table, where="v100:1x2")
    assert result.started_s.tolist() == [0, 0, 150], "two jobs are served at a time"
    assert result.finished_s.tolist() == [150, 10, 160]
    assert [seen["submitted_s"].get("c") for seen in policy.seen] == [None, 20.0, 20.0]


def test_utilisation_counts_what_was_computed() -> None:
    table = profile(ResNet_50_16_1=1.0)
    result = run([steps("a", 100), steps("b", 10)], "fifo", profile=table, where="v100:1x2")
    assert result.utilisation == pytest.approx(110 / 200)


def test_computing_costs_and_holding_does_not() -> None:
    table = profile(ResNet_50_16_1=1.0, ResNet_50_32_1=0.0125)
    where = Cluster.of([Node("n", "v100", 2)], [GpuType("v100", 0, 36.0, 1.0)], "")
    result = run([steps("a", 200), steps("b", 2, batch_size=32)], "fifo", profile=table, where=where)
    # A step of b takes 80 s, one fits into a round; the round lasts 100 s all the same.
    assert result.finished_s.tolist() == [200, 180]
    assert result.ledger.cost.tolist() == pytest.approx([2.0, 1.6])


def test_only_a_start_after_an_absence_costs_and_not_in_a_short_round() -> None:
    rules = replace(SHOCKWAVE, adapts=False)
    table = profile(ResNet_50_16_1=1.0)
    rounds = [["a"], ["b"], ["a", "b"], ["b"], ["a"], ["a"], ["a"]]

    def grant(snapshot: Snapshot) -> dict[str, int]:
        return dict.fromkeys(rounds[min(snapshot.round, 6)], 1)

    policy = Scripted(grant)
    result = run([steps("a", 500), steps("b", 5000)], policy, rules=rules, profile=table, where="v100:1x2")
    done = [seen["progress"].get("a") for seen in policy.seen[:8]]
    # Free in the very first round; then 100 instead of 120 steps after each absence; nothing for going on.
    assert done == [0, 120, 120, 220, 220, 320, 440, None]
    # b's first start, in the second round, is charged as well.
    assert [seen["progress"]["b"] for seen in policy.seen[:5]] == [0, 0, 100, 220, 340]
    assert [seen["ran_s"]["a"] for seen in policy.seen[1:7]] == [120, 120, 100, 100, 100, 120]
    assert result.finished_s[0] == 6 * 120 + 60
    assert result.ledger.lost_gpu_s[0] == 40.0


def test_a_last_round_of_less_than_115_s_is_not_charged() -> None:
    rules = replace(SHOCKWAVE, adapts=False)
    turns = [["b"], ["a"]]
    policy = Scripted(lambda snapshot: dict.fromkeys(turns[min(snapshot.round, 1)], 1))
    jobs = [steps("a", 115), steps("b", 120)]
    result = run(jobs, policy, rules=rules, profile=profile(ResNet_50_16_1=1.0))
    assert result.finished_s.tolist() == [235, 120]


def test_a_move_costs_nothing_and_a_job_of_its_own_price_pays_that() -> None:
    rules = replace(SHOCKWAVE, adapts=False)

    class Moving(Scripted):
        def decide(self, snapshot: Snapshot) -> Decision:
            decision = super().decide(snapshot)
            return decision._replace(placements={0: (2 + snapshot.round % 2,)} if decision.gpus[0] else {})

    policy = Moving(lambda snapshot: {"other": 1} if snapshot.round == 2 else {"a": 1, "other": 1})
    jobs = [steps("a", 1000, checkpoint_s=50.0), steps("other", 10_000)]
    run(jobs, policy, rules=rules, profile=profile(ResNet_50_16_1=1.0))
    assert [seen["progress"].get("a") for seen in policy.seen[:5]] == [0, 120, 240, 240, 310]


def test_under_gavel_a_restart_is_free_unless_asked_for() -> None:
    table = profile(ResNet_50_16_1=1.0)
    turns: list[dict[str, int]] = [{"a": 1}, {"b": 1}, {"a": 1}]

    def grant(snapshot: Snapshot) -> dict[str, int]:
        return turns[min(snapshot.round, 2)] if len(snapshot) > 1 else everybody()(snapshot)

    jobs = [steps("a", 150), steps("b", 100)]
    assert run(jobs, Scripted(grant), profile=table).finished_s.tolist() == [250, 200]
    charged = run(jobs, Scripted(grant), profile=table, restart_cost_s=10.0)
    # 40 of the 50 steps that are left in the round of its restart, then the last ten.
    assert charged.finished_s.tolist() == [260, 200]


def test_a_request_for_another_batch_acts_one_of_the_jobs_own_rounds_later() -> None:
    table = profile(LM_10_1=100.0, LM_20_1=60.0, LM_40_1=35.0)
    job = steps("lm", 40 * 5968, model="LM", batch_size=10, adaptation="gns")
    policy = Scripted(lambda snapshot: {"x": 1} if snapshot.round == 6 else {"lm": 1, "x": 1})
    other = steps("x", 1e6, model="LM", batch_size=40)
    run([job, other], policy, rules=SHOCKWAVE, profile=table)
    seen = policy.seen[:8]
    # 12,000 steps a round. After the 5th round 60,000 steps are done, epoch ceil(10.05) = 11: it asks for 20.
    assert [one["batch"]["lm"] for one in seen] == [10, 10, 10, 10, 10, 10, 20, 20]
    assert seen[5]["progress"]["lm"] == 60_000
    # That acts after the 6th: 72,000 steps are 12.06 epochs, so 13 count as done, of 2,984 steps each.
    assert seen[6]["progress"]["lm"] == 13 * 2984
    assert seen[6]["speed"]["lm"] == 60.0
    assert seen[6]["rate"]["lm"] == 60.0
    assert seen[7]["progress"]["lm"] == seen[6]["progress"]["lm"], "it does not run in the 7th"


def test_a_batch_that_the_profile_does_not_know_is_refused() -> None:
    policy = Scripted(everybody())
    job = steps("lm", 20 * 5968, model="LM", batch_size=10, adaptation="gns")
    result = run([job], policy, rules=SHOCKWAVE, profile=profile(LM_10_1=100.0))
    assert {one["batch"]["lm"] for one in policy.seen} == {10}
    assert result.finished_s[0] == pytest.approx(20 * 5968 / 100.0)


def test_a_job_without_steps_left_after_a_change_is_dropped_in_its_fifth_round() -> None:
    # 12,400 steps a round: after the 5th 62,000 (epoch 11) it asks for 20; after the 6th, 74,400 of 74,500 (13 epochs)
    # are done, which become 13 of 13 epochs, and more steps than the rescaled total.
    table = profile(LM_10_1=12_400 / 120.0 + 1e-6, LM_20_1=60.0, ResNet_50_16_1=1.0)
    jobs = [steps("lm", 74_500, model="LM", batch_size=10, adaptation="gns"), steps("other", 1e4)]
    policy = Scripted(everybody())
    result = run(jobs, policy, rules=SHOCKWAVE, profile=table)
    begun = policy.seen[6]["now_s"]
    assert policy.seen[6]["batch"]["lm"] == 20
    assert result.finished_s[0] == pytest.approx(begun + 4 * 120.0)


def test_a_job_that_runs_half_as_long_again_as_alone_counts_as_done() -> None:
    pair = {"null": 1.0, "ResNet_50_16_1": [0.5, 0.5]}
    policy = Scripted(everybody(), partners={"b": "a"})
    jobs = [steps("a", 480), steps("b", 4800)]
    result = run(jobs, policy, rules=replace(SHOCKWAVE, adapts=False), profile=profile(ResNet_50_16_1=pair))
    assert result.finished_s[0] == 7 * 120, "after more than 1.5 x 480 s of run time"
    patient = run(jobs, Scripted(everybody(), partners={"b": "a"}), profile=profile(ResNet_50_16_1=pair))
    assert patient.finished_s[0] == 1000, "under Gavel's rules it does all its work"


def test_a_pair_runs_at_the_rates_of_the_pair_and_ends_together() -> None:
    table = profile(
        ResNet_50_16_1={"null": 1.0, "ResNet_50_32_1": [0.75, 0.25]},
        ResNet_50_32_1={"null": 1.0, "ResNet_50_16_1": [0.25, 0.75]},
    )
    policy = Scripted(everybody(), partners={"b": "a"})
    jobs = [steps("a", 100), steps("b", 300, batch_size=32)]
    result = run(jobs, policy, profile=table, where="v100:1")
    assert policy.seen[1]["progress"] == {"a": 75.0, "b": 25.0}
    assert policy.seen[1]["rate"] == {"a": 0.75, "b": 0.25}
    # a needs 33.3 s of the second round, but b works on beside it for all of that round.
    assert result.finished_s.tolist() == pytest.approx([200, 450])
    assert result.utilisation == pytest.approx(1.0), "shared GPUs count once"
    # Whoever ends first, host or guest.
    jobs = [steps("a", 300), steps("b", 10, batch_size=32)]
    result = run(jobs, Scripted(everybody(), partners={"b": "a"}), profile=table, where="v100:1")
    assert result.finished_s.tolist() == pytest.approx([325, 100])


def test_a_throttled_guest_makes_fewer_steps() -> None:
    class Throttling(Scripted):
        def decide(self, snapshot: Snapshot) -> Decision:
            decision = super().decide(snapshot)
            return decision._replace(throttles=dict.fromkeys(decision.partners, 0.5 if snapshot.round else 1.0))

    table = profile(ResNet_50_16_1={"null": 1.0, "ResNet_50_16_1": [0.5, 0.5]})
    policy = Throttling(everybody(), partners={"b": "a"})
    run([steps("a", 1000), steps("b", 1000)], policy, profile=table, where="v100:1")
    assert policy.seen[1]["progress"] == {"a": 50.0, "b": 50.0}
    assert policy.seen[2]["progress"] == {"a": 50.0 + 66.0, "b": 75.0}


def test_a_failed_node_costs_its_jobs_the_round() -> None:
    table = profile(ResNet_50_16_1=1.0)
    faults = Faults(schedule=(Outage(150.0, 0, 120.0),))
    jobs = [steps("a", 250), steps("b", 250), steps("c", 130)]
    result = run(jobs, "fifo", profile=table, faults=faults, where="v100:2x2")
    # a and b are on the first node and lose their second round; at its end the other node has room for them.
    assert result.ledger.evictions.tolist() == [1, 1, 0]
    assert result.finished_s.tolist() == [200 + 150, 200 + 150, 130]
    assert result.ledger.lost_gpu_s.tolist() == [100, 100, 0]


def test_a_job_that_ended_before_the_failure_has_ended() -> None:
    table = profile(ResNet_50_16_1=1.0)
    faults = Faults(schedule=(Outage(50.0, 0, 10.0),))
    result = run([steps("a", 40), steps("b", 90)], "fifo", profile=table, faults=faults, where="v100:1x2")
    assert result.finished_s.tolist() == [40, 180]
    assert result.ledger.evictions.tolist() == [0, 1]


def test_repairs_are_waited_for_when_nothing_runs() -> None:
    table = profile(ResNet_50_16_1=1.0)
    faults = Faults(schedule=(Outage(50.0, 0, 1000.0),))
    result = run([steps("a", 90)], "fifo", profile=table, faults=faults, where="v100:1")
    assert result.finished_s.tolist() == [1050 + 90]


def test_durations_are_done_to_the_last_fraction() -> None:
    result = run([JobSpec("a", 0, duration_s=250.7)], "fifo")
    assert result.jct_s[0] == pytest.approx(250.7)
    assert result.costs.rounds == 3


def test_a_job_that_is_too_slow_for_one_step_in_a_round_still_ends() -> None:
    result = run([steps("a", 2)], "fifo", profile=profile(ResNet_50_16_1=0.004))
    assert result.finished_s[0] == pytest.approx(500.0)


def test_a_job_without_work_ends_at_once() -> None:
    result = run([steps("a", 0), JobSpec("b", 5, duration_s=0)], "fifo", profile=profile(ResNet_50_16_1=1.0))
    assert result.finished_s.tolist() == [0, 5]


def test_a_pause_does_not_count_as_run_time() -> None:
    policy = Scripted(everybody())
    run([steps("a", 100), steps("b", 150, 300.0)], policy, profile=profile(ResNet_50_16_1=1.0))
    assert [seen["now_s"] for seen in policy.seen] == [0, 300, 400]
    assert policy.seen[2]["ran_s"]["b"] == 100, "and not the 200 s of pause before"
    assert policy.seen[2]["progress"]["b"] == 100


def test_a_policy_that_starts_nothing_ends_the_run() -> None:
    result = run([steps("a", 10)], Scripted(lambda snapshot: {}), profile=profile(ResNet_50_16_1=1.0))
    assert result.finished == 0


def test_a_wake_up_is_kept_where_nothing_runs_and_passed_over_within_a_round() -> None:
    policy = Scripted(lambda snapshot: {"a": 1} if snapshot.now_s >= 77 else {}, wake_s=77.0)
    run([steps("a", 150)], policy, profile=profile(ResNet_50_16_1=1.0))
    assert [seen["now_s"] for seen in policy.seen] == [0, 77, 177]
    policy = Scripted(everybody(), wake_s=77.0)
    run([steps("a", 150)], policy, profile=profile(ResNet_50_16_1=1.0))
    assert [seen["now_s"] for seen in policy.seen] == [0, 100]


def test_a_round_must_have_a_length() -> None:
    with pytest.raises(InputError, match="whole rounds"):
        run([steps("a", 1)], "fifo", round_s=0.0)


def test_fairness_compares_with_the_profile_and_the_jobs_in_each_round() -> None:
    table = profile(LM_10_1=100.0, LM_20_1=60.0, LM_40_1=35.0, ResNet_50_16_1=1.0)
    jobs = [
        steps("lm", 23 * 5968, model="LM", batch_size=10, adaptation="gns"),
        *(steps(f"r{n}", 130) for n in range(4)),
    ]
    result = run(jobs, "fifo", rules=SHOCKWAVE, profile=table, where="v100:1x2")
    alone = 12 * 5967.5 / 100 + 10 * 2983.75 / 60 + 1 * 1491.875 / 35
    assert result.ledger.exclusive_s[0] == pytest.approx(alone)
    assert result.rho["static"][0] == pytest.approx(result.jct_s[0] / (alone * 2.5))
    # r0: 130 steps in two rounds with five active jobs each; r1 comes after it.
    assert result.ledger.present[1] == 5.0
    assert result.rho["concurrent"][1] == pytest.approx(130 / (result.ledger.exclusive_s[1] * 2.5))
    assert result.ledger.present[2] == pytest.approx((5 + 5 + 4 + 4) / 4)


def _mixed_jobs() -> list[JobSpec]:
    """Jobs with durations and regimes, and jobs with steps that adapt by themselves; every other one opportunistic."""
    timed = shockwave_like(12, seed=4, mean_interarrival_s=100.0).jobs
    kinds: list[dict[str, Any]] = [
        {"model": "LM", "batch_size": 10, "adaptation": "gns", "number": 30 * 5968},
        {"model": "ResNet-18", "batch_size": 32, "adaptation": "accordion", "number": 25 * 1563},
        {"model": "Recommendation", "batch_size": 2048, "adaptation": "gns", "number": 60 * 58, "gpus": 2},
    ]
    adapting = [steps(f"s{n}", submitted_s=90.0 * n, **kinds[n % 3]) for n in range(12)]
    jobs = sorted((*timed, *adapting), key=lambda job: job.submitted_s)
    return [replace(job, priority=-1) if n % 2 else job for n, job in enumerate(jobs)]


def test_jobs_with_steps_adapt_under_the_built_in_estimates() -> None:
    jobs = [job for job in _mixed_jobs() if job.steps is not None]

    def whole_gangs(snapshot: Snapshot) -> dict[str, int]:
        gangs = zip(snapshot.jobs.tolist(), snapshot.gpus.tolist(), strict=True)
        return {snapshot.job_id(job): gpus for job, gpus in gangs}

    seen = Scripted(whole_gangs)
    result = run(jobs, seen, rules=SHOCKWAVE, where="v100:4x8")
    assert result.finished == len(jobs)
    batches = {name: batch for one in seen.seen for name, batch in one["batch"].items()}
    assert [batches[f"s{n}"] for n in range(3)] == [40, 256, 2048], "on two GPUs Recommendation has no doublings"


@pytest.mark.parametrize("rules", ["gavel", "shockwave"])
@pytest.mark.parametrize(
    "policy", ["fifo", "srtf", "las", "tiresias", "gandiva", "gandiva_fair", "antman", "proportional"]
)
def test_every_kind_of_policy_brings_all_jobs_to_an_end_with_failing_nodes(policy: str, rules: str) -> None:
    jobs = _mixed_jobs()
    faults = Faults(mtbf_s=20 * 3600.0, repair_s=900.0, seed=1)
    done = run_policy(make_policy(policy), jobs, cluster("v100:3x4"), rules=rules, faults=faults)
    assert isinstance(done.engine, RoundEngine)
    assert unfinished(done, jobs) == []


def test_tenants_may_sit_above_rounds() -> None:
    jobs = [replace(job, queue="left" if n % 2 else "right", priority=0) for n, job in enumerate(_mixed_jobs())]
    tenants = [TenantSpec.of("left", "1x4"), TenantSpec.of("right", "2x4")]
    for policy in ("las", "gandiva"):
        result = run(jobs, policy, rules=SHOCKWAVE, where="v100:3x4", tenants=tenants)
        assert result.finished == len(jobs)


def test_the_same_run_gives_the_same_figures() -> None:
    jobs = shockwave_like(20, seed=5, mean_interarrival_s=60.0)
    first, second = (
        simulate(jobs, cluster="v100:2x4", policy="las", rules="shockwave").finished_s.tolist() for _ in range(2)
    )
    assert first == second


def test_the_knobs_that_rules_set_exist() -> None:
    for rules in RULES.values():
        for name in rules.knobs:
            assert make_policy(name, rules.knobs).name == name
    assert make_policy("isolated", GAVEL.knobs) == make_policy("isolated:published=on")
    assert make_policy("isolated:published=off", GAVEL.knobs) == make_policy("isolated")


def test_run_time_of_a_round_survives_a_trip_through_json() -> None:
    ran: list[float] = []

    def grant(snapshot: Snapshot) -> dict[str, int]:
        ran.append(from_json(to_json(snapshot.copy())).facts(0).ran_s)
        return {"a": 1}

    run([steps("a", 30)], Scripted(grant), profile=profile(ResNet_50_16_1=0.128))
    assert math.isnan(ran[0])
    assert ran[1:] == pytest.approx([93.75, 93.75])
