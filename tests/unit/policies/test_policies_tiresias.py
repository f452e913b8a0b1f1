"""Tiresias: the worked example of its talk, queues, hysteresis, learnt indices, and the bound on waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fairway
from fairway.core.action import Action
from fairway.core.decision import Decision, Reason
from fairway.core.errors import InputError
from fairway.core.event import Event
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.policies import make_policy
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.rules import Rules
from fairway.testing import check_policy, job, snapshot_of
from fairway.testing.seeds import ALL, some
from fairway.traces import gavel_like, philly_like

FLAT = Rules("flat")


def ends(policy: str, round_s: float = 0.0) -> list[float]:
    """When the three jobs of the worked example end on two GPUs."""
    jobs = [job("J1", 2, 2.0), job("J2", 1, 8.0), job("J3", 2, 6.0)]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:2", policy=policy, rules=FLAT, round_s=round_s)
    return [float(end) for end in result.jct_s]


def test_the_worked_example_with_full_knowledge() -> None:
    assert ends("srsf") == [2, 10, 16]
    assert np.mean(ends("srsf")) == pytest.approx(9.33, abs=0.005)


def test_the_worked_example_with_exact_gittins() -> None:
    found = ends("tiresias:gittins=exact,service=4/8/12")
    assert found == [2, 10, 16]
    assert np.mean(found) == pytest.approx(9.33, abs=0.005)


def test_the_worked_example_with_2d_las_of_unit_quantum() -> None:
    found = ends("tiresias:within=first_start,queues=1/2/3/4/5/6/7/8/9/10/11", round_s=1.0)
    assert found == [5, 14, 16]
    assert np.mean(found) == pytest.approx(11.67, abs=0.005)


@pytest.mark.parametrize("gittins", ["", ",gittins=within,service=4/8/12"])
def test_the_worked_example_with_two_queues(gittins: str) -> None:
    assert ends("tiresias:queues=4,within=first_start" + gittins) == [2, 12, 16]
    assert np.mean(ends("tiresias:queues=4" + gittins)) == pytest.approx(10.0)


@pytest.mark.parametrize(
    "policy",
    some(
        [
            "tiresias:metric=time",
            "tiresias:gittins=within",
            "tiresias:gittins=exact",
            "tiresias:gittins=within,service=10/100/1000",
            "tiresias:promote=2,queues=100",
            "tiresias:promote=0.5,gittins=within,queues=50/100",
            "tiresias:within=first_start",
            "tiresias:within=entry",
            "tiresias:within=published",
        ],
        2,
    ),
)
def test_the_contract_holds_with_all_knobs(policy: str) -> None:
    check_policy(policy, seeds=some(range(2), 1), work_conserving="promote" not in policy, other_processes=ALL)


def test_lower_queues_go_first_and_gpu_time_counts_the_gang() -> None:
    jobs = [job("gang", 4, 9000.0), job("single", 1, 9000.0), job("new", 4, 9000.0, submitted_s=900.0)]
    view = snapshot_of(
        jobs, "v100:5", now_s=1000.0, running={"gang": 4, "single": 1}, attained={"gang": 1000.0, "single": 1000.0}
    )
    assert make_policy("tiresias").decide(view).gpus.tolist() == [0, 1, 4]
    assert make_policy("tiresias:metric=time").decide(view).gpus.tolist() == [4, 1, 0]


def test_the_next_demotion_of_a_gang_is_due_when_its_gpu_time_reaches_the_threshold() -> None:
    jobs = [job("gang", 4, 9000.0), job("waits", 4, 9000.0)]
    view = snapshot_of(jobs, "v100:4", now_s=100.0, running={"gang": 4}, attained={"gang": 100.0})
    decision = make_policy("tiresias").decide(view)
    assert decision.wake_s == pytest.approx(100.0 + (3250 - 400) / 4)
    published = make_policy("tiresias:within=published").decide(view)
    assert published.wake_s == 100.0 + (3250 - 100) // 4


def test_jobs_of_one_queue_do_not_take_turns() -> None:
    jobs = [job(name, 4, 50_000.0) for name in "abc"]
    result = fairway.simulate(Workload.of(jobs), cluster="v100:4", policy="tiresias")
    # Each job is stopped when it sinks to the second and to the last queue, and never again.
    assert result.figures()["preemptions"] <= 2 * len(jobs)


def test_first_starts_alone_decide_where_asked_for() -> None:
    jobs = [job("early", 2, 9e4), job("late", 2, 9e4, submitted_s=5.0)]
    about = {"now_s": 9e4, "running": {"late": 2}, "attained": {"early": 8e3, "late": 8e3}}
    view = snapshot_of(jobs, "v100:2", **about)
    assert make_policy("tiresias").decide(view).gpus.tolist() == [0, 2]
    assert make_policy("tiresias:within=first_start").decide(view).gpus.tolist() == [2, 0]


def test_indices_are_learnt_from_the_jobs_that_have_ended() -> None:
    """Most jobs take 100 GPU-seconds: one that has had 90 is nearly done, one that has had 200 may take for ever."""
    short = [JobSpec(f"s{n}", 0.0, gpus=1, duration_s=100.0) for n in range(40)]
    long = [JobSpec(f"l{n}", 0.0, gpus=1, duration_s=20_000.0) for n in range(8)]
    workload = Workload.of(short + long)
    learnt = _Memory()
    fairway.simulate(workload, cluster="v100:4", policy="tiresias:gittins=exact", rules=FLAT, observer=learnt)
    table = learnt.memory["index"]
    assert table["samples"] >= 20
    ranks = dict(zip(np.asarray(table["cells"]).tolist(), np.asarray(table["ranks"]).tolist(), strict=True))
    assert ranks[0.0] < ranks[100.0]


class _Memory:
    """Keeps what the policy remembers."""

    def __init__(self) -> None:
        self.memory: dict[str, dict[str, list[float]]] = {}

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        pass

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        self.memory = dict(decision.memory)


def test_samples_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("duration\n4\n8.0\n12\n")
    assert make_policy(f"tiresias:gittins=exact,service=@{path}") == make_policy(
        "tiresias:gittins=exact,service=4/8/12"
    )


@pytest.mark.parametrize("text", ["", "duration\n", "4\neight\n", "4\n-8\n", "4\nnan\n"])
def test_a_bad_file_of_samples_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text)
    with pytest.raises(InputError):
        make_policy(f"tiresias:gittins=exact,service=@{path}")


def test_a_missing_file_of_samples_is_named() -> None:
    with pytest.raises(InputError, match="nowhere"):
        make_policy("tiresias:service=@nowhere.csv")


@pytest.mark.parametrize(
    "knobs",
    [
        "queues=0",
        "queues=5/4",
        "queues=4/4",
        "promote=-1",
        "service=0/4",
        "within=entry,promote=2",
        "within=published,gittins=exact",
    ],
)
def test_senseless_knobs_are_refused(knobs: str) -> None:
    with pytest.raises(InputError, match="tiresias"):
        make_policy(f"tiresias:{knobs}")


class BoundedWaits:
    """Checks at every round that no wait is longer than the documentation says."""

    def __init__(self, factor: float, turn: float, min_run_s: float, *, by_time: bool = False) -> None:
        self.factor, self.turn, self.min_run_s, self.by_time = factor, turn, min_run_s, by_time
        self.most_promoted = 0
        self.promotions = 0
        self.longest_s = 0.0
        self.longest = 0.0
        self.due_s: dict[int, float] = {}

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        pass

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        known = decision.memory["promoted"]
        base_s = dict(zip(known["jobs"].tolist(), known["seconds"].tolist(), strict=True))
        base = dict(zip(known["jobs"].tolist(), known["service"].tolist(), strict=True))
        service = snapshot.attained_s if self.by_time else snapshot.attained_gpu_s
        first = sum(
            service[row] - base[job] < self._turn_s(snapshot, row) * (1 if self.by_time else int(snapshot.gpus[row]))
            for row, job in enumerate(snapshot.jobs.tolist())
            if job in base
        )
        self.most_promoted = max(self.most_promoted, first)
        self.promotions += sum(since_s == snapshot.now_s for since_s in known["since_s"].tolist())
        self._check_waits(snapshot, decision, base_s)

    def _turn_s(self, snapshot: Snapshot, row: int) -> float:
        gang = 1 if self.by_time else int(snapshot.gpus[row])
        return max(self.turn / gang, 2 * float(snapshot.restart_s[row]))

    def _check_waits(self, snapshot: Snapshot, decision: Decision, base_s: dict[int, float]) -> None:
        total, largest = int(snapshot.capacity.sum()), int(snapshot.gpus.max())
        gangs = 1 if self.by_time else snapshot.gpus
        turns_s = np.maximum(self.turn / gangs, 2 * snapshot.restart_s)
        self.longest = max(self.longest, float((turns_s * snapshot.gpus).max()))
        due_s: dict[int, float] = {}
        for row in ((decision.gpus == 0) & (snapshot.held == 0)).nonzero()[0].tolist():
            name, gang = int(snapshot.jobs[row]), int(snapshot.gpus[row])
            # What a job has run since its last promotion counts as of the beginning of the wait.
            ran_s = float(snapshot.attained_s[row]) - base_s.get(name, 0.0)
            due_s[name] = self.due_s.get(name, self.factor * max(ran_s, self._turn_s(snapshot, row)))
            ahead = self.most_promoted * (self.longest + self.min_run_s * largest) / (total - gang + 1)
            waited_s = snapshot.now_s - float(snapshot.idle_since_s[row])
            self.longest_s = max(self.longest_s, waited_s)
            assert waited_s <= due_s[name] + ahead + self.min_run_s + 1e-3, (name, waited_s, due_s[name], ahead)
        self.due_s = due_s


def _starving(seed: int) -> Workload:
    """Small jobs without end, and a few gangs as large as the cluster that never fit between them."""
    random = np.random.default_rng(seed)
    small = [
        JobSpec(f"s{n}", 10.0 * n, gpus=int(random.choice([1, 1, 2])), duration_s=float(random.integers(20, 400)))
        for n in range(400)
    ]
    large = [JobSpec(f"L{n}", 100.0 + n, gpus=8, duration_s=600.0) for n in range(3)]
    return Workload.of(small + large)


@pytest.mark.parametrize("seed", some(range(3), 1))
@pytest.mark.parametrize("factor", some([0.5, 2.0], 1))
def test_with_promotion_no_job_waits_longer_than_the_documented_bound(seed: int, factor: float) -> None:
    for workload, cluster, turn in (
        (_starving(seed), "v100:8", 400.0),
        (gavel_like(jobs=60, seed=seed, durations="uniform-hours", max_h=2.0, multi_gpu=True), "v100:2x8", 3250.0),
        (philly_like(jobs=150, seed=seed, longest_h=20.0), "v100:2x8", 3250.0),
    ):
        watch = BoundedWaits(factor, turn, 60.0)
        policy = f"tiresias:promote={factor},queues={turn:g}"
        result = fairway.simulate(
            workload, cluster=cluster, policy=policy, observer=watch, skip_impossible=True, any_type=True
        )
        assert result.finished == len(result.specs)
        assert watch.promotions


def test_promotion_ends_a_starvation_that_happens_without_it() -> None:
    """Single-GPU jobs keep five of eight GPUs busy: a gang of eight that has had its first turn never fits again."""
    small = [JobSpec(f"s{n}", 10.0 * n, gpus=1, duration_s=50.0) for n in range(800)]
    workload = Workload.of([*small, JobSpec("gang", 5.0, gpus=8, duration_s=600.0)])
    took_s = {}
    for policy in ("tiresias:queues=400", "tiresias:queues=400,promote=2"):
        result = fairway.simulate(workload, cluster="v100:8", policy=policy)
        took_s[policy] = float(result.jct_s[[spec.id for spec in result.specs].index("gang")])
    assert took_s["tiresias:queues=400"] > 8000
    assert took_s["tiresias:queues=400,promote=2"] < 5000


def test_nobody_is_started_while_a_promoted_gang_waits() -> None:
    """The gang is due; one GPU's job was started a moment ago. The two small jobs that would fit now wait behind it."""
    jobs = [job("gang", 4, 900.0), job("fresh", 1, 900.0, submitted_s=2000.0), job("b", 1, 90.0, submitted_s=2005.0)]
    view = snapshot_of(jobs, "v100:4", now_s=2010.0, running={"fresh": 1}, attained={"fresh": 10.0}, min_run_s=60.0)
    decision = make_policy("tiresias:promote=2").decide(view)
    assert decision.gpus.tolist() == [0, 1, 0]
    assert decision.reasons[2] == Reason.BEHIND
    assert "gang" in decision.reason(view, 2)
    assert decision.wake_s == pytest.approx(2060.0)


