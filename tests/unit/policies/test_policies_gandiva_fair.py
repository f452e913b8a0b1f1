"""Gandiva_fair at work: the stride example by hand and by simulation, shares, starvation, homes, mixed GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.core.action import Action
from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.event import Event, NodeLost
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import load_profile
from fairway.policies import make_policy
from fairway.policies.gandiva_fair import GandivaFair
from fairway.policies.gandiva_fair.homes import Loads, Types, even_out
from fairway.policies.gandiva_fair.rooms import NodeGpus, Rooms, concrete
from fairway.policies.gandiva_fair.stride import advanced, near_the_mean, newcomers_start, turns
from fairway.simulator.result import Result
from fairway.simulator.rules import Rules
from fairway.testing import check_policy, cluster, job, snapshot_of, state_of
from fairway.testing.seeds import ALL, some

FREE = Rules("free")
HOUR_S = 3600.0


class Meter:
    """GPU-seconds by user and GPU type between two instants, read off the grants."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s, self.until_s = from_s, until_s
        self.gpu_s: dict[str, Floats] = {}
        self.capacity_gpu_s = 0.0
        self._since_s, self._grants = 0.0, dict[str, Floats]()

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Book what was held until now."""
        span_s = min(state.now_s, self.until_s) - max(self._since_s, self.from_s)
        if span_s > 0:
            for user, gpus in self._grants.items():
                self.gpu_s[user] = self.gpu_s.get(user, np.zeros(len(gpus))) + gpus * span_s
        self._since_s = state.now_s

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Note who holds what from now on."""
        kinds = np.zeros(len(snapshot), dtype=np.int64) if decision.gpu_types is None else decision.gpu_types
        self._grants = {}
        for row in decision.gpus.nonzero()[0].tolist():
            user = snapshot.names.users[snapshot.user[row]]
            mine = self._grants.setdefault(user, np.zeros(len(snapshot.capacity)))
            mine[kinds[row]] += int(decision.gpus[row])

    def means(self) -> dict[str, float]:
        """GPUs that each user held on average."""
        return {user: float(gpu_s.sum()) / (self.until_s - self.from_s) for user, gpu_s in sorted(self.gpu_s.items())}


def quanta(result: Result, count: int) -> list[set[str]]:
    """Who runs in each of the first minutes."""
    runs: list[set[str]] = [set() for _ in range(count)]
    for number, start_s, end_s, _ in result.ledger.segments:
        for minute in range(count):
            if start_s <= 60 * minute + 30 < end_s:
                runs[minute].add(result.specs[number].id)
    return runs


EXAMPLE = [{"A", "B"}, {"C"}, {"A", "B"}, {"A", "B"}, {"C"}, {"A", "B"}]


def stride_by_hand(owners: Sequence[str], *, gangs_pay: bool) -> tuple[list[set[str]], list[float]]:
    """300 quanta of A (2 GPUs), B (2) and C (4) on one server of 4: who runs when, and the GPU-quanta of each."""
    gpus = np.array([2, 2, 4])
    names, user = np.unique(list(owners), return_inverse=True)
    tickets, entitled = np.full(3, 4 / 3), np.full(len(names), 4 / len(names))
    users, passes, had, history = np.zeros(len(names)), np.zeros(3), np.zeros(3), []
    for _ in range(300):
        free, runs = 4, np.zeros(3)
        for row in turns(users, passes, user, gpus, entitled, 60.0, np.zeros(3, dtype=bool)).tolist():
            if gpus[row] <= free:
                runs[row], free = gpus[row], free - int(gpus[row])
        had += runs
        pays = 60 * (runs if gangs_pay else np.minimum(runs, 1))
        passes = advanced(passes, pays, tickets)
        users = advanced(users, np.bincount(user, pays, minlength=len(names)), entitled)
        history.append({"ABC"[row] for row in runs.nonzero()[0]})
    return history, had.tolist()


@pytest.mark.parametrize("owners", ["uvw", "uuu"], ids=["three-users", "one-user"])
def test_the_worked_example_of_stride_by_arithmetic(owners: str) -> None:
    """One ticket each: after 300 quanta all have had 400 GPU-quanta."""
    history, had = stride_by_hand(owners, gangs_pay=True)
    assert history[:6] == EXAMPLE
    assert had == [400, 400, 400]


