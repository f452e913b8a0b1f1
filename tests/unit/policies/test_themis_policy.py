"""Themis as a policy: rho, leases, leftovers, several jobs to an app, several GPU types."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fairway import Workload, simulate
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.event import NodeLost, RateChanged, Woken
from fairway.core.job import JobSpec
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.policies import make_policy
from fairway.policies.themis import Themis
from fairway.policies.themis.bids import MOST_SIZES, market_of, tender_of
from fairway.policies.themis.leftovers import outsiders
from fairway.policies.themis.rho import Apps, apps_of, relative_speeds, value_of
from fairway.testing import check_policy, job, random_snapshot, snapshot_of, state_of
from fairway.testing.seeds import ALL


def elastic(name: str, gpus: int, most: int, duration_s: float, **more: Any) -> JobSpec:
    return job(name, gpus, duration_s, gpus_min=1, gpus_max=most, **more)


def decided(snapshot: Snapshot, text: str = "themis") -> Decision:
    decision = make_policy(text).decide(snapshot)
    check(snapshot, decision)
    return decision


def apps(snapshot: Snapshot, by: Any = "job") -> Apps:
    return apps_of(snapshot, by, relative_speeds(snapshot))[0]


def bid_of(snapshot: Snapshot, app: int, by: Any = "job", floor: float = 0.5) -> Any:
    """The tender of one app when everything is on offer."""
    relative, on_offer = relative_speeds(snapshot), np.ones(len(snapshot), dtype=np.bool_)
    market = market_of(snapshot, apps(snapshot, by), relative, on_offer, 1200.0, floor)
    return tender_of(market, app, snapshot.capacity.tolist())


def example_1() -> Snapshot:
    """400 GPU-seconds each, A on up to 4 GPUs, B on up to 2, of 4 in all."""
    return snapshot_of([elastic("A", 4, 4, 100.0), elastic("B", 2, 2, 200.0)], "v100:4")


def test_example_1_both_have_200_seconds_on_their_own() -> None:
    assert apps(example_1()).ideal_s.tolist() == pytest.approx([200.0, 200.0])
    tender = bid_of(example_1(), 0)
    assert list(tender.bid.gpus) == [(0,), (1,), (2,), (3,), (4,)]
    assert list(tender.bid.values) == pytest.approx([0.25, 0.5, 1.0, 1.5, 2.0])


def test_example_1_ends_with_two_gpus_each_after_leftovers() -> None:
    """A keeps 2 and B 1; the GPU that B pays with comes back to the bidders, as there is nobody else."""
    assert decided(example_1(), "themis:fairness=0").gpus.tolist() == [2, 2]


def test_example_1_a_third_app_gets_the_gpu_that_was_paid() -> None:
    """With f = 0.5 the two worst-off of four bid; what they leave goes to those who did not take part."""
    old = [elastic("A", 4, 4, 100.0), elastic("B", 2, 2, 200.0)]
    new = [job("C", 1, 5000.0, submitted_s=1000.0), job("D", 4, 5000.0, submitted_s=1000.0)]
    decision = decided(snapshot_of(old + new, "v100:4", now_s=1000.0), "themis:fairness=0.5")
    assert decision.gpus[2] == 1
    assert decision.gpus[:2].sum() == 3


def test_example_2_ends_with_four_gpus_each() -> None:
    snapshot = snapshot_of([elastic("A", 8, 8, 100.0), elastic("B", 8, 8, 50.0)], "v100:8")
    assert apps(snapshot).ideal_s.tolist() == pytest.approx([200.0, 100.0])
    assert decided(snapshot, "themis:fairness=0").gpus.tolist() == [4, 4]


def test_rho_counts_the_wait_and_what_the_share_would_have_taken() -> None:
    """100 s on 2 of 2 GPUs are 200 s on a share of one; after 300 s of waiting rho is (300 + 100) / 200."""
    jobs = [job("a", 2, 100.0), job("b", 2, 100.0, submitted_s=300.0)]
    assert apps(snapshot_of(jobs, "v100:2", now_s=300.0)).rho.tolist() == pytest.approx([2.0, 0.5])


def test_contention_is_averaged_over_the_life_of_an_app() -> None:
    """One app alone for 100 s, then four of them for 100 s: 2.5 on average; the newcomers saw four."""
    policy = make_policy("themis")
    state = state_of([job("a", 1, 9000.0)], "v100:4", now_s=0.0)
    state.memory = dict(policy.decide(state.snapshot(policy.knows)).memory)
    jobs = [job("a", 1, 9000.0), *(job(name, 1, 9000.0, submitted_s=100.0) for name in "bcd")]
    later = state_of(jobs, "v100:4", now_s=100.0)
    later.memory = state.memory
    later.memory = dict(policy.decide(later.snapshot(policy.knows)).memory)
    later.apply(Woken(200.0))
    share = apps(later.snapshot(policy.knows)).share
    assert share.tolist() == pytest.approx([4 / 2.5, 1.0, 1.0, 1.0])


def test_value_is_the_inverse_of_rho() -> None:
    assert value_of(100.0, 400.0, 10.0, 200.0, 4.0) == pytest.approx(200.0 / (100.0 + 100.0))
    assert value_of(100.0, 400.0, 300.0, 200.0, 4.0) == pytest.approx(200.0 / 400.0), "no sooner than its longest job"


def test_an_app_of_several_jobs_lives_from_its_first_and_remembers_ended_ones() -> None:
    policy = make_policy("themis:app=user")
    jobs = [job("a", 1, 100.0, user="ann"), job("b", 1, 400.0, user="ann"), job("c", 1, 400.0, user="bob")]
    before = snapshot_of(jobs, "v100:2", now_s=0.0)
    memory = dict(policy.decide(before).memory)
    later = snapshot_of(jobs, "v100:2", now_s=100.0, memory=memory)
    data = json.loads(to_json(later))
    for block in ("floats", "ints"):
        data[block] = [column[1:] for column in data[block]]
    del data["ids"]["0"]
    seen = apps(from_json(json.dumps(data)), "user")
    assert seen.elapsed_s.tolist() == pytest.approx([100.0, 100.0])
    assert seen.ideal_s.tolist() == pytest.approx([500.0, 400.0]), "ann has 500 GPU-seconds and one GPU of her own"


def test_a_job_that_comes_takes_free_gpus_at_once() -> None:
    snapshot = snapshot_of([job("a", 2), job("b", 2)], "v100:4", running={"a": 2}, now_s=5.0)
    assert decided(snapshot).gpus.tolist() == [2, 2]


def leased(now_s: float, **about: Any) -> Snapshot:
    """One job has held the GPUs since 10 s, another one that came at 20 s waits and is far behind."""
    jobs = [job("has", 4, 90_000.0), job("wants", 4, 600.0, submitted_s=20.0)]
    return snapshot_of(jobs, "v100:4", now_s=now_s, running={"has": 4}, attained={"has": now_s - 10.0}, **about)


def test_nobody_is_stopped_before_the_lease_ends() -> None:
    decision = decided(leased(1199.0))
    assert decision.gpus.tolist() == [4, 0]
    assert decision.wake_s == pytest.approx(1200.0)
    assert decision.reason(leased(1199.0), 1)


def test_the_one_that_is_further_behind_wins_when_the_lease_ends() -> None:
    assert decided(leased(1200.0)).gpus.tolist() == [0, 4]


def test_own_leases_last_a_whole_lease_each() -> None:
    assert decided(leased(1205.0), "themis:leases=own").gpus.tolist() == [4, 0]
    assert decided(leased(1205.0), "themis:leases=own").wake_s == pytest.approx(1210.0)
    assert decided(leased(1210.0), "themis:leases=own").gpus.tolist() == [0, 4]


def test_a_winner_keeps_its_gpus_without_a_restart() -> None:
    jobs = [JobSpec(name, 0.0, 1, duration_s=5000.0) for name in "ab"] + [JobSpec("c", 1.0, 2, duration_s=100_000.0)]
    result = simulate(Workload.of(jobs), cluster="v100:2", policy="themis")
    assert result.jct_s[:2].tolist() == pytest.approx([5000.0, 5000.0])
    assert result.figures()["restarts"] == 0


def test_a_job_that_was_just_started_is_left_alone_at_the_end_of_a_lease() -> None:
    jobs = [job("fresh", 4, 90_000.0), job("wants", 4, 600.0)]
    about: dict[str, Any] = {"now_s": 1200.0, "running": {"fresh": 4}, "attained": {"fresh": 30.0}}
    assert decided(snapshot_of(jobs, "v100:4", min_run_s=60.0, **about)).gpus.tolist() == [4, 0]
    assert decided(snapshot_of(jobs, "v100:4", **about)).gpus.tolist() == [0, 4]


def test_gpus_of_nodes_that_are_down_are_not_on_offer() -> None:
    state = state_of([job("a", 4), job("b", 4)], "v100:2x4")
    state.apply(NodeLost(1.0, 0))
    assert sorted(decided(state.snapshot(frozenset({"duration"}))).gpus.tolist()) == [0, 4]


def test_types_on_which_a_job_cannot_run_are_no_bids() -> None:
    jobs = [job("picky", 2, gpu_types=("k80",)), job("any", 2)]
    decision = decided(snapshot_of(jobs, "v100:2,k80:2"), "themis:fairness=0")
    assert decision.gpu_types is not None
    assert decision.gpu_types.tolist() == [1, 0]


def test_a_small_job_leaves_the_fast_type_to_one_that_fits_nowhere_else() -> None:
    """Both would rather have the V100s. With a large floor a K80 would be worth less to the small one than nothing."""
    jobs = [job("small", 1, 1000.0), job("large", 4, 1000.0)]
    decision = decided(snapshot_of(jobs, "v100:4,k80:2"), "themis:fairness=0")
    assert decision.gpus.tolist() == [1, 4]
    assert decision.gpu_types is not None
    assert decision.gpu_types.tolist() == [1, 0]


def test_apps_of_several_jobs_bid_one_two_three_of_them() -> None:
    jobs = [job(f"a{at}", 2, 100.0, user="ann") for at in range(3)] + [job("b", 1, user="bob")]
    tender = bid_of(snapshot_of(jobs, "v100:6"), 0, "user")
    assert list(tender.bid.gpus) == [(0,), (2,), (4,), (6,)]
    assert [len(grants) for grants in tender.grants] == [0, 1, 2, 3]


def test_large_apps_bid_few_sizes() -> None:
    jobs = [job(f"a{at}", 1, 100.0, user="ann") for at in range(80)]
    tender = bid_of(snapshot_of(jobs, "v100:10x8"), 0, "user")
    assert len(tender.bid.values) <= MOST_SIZES + 1
    assert tender.bid.gpus[-1] == (80,)


@pytest.mark.parametrize("seed", range(20))
def test_gains_per_gang_never_rise(seed: int) -> None:
    """With a floor of at most a half the logarithm of a table is concave in gangs: the first is worth the most."""
    random = np.random.default_rng(seed)
    low, work_s = int(random.integers(1, 4)), float(random.uniform(10.0, 1e5))
    spec = job("a", 4 * low, work_s, gpus_min=low, gpus_max=8 * low)
    tender = bid_of(snapshot_of([spec], "v100:8x4", now_s=float(random.uniform(0.0, 1e5))), 0)
    gains = np.diff(np.log(tender.bid.values))
    assert (np.diff(gains) <= 1e-9).all()


@pytest.mark.parametrize("by", ["job", "queue", "user"])
@pytest.mark.parametrize("seed", range(25))
def test_no_gpu_idles_while_an_app_can_use_it(seed: int, by: str) -> None:
    snapshot = random_snapshot(seed)
    decision = decided(snapshot, f"themis:app={by},fairness={(seed % 5) / 4}")
    free = snapshot.capacity.copy()
    kinds = np.zeros(len(snapshot), dtype=int) if decision.gpu_types is None else decision.gpu_types
    np.subtract.at(free, kinds[decision.gpus > 0], decision.gpus[decision.gpus > 0])
    for row in (decision.gpus == 0).nonzero()[0].tolist():
        assert not ((free >= snapshot.gpus_min[row]) & (snapshot.speeds[:, row] > 0)).any()


def market_with_outsiders(jobs: list[JobSpec], running: dict[str, Any]) -> list[str]:
    """The order in which users who do not bid are asked, when the running jobs' leases go on."""
    snapshot = snapshot_of(jobs, "v100:2x4", running=running, now_s=10.0)
    relative, on_offer = relative_speeds(snapshot), ~snapshot.running
    about = apps(snapshot, "user")
    market = market_of(snapshot, about, relative, on_offer, 1200.0, 0.5)
    return [snapshot.names.users[about.keys[app]] for app in outsiders(snapshot, market, [], on_offer)]