@pytest.mark.parametrize("metric", ["gpu_time", "time"])
@pytest.mark.parametrize(("turn", "restart_s"), [(10.0, 300.0), (200.0, 30.0), (3250.0, 30.0)])
def test_the_bound_holds_where_restarts_are_longer_than_the_threshold(
    turn: float, restart_s: float, metric: str
) -> None:
    random = np.random.default_rng(7)
    gangs = [JobSpec(f"g{n}", 0.0, gpus=8, duration_s=3000.0) for n in range(4)]
    small = [JobSpec(f"s{n}", 50.0 * n, gpus=int(random.choice([1, 2, 4])), duration_s=2000.0) for n in range(12)]
    watch = BoundedWaits(1.0, turn, 60.0, by_time=metric == "time")
    policy = f"tiresias:promote=1,queues={turn:g},metric={metric}"
    workload = Workload.of([*gangs, *small, JobSpec("one", 0.0, gpus=1, duration_s=50_000.0)])
    fairway.simulate(workload, cluster="v100:2x4", policy=policy, observer=watch, restart_cost_s=restart_s)
    assert watch.promotions


def test_the_end_of_a_turn_wakes_those_who_wait_for_it() -> None:
    jobs = [JobSpec(name, 0.0, gpus=1, duration_s=200_000.0) for name in "ab"]
    watch = BoundedWaits(0.5, 10.0, 60.0)
    policy = "tiresias:queues=10,promote=0.5"
    fairway.simulate(Workload.of(jobs), cluster="v100:1", policy=policy, observer=watch, restart_cost_s=300.0)
    assert watch.longest_s < 2000


