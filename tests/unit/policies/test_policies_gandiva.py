"""Gandiva: the worked examples of its description, and the laws of its turns, packs, moves and growth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

import fairway
from fairway.core.action import Action, Launch, Move, Resize
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.event import Event, JobEvicted, JobFinished, JobStarted, NodeLost, NodeRestored, Woken
from fairway.core.job import JobSpec, Workload
from fairway.core.pairing import MeasuredTable, PairTable
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.core.state import State
from fairway.policies import make_policy
from fairway.policies.gandiva.homes import NodeLoads, affinity_of
from fairway.policies.gandiva.introspection import pays
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.result import Result
from fairway.testing import check_policy, cluster, job, random_workload, snapshot_of, state_of
from fairway.testing.harness import run_policy, unfinished
from fairway.testing.seeds import ALL


class Watch:
    """Keeps every action and every eviction."""

    def __init__(self) -> None:
        self.actions: list[tuple[float, Action]] = []
        self.evictions: list[JobEvicted] = []

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        self.evictions += [event for event in events if isinstance(event, JobEvicted)]

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        self.actions += [(snapshot.now_s, action) for action in actions]

    def of(self, kind: type[Any]) -> list[tuple[float, Action]]:
        return [(time_s, action) for time_s, action in self.actions if isinstance(action, kind)]


def simulated(jobs: Sequence[JobSpec], machines: str, policy: str = "gandiva", **more: Any) -> tuple[Result, Watch]:
    watch = Watch()
    world: dict[str, Any] = {"cluster": machines, "priorities": False} | more
    result = fairway.simulate(Workload.of(list(jobs)), policy=policy, observer=watch, **world)
    assert result.finished == len(jobs)
    return result, watch


def held_s(result: Result, number: int, until_s: float) -> float:
    """How long a job held GPUs up to an instant."""
    return sum(
        min(end, until_s) - start for j, start, end, _ in result.ledger.segments if j == number and start < until_s
    )


# Worked example 1: time slicing.


def test_six_jobs_on_four_gpus_each_run_four_of_six_quanta() -> None:
    jobs = [job(f"j{n}", 1, 3600.0) for n in range(6)]
    result, _ = simulated(jobs, "v100:4", "gandiva:pack=1")
    assert [held_s(result, n, 360.0) for n in range(6)] == pytest.approx([240.0] * 6)
    assert [held_s(result, n, 2160.0) / 2160.0 for n in range(6)] == pytest.approx([2 / 3] * 6)


def test_all_six_have_their_first_hundred_mini_batches_by_the_end_of_the_second_quantum() -> None:
    jobs = [job(f"j{n}", 1, 3600.0) for n in range(6)]
    result, _ = simulated(jobs, "v100:4", "gandiva:pack=1")
    assert result.feedback_s.tolist() == pytest.approx([60.0] * 4 + [120.0] * 2)
    fifo, _ = simulated(jobs, "v100:4", "fifo")
    assert (fifo.started_s - fifo.submitted_s).tolist() == [0, 0, 0, 0, 3600, 3600]


# Worked example 2: packing is kept or undone by what is measured.


def packed_state(rates: tuple[float, float], now_s: float = 60.0, machines: str = "v100:1") -> State:
    """Two jobs that have shared a GPU since 0 s; alone they make 10 and 8 steps a second."""
    state = state_of([job("a", 1, 9000.0), job("b", 1, 9000.0)], machines, min_run_s=60.0)
    state.commit([Launch(0, (0,), 0), Launch(1, (0,), 0, 0)])
    for number, rate in enumerate(rates):
        state.apply(JobStarted(0.0, number, rate, 0.0))
    state.memory = {
        "alone": {"0": [0, 0, 10.0], "1": [0, 0, 8.0]},
        "trials": {"1": [0.0, 1.0]},
        "packs": {"0": ["0", "1"]},
    }
    state.apply(Woken(now_s))
    return state


def test_a_pack_that_makes_more_than_taking_turns_is_kept() -> None:
    assert pays(7 / 10 + 5 / 8, 1.0, 0.05)
    decision = make_policy("gandiva").decide(packed_state((7.0, 5.0)).snapshot())
    assert decision.gpus.tolist() == [1, 1]
    assert decision.partners == {1: 0}
    assert next(iter(decision.memory["pairs"].values())) == [pytest.approx(1.325), 0.0]
    assert not decision.memory["trials"]


def test_a_pack_that_makes_less_is_undone_and_not_tried_again_for_a_while() -> None:
    assert not pays(4 / 10 + 4 / 8, 1.0, 0.05)
    state = packed_state((4.0, 4.0))
    decision = make_policy("gandiva").decide(state.snapshot())
    assert decision.gpus.tolist() == [1, 0]
    assert not decision.partners
    assert decision.memory["bans"] == {"0+1": 660.0}
    assert next(iter(decision.memory["pairs"].values())) == [pytest.approx(0.9), 660.0]


@pytest.mark.parametrize(("now_s", "together"), [(600.0, False), (720.0, True)])
def test_a_pair_that_failed_is_tried_again_after_the_cool_down(now_s: float, together: bool) -> None:
    state = state_of([job("a", 1, 9000.0), job("b", 1, 9000.0)], "v100:1", now_s=now_s, running={"a": (0,)})
    memory = {
        "alone": {"0": [0, 0, 10.0], "1": [0, 0, 8.0]},
        "bans": {"0+1": 660.0},
        "pairs": {"0.0~0.0|1|0": [0.9, 660.0]},
    }
    state.memory = memory
    assert bool(make_policy("gandiva").decide(state.snapshot()).partners) == together


@pytest.mark.parametrize(("kept", "together"), [((0.8, 0.7), True), ((0.5, 0.4), False), ((0.0, 0.0), True)])
def test_a_pair_that_was_measured_live_before_is_tried_if_it_paid(kept: tuple[float, float], together: bool) -> None:
    state = state_of([job("a", 1, 9000.0), job("b", 1, 9000.0)], "v100:1", now_s=600.0, running={"a": (0,)})
    state.memory = {"alone": {"0": [0, 0, 10.0], "1": [0, 0, 8.0]}}
    snapshot = state.snapshot()
    snapshot.frame = snapshot.frame._replace(measured=MeasuredTable(PairTable({0: 0, 1: 1}, {(0, 1): (kept,)})))
    again = from_json(to_json(snapshot))
    for view in (snapshot, again):
        assert bool(make_policy("gandiva").decide(view).partners) == together


@pytest.mark.parametrize("unseen", [0, 1])
def test_a_job_whose_speed_is_an_assumption_is_not_packed(unseen: int) -> None:
    state = state_of([job("a", 1, 9000.0), job("b", 1, 9000.0)], "v100:1", now_s=600.0, running={"a": (0,)})
    state.memory = {"alone": {"0": [0, 0, 10.0], "1": [0, 0, 8.0]}}
    snapshot = state.snapshot()
    snapshot.frame = snapshot.frame._replace(measured=MeasuredTable(unseen=frozenset({unseen})))
    decision = make_policy("gandiva").decide(from_json(to_json(snapshot)))
    assert not decision.partners
    assert decision.memory["alone"]["0"] == [0, 0, 1.0 if unseen else 10.0]


def test_a_trial_that_has_not_lasted_long_enough_goes_on() -> None:
    decision = make_policy("gandiva").decide(packed_state((4.0, 4.0), now_s=30.0).snapshot())
    assert decision.partners == {1: 0}
    assert decision.wake_s == 60.0


def test_packing_pays_on_a_full_cluster() -> None:
    steps = 60_000.0
    jobs = [job(f"j{n}", 1, steps=steps, model="Recommendation") for n in range(4)]
    packed, watch = simulated(jobs, "v100:2")
    sliced, _ = simulated(jobs, "v100:2", "gandiva:pack=1")
    assert packed.makespan_s is not None
    assert sliced.makespan_s is not None
    assert packed.makespan_s < 0.75 * sliced.makespan_s
    assert any(action.host >= 0 for _, action in watch.of(Launch))  # type: ignore[union-attr]


def test_a_pack_is_taken_apart_when_gpus_are_free() -> None:
    decision = make_policy("gandiva").decide(packed_state((7.0, 5.0), machines="v100:2").snapshot())
    assert decision.gpus.tolist() == [1, 1]
    assert (decision.partners, decision.placements) == ({}, {1: (1,)})


def test_a_job_whose_partner_ends_during_the_trial_may_be_packed_again() -> None:
    state = packed_state((7.0, 5.0), now_s=30.0)
    state.apply(JobFinished(30.0, 0))
    decision = make_policy("gandiva").decide(state.snapshot())
    assert decision.gpus.tolist() == [1]
    assert not decision.memory["trials"]
    assert decision.wake_s == math.inf


def test_what_is_remembered_of_a_pack_ends_with_its_first_job() -> None:
    jobs = [job(name, 1, 600.0) for name in "abcd"]
    state = state_of(jobs, "v100:1", now_s=30.0)
    state.memory = {"packs": {"1": ["1", "2"], "9": ["9", "2", "3"]}}
    decision = make_policy("gandiva").decide(state.snapshot())
    assert decision.gpus.tolist() == [1, 0, 0, 0]
    assert decision.memory["packs"] == {"1": ["1", "2"]}


def test_jobs_that_do_not_fit_beside_each_other_are_not_tried_again_and_again() -> None:
    jobs = [job(f"j{n}", 1, steps=3000.0, model="VGG19") for n in range(3)]
    _, watch = simulated(jobs, "v100:1")
    assert 1 <= len(watch.evictions) <= 3


def test_memory_that_is_known_not_to_suffice_keeps_jobs_apart() -> None:
    jobs = [job(f"j{n}", 1, 600.0, memory_bytes=9 * 10**9) for n in range(3)]
    result, watch = simulated(jobs, "v100:1")
    assert not watch.evictions
    assert not any(action.host >= 0 for _, action in watch.of(Launch))  # type: ignore[union-attr]
    assert result.feedback_s.max() <= 180.0


def test_three_may_share_where_the_user_allows_it() -> None:
    jobs = [job(f"j{n}", 1, steps=30_000.0, model="A3C") for n in range(6)]
    two, _ = simulated(jobs, "v100:1")
    three, _ = simulated(jobs, "v100:1", "gandiva:pack=3")
    assert three.makespan_s is not None
    assert two.makespan_s is not None
    assert three.makespan_s < two.makespan_s


# Worked example 3: de-fragmentation.


def test_two_migrations_make_room_for_a_gang_of_four() -> None:
    jobs = [job(name, 1, 9000.0) for name in "abcd"] + [job("gang", 4, 900.0, 600.0)]
    running = {"a": (0,), "b": (1,), "c": (4,), "d": (5,)}
    snapshot = snapshot_of(jobs, "v100:2x4", now_s=600.0, running=running, attained=dict.fromkeys("abcd", 600.0))
    decision = make_policy("gandiva").decide(snapshot)
    assert decision.gpus.tolist() == [1, 1, 1, 1, 4]
    assert decision.placements == {2: (2,), 3: (3,), 4: (4, 5, 6, 7)}


def test_without_migration_the_gang_is_spread_over_what_is_free() -> None:
    jobs = [job(name, 1, 9000.0) for name in "abcd"] + [job("gang", 4, 900.0, 600.0)]
    running = {"a": (0,), "b": (1,), "c": (4,), "d": (5,)}
    snapshot = snapshot_of(jobs, "v100:2x4", now_s=600.0, running=running, attained=dict.fromkeys("abcd", 600.0))
    decision = make_policy("gandiva:migrate=off").decide(snapshot)
    assert decision.placements == {4: (2, 3, 6, 7)}


def test_jobs_that_were_started_a_moment_ago_are_not_moved_out_of_the_way() -> None:
    jobs = [job(name, 1, 9000.0) for name in "abcd"] + [job("gang", 4, 900.0, 20.0)]
    running = {"a": (0,), "b": (1,), "c": (4,), "d": (5,)}
    attained = dict.fromkeys("abcd", 20.0)
    snapshot = snapshot_of(jobs, "v100:2x4", now_s=20.0, running=running, attained=attained, min_run_s=60.0)
    decision = make_policy("gandiva").decide(snapshot)
    assert decision.placements == {4: (2, 3, 6, 7)}


def test_a_spread_gang_is_brought_together_when_a_node_is_free() -> None:
    gang = job("gang", 4, 9000.0)
    state = state_of([gang], "v100:2x4", now_s=120.0, running={"gang": (2, 3, 6, 7)}, attained={"gang": 120.0})
    decision = make_policy("gandiva").decide(state.snapshot())
    assert decision.placements == {0: (0, 1, 2, 3)}
    assert "0" in decision.memory["moves"]


# Where a job goes.


def floor_of(machines: str, load: Mapping[int, tuple[int, int]]) -> NodeLoads:
    """Nodes with a (gang, GPUs claimed) each."""
    where: Cluster = cluster(machines)
    floor = NodeLoads(where, [node.gpus for node in where.nodes], [0] * len(where.nodes))
    for node, (gang, claimed) in load.items():
        floor.settle(((node, claimed),), gang)
        floor.take(((node, claimed),))
    return floor


def test_affinity_classes_are_powers_of_two() -> None:
    assert [affinity_of(gang) for gang in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]


def test_the_order_in_which_a_place_is_looked_for() -> None:
    assert floor_of("v100:4x4", {0: (1, 3), 1: (1, 2), 2: (2, 2)}).fit(1, 0) == ((1, 1),)  # its affinity, least load
    assert floor_of("v100:4x4", {0: (1, 4), 1: (1, 4), 2: (2, 2)}).fit(1, 0) == ((3, 1),)  # a node that is nobody's
    assert floor_of("v100:3x4", {0: (1, 4), 1: (4, 4), 2: (2, 2)}).fit(1, 0) == ((2, 1),)  # another affinity
    full = floor_of("v100:3x4", {0: (1, 4), 1: (1, 4), 2: (4, 4)})
    assert full.fit(1, 0) == ()
    full.settle(((0, 2),), 1)
    assert full.share(1, (0,)) == ((1, 1),)  # taking turns where the load is lowest
    full.settle(((1, 3),), 1)
    assert full.share(1, (0,)) == ((0, 1),)  # an own node, though another is a little less crowded
    full.settle(((0, 4), (1, 4)), 1)
    assert full.share(1, (0,)) == ((2, 1),)  # not where a whole turn would be lost


def test_large_gangs_take_whole_nodes() -> None:
    floor = floor_of("v100:4x4", {0: (1, 1)})
    assert floor.fit(8, 0) == ((1, 4), (2, 4))
    assert floor_of("v100:2x4", {0: (1, 1)}).fit(8, 0) == ()
    assert floor_of("v100:2x4", {0: (1, 1)}).share(8, (0,)) == ((0, 4), (1, 4))


def test_gangs_of_one_size_share_a_node() -> None:
    jobs = [job("one", 1, 500.0), job("two", 2, 500.0), job("uno", 1, 500.0), job("four", 4, 500.0)]
    decision = make_policy("gandiva").decide(snapshot_of(jobs, "v100:3x4"))
    assert decision.placements == {0: (0,), 1: (4, 5), 2: (1,), 3: (8, 9, 10, 11)}


def test_nobody_is_placed_on_a_node_that_is_down() -> None:
    state = state_of([job("a", 2, 500.0), job("b", 4, 500.0)], "v100:3x4")
    state.apply(NodeLost(0.0, 0))
    snapshot = from_json(to_json(state.snapshot()))
    assert list(snapshot.down_nodes) == [0]
    assert make_policy("gandiva").decide(snapshot).placements == {0: (4, 5), 1: (8, 9, 10, 11)}
    state.apply(NodeRestored(1.0, 0))
    assert make_policy("gandiva").decide(state.snapshot()).placements == {0: (0, 1), 1: (4, 5, 6, 7)}


# Turns.


@pytest.mark.parametrize("pack", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_longer_than_a_turn_for_every_job(pack: int, seed: int) -> None:
    specs = random_workload(seed, "v100:2x4", jobs=16, span_s=600.0, elastic=False).jobs
    result, _ = simulated(specs, "v100:2x4", f"gandiva:pack={pack}")
    runs: dict[int, list[tuple[float, float]]] = {}
    for number, start, end, _ in sorted(result.ledger.segments, key=lambda segment: segment[1]):
        runs.setdefault(number, [(specs[number].submitted_s, specs[number].submitted_s)]).append((start, end))
    longest = max(later[0] - before[1] for mine in runs.values() for before, later in pairwise(mine))
    assert longest <= len(specs) * 60.0


def test_suspended_jobs_resume_in_place_within_a_second() -> None:
    result, _ = simulated([job("a", 2, 600.0), job("b", 2, 600.0)], "v100:2", "gandiva:pack=1")
    # 60 s turns, of which all but the first two lose a second: about 20 switches in all.
    assert result.makespan_s == pytest.approx(1200.0 + 20.0, abs=3.0)


def test_between_the_ends_of_quanta_nobody_is_stopped() -> None:
    specs = random_workload(5, "v100:2x4", jobs=20, span_s=900.0, elastic=False).jobs
    _, watch = simulated(specs, "v100:2x4")
    suspended = [time_s for time_s, action in watch.actions if type(action).__name__ == "Suspend"]
    assert suspended
    assert all(abs(time_s / 60.0 - round(time_s / 60.0)) < 1e-6 for time_s in suspended)


def test_waiting_jobs_move_from_crowded_nodes_to_emptier_ones() -> None:
    jobs = [job(f"j{n}", 1, 9000.0) for n in range(12)]
    memory = {"home": {str(n): [[0, 1]] for n in range(8)}}
    running = {f"j{n}": (n if n < 4 else n - 4,) for n in (0, 1, 2, 3, 8, 9, 10, 11)}
    snapshot = snapshot_of(jobs, "v100:2x4", now_s=60.0, running=running, memory=memory)
    homes = make_policy("gandiva:pack=1").decide(snapshot).memory["home"]
    assert sorted(home[0][0] for home in homes.values()) == [0] * 6 + [1] * 6


# Patience: newcomers do not starve a wide gang.


def short_jobs_beside_a_wide_one(last_s: float = 3000.0) -> list[JobSpec]:
    """A job of 39 s every 5 s, and one that needs all eight GPUs for 100 s."""
    short = [job(f"s{n}", 1, 39.0, 5.0 * n) for n in range(int(last_s / 5.0))]
    return [short[0], job("wide", 8, 100.0, 1.0), *short[1:]]


@pytest.mark.parametrize("machines", ["v100:1x8", "v100:2x4"])
@pytest.mark.parametrize("knobs", ["patience=5", "pack=1", "quantum_s=33"])
def test_a_wide_gang_is_not_starved_by_short_jobs_that_keep_coming(machines: str, knobs: str) -> None:
    result, _ = simulated(short_jobs_beside_a_wide_one(), machines, f"gandiva:{knobs}")
    assert result.jct_s[1] < 900.0
    assert result.jct_s.mean() < 150.0


def test_less_patience_serves_a_wide_gang_sooner() -> None:
    jct_s = [
        simulated(short_jobs_beside_a_wide_one(), "v100:1x8", f"gandiva:patience={patience}")[0].jct_s[1]
        for patience in (1, 3, 5)
    ]
    assert jct_s[0] < jct_s[1] < jct_s[2]


@pytest.mark.parametrize(("blocked", "started"), [(4.0, True), (5.0, False)])
def test_free_gpus_are_kept_clear_for_whom_fresh_starts_keep_from_its_turn(blocked: float, started: bool) -> None:
    jobs = [job("wide", 4, 500.0), job("a", 1, 500.0, 10.0), job("late", 1, 500.0, 20.0)]
    memory = {"home": {"0": [[0, 4]]}, "blocked": {"0": blocked}}
    about: dict[str, Any] = {"running": {"a": (0,)}, "attained": {"a": 10.0}, "min_run_s": 60.0, "memory": memory}
    decision = make_policy("gandiva").decide(snapshot_of(jobs, "v100:1x4", now_s=20.0, **about))
    assert decision.gpus.tolist() == [0, 1, int(started)]
    assert decision.memory["blocked"] == {"0": blocked}


def test_a_turn_that_fresh_starts_prevent_is_counted_until_the_gang_runs() -> None:
    jobs = [job("wide", 4, 500.0), job("a", 1, 500.0, 10.0)]
    memory = {"home": {"0": [[0, 4]]}}
    about: dict[str, Any] = {"running": {"a": (0,)}, "min_run_s": 60.0, "memory": memory}
    fresh = snapshot_of(jobs, "v100:1x4", now_s=60.0, attained={"a": 30.0}, **about)
    assert make_policy("gandiva").decide(fresh).memory["blocked"] == {"0": 1.0}
    assert make_policy("gandiva:quantum_s=30").decide(fresh).memory["blocked"] == {"0": pytest.approx(0.5)}
    about["memory"] = memory | {"blocked": {"0": 2.0}}
    older = snapshot_of(jobs, "v100:1x4", now_s=120.0, attained={"a": 90.0}, **about)
    decision = make_policy("gandiva").decide(older)
    assert decision.gpus.tolist() == [4, 0]
    assert decision.memory["blocked"] == {}


def test_no_guest_makes_a_host_a_fresh_start_where_gpus_are_kept_clear() -> None:
    jobs = [job("wide", 2, 500.0), *(job(name, 1, 500.0, at_s) for name, at_s in (("a", 1.0), ("b", 2.0), ("c", 30.0)))]
    memory = {"home": {"0": [[0, 2]]}, "alone": {n: [0, 0, 10.0] for n in "123"}, "blocked": {"0": 5.0}}
    about: dict[str, Any] = {"running": {"a": (0,), "b": (1,)}, "min_run_s": 60.0}
    for patience, guests in ((5, {}), (6, {3: 1})):
        snapshot = snapshot_of(jobs, "v100:1x2", now_s=30.0, memory=memory, **about)
        assert make_policy(f"gandiva:patience={patience}").decide(snapshot).partners == guests


# Nodes that fail, GPUs of several types.


def test_a_quantum_may_end_while_every_node_is_down() -> None:
    result, _ = simulated([job("a", 1, 1000.0)], "v100:2", faults=Faults((Outage(120.0, 0, 100.0),)))
    assert result.jct_s[0] >= 1100.0


def test_all_jobs_of_a_pack_that_finds_no_room_as_a_whole_use_what_each_of_them_can() -> None:
    jobs = [job("a", 1, 500.0, gpu_types=("v100", "t4")), job("b", 1, 500.0, gpu_types=("v100", "k80"))]
    busy = job("busy", 1, 500.0)
    about: dict[str, Any] = {"running": {"busy": (0,)}, "memory": {"packs": {"0": ["0", "1"]}}}
    snapshot = snapshot_of([*jobs, busy], "v100:1,t4:1,k80:1", now_s=30.0, **about)
    decision = make_policy("gandiva").decide(snapshot)
    assert decision.gpus.tolist() == [1, 1, 1]
    assert (decision.placements, decision.partners) == ({0: (1,), 1: (2,)}, {})


# Growth and faster GPUs.


def test_an_elastic_job_doubles_into_idle_gpus_of_its_node_and_shrinks_when_somebody_comes() -> None:
    jobs = [job("elastic", 1, 3000.0, gpus_max=4), job("late", 2, 100.0, 900.0)]
    result, watch = simulated(jobs, "v100:2x4")
    sizes = [len(action.gpus) for _, action in watch.of(Resize)]  # type: ignore[union-attr]
    assert sizes[:2] == [2, 4]
    assert result.jct_s[1] == pytest.approx(100.0)
    one, watch = simulated(jobs, "v100:4")
    shrunk = [(time_s, len(action.gpus)) for time_s, action in watch.of(Resize)]  # type: ignore[union-attr]
    assert (900.0, 1) in shrunk
    assert one.jct_s[1] == pytest.approx(100.0)
    still, _ = simulated(jobs, "v100:4", "gandiva:grow=off")
    assert still.jct_s[0] == pytest.approx(3000.0)


def test_growth_that_brings_little_is_undone() -> None:
    for rate, size in ((10.4, 1), (19.0, 2)):
        state = state_of([job("a", 1, 9000.0, gpus_max=2)], "v100:4", min_run_s=60.0)
        state.commit([Launch(0, (0, 1), 0)])
        state.apply(JobStarted(0.0, 0, rate, 0.0))
        state.memory = {"growth": {"0": [0.0, 1, 10.0]}}
        state.apply(Woken(60.0))
        assert make_policy("gandiva").decide(state.snapshot()).gpus.tolist() == [size]


def test_jobs_move_to_faster_gpus_that_fall_idle() -> None:
    jobs = [job("first", 2, 600.0), job("second", 2, 6000.0, 1.0)]
    result, watch = simulated(jobs, "v100:1x2,k80:1x2", "gandiva:pack=1")
    assert [action.gpus for _, action in watch.of(Move)] == [(0, 1)]  # type: ignore[union-attr]
    slow, _ = simulated(jobs, "v100:1x2,k80:1x2", "gandiva:pack=1,migrate=off")
    assert result.jct_s[1] < 0.5 * slow.jct_s[1]


def test_a_move_that_makes_a_job_slower_is_reverted() -> None:
    state = state_of([job("a", 1, 9000.0)], "v100:1,k80:1", min_run_s=60.0)
    state.commit([Launch(0, (0,), 0)])
    state.apply(JobStarted(0.0, 0, 3.0, 0.0))
    state.memory = {"moves": {"0": [0.0, 5.0, 1, 1, 1]}, "rest": {"0": 600.0}}
    state.apply(Woken(60.0))
    decision = make_policy("gandiva").decide(state.snapshot())
    assert decision.placements == {0: (1,)}
    assert decision.memory["rest"]["0"] == 660.0


# The rest.


@pytest.mark.parametrize("knobs", ["pack=3", "pack=1,migrate=off,grow=off", "quantum_s=33.3,trial_s=10"])
def test_other_knobs_keep_the_contract(knobs: str) -> None:
    check_policy(f"gandiva:{knobs}", seeds=[7, 20], work_conserving=True, other_processes=ALL)


@pytest.mark.parametrize("rules", ["gavel", "tiresias", "pollux"])
def test_rounds_of_another_length_end_a_quantum_too(rules: str) -> None:
    specs = random_workload(3, "v100:2x4", jobs=12).jobs
    run = run_policy(make_policy("gandiva"), specs, cluster("v100:2x4"), rules=rules)
    assert unfinished(run, specs) == []


@pytest.mark.parametrize(
    "knob", ["quantum_s=0", "pack=0", "pack=9", "trial_s=-1", "cooldown_s=-1", "hysteresis=-0.1", "patience=0"]
)
def test_senseless_knobs_are_refused(knob: str) -> None:
    with pytest.raises(fairway.FairwayError, match=knob.partition("=")[0]):
        make_policy(f"gandiva:{knob}")


def test_nobody_is_woken_where_nothing_can_change() -> None:
    snapshot = snapshot_of([job("a", 2, 600.0)], "v100:4")
    assert make_policy("gandiva").decide(snapshot).wake_s == math.inf


@pytest.mark.parametrize(("machines", "wake_s"), [("v100:1x3", math.inf), ("v100:1x4", 60.0)])
def test_a_pack_wakes_nobody_unless_there_is_room_to_take_it_apart(machines: str, wake_s: float) -> None:
    state = state_of([job("a", 2, 9000.0), job("b", 2, 9000.0)], machines)
    state.commit([Launch(0, (0, 1), 0), Launch(1, (0, 1), 0, 0)])
    for number in (0, 1):
        state.apply(JobStarted(0.0, number, 7.0, 0.0))
    state.memory = {"packs": {"0": ["0", "1"]}}
    state.apply(Woken(30.0))
    assert make_policy("gandiva").decide(state.snapshot()).wake_s == wake_s


def test_turns_are_long_against_the_price_of_a_switch_if_asked_for() -> None:
    """Three jobs of 3,000 s on one GPU, whose switches take 3 s: a turn of 60 s is 20 times as long."""
    told = {}
    for overhead in ("0", "0.05", "0.01", "0.005"):
        jobs = Workload.of([job(name, 1, 3000.0) for name in "abc"])
        policy = f"gandiva:pack=1,overhead={overhead}"
        told[overhead] = fairway.simulate(jobs, cluster="v100:1", policy=policy, switching="3s").figures()
    assert told["0"]["jct_s"] == told["0.05"]["jct_s"]
    turns_s = {overhead: 9000.0 / figures["switches"] for overhead, figures in told.items()}
    assert turns_s["0"] == pytest.approx(60.0, rel=0.1)
    assert turns_s["0.01"] == pytest.approx(300.0, rel=0.15)
    assert turns_s["0.005"] == pytest.approx(600.0, rel=0.25)
    with pytest.raises(InputError, match="overhead must not be negative"):
        make_policy("gandiva:overhead=-1")