def test_leftovers_go_first_to_apps_on_machines_with_idle_gpus() -> None:
    jobs = [job(f"{user}{at}", 1 if user == "ann" else 4, 900.0, user=user) for user in ("cem", "ann") for at in (0, 1)]
    jobs += [job("b", 1, 900.0, user=f"user-{at}") for at in range(1)]
    assert market_with_outsiders(jobs, {"cem0": (0, 1, 2, 3), "ann0": (5,)}) == ["ann", "cem", "user-0"]
    assert market_with_outsiders(jobs, {"cem0": (4, 5, 6, 7)})[0] == "cem"


def test_the_order_of_outsiders_is_drawn_from_the_seed() -> None:
    jobs = [job(str(at), 1, 900.0) for at in range(12)]
    chosen = {
        tuple(decided(snapshot_of(jobs, "v100:4", seed=seed), "themis:fairness=1").gpus.tolist()) for seed in range(8)
    }
    assert len(chosen) > 3
    assert {sum(gpus) for gpus in chosen} == {4}


def test_a_large_gang_is_not_starved_by_small_ones() -> None:
    """The small ones keep coming, so without a common end of leases eight GPUs would hardly ever be free together."""
    jobs = [JobSpec("large", 100.0, 8, duration_s=1000.0)]
    jobs += [JobSpec(f"small-{at}", 60.0 * at, 1, duration_s=1500.0) for at in range(200)]
    work = Workload.of(sorted(jobs, key=lambda spec: spec.submitted_s))
    result = simulate(work, cluster="v100:8", policy="themis")
    at = next(number for number, spec in enumerate(work.jobs) if spec.id == "large")
    assert result.rho["isolated"][at] < 1.5