def test_if_gangs_did_not_pay_for_their_size_the_largest_would_get_twice_as_much() -> None:
    _, had = stride_by_hand("uvw", gangs_pay=False)
    assert had == [300, 300, 600]


@pytest.mark.parametrize("owners", [("u", "v", "w"), ("u", "u", "u")], ids=["three-users", "one-user"])
@pytest.mark.parametrize("rules", [FREE, "native"], ids=["free", "native"])
def test_the_worked_example_of_stride_by_simulation(owners: tuple[str, ...], rules: Rules | str) -> None:
    gangs = {"A": 2, "B": 2, "C": 4}
    jobs = [job(name, gpus, 500.0, user=user) for (name, gpus), user in zip(gangs.items(), owners, strict=True)]
    assert quanta(simulate(Workload.of(jobs), cluster="v100:4", policy="gandiva_fair", rules=rules), 6) == EXAMPLE


def test_three_hundred_quanta_give_each_job_four_hundred() -> None:
    """In GPU-quanta: A and B run for 200 quanta on 2 GPUs, C for 100 on 4, so that all three are done after 300."""
    jobs = [job("A", 2, 12_000, user="u"), job("B", 2, 12_000, user="v"), job("C", 4, 6_000, user="w")]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy="gandiva_fair", rules=FREE)
    assert (result.ledger.held_gpu_s / 60).tolist() == pytest.approx([400, 400, 400])
    assert result.makespan_s == pytest.approx(300 * 60)


def test_newcomers_get_no_credit_for_absence_and_keep_their_debts() -> None:
    passes, known = np.array([50.0, 70.0, 0.0, 90.0]), np.array([True, True, False, False])
    assert newcomers_start(passes, known, np.zeros(4, dtype=np.int64), 1).tolist() == [50.0, 70.0, 50.0, 90.0]


def test_old_claims_and_debts_are_forgotten() -> None:
    passes = near_the_mean(np.array([0.0, 100.0, 500.0]), np.ones(3), np.zeros(3, dtype=np.int64), 1, np.full(3, 150.0))
    assert passes.tolist() == [50.0, 100.0, 350.0]


def many_users(seed: int, weights: dict[str, float], *, jobs: int = 8, span_s: float = 600.0) -> list[JobSpec]:
    """Long jobs of odd gangs; every user wants more than its share."""
    random = np.random.default_rng(seed)
    return [
        job(
            f"{user}-{at}",
            int(random.choice([1, 1, 2, 2, 3, 4, 8])),
            1e5,
            float(random.integers(span_s)),
            user=user,
            weight=weight,
        )
        for user, weight in weights.items()
        for at in range(jobs)
    ]


@pytest.mark.parametrize("where", ["v100:2x8", "v100:4x4", "v100:1x12"])
@pytest.mark.parametrize("seed", some(range(3), 1))
def test_users_get_gpu_time_in_proportion_to_their_tickets(seed: int, where: str) -> None:
    weights = {"ann": 1.0, "bob": 2.0, "cid": 4.0}
    jobs = [spec for spec in many_users(seed, weights) if spec.gpus <= 12]
    meter = Meter(HOUR_S, 4 * HOUR_S)
    _run_until(jobs, where, "gandiva_fair", meter)
    gpus, tickets = meter.means(), sum(weights.values())
    total = sum(gpus.values())
    assert total >= 0.97 * cluster(where).gpu_count
    for user, weight in weights.items():
        assert gpus[user] == pytest.approx(total * weight / tickets, rel=0.03)


class _MeasuredError(Exception):
    """The measurement is over."""


def _run_until(jobs: Sequence[JobSpec], where: str, policy: str, meter: Meter, **more: Any) -> None:
    """Simulate until the meter has seen enough, instead of to the end of long jobs."""
    note = meter.after_events

    def after_events(state: State, events: Sequence[Event]) -> None:
        note(state, events)
        if state.now_s > meter.until_s:
            raise _MeasuredError

    meter.after_events = after_events  # type: ignore[method-assign]
    with pytest.raises(_MeasuredError):
        simulate(Workload.of(list(jobs)), cluster=where, policy=policy, observer=meter, **more)