@pytest.mark.parametrize("policy", ["tiresias:promote=2", "capacity:reserve_after_s=600"])
def test_a_gang_larger_than_what_is_up_holds_nobody_back(policy: str) -> None:
    small = [JobSpec(f"s{n}", 10.0 * n, gpus=1, duration_s=600.0, queue=f"q{n % 2}") for n in range(30)]
    workload = Workload.of([JobSpec("gang", 5.0, gpus=8, duration_s=600.0, queue="big"), *small])
    down = Faults((Outage(100.0, 1, 50_000.0),))
    result = fairway.simulate(workload, cluster="v100:2x4", policy=policy, faults=down)
    took_s = [float(jct) for jct, spec in zip(result.jct_s, result.specs, strict=True) if spec.gpus == 1]
    assert max(took_s) < 20_000


def test_after_its_turn_a_promoted_job_goes_on_in_the_second_queue() -> None:
    """Both jobs are in the last queue by their service. What `old` had before its promotion counts no more."""
    jobs = [job("old", 1, 9000.0), job("mid", 1, 9000.0, submitted_s=10.0)]
    past = {"old": 5000.0, "mid": 2000.0}
    promoted = {"promoted": {"jobs": [0], "since_s": [4000.0], "service": [4500.0], "seconds": [4500.0]}}
    policy = make_policy("tiresias:queues=100/1000,promote=2")
    for memory, grants in ((promoted, [1, 0]), ({}, [0, 1])):
        view = snapshot_of(jobs, "v100:1", now_s=5010.0, running={"mid": 1}, attained=past, memory=memory)
        assert policy.decide(view).gpus.tolist() == grants