def test_payments_in_time_shorten_the_lease_of_those_who_displace_others() -> None:
    jobs = [job("a", 4, 50_000.0), job("b", 4, 50_000.0)]
    snapshot = snapshot_of(jobs, "v100:4")
    whole = decided(snapshot, "themis:fairness=0")
    part = decided(snapshot, "themis:fairness=0,payment=time,floor=0.5")
    assert whole.gpus.sum() == part.gpus.sum() == 4
    assert whole.wake_s == pytest.approx(1200.0)
    assert part.wake_s == pytest.approx(600.0), "nothing is worth half of its gang to the loser"


def test_an_elastic_job_takes_what_nobody_else_can_use() -> None:
    jobs = [elastic("grows", 2, 8, 5000.0), job("fixed", 3, 5000.0)]
    decision = decided(snapshot_of(jobs, "v100:8"), "themis:fairness=0")
    assert decision.gpus.tolist() == [5, 3]


def scattered(rate: float, held: tuple[int, ...] = (0, 4)) -> Snapshot:
    """A gang of two on two nodes, seen to run at this rate; its lease is over."""
    state = state_of([job("a", 2, 90_000.0)], "v100:2x4", now_s=1300.0, running={"a": held}, attained={"a": 1290.0})
    state.apply(RateChanged(1300.0, 0, 500.0, rate))
    return state.snapshot(frozenset({"duration"})).copy()


