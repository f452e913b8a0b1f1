"""How shares of time become rounds: who runs, what is remembered, and that nobody is forgotten."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.decision import Decision
from fairway.core.job import JobSpec
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.policies import make_policy
from fairway.policies.gavel.account import NOBODY, ShareAccount
from fairway.policies.gavel.base import SharePolicy
from fairway.policies.gavel.select import choose, priorities
from fairway.policies.gavel.shares import PATIENCE, ROUND_S, Style
from fairway.policies.gavel.situation import Shares, Situation
from fairway.testing import FakeEngine, cluster, job, snapshot_of
from fairway.testing.harness import run_engine, run_policy

X = ((0.6, 0.4, 0.0), (0.2, 0.6, 0.2), (0.2, 0.0, 0.8))
LISTED = ["VPK", "PVK", "PKV", "VPK", "VPK"]
"""Three jobs on three types: where each of them runs, round by round."""


@dataclass(frozen=True)
class Fixed(SharePolicy):
    """The same shares whoever asks: by job number, or for all jobs."""

    x: tuple[tuple[float, ...], ...] = ()

    def plan(self, situation: Situation) -> Shares:
        return Shares(np.array([self.x[int(number) % len(self.x)] for number in situation.snapshot.jobs]))


def _account(x: np.ndarray) -> ShareAccount:
    """Planned jobs that have received nothing yet."""
    jobs, types = x.shape
    account = ShareAccount.empty(types)
    account.units = np.column_stack([np.arange(jobs), np.full(jobs, NOBODY)])
    account.planned, account.x = np.ones(jobs, dtype=bool), x
    account.received_s, account.deficit_s = np.zeros(x.shape), np.zeros(x.shape)
    return account


def _equal_types(names: str, count: int = 1) -> Cluster:
    kinds = [GpuType(name, 16 << 30, 1.0, 1.0) for name in names.lower()]
    return Cluster.of([Node(f"node-{kind.name}", kind.name, count) for kind in kinds], kinds)


def _rounds(policy: SharePolicy, rounds: int) -> list[str]:
    """On which type each of three jobs runs, round by round, on a perfect cluster."""
    machines, seen = _equal_types("VPK"), []

    def note(snapshot: Snapshot, decision: Decision) -> None:
        assert decision.gpu_types is not None
        assert (decision.gpus == 1).all()
        seen.append("".join("VPK"[kind] for kind in decision.gpu_types.tolist()))

    jobs = [job(f"j{row}", duration_s=rounds * ROUND_S) for row in range(3)]
    run_engine(FakeEngine(machines, jobs), policy, machines, round_s=ROUND_S, checks=[note])
    return seen[:rounds]


def _fractions(rounds: Sequence[str]) -> np.ndarray:
    counts = np.array([[[where[row] == kind for kind in "VPK"] for row in range(3)] for where in rounds])
    return np.asarray(counts.mean(axis=0))


def _taken(priority: np.ndarray) -> dict[int, int]:
    """One queue of all (job, type): by priority, then by share, then in order; each job and each type once."""
    queue = sorted(np.ndindex(3, 3), key=lambda at: (-priority[at], -X[at[0]][at[1]], at))
    where: dict[int, int] = {}
    for row, kind in queue:
        if row not in where and kind not in where.values():
            where[row] = kind
    return where


def test_from_nothing_received_the_five_rounds_of_the_example_come_in_order() -> None:
    """The example has one queue for all types, and whoever never ran on a type goes first there."""
    account = _account(np.array(X))
    seen = []
    for _ in range(1000):
        where = _taken(priorities(account, np.ones((3, 3), dtype=bool)))
        seen.append("".join("VPK"[where[row]] for row in range(3)))
        for row, kind in where.items():
            account.received_s[row, kind] += ROUND_S
    assert seen == LISTED * 200
    np.testing.assert_allclose(_fractions(seen[:5]), X, atol=1e-12)


@dataclass(frozen=True)
class Literally(Fixed):
    """The same, carried out as in the public simulators."""

    @property
    def style(self) -> Style:
        return Style(published=True)


@pytest.mark.parametrize("policy", [Fixed, Literally])
def test_type_by_type_with_half_a_round_credited_the_same_rounds_come_in_another_order(policy: type[Fixed]) -> None:
    seen = _rounds(policy(x=X), 15)
    assert sorted(seen[:5]) == sorted(LISTED)
    assert seen == seen[:5] * 3
    np.testing.assert_allclose(_fractions(seen[:5]), X, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_after_many_rounds_everybody_has_what_was_planned(seed: int) -> None:
    """Any shares that use up all types and all the time: mixtures of permutations."""
    random = np.random.default_rng(seed)
    parts = random.dirichlet(np.ones(4))
    x = sum(part * np.eye(3)[random.permutation(3)] for part in parts)
    seen = _rounds(Fixed(x=tuple(map(tuple, np.asarray(x).tolist()))), 200)
    np.testing.assert_allclose(_fractions(seen), x, atol=0.03)


def _three(**about: Any) -> Snapshot:
    return snapshot_of([job(f"j{row}", duration_s=1e5) for row in range(3)], "v100:1x2", round_s=ROUND_S, **about)


def test_what_a_plan_leaves_owing_is_carried_on() -> None:
    """Two rounds of a plan that gives each of three jobs two thirds of the time, of which one has had nothing."""
    policy = Fixed(x=((2 / 3,),))
    first = policy.decide(_three())
    memory = dict(first.memory)
    waits = int((first.gpus == 0).nonzero()[0][0])
    memory["ran"] = np.zeros((0, 2), dtype=np.int64)
    memory["received_s"] = np.array([[ROUND_S / 2 + (0.0 if row == waits else 720.0)] for row in range(3)])
    changed = [*(job(f"j{row}", duration_s=1e5) for row in range(3)), job("j3", submitted_s=700.0)]
    later = snapshot_of(changed, "v100:1x2", now_s=720.0, memory=memory, round_s=ROUND_S)
    account = ShareAccount.from_memory(policy.decide(later).memory, 1)
    wanted = np.array([480.0 - (0.0 if row == waits else 720.0) for row in range(3)] + [0.0])
    np.testing.assert_allclose(account.deficit_s[:, 0], wanted)
    np.testing.assert_allclose(account.received_s[:, 0], ROUND_S / 2)
    assert account.planned_s == 720.0


def test_the_larger_deficit_goes_first_among_equals() -> None:
    account = _account(np.full((3, 1), 1 / 3))
    account.received_s[:], account.deficit_s = 180.0, np.array([[0.0], [50.0], [20.0]])
    one = np.ones(3, dtype=np.int64)
    chosen = choose(account, account.units, one, np.ones((3, 1), dtype=bool), [2], [0]).units
    assert [unit for unit, _ in chosen] == [1, 2]


@pytest.mark.parametrize("policy", ["max_min_fairness", "min_makespan", "finish_time_fairness", "hierarchical"])
def test_memory_survives_a_trip_through_json(policy: str) -> None:
    chosen = make_policy(policy)
    jobs = [job(f"j{row}", gpus=1 + row % 2, duration_s=1e4, user=f"u{row % 2}") for row in range(6)]
    first = chosen.decide(snapshot_of(jobs, "v100:1x2,k80:1x2", knows=chosen.knows))
    later = snapshot_of(jobs[:5], "v100:1x2,k80:1x2", knows=chosen.knows, now_s=360.0, memory=first.memory)
    again = from_json(json.loads(json.dumps(to_json(later))))
    one, two = chosen.decide(later), chosen.decide(again)
    assert one.gpus.tolist() == two.gpus.tolist()
    assert one.gpu_types is not None
    assert two.gpu_types is not None
    assert one.gpu_types.tolist() == two.gpu_types.tolist()


def test_plans_are_no_more_frequent_than_the_interval() -> None:
    planned: list[float] = []

    @dataclass(frozen=True)
    class Counting(Fixed):
        def plan(self, situation: Situation) -> Shares:
            planned.append(situation.snapshot.now_s)
            return super().plan(situation)

    policy, memory = Counting(x=((1.0,),)), dict[str, Any]()
    for turn in range(1, 11):
        jobs = [job(f"j{row}", duration_s=1e5, submitted_s=100.0 * row) for row in range(turn)]
        about = {"now_s": turn * ROUND_S, "round_s": ROUND_S, "replan_interval_s": 1000.0}
        memory = dict(policy.decide(snapshot_of(jobs, "v100:1x2", memory=memory, **about)).memory)
    assert planned == [360.0, 1440.0, 2520.0, 3600.0]


def test_jobs_that_were_started_a_moment_ago_stay() -> None:
    """Though the plan gives all the time to the others, and the second job of a full round has to wait."""
    jobs = [job("old", gpus=2, duration_s=1e4), job("new", gpus=2, duration_s=1e4, submitted_s=10.0)]
    about: dict[str, Any] = {"now_s": 100.0, "running": {"old": 2}, "round_s": ROUND_S}
    policy = Fixed(x=((0.0,), (1.0,)))
    for held_s, granted in ((30.0, [2, 0]), (61.0, [0, 2])):
        decision = policy.decide(snapshot_of(jobs, "v100:1x2", attained={"old": held_s}, min_run_s=60.0, **about))
        assert decision.gpus.tolist() == granted


def test_gpus_that_would_idle_go_to_jobs_without_a_share() -> None:
    jobs = [job(f"j{row}") for row in range(3)]
    assert Fixed(x=((1.0,), (0.0,), (0.0,))).decide(snapshot_of(jobs, "v100:1x2")).gpus.tolist() == [1, 1, 0]


def test_first_come_leaves_them_idle_behind_a_gang_that_does_not_fit() -> None:
    jobs = [job("a", gpus=1), job("b", gpus=4), job("c", gpus=1)]
    assert make_policy("gavel_fifo").decide(snapshot_of(jobs, "v100:1x4")).gpus.tolist() == [1, 0, 0]
    assert make_policy("gavel_fifo:published=on").decide(snapshot_of(jobs, "v100:1x4")).gpus.tolist() == [1, 0, 1]


@pytest.mark.parametrize("policy", ["max_min_fairness", "min_makespan", "isolated", "max_throughput", "min_cost"])
@pytest.mark.parametrize("seed", range(4))
def test_no_job_waits_beside_enough_idle_gpus(policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    jobs = [
        job(f"j{row}", gpus=int(random.choice([1, 1, 2, 4])), duration_s=float(random.integers(300, 9000)))
        for row in range(12)
    ]

    def check(snapshot: Snapshot, decision: Decision) -> None:
        used = np.bincount(decision.gpu_types[decision.gpus > 0], decision.gpus[decision.gpus > 0], 2)  # type: ignore[index]
        idle = snapshot.capacity - used
        for row in (decision.gpus == 0).nonzero()[0].tolist():
            assert not ((idle >= snapshot.gpus[row]) & (snapshot.speeds[:, row] > 0)).any()

    run_policy(make_policy(policy), jobs, cluster("v100:1x4,k80:1x3"), checks=[check])


def _gang_among(singles: int) -> list[JobSpec]:
    """A gang of 8, single jobs, and one short job every round, so that plans are made anew in each."""
    more = [job(f"n{turn}", duration_s=100.0, submitted_s=ROUND_S * turn + 1) for turn in range(80)]
    return [job("gang", gpus=8, duration_s=4000.0), *(job(f"s{row}", duration_s=3e4) for row in range(singles)), *more]


def _longest_wait_s(policy: str, singles: int, until_s: float) -> float:
    """For how long the gang waits at most, as far as it is watched."""
    served, gone = [0.0], [until_s]

    def note(snapshot: Snapshot, decision: Decision) -> None:
        if snapshot.now_s > until_s:
            return
        row = next((at for at in range(len(snapshot)) if snapshot.job(at).id == "gang"), None)
        if row is None:
            gone.append(snapshot.now_s)
        elif decision.gpus[row] > 0:
            served.append(snapshot.now_s)

    run_policy(make_policy(policy), _gang_among(singles), cluster("v100:1x8"), checks=[note])
    return float(np.diff([*served, max(served[-1], min(gone))]).max())


def test_a_gang_gets_its_turn_though_smaller_jobs_are_served_before_it() -> None:
    """With 5 single jobs 3 GPUs are left when its turn comes; the artifact lets it wait for as long as jobs come."""
    assert _longest_wait_s("max_min_fairness", 5, 25_000.0) <= (PATIENCE + 1) * ROUND_S
    assert _longest_wait_s("max_min_fairness:published=on", 5, 25_000.0) > 20_000.0


def test_a_gang_gets_its_turn_though_singles_could_fill_every_round() -> None:
    """25 jobs on 8 GPUs: its share is 8 / 25 GPUs, a 25th of the time, so a round in about 25."""
    assert _longest_wait_s("max_min_fairness", 24, 28_000.0) <= 35 * ROUND_S
