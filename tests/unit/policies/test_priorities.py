"""Priorities around policies: higher ones first, whoever may not be stopped left alone, one class as if by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fairway import JobSpec, Workload, simulate
from fairway.core.action import Launch
from fairway.core.admission import admit
from fairway.core.check import check
from fairway.core.decision import Decision
from fairway.core.event import JobSubmitted, JobUpdated, Woken
from fairway.core.occupancy import Occupancy
from fairway.core.plan import plan
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.core.state import State
from fairway.placement import placement
from fairway.policies import make_policy, policies
from fairway.policies.priorities import ByPriority, by_priority
from fairway.simulator.faults import Faults, Outage
from fairway.testing import Invariants, job, random_cluster, random_snapshot, random_workload, snapshot_of, state_of
from fairway.testing.builders import submitted
from fairway.testing.seeds import quick

SEEDS = range(12)
SHARING = ["max_min_fairness:packing=on", "gandiva", "finish_time_fairness:packing=on"]


def low(name: str, gpus: int = 1, **more: Any) -> JobSpec:
    return job(name, gpus, 9000.0, **more)


def high(name: str, gpus: int = 1, **more: Any) -> JobSpec:
    return job(name, gpus, 9000.0, priority=5, **more)


def decided(snapshot: Snapshot, policy: str | Policy) -> Decision:
    """A decision that keeps the laws, and that finds a place for everybody."""
    chosen = make_policy(policy) if isinstance(policy, str) else policy
    decision = by_priority(chosen).decide(snapshot)
    check(snapshot, decision)
    occupancy = Occupancy(snapshot.cluster)
    for row in snapshot.running_rows.tolist():
        occupancy.take(snapshot.gpus_held(row))
    assert not plan(snapshot, decision, occupancy, placement("packed")).refused
    return decision


@dataclass(frozen=True)
class Spy:
    """First come, first served; keeps what it saw, and counts its decisions in its memory."""

    seen: list[Snapshot] = field(default_factory=list)

    name: ClassVar[str] = "spy"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        self.seen.append(snapshot)
        decision = admit(snapshot, preempt=False)
        host = snapshot.host
        partners = {row: int(host[row]) for row in (host >= 0).nonzero()[0].tolist()}
        return decision._replace(partners=partners, memory={"turns": snapshot.memory.get("turns", 0) + 1})


# One class.


def test_with_one_priority_the_policy_is_asked_as_it_always_was() -> None:
    spy = Spy()
    for priority in (0, 7, -3):
        jobs = [job("a", 2, priority=priority), job("b", 4, priority=priority)]
        snapshot = snapshot_of(jobs, "v100:4", memory={"turns": 4})
        decision = ByPriority(spy).decide(snapshot)
        assert spy.seen.pop() is snapshot
        assert decision.memory == {"turns": 5}
        assert not decision.texts


def test_a_policy_that_ranks_priorities_itself_is_left_alone() -> None:
    antman, fifo = make_policy("antman"), make_policy("fifo")
    assert by_priority(antman) is antman
    wrapped = by_priority(fifo)
    assert by_priority(wrapped) is wrapped
    assert (wrapped.name, wrapped.knows, wrapped.round_s) == (fifo.name, fifo.knows, fifo.round_s)


def test_an_empty_snapshot_is_no_trouble() -> None:
    assert len(by_priority(make_policy("fifo")).decide(state_of([], "v100:4").snapshot()).gpus) == 0


# Exact cases: 4 GPUs, two jobs of two GPUs run, one of higher priority comes.


def _busy(more: list[JobSpec], **about: Any) -> Snapshot:
    jobs = [low("old", 2), low("young", 2, submitted_s=400.0), *more]
    told: dict[str, Any] = {"attained": {"old": 900.0, "young": 50.0}, "now_s": 1000.0} | about
    return snapshot_of(jobs, "v100:1x4", running={"old": (0, 1), "young": (2, 3)}, **told)


@pytest.mark.parametrize("policy", ["fifo", "backfill", "capacity"])
def test_where_the_policy_stops_nobody_whoever_was_started_last_makes_room(policy: str) -> None:
    snapshot = _busy([high("high", 2, submitted_s=900.0)])
    decision = decided(snapshot, policy)
    assert decision.gpus.tolist() == [2, 0, 2]
    assert decision.reason(snapshot, 1).endswith("; job high (2 GPUs) has a higher priority")


@pytest.mark.parametrize("policy", ["tiresias:queues=300", "las:levels=300"])
def test_where_the_policy_ranks_jobs_it_chooses_who_makes_room(policy: str) -> None:
    assert decided(_busy([high("high", 2, submitted_s=900.0)]), policy).gpus.tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    "policy", ["max_min_fairness", "shockwave", "proportional", "themis", "gandiva:pack=1", "srtf"]
)
def test_shares_are_shares_of_what_those_above_leave(policy: str) -> None:
    snapshot = _busy([high("high", 4, submitted_s=900.0)], knows=make_policy(policy).knows)
    assert decided(snapshot, policy).gpus.tolist() == [0, 0, 4]
    snapshot = _busy([high("high", 2, submitted_s=900.0)], knows=make_policy(policy).knows)
    assert sorted(decided(snapshot, policy).gpus[:2].tolist()) == [0, 2]


def test_a_job_of_higher_priority_that_waits_is_served_before_one_that_came_first() -> None:
    jobs = [low("first", 3), high("second", 3, submitted_s=1.0), job("third", 1, 90.0, 2.0, priority=-1)]
    snapshot = snapshot_of(jobs, "v100:4", now_s=2.0)
    decision = decided(snapshot, "fifo")
    assert decision.gpus.tolist() == [0, 3, 1]
    assert decision.order == [1, 2]
    assert decision.reason(snapshot, 0) == "needs 3 GPUs, 0 free; job second (3 GPUs) has a higher priority"


def test_one_gpu_is_told_of_as_one() -> None:
    snapshot = snapshot_of([low("a"), high("b")], "v100:1")
    assert "job b (1 GPU) has a higher priority" in decided(snapshot, "fifo").reason(snapshot, 0)


def test_within_a_class_a_strict_queue_names_its_own_head() -> None:
    jobs = [low("head", 3), low("behind", 1, submitted_s=1.0), high("high", 2, submitted_s=2.0)]
    snapshot = snapshot_of(jobs, "v100:4", now_s=2.0)
    decision = decided(snapshot, "fifo")
    assert decision.gpus.tolist() == [0, 0, 2]
    assert decision.reason(snapshot, 1).startswith("waits behind job head, which came first and does not fit yet; ")


# Jobs that may not be stopped.


def test_whoever_was_started_a_moment_ago_keeps_its_gpus_and_the_decision_wakes_in_time() -> None:
    snapshot = _busy([high("high", 3, submitted_s=900.0)], min_run_s=60.0)
    decision = decided(snapshot, "fifo")
    assert decision.gpus.tolist() == [2, 2, 0]
    assert decision.wake_s == pytest.approx(1010.0, abs=1e-3)
    assert decision.reason(snapshot, 2).endswith("job young (2 GPUs) has a lower priority, but cannot be stopped now")
    two = _busy([high("high", 2, submitted_s=900.0)], min_run_s=60.0)
    assert decided(two, "fifo").gpus.tolist() == [0, 2, 2]


def test_a_job_that_is_never_preempted_keeps_its_gpus_whatever_comes() -> None:
    jobs = [low("never", 2, preemptible=False), low("young", 2, submitted_s=400.0), high("high", 4, submitted_s=900.0)]
    about: dict[str, Any] = {"now_s": 1000.0, "running": {"never": (0, 1), "young": (2, 3)}}
    decision = decided(snapshot_of(jobs, "v100:1x4", **about), "fifo")
    assert decision.gpus.tolist() == [2, 2, 0]
    assert decision.wake_s == math.inf
    jobs[2] = high("high", 2, submitted_s=900.0)
    assert decided(snapshot_of(jobs, "v100:1x4", **about), "tiresias").gpus.tolist() == [2, 0, 2]


# GPU types, sharing, naming.


def test_each_gpu_type_is_counted_by_itself() -> None:
    jobs = [
        low("slow", 2, gpu_types=("k80",)),
        low("any", 2, submitted_s=1.0),
        high("fast", 2, submitted_s=2.0, gpu_types=("v100",)),
    ]
    running = {"slow": (2, 3), "any": (0, 1)}
    decision = decided(snapshot_of(jobs, "v100:1x2,k80:1x2", now_s=100.0, running=running), "fifo")
    assert decision.gpus.tolist() == [2, 0, 2]
    assert decision.gpu_types is not None
    assert decision.gpu_types.tolist()[::2] == [1, 0]


def _shared(raised: int) -> State:
    """Two jobs on the same two GPUs, one of which gets a priority; and a third that runs beside them."""
    state = state_of([low("host", 2), low("guest", 2), low("third", 2)], "v100:1x4")
    state.commit([Launch(0, (0, 1), 0), Launch(1, (0, 1), 0, 0), Launch(2, (2, 3), 0)])
    state.apply(JobUpdated(0.0, raised, 1.0, 3, math.inf))
    state.apply(Woken(100.0))
    return state


@pytest.mark.parametrize("raised", [0, 1])
def test_jobs_that_share_gpus_count_as_the_highest_of_them(raised: int) -> None:
    spy = Spy()
    ByPriority(spy).decide(_shared(raised).snapshot())
    assert [snapshot.jobs.tolist() for snapshot in spy.seen] == [[0, 1], [2]]
    assert [snapshot.capacity.tolist() for snapshot in spy.seen] == [[4], [2]]


def test_a_host_is_not_taken_away_from_a_guest_that_may_not_be_stopped() -> None:
    jobs = [low("host", 2), low("guest", 2, preemptible=False), high("high", 4)]
    state = state_of(jobs, "v100:1x4")
    state.commit([Launch(0, (0, 1), 0), Launch(1, (0, 1), 0, 0)])
    state.apply(Woken(100.0))
    decision = decided(state.snapshot(frozenset({"pairs"})).copy(), "gandiva")
    assert decision.gpus.tolist() == [2, 2, 0]
    assert decision.partners == {1: 0}


@pytest.mark.parametrize("policy", ["gandiva", "gandiva_fair"])
def test_a_policy_that_names_gpus_moves_nobody_while_others_are_free(policy: str) -> None:
    jobs = [low("low", 2), high("high", 2, submitted_s=50.0)]
    snapshot = snapshot_of(jobs, "v100:1x4", now_s=60.0, running={"low": (0, 1)}, knows=make_policy(policy).knows)
    decision = decided(snapshot, policy)
    assert decision.gpus.tolist() == [2, 2]
    assert decision.placements.get(0, (0, 1)) == (0, 1)
    assert decision.placements[1] == (2, 3)


@pytest.mark.parametrize("policy", ["gandiva:pack=1", "gandiva_fair"])
def test_a_policy_that_names_gpus_gets_by_with_parts_of_nodes(policy: str) -> None:
    jobs = [low(f"low-{n}", 1, submitted_s=float(n)) for n in range(4)] + [high("high", 3, submitted_s=50.0)]
    running = {f"low-{n}": (n,) for n in range(4)}
    snapshot = snapshot_of(jobs, "v100:1x4", now_s=60.0, running=running, knows=make_policy(policy).knows)
    decision = decided(snapshot, policy)
    assert decision.gpus[4] == 3
    assert decision.gpus.sum() == 4


# Memory.


def _told(state: State, policy: Policy) -> Mapping[str, Any]:
    decision = policy.decide(state.snapshot())
    state.memory = decision.memory
    return decision.memory


def test_memory_goes_with_the_class_from_one_to_several_and_back() -> None:
    spy = ByPriority(Spy())
    state = state_of([low("a", 1), low("b", 1)], "v100:1x4")
    _told(state, spy)
    assert _told(state, spy) == {"turns": 2}
    state.apply(submitted(high("c"), 2, state.cluster, 0.0))
    assert _told(state, spy)["by_priority"]["0"] == {"turns": 3}
    assert _told(state, spy)["by_priority"]["0"] == {"turns": 4}
    state.apply(JobUpdated(0.0, 2, 1.0, 0, math.inf))
    assert _told(state, spy) == {"turns": 5}


def test_memory_of_a_class_that_is_gone_is_dropped_and_of_one_that_waits_is_kept() -> None:
    spy = ByPriority(Spy())
    state = state_of([low("a", 4), job("b", 4, priority=2)], "v100:1x4")
    state.memory = {"by_priority": {"0": {"turns": 7}, "2": {"turns": 1}, "9": {"turns": 3}}}
    assert _told(state, spy) == {"by_priority": {"0": {"turns": 7}, "2": {"turns": 2}}}


def test_a_decision_can_be_repeated_from_json() -> None:
    for seed in SEEDS:
        policy = ByPriority(make_policy("max_min_fairness"))
        snapshot = random_snapshot(seed, knows=policy.knows)
        once = policy.decide(snapshot)
        again = policy.decide(from_json(to_json(snapshot)))
        assert once.gpus.tolist() == again.gpus.tolist()
        assert dict(once.texts) == dict(again.texts)


def test_thousands_of_priorities_do_not_mean_thousands_of_questions() -> None:
    spy = Spy()
    state = State(random_cluster(0, mixed=False))
    gpus = int(state.capacity.sum())
    for number in range(2000):
        spec = JobSpec(f"job-{number}", 0.0, 1, duration_s=100.0, priority=number)
        state.apply(JobSubmitted(0.0, number, spec, 100.0, (1.0,), 10.0, 100.0, 0.0))
    decision = ByPriority(spy).decide(state.snapshot())
    assert decision.gpus.nonzero()[0].tolist() == list(range(2000 - gpus, 2000))
    assert len(spy.seen) == gpus
    assert f"and {gpus - 3} more have a higher priority" in decision.reason(state.snapshot(), 0)


def _blocked_by(lows: list[JobSpec], machines: str, queue: list[JobSpec], **about: Any) -> Snapshot:
    """Jobs that may not be stopped, one on each of the first GPUs, and a queue of higher priorities."""
    running = {spec.id: (at,) for at, spec in enumerate(lows)}
    return snapshot_of([*lows, *queue], machines, now_s=100.0, running=running, **about)


@pytest.mark.parametrize("machines", ["v100:1x4", "v100:1x2,k80:1x2"])
def test_nobody_asks_about_classes_that_could_not_use_what_is_left(machines: str) -> None:
    kept = [low("a", preemptible=False, gpu_types=("v100",)), low("b", preemptible=False, gpu_types=("v100",))]
    # Three GPUs of four, or one of the type that is gone.
    need, types = (3, ()) if "k80" not in machines else (1, ("v100",))
    queue = [job(f"j{n}", need, priority=1 + n % 9, submitted_s=1.0, gpu_types=types) for n in range(27)]
    spy, snapshot = Spy(), _blocked_by(kept, machines, queue)
    decision = ByPriority(spy).decide(snapshot)
    check(snapshot, decision)
    assert [view.jobs.tolist() for view in spy.seen] == [[0, 1]]
    assert decision.gpus.tolist() == [1, 1] + 27 * [0]
    who = "jobs a (1 GPU) and b (1 GPU)"
    assert decision.reason(snapshot, 2).endswith(f"{who} have a lower priority, but cannot be stopped now")
    smaller = [*queue, job("small", 1, priority=4, submitted_s=2.0, gpu_types=("k80",) if types else ())]
    snapshot = _blocked_by(kept, machines, smaller)
    decision = ByPriority(spy).decide(snapshot)
    assert decision.gpus.nonzero()[0].tolist() == [0, 1, 29]
    assert [int(view.priority[0]) for view in spy.seen[1:]] == [4, 0]


def test_classes_that_are_not_asked_wake_when_those_in_their_way_may_be_stopped() -> None:
    kept = [low("a"), low("b"), job("c", 1, 9000.0, priority=2)]
    queue = [job(f"j{n}", 3, priority=1 + n, submitted_s=1.0) for n in range(3)]
    attained = {"a": 40.0, "b": 10.0, "c": 59.0}
    snapshot = _blocked_by(kept, "v100:1x4", queue, min_run_s=60.0, attained=attained)
    spy = Spy()
    assert ByPriority(spy).decide(snapshot).wake_s == pytest.approx(101.0, abs=1e-3)
    assert [view.jobs.tolist() for view in spy.seen] == [[2, 4], [0, 1]]


def test_jobs_stop_where_those_above_leave_nothing_and_their_class_is_remembered() -> None:
    jobs = [low("a", 2), low("waits", 1), high("b", 4)]
    snapshot = snapshot_of(jobs, "v100:1x4", now_s=100.0, running={"a": (0, 1)}, memory={"turns": 4})
    spy = Spy()
    decision = ByPriority(spy).decide(snapshot)
    assert decision.gpus.tolist() == [0, 0, 4]
    assert [view.jobs.tolist() for view in spy.seen] == [[2]]
    assert decision.memory == {"by_priority": {"0": {"turns": 4}, "5": {"turns": 5}}}
    assert decision.reason(snapshot, 0) == "needs 2 GPUs, 0 free; job b (4 GPUs) has a higher priority"


# Every policy.


@pytest.mark.parametrize("name", [*quick(policies()), *SHARING])
def test_decisions_of_every_policy_keep_the_laws(name: str) -> None:
    policy = make_policy(name)
    for seed in SEEDS:
        snapshot = random_snapshot(seed, knows=policy.knows)
        decision = decided(snapshot, policy)
        assert all(decision.reason(snapshot, row) for row in range(len(snapshot)))


@pytest.mark.parametrize("name", sorted(policies()))
def test_the_highest_priority_gets_what_it_would_get_alone(name: str) -> None:
    policy = make_policy(name)
    for seed in SEEDS if not getattr(policy, "ranks_priorities", False) else ():
        snapshot = random_snapshot(seed, knows=policy.knows)
        if len(snapshot) and not len(snapshot.protected_rows):
            top = (snapshot.priority == snapshot.priority.max()).nonzero()[0]
            alone = policy.decide(snapshot.part(top))
            assert decided(snapshot, policy).gpus[top].tolist() == alone.gpus.tolist(), seed


@pytest.mark.parametrize("name", [*quick(policies()), *SHARING])
def test_every_policy_brings_all_jobs_to_an_end(name: str) -> None:
    for seed in (1, 4):
        where = random_cluster(seed)
        workload = random_workload(seed, where, jobs=20, span_s=1200.0)
        faults = Faults((Outage(300.0, 0, 200.0),), mtbf_s=math.inf, repair_s=1.0) if len(where.nodes) > 1 else None
        result = simulate(workload, cluster=where, policy=name, faults=faults, observer=Invariants())
        assert result.finished == 20


# In the simulator.


def _mean_jct_s(priorities: bool | None, rules: str = "native", policy: str = "fifo") -> tuple[float, float]:
    jobs = [job(f"j{n}", 2, 600.0, 60.0 * n, priority=n % 2) for n in range(20)]
    result = simulate(Workload.of(jobs), cluster="v100:1x4", policy=policy, rules=rules, priorities=priorities)
    jct_s = np.array(result.jct_s)
    assert result.figures().get("priorities", False) == bool(
        priorities if priorities is not None else rules == "native"
    )
    return float(jct_s[1::2].mean()), float(jct_s[::2].mean())


def test_simulated_jobs_of_higher_priority_wait_less() -> None:
    first, second = _mean_jct_s(None)
    assert first < 0.5 * second
    level, other = _mean_jct_s(False)
    assert level == pytest.approx(other, rel=0.1)


def test_published_rules_know_no_priorities_unless_told() -> None:
    assert _mean_jct_s(None, "tiresias") == _mean_jct_s(False, "tiresias")
    assert _mean_jct_s(True, "tiresias") != _mean_jct_s(False, "tiresias")


def test_a_trace_of_one_priority_is_simulated_as_it_always_was() -> None:
    jobs = [replace(spec, priority=3) for spec in random_workload(3, "v100:2x4", jobs=20).jobs]
    runs = [
        simulate(Workload.of(jobs), cluster="v100:2x4", policy="las", priorities=ranked) for ranked in (True, False)
    ]
    assert np.array_equal(runs[0].finished_s, runs[1].finished_s)
    assert "priorities" not in runs[0].figures()