def test_a_user_that_wants_little_gets_it_and_the_others_share_the_rest() -> None:
    """8 GPUs, demands (many, many, 2): 3, 3 and 2, as water filling says."""
    jobs = [job(f"{user}{at}", 1, 1e5, user=user) for user in ("ann", "bob") for at in range(8)]
    jobs += [job(f"cid{at}", 1, 1e5, user="cid") for at in range(2)]
    meter = Meter(600.0, 2 * HOUR_S)
    _run_until(jobs, "v100:8", "gandiva_fair", meter)
    assert meter.means() == pytest.approx({"ann": 3.0, "bob": 3.0, "cid": 2.0}, rel=0.02)


def test_a_stream_of_short_jobs_earns_no_larger_share() -> None:
    """Bob sends two new jobs every minute, ann has eight long ones; both have one ticket."""
    jobs = [job(f"ann{at}", 1, 1e5, user="ann") for at in range(8)]
    jobs += [job(f"bob{at}", 1, 90.0, 30.0 * at, user="bob") for at in range(400)]
    meter = Meter(1800.0, 3 * HOUR_S)
    _run_until(jobs, "v100:4", "gandiva_fair", meter)
    gpus = meter.means()
    assert gpus["ann"] == pytest.approx(2.0, rel=0.03)


def crowd() -> list[JobSpec]:
    """One job wants all 8 GPUs of a node; jobs of 25 s start there at all times, so that some are always protected."""
    small = [job(f"small{at}", 1, 25.0, 2.5 * at, user="bob") for at in range(960)]
    return [job("large", 8, 1e5, 5.0, user="ann"), *small]


def test_a_large_gang_is_not_starved_by_small_jobs() -> None:
    meter = Meter(300.0, 2400.0)
    _run_until(crowd(), "v100:1x8", "gandiva_fair", meter)
    gpus = meter.means()
    assert gpus["ann"] >= 3.5
    assert sum(gpus.values()) >= 7.5


def test_without_keeping_its_node_clear_the_gang_would_starve() -> None:
    meter = Meter(300.0, 2400.0)
    _run_until(crowd(), "v100:1x8", "gandiva_fair:patience=1000000", meter)
    assert meter.means().get("ann", 0.0) == 0.0


def test_a_gang_larger_than_a_node_gets_its_share() -> None:
    jobs = [job("wide", 12, 1e5, user="ann"), *(job(f"s{at}", 1, 1e5, user="bob") for at in range(20))]
    meter = Meter(600.0, 2 * HOUR_S)
    _run_until(jobs, "v100:4x4", "gandiva_fair", meter)
    assert meter.means() == pytest.approx({"ann": 8.0, "bob": 8.0}, rel=0.03)


def test_jobs_resume_on_the_gpus_that_they_left() -> None:
    """Turns cost a second each, not a restart: two gangs that take turns on one node lose about a sixtieth."""
    result = simulate(
        Workload.of([job("a", 4, 3000, user="u"), job("b", 4, 3000, user="v")]), cluster="v100:4", policy="gandiva_fair"
    )
    figures = result.figures()
    assert figures["preemptions"] >= 90
    assert result.ledger.lost_gpu_s.sum() == pytest.approx(4.0 * figures["preemptions"])
    assert {gpus for _, _, _, gpus in result.ledger.segments} == {(0, 1, 2, 3)}


