"""Shares of a GPU around policies: who sits with whom, what the policy sees, and what the laws and rates say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.core.action import Launch, Suspend
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.errors import PolicyError
from fairway.core.event import JobStarted, Woken
from fairway.core.occupancy import Occupancy
from fairway.core.plan import plan
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.placement import placement
from fairway.policies import make_policy, policies
from fairway.policies.fractions import ByShare
from fairway.policies.priorities import by_priority
from fairway.policies.turns import turns
from fairway.simulator.faults import Faults
from fairway.testing import in_shares, job, random_cluster, random_workload, run_policy, snapshot_of, state_of
from fairway.testing.harness import unfinished
from fairway.testing.seeds import quick, some

PACKING = ["gandiva", "max_min_fairness:packing=on", "antman"]


class Seen:
    """First come, first served; keeps what it saw. Guests stay where they are."""

    name, knows, round_s = "seen", frozenset[str](), 0.0

    def __init__(self) -> None:
        self.views: list[Snapshot] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        self.views.append(snapshot)
        guests = (snapshot.host >= 0).nonzero()[0]
        hosts = snapshot.rows_of(snapshot.host[guests])
        partners = dict(zip(guests.tolist(), hosts.tolist(), strict=True))
        return make_policy("fifo").decide(snapshot)._replace(partners=partners)


def part(name: str, share: float, **more: Any) -> JobSpec:
    return job(name, 1, 9000.0, gpu_share=share, **more)


def decided(snapshot: Snapshot, policy: str = "fifo", **about: Any) -> Decision:
    """A decision that keeps the laws, and that finds a place for all."""
    decision = ByShare(by_priority(make_policy(policy)), **about).decide(snapshot)
    check(snapshot, decision)
    occupancy = Occupancy(snapshot.cluster)
    for row in snapshot.running_rows.tolist():
        occupancy.take(snapshot.gpus_held(row))
    assert not plan(snapshot, decision, occupancy, placement("packed")).refused
    return decision


def running(*jobs: JobSpec, gpus: str = "v100:1x2", on: dict[str, int], waiting: tuple[JobSpec, ...] = ()) -> State:
    """A state in which jobs run on these GPUs, as guests of the first one there, while others wait."""
    state = state_of([*jobs, *waiting], gpus)
    hosts: dict[int, int] = {}
    for number, one in enumerate(jobs):
        gpu = on[one.id]
        state.commit([Launch(number, (gpu,), 0, hosts.get(gpu, -1))])
        state.apply(JobStarted(0.0, number, 1.0, 0.0))
        hosts.setdefault(gpu, number)
    return state


def test_jobs_whose_shares_fit_share_a_gpu() -> None:
    decision = decided(snapshot_of([part("a", 0.5), part("b", 0.3), part("c", 0.2), part("d", 0.1)], "v100:1x1"))
    assert decision.gpus.tolist() == [1, 1, 1, 0]
    assert decision.partners == {1: 0, 2: 0}


def test_jobs_whose_shares_do_not_fit_never_share_a_gpu() -> None:
    decision = decided(snapshot_of([part("a", 0.6), part("b", 0.6)], "v100:1x1"))
    assert (decision.gpus.tolist(), dict(decision.partners)) == ([1, 0], {})


@pytest.mark.parametrize("share", [0.1, 1 / 3, 0.125, 0.05, 0.2])
def test_sums_of_shares_are_exact(share: float) -> None:
    count = round(1 / share)
    decision = decided(snapshot_of([part(f"j{n:02}", share) for n in range(count + 1)], "v100:1x1"))
    assert decision.gpus.tolist() == [1] * count + [0]


def test_a_job_is_seated_where_the_least_room_is_left() -> None:
    state = running(part("a", 0.3), part("b", 0.6), on={"a": 0, "b": 1}, waiting=(part("c", 0.4), part("d", 0.5)))
    assert decided(state.snapshot()).partners == {2: 1, 3: 0}


def test_a_job_joins_a_gpu_even_if_whole_gpus_are_asked_for_before_it() -> None:
    state = running(part("a", 0.5), job("w", 1), on={"a": 0, "w": 1}, waiting=(job("big", 2), part("b", 0.5)))
    decision = decided(state.snapshot())
    assert decision.gpus.tolist() == [1, 1, 0, 1]
    assert decision.partners == {3: 0}


@pytest.mark.parametrize(("about", "apart"), [({"priority": 3}, True), ({"queue": "x"}, True), ({"user": "u"}, False)])
def test_jobs_of_other_priorities_and_queues_have_other_gpus(about: dict[str, Any], apart: bool) -> None:
    snapshot = snapshot_of([part("a", 0.5), part("b", 0.5, **about)], "v100:1x4")
    assert (not decided(snapshot).partners) == apart
    assert not decided(snapshot, by_user=lambda: True).partners


def test_memory_beyond_a_share_counts() -> None:
    gib = 1 << 30
    jobs = [part("a", 0.25, memory_bytes=20 * gib), part("b", 0.25, memory_bytes=10 * gib), part("c", 0.25)]
    assert decided(snapshot_of(jobs, "a100:1x4")).partners
    tight = [part("a", 0.25, memory_bytes=30 * gib), part("b", 0.25, memory_bytes=30 * gib)]
    assert not decided(snapshot_of(tight, "a100:1x4")).partners


def test_a_member_of_a_bundle_waits_with_the_reason_of_its_head() -> None:
    snapshot = snapshot_of([job("w", 1, 9000.0), part("a", 0.5), part("b", 0.5)], "v100:1x1", running={"w": (0,)})
    decision = decided(snapshot)
    assert decision.reason(snapshot, 2) == f"will share a GPU with job a, which waits: {decision.reason(snapshot, 1)}"


def test_the_policy_sees_one_job_for_each_gpu() -> None:
    state = running(part("a", 0.5), part("b", 0.5), on={"a": 0, "b": 0}, waiting=(part("c", 0.9), part("d", 0.1)))
    seen = Seen()
    ByShare(seen).decide(state.snapshot())
    assert seen.views[0].jobs.tolist() == [0, 2]
    assert (seen.views[0].host.tolist(), seen.views[0].free, seen.views[0].demand) == ([-1, -1], 1, 2)


def test_when_the_head_is_stopped_all_stop_and_share_another_gpu_later() -> None:
    state = running(
        part("a", 0.5), part("b", 0.5), on={"a": 0, "b": 0}, gpus="v100:1x1", waiting=(job("h", priority=9),)
    )
    decision = decided(state.snapshot())
    assert decision.gpus.tolist() == [0, 0, 1]


def test_a_job_without_a_share_is_asked_about_as_always() -> None:
    snapshot = snapshot_of([job("a"), job("b")], "v100:1x1")
    inner = make_policy("fifo")
    assert ByShare(inner).decide(snapshot).gpus.tolist() == inner.decide(snapshot).gpus.tolist()


def test_to_the_policy_a_head_has_the_service_of_a_gpu() -> None:
    snapshot = snapshot_of([part("a", 0.5)], "v100:1x1", now_s=500.0, running={"a": 1}, attained={"a": 100.0})
    seen = Seen()
    ByShare(seen).decide(snapshot)
    assert (snapshot.attained_gpu_s.tolist(), seen.views[0].attained_gpu_s.tolist()) == ([50.0], [100.0])


def test_a_job_whose_memory_is_on_a_gpu_joins_others_only_there() -> None:
    state = running(part("a", 0.2), part("b", 0.6), on={"a": 0, "b": 1}, waiting=(part("c", 0.4),))
    snapshot = state.snapshot()
    assert decided(snapshot).partners == {2: 1}
    assert decided(snapshot, homes=lambda: {2: (0,)}).partners == {2: 0}
    assert not decided(snapshot, blocked=lambda: {0, 1}).partners


# The law.


def test_more_than_a_gpu_of_shares_is_refused() -> None:
    snapshot = snapshot_of([part("a", 0.6), part("b", 0.6), job("w", 1)], "v100:1x2")
    good = make_policy("fifo").decide(snapshot)
    grants = good._replace(gpus=snapshot.gpus.copy(), reasons=good.reasons * 0)
    with pytest.raises(PolicyError, match="more than one GPU together"):
        check(snapshot, grants._replace(partners={1: 0}))
    check(snapshot, grants._replace(partners={2: 0}))


@pytest.mark.parametrize("policy", PACKING)
def test_a_policy_that_packs_jobs_never_overbooks_shares(policy: str) -> None:
    jobs = [part(f"j{n}", 0.6, submitted_s=float(n), priority=-1 if n % 2 else 0) for n in range(6)]
    jobs += [job(f"w{n}", 1, 3000.0, submitted_s=6.0) for n in range(3)]
    run = run_policy(ByShare(by_priority(make_policy(policy))), jobs, random_cluster(0, mixed=False))
    assert not unfinished(run, jobs)


# Turns.


def _time(parts: tuple[float, ...]) -> list[float]:
    """What each job gets of a GPU that divides each moment equally among the jobs that compute."""
    got = [0.0] * len(parts)
    for state in range(1, 2 ** len(parts)):
        on = [at for at in range(len(parts)) if state >> at & 1]
        chance = math.prod(part if at in on else 1 - part for at, part in enumerate(parts))
        for at in on:
            got[at] += chance / len(on)
    return got


@pytest.mark.parametrize("shares", [[500, 500], [700, 300], [500, 300, 200], [900, 50, 50], [100, 400, 300, 200]])
def test_turns_give_each_job_its_share_of_the_time(shares: list[int]) -> None:
    parts = turns(shares)
    assert max(parts) == 1.0
    for got, asked in zip(_time(parts), shares, strict=True):
        assert got == pytest.approx(asked / sum(shares), abs=0.002)


def test_jobs_that_take_turns_are_throttled_and_the_host_too() -> None:
    state = running(part("a", 0.3), on={"a": 0}, gpus="v100:1x1", waiting=(part("b", 0.7),))
    decision = decided(state.snapshot(), in_turns=lambda: True)
    assert (dict(decision.partners), dict(decision.throttles)) == ({1: 0}, {0: 0.6})


# The simulation.


def _jct_s(jobs: list[JobSpec], **about: Any) -> list[float]:
    return [float(time_s) for time_s in simulate(Workload.of(jobs), cluster="v100:1", policy="fifo", **about).jct_s]


def test_a_duration_is_the_time_on_the_share() -> None:
    jobs = [job("a", 1, 100.0, gpu_share=0.5), job("b", 1, 100.0, gpu_share=0.3), job("c", 1, 60.0, gpu_share=0.2)]
    assert _jct_s(jobs) == [100.0, 100.0, 60.0]
    assert _jct_s(jobs, fractions=False) == _jct_s(jobs, rules="tiresias") == [100.0, 200.0, 260.0]


def test_steps_take_time_by_shares_and_nothing_is_left_idle() -> None:
    jobs = [
        job(name, steps=3000.0, model="ResNet-18", batch_size=64, gpu_share=share)
        for name, share in (("a", 0.6), ("b", 0.2))
    ]
    alone = _jct_s(jobs[:1])[0]
    both = _jct_s(jobs)
    # Three quarters and one quarter of the GPU, then all of it; by pair rates they may do more than one alone.
    assert alone <= both[0] <= alone / 0.75 + 1e-6
    assert both[0] < both[1] <= 2 * alone + 1e-6


def test_service_and_costs_count_shares() -> None:
    jobs = [job("a", 1, 3600.0, gpu_share=0.5), job("b", 1, 3600.0, gpu_share=0.25)]
    result = simulate(Workload.of(jobs), cluster="v100:1", policy="fifo")
    assert result.ledger.held_gpu_s.tolist() == [1800.0, 900.0]
    assert result.figures()["fractions"] is True
    state = running(*jobs, on={"a": 0, "b": 0}, gpus="v100:1x1")
    state.apply(Woken(100.0))
    assert state.snapshot().attained_gpu_s.tolist() == [50.0, 25.0]


@pytest.mark.parametrize("share", [0.0, -0.5, math.nan, 1.5])
def test_shares_that_make_no_sense_are_refused(share: float) -> None:
    with pytest.raises(InputError, match="gpu_share"):
        job("a", gpu_share=share)


def test_a_share_is_of_one_gpu() -> None:
    with pytest.raises(InputError, match="part of one GPU"):
        job("a", 2, gpu_share=0.5)


@pytest.mark.parametrize("policy", some(quick(policies()), 8))
def test_every_policy_finishes_jobs_that_ask_for_shares(policy: str) -> None:
    for seed, mixed in ((1, False), (2, True)):
        where = random_cluster(seed, mixed=mixed)
        jobs = in_shares(random_workload(seed, where, jobs=24), seed).jobs
        chosen = by_priority(make_policy(policy))
        faults = Faults(mtbf_s=20_000.0, repair_s=200.0 / 3, seed=seed)
        run = run_policy(ByShare(chosen), jobs, where, faults=faults, seed=seed)
        assert not unfinished(run, jobs)


def test_guests_leave_no_fewer_gpus_free() -> None:
    snapshot = snapshot_of([part("a", 0.5), part("b", 0.5), job("w", 3)], "v100:1x3")
    decision = decided(snapshot)
    assert decision.gpus.tolist() == [1, 1, 0]
    assert decision.free(snapshot) == 2


def test_a_job_that_waits_does_not_protect_those_that_it_joins() -> None:
    state = running(part("a", 0.5), part("b", 0.5, preemptible=False), on={"a": 0, "b": 1}, waiting=(job("h", 2),))
    state.commit([Suspend(1)])
    seen = Seen()
    decision = ByShare(seen).decide(state.snapshot())
    assert decision.partners == {1: 0}
    assert seen.views[0].protected_until_s.max() < math.inf


def test_the_throttle_of_a_guest_is_told_to_its_policy() -> None:
    state = running(job("w"), on={"w": 0}, gpus="v100:1x1", waiting=(part("a", 0.3), part("b", 0.3)))
    state.commit([Launch(1, (0,), 0, 0, 0.2), Launch(2, (0,), 0, 0, 0.2)])
    seen = Seen()
    ByShare(seen).decide(state.snapshot())
    assert seen.views[0].host.tolist() == [-1, 0]
    assert seen.views[0].throttle.tolist() == [1.0, 0.4]