def test_a_winner_that_is_slow_on_scattered_gpus_gets_them_closer_together() -> None:
    gpus = decided(scattered(0.6)).placements[0]
    assert {gpu // 4 for gpu in gpus} in ({0}, {1})
    assert not decided(scattered(0.99)).placements, "a restart costs more than that"
    assert not decided(scattered(0.6, (0, 1))).placements, "it is as close together as it can be"


def test_memory_survives_a_trip_through_json() -> None:
    policy = make_policy("themis:app=user")
    snapshot = random_snapshot(3)
    memory = dict(policy.decide(snapshot).memory)
    data = json.loads(to_json(snapshot))
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in memory.items()}
    data["memory"] = plain
    again = policy.decide(from_json(json.dumps(data)))
    assert math.isfinite(again.wake_s) or not (again.gpus == 0).any()


@pytest.mark.parametrize(
    "knobs", ["fairness=1.1", "fairness=-0.1", "lease_s=5", "floor=0", "floor=1.5", "app=team", "payment=gold"]
)
def test_senseless_knobs_are_refused(knobs: str) -> None:
    with pytest.raises(InputError):
        make_policy(f"themis:{knobs}")


@pytest.mark.parametrize(
    "knobs",
    [
        "fairness=0,lease_s=33.3",
        "app=user,lease_s=100,fairness=0.5",
        "app=queue,payment=time,lease_s=50",
        "leases=own,lease_s=70,fairness=0.95",
        "lease_s=20,fairness=1",
    ],
)
def test_the_contract_is_kept_with_other_knobs(knobs: str) -> None:
    check_policy(f"themis:{knobs}", seeds=[3], work_conserving=True, other_processes=ALL)


@pytest.mark.parametrize("rules", ["gavel", "shockwave"])
def test_it_runs_in_rounds_too(rules: str) -> None:
    jobs = [JobSpec(str(at), 100.0 * at, 1 + at % 4, duration_s=3000.0) for at in range(12)]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy=Themis(), rules=rules)
    assert result.finished == 12