def test_jobs_without_contention_are_left_alone() -> None:
    result = simulate(
        Workload.of([job("a", 4, 500), job("b", 2, 500, 10.0), job("c", 2, 500, 20.0)]),
        cluster="v100:2x4",
        policy="gandiva_fair",
    )
    assert result.figures()["preemptions"] == 0
    assert {len({gpu // 4 for gpu in gpus}) for _, _, _, gpus in result.ledger.segments} == {1}
    assert result.costs.rounds <= 6


def nodes_of(where: str, *jobs: JobSpec, **about: Any) -> NodeGpus:
    return NodeGpus(snapshot_of(list(jobs), where, **about))


def test_a_new_job_goes_to_the_node_with_the_lowest_ticket_load() -> None:
    loads = Loads(nodes_of("v100:3x4"), np.array([0, 0, 1, 2]), np.array([1.0, 1.0, 0.5, 3.0]))
    assert loads.of == [0.5, 0.125, 0.75]
    assert loads.lightest(0, 4) == 1
    assert loads.lightest(0, 5) == -1


def test_balancing_evens_out_ticket_loads() -> None:
    nodes, homes, tickets = nodes_of("v100:4x4"), np.zeros(16, dtype=np.int64), np.full(16, 0.5)
    loads = Loads(nodes, homes, tickets)
    for _ in range(4):
        even_out(loads, homes, tickets, np.ones(16, dtype=np.int64), np.arange(16), 0.1)
    assert np.bincount(homes, minlength=4).tolist() == [4, 4, 4, 4]
    assert loads.of == pytest.approx([0.5] * 4)


def test_balancing_moves_nothing_that_would_only_turn_the_gap_round() -> None:
    nodes, homes, tickets = nodes_of("v100:2x4"), np.zeros(1, dtype=np.int64), np.array([4.0])
    assert even_out(Loads(nodes, homes, tickets), homes, tickets, np.array([4]), np.arange(1), 0.1) == []
    assert homes.tolist() == [0]


def test_loads_stay_even_in_a_run() -> None:
    """All jobs that come later would fit on the first node only by waiting; nodes end up with equal loads."""
    jobs = [job(f"j{at}", 1, 1e5, 10.0 * at, user=f"u{at % 2}") for at in range(24)]
    spread: list[float] = []

    class Watch(Meter):
        def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
            super().after_round(snapshot, decision, actions)
            if snapshot.now_s > 600 and decision.memory:
                loads = Loads(NodeGpus(snapshot), decision.memory["homes"], decision.memory["tickets"])
                spread.append(max(loads.of) - min(loads.of))

    _run_until(jobs, "v100:3x4", "gandiva_fair", Watch(0.0, 2000.0))
    assert max(spread) <= 0.3


def test_nodes_that_are_down_take_nobody() -> None:
    state = state_of([job("a", 4, 100), job("b", 4, 100), job("c", 4, 100)], "v100:3x4")
    state.apply(NodeLost(1.0, 1))
    snapshot = state.snapshot()
    assert NodeGpus(snapshot).of_type == [[0, 2]]
    decision = make_policy("gandiva_fair").decide(snapshot)
    assert sorted(decision.placements.values()) == [(0, 1, 2, 3), (8, 9, 10, 11)]


def test_gangs_sit_on_as_few_nodes_as_possible_and_fill_the_smallest_hole() -> None:
    rooms = Rooms(nodes_of("v100:3x4"), [12])
    rooms.take(0, 3, ((1, 3),))
    assert rooms.on_one_node(0, 1, row=0) == ((1, 1),)
    assert rooms.on_few_nodes(0, 5, row=0) == ((0, 4), (1, 1))
    assert rooms.on_few_nodes(0, 9, row=0) == ((0, 4), (2, 4), (1, 1))
    assert rooms.on_few_nodes(0, 10, row=0) is None


def test_a_node_that_is_kept_clear_takes_only_the_gang_that_it_waits_for() -> None:
    rooms = Rooms(nodes_of("v100:2x4"), [8])
    rooms.closed[0] = 7
    assert rooms.on_one_node(0, 4, row=3) == ((1, 4),)
    assert rooms.on_few_nodes(0, 5, row=3) is None
    assert rooms.on_few_nodes(0, 5, row=7) == ((0, 4), (1, 1))


def test_who_goes_on_keeps_its_gpus_and_who_resumes_gets_back_those_it_left() -> None:
    rooms = Rooms(nodes_of("v100:1x8"), [8])
    granted = {0: ((0, 2),), 1: ((0, 2),), 2: ((0, 2),), 3: ((0, 2),)}
    places = concrete(rooms, granted, {1: ((0, 2),)}, {1: (2, 3), 2: (6, 7), 3: (2, 3)})
    assert places == {2: (6, 7), 0: (0, 1), 3: (4, 5)}


def test_the_jobs_that_gain_most_go_to_the_fast_type() -> None:
    """Two users are due one fast GPU each: each sends the job that gains most."""
    kinds, tickets = np.full(4, -1, dtype=np.int64), np.ones(4)
    speeds = np.array([[2.0, 5.0, 4.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
    due = np.array([[1.0, 1.0], [1.0, 1.0]])
    Types(kinds, tickets, np.array([0, 0, 1, 1]), speeds, due, np.array([2, 2])).assign(np.arange(4), [0, 1])
    assert kinds.tolist() == [1, 0, 0, 1]


PROFILE = load_profile(None)
MODELS = ("VGG19", "A3C", "ResNet-50", "Recommendation")


def trainings(per_user: int, gangs: Sequence[int]) -> list[JobSpec]:
    """Users with one model each, whose speed-ups from a K80 to a V100 are 1.6 to 10.6."""
    jobs = []
    for user, model in enumerate(MODELS):
        for at in range(per_user):
            gpus = gangs[at % len(gangs)]
            steps = PROFILE.rate(model, None, "v100", gpus) * 1e6
            jobs.append(JobSpec(f"{model}-{at}", 0.0, gpus, steps=steps, model=model, user=f"user{user}"))
    return jobs


@pytest.mark.parametrize("per_user", [1, 8])
def test_without_trade_each_user_gets_its_share_of_each_type(per_user: int) -> None:
    """Even a user with a single job gets its part of the fast and of the slow GPUs, by turns."""
    meter = Meter(HOUR_S, 5 * HOUR_S)
    gangs = (4,) if per_user == 1 else (1, 2, 1, 4)
    _run_until(trainings(per_user, gangs), "v100:2x4,k80:2x4", "gandiva_fair:trade=off,retype_s=300", meter)
    for gpu_s in meter.gpu_s.values():
        assert (gpu_s / (4 * HOUR_S)).tolist() == pytest.approx([2.0, 2.0], rel=0.1)


def work_done(meter: Meter) -> dict[str, float]:
    """GPU time in V100 seconds, by the speed of each user's model."""
    done = {}
    for user, model in enumerate(MODELS):
        slow = PROFILE.rate(model, None, "k80", 1) / PROFILE.rate(model, None, "v100", 1)
        gpu_s = meter.gpu_s[f"user{user}"]
        done[model] = float(gpu_s[0] + slow * gpu_s[1])
    return done


def test_trading_leaves_no_user_worse_off_and_does_more_work() -> None:
    meters = {}
    for trade in ("off", "on"):
        meters[trade] = Meter(HOUR_S, 5 * HOUR_S)
        policy = f"gandiva_fair:trade={trade}"
        _run_until(trainings(8, (1, 2, 1, 4)), "v100:2x4,k80:2x4", policy, meters[trade])
    before, after = work_done(meters["off"]), work_done(meters["on"])
    assert all(after[model] >= 0.97 * before[model] for model in MODELS)
    assert sum(after.values()) >= 1.15 * sum(before.values())
    assert meters["on"].gpu_s["user1"][0] < 0.2 * meters["off"].gpu_s["user1"][0]


def test_a_wait_is_explained_in_words() -> None:
    snapshot = snapshot_of([job("a", 4, 100, user="u"), job("b", 4, 100, user="v")], "v100:4", now_s=10.0)
    decision = make_policy("gandiva_fair").decide(snapshot)
    assert decision.gpus.tolist() == [4, 0]
    assert decision.reason(snapshot, 1) == (
        "its owner is entitled to 2.0 GPUs and holds 0 in this quantum; turns change at 60 s"
    )
    assert decision.wake_s == 60.0
    assert decision.warm


def test_whose_turn_it_is_but_cannot_start_yet_is_told_why() -> None:
    """The job on the GPUs was started 10 seconds before the boundary and may not be stopped."""
    jobs = [job("a", 4, 1000, user="u"), job("b", 4, 1000, user="v")]
    snapshot = snapshot_of(jobs, "v100:4", now_s=60.0, running={"a": 4}, attained={"a": 10.0}, min_run_s=60.0)
    decision = make_policy("gandiva_fair").decide(snapshot)
    assert decision.gpus.tolist() == [4, 0]
    assert "it is its turn, but jobs that were started a moment ago hold GPUs on" in decision.reason(snapshot, 1)


@pytest.mark.parametrize("knob", ["quantum_s=0", "retype_s=10", "balance=-1", "patience=0", "trade=maybe"])
def test_senseless_knobs_are_refused(knob: str) -> None:
    with pytest.raises(InputError, match=knob.split("=")[0]):
        make_policy(f"gandiva_fair:{knob}")


def test_the_policy_is_told_nothing_that_a_live_scheduler_does_not_know() -> None:
    assert GandivaFair.knows == frozenset()


@pytest.mark.parametrize("knobs", ["trade=off", "quantum_s=33.3,retype_s=100,balance=0", "patience=1"])
def test_other_knobs_keep_the_contract(knobs: str) -> None:
    check_policy(f"gandiva_fair:{knobs}", seeds=[20], other_processes=ALL)
