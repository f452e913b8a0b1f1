"""Space sharing in the Gavel family: which jobs share, how a plan uses it, and that nobody is worse off for it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pytest

import fairway
from fairway.core.action import Action
from fairway.core.columns import WEIGHT
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.job import JobSpec, Workload
from fairway.core.pairing import Factors
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.policies import make_policy
from fairway.policies.gavel.pairs import fifo_partners, noted_start, paired
from fairway.policies.gavel.situation import Situation
from fairway.policies.gavel.throughputs import Throughputs
from fairway.solvers.paired import Start
from fairway.testing import check_policy, cluster, job, snapshot_of
from fairway.testing.seeds import ALL


class Told:
    """A pairing by hand: kinds are the last letters of ids, factors are given for both orders; counts what is asked."""

    def __init__(self, ids: Sequence[str], factors: Mapping[str, Factors]) -> None:
        self.kinds = [name[-1] for name in ids]
        self.known = dict(factors)
        self.asked = 0

    def kind(self, number: int) -> Hashable:
        return self.kinds[number]

    def factors(self, a: int, b: int) -> Factors:
        self.asked += 1
        one, other = self.kinds[a], self.kinds[b]
        if one + other in self.known:
            return self.known[one + other]
        return tuple((y, x) for x, y in self.known.get(other + one, ()))


def _snapshot(ids: Sequence[str], machines: str, factors: Mapping[str, Factors], gpus: Sequence[int] = ()) -> Snapshot:
    sizes = gpus or [1] * len(ids)
    specs = [job(name, gpus=size, duration_s=3600.0) for name, size in zip(ids, sizes, strict=True)]
    snapshot = snapshot_of(specs, machines, knows=("pairs", "duration"))
    snapshot.frame = snapshot.frame._replace(pairing=Told(ids, factors))
    return snapshot


def _situation(snapshot: Snapshot) -> Situation:
    return Situation(snapshot, np.zeros((len(snapshot), len(snapshot.capacity))))


def _random(seed: int, jobs: int = 24, *, alike: bool = True) -> Throughputs:
    random = np.random.default_rng(seed)
    kinds, types = 6, 3
    kind = random.integers(kinds, size=jobs)
    rates = random.uniform(1, 40, (kinds, types))[kind]
    if not alike:
        rates = rates * random.uniform(0.8, 1.2, rates.shape)
    keeps = random.uniform(0.3, 1.0, (kinds, kinds, types))
    factors = np.stack([keeps, keeps.transpose(1, 0, 2)], axis=-1)
    gangs = np.array([1.0, 1.0, 1.0, 2.0, 2.0, 4.0])[kind]
    return Throughputs(rates, gangs, np.array([4.0, 6.0, 5.0]), kind, factors, names=np.arange(jobs))


def test_two_jobs_that_keep_six_tenths_each_run_together() -> None:
    snapshot = _snapshot(["a", "b"], "v100:1", {"ab": ((0.6, 0.6),)})
    situation = _situation(snapshot)
    throughputs = paired(situation, np.ones((2, 1)))
    assert throughputs.highest_level(np.ones(2), np.ones(2)).level == pytest.approx(0.6)
    decision = make_policy("max_min_fairness:packing=on").decide(snapshot)
    assert decision.gpus.tolist() == [1, 1]
    assert decision.partners == {1: 0}


def test_an_uneven_pair_shares_ten_seventeenths_of_the_time() -> None:
    situation = _situation(_snapshot(["a", "b"], "v100:1", {"ab": ((0.9, 0.2),)}))
    outcome = paired(situation, np.ones((2, 1))).highest_level(np.ones(2), np.ones(2))
    assert outcome.level == pytest.approx(0.529, abs=5e-4)
    assert outcome.pair_x.ravel().tolist() == pytest.approx([0.588], abs=5e-4)
    assert outcome.x.ravel().tolist() == pytest.approx([0.0, 0.412], abs=5e-4)


def test_without_packing_nobody_shares_and_nothing_is_asked() -> None:
    snapshot = _snapshot(["a", "b"], "v100:1", {"ab": ((0.9, 0.9),)})
    decision = make_policy("max_min_fairness").decide(snapshot)
    assert not decision.partners
    assert snapshot.frame.pairing.asked == 0  # type: ignore[attr-defined]


def test_kinds_are_asked_about_and_not_pairs_of_jobs() -> None:
    ids = [f"{number}-{'abc'[number % 3]}" for number in range(60)]
    snapshot = _snapshot(ids, "v100:4", {one + other: ((0.8, 0.8),) for one in "abc" for other in "abc"})
    paired(_situation(snapshot), np.ones((60, 1)))
    assert snapshot.frame.pairing.asked == 6  # type: ignore[attr-defined]


def test_a_pair_that_gains_on_no_type_is_left_out() -> None:
    told = {"ab": ((0.5, 0.5), (0.55, 0.4)), "ac": ((0.5, 0.55), (0.6, 0.5)), "bc": ((0.0, 0.0), (0.0, 0.0))}
    snapshot = _snapshot(["a", "b", "c"], "v100:2,k80:2", told)
    factors = paired(_situation(snapshot), np.ones((3, 2))).factors
    assert not factors[0, 1].any()
    assert factors[0, 2].tolist() == [[0.5, 0.55], [0.6, 0.5]]
    assert factors[2, 0].tolist() == [[0.55, 0.5], [0.5, 0.6]]


def test_jobs_of_unequal_gangs_never_share() -> None:
    ids = ["1-a", "2-a", "3-a", "4-a"]
    snapshot = _snapshot(ids, "v100:4", {"aa": ((0.9, 0.9),)}, gpus=[4, 2, 4, 1])
    outcome = paired(_situation(snapshot), np.ones((4, 1))).highest_level(np.ones(4), np.ones(4))
    assert outcome.pairs.tolist() == [[0, 2]]
    decision = make_policy("max_min_fairness:packing=on").decide(snapshot)
    for guest, host in decision.partners.items():
        assert snapshot.gpus[guest] == snapshot.gpus[host]


class Seats:
    """All pairs of jobs that ever shared GPUs."""

    def __init__(self) -> None:
        self.pairs: set[frozenset[str]] = set()

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        pass

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        for guest, host in decision.partners.items():
            self.pairs.add(frozenset((snapshot.job(guest).id[:5], snapshot.job(host).id[:5])))


@pytest.mark.parametrize("part", [0.6, 0.4])
def test_jobs_that_do_not_fit_in_memory_together_are_never_paired(part: float) -> None:
    machines = cluster("v100:1x3")
    size = int(part * (machines.types[0].memory_bytes or 0))
    specs = [
        JobSpec(f"{name}-{number}", 60.0 * number, 1, duration_s=4000.0, memory_bytes=memory)
        for number in range(8)
        for name, memory in (("small", size // 8), ("large", size))
        if name == "large" or number < 2
    ]
    seats = Seats()
    result = fairway.simulate(
        Workload.of(specs), cluster=machines, policy="max_min_fairness:packing=on", observer=seats
    )
    assert result.finished == 10
    assert frozenset(("small", "large")) in seats.pairs
    assert (frozenset(("large",)) in seats.pairs) == (part < 0.5)


@pytest.mark.parametrize("seed", range(8))
def test_pairs_never_lower_the_level(seed: int) -> None:
    throughputs = _random(seed)
    alone = Throughputs.alone(throughputs.rates, throughputs.gangs, throughputs.capacity)
    ones = np.ones(throughputs.jobs)
    per_unit = throughputs.gangs / throughputs.rates.mean(axis=1)
    assert throughputs.highest_level(per_unit, ones).level >= alone.highest_level(per_unit, ones).level * (1 - 1e-6)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_rest_is_spent_and_nobody_loses(seed: int, alike: bool) -> None:
    throughputs = _random(seed, 9, alike=alike)
    normal = throughputs.rates.mean(axis=1)
    per_unit, ones = throughputs.gangs / normal, np.ones(throughputs.jobs)
    level = throughputs.highest_level(per_unit, ones)
    spent = throughputs.spend_rest(per_unit, level, normal)
    assert spent.optimal
    assert (spent.throughput >= level.throughput * (1 - 3e-6)).all()
    assert (spent.throughput / normal).sum() >= (level.throughput / normal).sum() * (1 - 3e-6)
    assert spent.level == level.level
    time = spent.x.sum(axis=1)
    for (a, b), times in zip(spent.pairs.tolist(), spent.pair_x, strict=True):
        time[[a, b]] += times.sum()
    load = throughputs.gangs @ spent.x + throughputs.gangs[spent.pairs[:, 0]] @ spent.pair_x
    assert time.max() <= 1 + 1e-9
    assert (load <= throughputs.capacity + 1e-9).all()
    idle = load < throughputs.capacity - 1e-6
    assert not (idle.any() and (time < 1 - 1e-6).any()), "a job could have more time on GPUs that are left idle"


def test_the_second_stage_is_needed() -> None:
    idle = []
    for seed in range(8):
        throughputs = _random(seed, 9)
        per_unit = throughputs.gangs / throughputs.rates.mean(axis=1)
        level = throughputs.highest_level(per_unit, np.ones(9))
        load = throughputs.gangs @ level.x + throughputs.gangs[level.pairs[:, 0]] @ level.pair_x
        idle.append(float((throughputs.capacity - load).sum()))
    assert max(idle) > 0.5, "no level leaves GPUs unused: the tests of the second stage test nothing"


def test_effective_throughput_counts_both_seats() -> None:
    throughputs = _random(0, 4)
    throughputs = Throughputs(
        throughputs.rates, np.ones(4), throughputs.capacity, throughputs.kinds, throughputs.factors
    )
    x, pair_x = np.full((4, 3), 0.1), np.array([[0.2, 0.0, 0.1]])
    got = throughputs.of(x, np.array([[1, 3]]), pair_x)
    keeps = throughputs.factors[throughputs.kinds[1], throughputs.kinds[3]]
    wanted = 0.1 * throughputs.rates.sum(axis=1)
    wanted[1] += 0.2 * throughputs.rates[1, 0] * keeps[0, 0] + 0.1 * throughputs.rates[1, 2] * keeps[2, 0]
    wanted[3] += 0.2 * throughputs.rates[3, 0] * keeps[0, 1] + 0.1 * throughputs.rates[3, 2] * keeps[2, 1]
    assert got == pytest.approx(wanted)


def test_large_plans_note_where_both_stages_ended_and_small_ones_do_not() -> None:
    for jobs in (20, 200):
        throughputs = _random(1, jobs, alike=False)
        normal = throughputs.rates.mean(axis=1)
        level = throughputs.highest_level(1.0 / normal, np.ones(jobs))
        outcome = throughputs.spend_rest(1.0 / normal, level, normal)
        noted = json.loads(json.dumps(noted_start(throughputs, outcome)))
        assert sorted(noted) == ([] if jobs == 20 else ["rest", "start"])
    assert outcome.start is not None
    start = Start.from_plain(noted["start"], throughputs.names, 3)
    assert start.basic.tolist() == outcome.start.basic.tolist()


def test_a_plan_begins_where_the_last_one_ended() -> None:
    ids = [f"{number}-{'abc'[number % 3]}" for number in range(180)]
    told = {one + other: ((0.8, 0.7),) for one in "abc" for other in "abc"}
    snapshot = _snapshot(ids, "v100:9x5", told)
    snapshot.floats = snapshot.floats.copy()
    snapshot.floats[WEIGHT] = np.random.default_rng(0).uniform(0.9, 1.1, 180)
    policy = make_policy("max_min_fairness:packing=on")
    memory = policy.decide(snapshot).memory
    assert {"start", "rest"} <= memory["notes"].keys()
    situation = Situation(snapshot, np.zeros((180, 1)), memory["notes"])
    begun, fresh = paired(situation, situation.rates), paired(_situation(snapshot), situation.rates)
    assert begun.start is not None
    assert begun.start.basic.ravel().tolist() == memory["notes"]["start"][0], "rows are job numbers here"
    assert fresh.start is None
    assert fresh.rest is None


def _fifo(factors: Mapping[str, Factors], ids: Sequence[str], gpus: Sequence[int] = ()) -> Throughputs:
    snapshot = _snapshot(ids, "v100:2,k80:1", factors, gpus)
    rates = np.tile([4.0, 1.0], (len(ids), 1))
    return paired(_situation(snapshot), rates)


def test_a_waiting_job_sits_beside_the_one_with_which_it_keeps_most() -> None:
    told = {"ac": ((0.8, 0.8), (0.9, 0.9)), "bc": ((0.9, 0.8), (0.9, 0.9))}
    throughputs = _fifo(told, ["a", "b", "c"])
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    shares = fifo_partners(throughputs, x, np.arange(3))
    assert shares.pairs.tolist() == [[1, 2]]
    assert shares.pair_x.tolist() == [[1.0, 0.0]]
    assert shares.x.tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_nobody_is_seated_behind_a_job_without_a_partner() -> None:
    told = {"ac": ((0.75, 0.75), (0.75, 0.75)), "bd": ((0.9, 0.9), (0.9, 0.9)), "ad": ((0.9, 0.9), (0.9, 0.9))}
    throughputs = _fifo(told, ["a", "b", "c", "d"])
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert not len(fifo_partners(throughputs, x, np.arange(4)).pairs), "1.5 together is not more than 1.5"
    assert fifo_partners(throughputs, x, np.array([0, 1, 3, 2])).pairs.tolist() == [[0, 3]]
    assert fifo_partners(throughputs, x, np.arange(4), worthwhile=1.4).pairs.tolist() == [[0, 2], [1, 3]]


def test_seats_that_are_taken_stay_taken() -> None:
    told = {one + other: ((0.9, 0.9), (0.9, 0.9)) for one in "abcd" for other in "abcd"}
    throughputs = _fifo(told, ["a", "b", "c", "d"], gpus=[1, 1, 1, 1])
    x = np.zeros((4, 2))
    x[2, 1] = 1.0
    shares = fifo_partners(throughputs, x, np.arange(4), together=np.array([[0, 1, 0]]))
    assert shares.pairs.tolist() == [[0, 1], [2, 3]]
    assert shares.pair_x.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_the_contract_holds_with_packing() -> None:
    check_policy("max_min_fairness:packing=on", seeds=range(2), other_processes=ALL)
