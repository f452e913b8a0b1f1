"""Fair run times: a mean of estimates over time, made again only when the share changes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fairway.core.snapshot import Snapshot
from fairway.policies.shockwave import Shockwave
from fairway.policies.shockwave.fairness import FairTimes, share_of
from fairway.testing import job, snapshot_of


def some(jobs: int, now_s: float = 0.0, machines: str = "v100:2") -> Snapshot:
    return snapshot_of([job(f"j{at}", 1) for at in range(jobs)], machines, now_s=now_s, knows=("regimes",))


def test_shares_count_jobs_or_gpus() -> None:
    snapshot = snapshot_of([job("a", 1), job("b", 2), job("c", 1), job("d", 1)], "v100:2")
    assert share_of(snapshot, "jobs").tolist() == [0.5, 0.5, 0.5, 0.5]
    assert share_of(snapshot, "gpus").tolist() == [0.5, 0.25, 0.5, 0.5]


def test_no_share_is_above_one_or_zero() -> None:
    assert share_of(some(2, machines="v100:8"), "jobs").tolist() == [1.0, 1.0]
    nothing_up = some(2)
    nothing_up.capacity = np.zeros(1, dtype=np.int64)
    assert (share_of(nothing_up, "jobs") > 0).all()


def test_the_target_weighs_estimates_by_how_long_they_held() -> None:
    """100 s held for 10 s, then 200 s for 30 s: a mean of 175, and a tenth of the latest."""
    times = FairTimes.recall(some(1), {})
    times.estimate(np.array([50.0]), np.array([0.5]), renew=True)
    assert times.target_s.tolist() == [100.0]
    times.advance(10.0)
    times.estimate(np.array([50.0]), np.array([0.25]), renew=True)
    assert times.target_s.tolist() == [pytest.approx(0.9 * 100 + 0.1 * 200)]
    times.advance(40.0)
    assert times.target_s.tolist() == [pytest.approx(0.9 * 175 + 0.1 * 200)]


def test_estimates_are_kept_until_the_share_changes_but_new_jobs_get_one() -> None:
    times = FairTimes.recall(some(2), {})
    times.latest_s = np.array([100.0, np.nan])
    times.estimate(np.array([70.0, 80.0]), np.array([0.5, 0.5]), renew=False)
    assert times.latest_s.tolist() == [100.0, 160.0]
    times.estimate(np.array([70.0, 80.0]), np.array([0.5, 0.5]), renew=True)
    assert times.latest_s.tolist() == [140.0, 160.0]


def test_memory_comes_back_by_job_number_also_through_json() -> None:
    before = some(3)
    times = FairTimes.recall(before, {})
    times.estimate(np.array([10.0, 20.0, 30.0]), np.ones(3), renew=True)
    times.advance(50.0)
    kept = times.memory(before)
    after = some(4, now_s=60.0)
    after.ints = after.ints[:, [0, 2, 3]]
    after.floats = after.floats[:, [0, 2, 3]]
    plain = json.loads(json.dumps({name: np.asarray(value).tolist() for name, value in kept.items()}))
    for memory in (kept, plain):
        back = FairTimes.recall(after, memory)
        assert back.updated_s == 50.0
        assert back.latest_s[:2].tolist() == [10.0, 30.0]
        assert np.isnan(back.latest_s[2])
        assert back.since_s.tolist() == [50.0, 50.0, 0.0]
        assert back.summed.tolist() == [500.0, 1500.0, 0.0]


def test_what_is_remembered_is_a_copy() -> None:
    snapshot = some(2)
    kept = FairTimes.recall(snapshot, {}).memory(snapshot)
    assert not np.shares_memory(kept["jobs"], snapshot.jobs)


def test_the_clock_never_runs_backwards() -> None:
    times = FairTimes.recall(some(1), {})
    times.estimate(np.array([10.0]), np.ones(1), renew=True)
    times.advance(5.0)
    times.advance(3.0)
    assert times.since_s.tolist() == [5.0]


def latest(snapshot: Snapshot, memory: dict[str, object]) -> list[float]:
    """The latest estimates after a plan of a policy that plans in every round."""
    snapshot.memory = memory
    decision = Shockwave(replan_rounds=1).decide(snapshot)
    memory.clear()
    memory.update(decision.memory)
    times: list[float] = decision.memory["shockwave"]["fair"]["latest_s"].tolist()
    return times


def test_the_policy_estimates_anew_when_a_job_comes_or_capacity_changes_and_not_before() -> None:
    memory: dict[str, object] = {}
    first = latest(some(4), memory)
    assert first == [1800.0 / 0.5] * 4
    again = some(4, now_s=200.0)
    assert latest(again, memory) == first
    more = latest(some(5, now_s=400.0), memory)
    assert more == [pytest.approx(1800.0 / 0.4)] * 5
    fewer_gpus = some(5, now_s=600.0)
    fewer_gpus.capacity = np.array([1])
    assert latest(fewer_gpus, memory) == [pytest.approx(1800.0 / 0.2)] * 5
    assert latest(some(3, now_s=800.0), memory) == [pytest.approx(1800.0 / (2 / 3))] * 3
