"""Water filling and entities: the worked example, the laws of filling, and an independent lexicographic max-min."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fairway import JobSpec
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.errors import InputError
from fairway.policies import make_policy
from fairway.policies.gavel.entities import Entities, FillCourse, Tier
from fairway.policies.gavel.fair import per_fair_share
from fairway.policies.gavel.filling import Filling, fill
from fairway.policies.gavel.hierarchy import entity_tree
from fairway.policies.gavel.throughputs import Throughputs
from fairway.solvers.allocation import Allocation
from fairway.solvers.vertex import solve_at_vertex
from fairway.testing import check_policy, job, snapshot_of
from fairway.testing.seeds import ALL

Weights = Callable[[Bools], Floats]


def best(rows: Floats, gangs: Floats, capacity: Floats, weights: Floats, floors: Floats, alone: int | None) -> float:
    """The highest common rise above the floors, or the highest row of one job while the others keep theirs."""
    jobs, types = rows.shape
    a = np.zeros((2 * jobs + types, jobs * types + 1))
    for m in range(jobs):
        a[m, m * types : (m + 1) * types] = 1
        a[jobs + types + m, m * types : (m + 1) * types] = -rows[m]
        a[jobs + types + m, -1] = weights[m]
    for j in range(types):
        a[jobs + j, j : jobs * types : types] = gangs
    gain = np.zeros(jobs * types + 1)
    if alone is None:
        gain[-1] = 1
    else:
        gain[alone * types : (alone + 1) * types] = rows[alone]
    bounds = [(0, None if rows[m, j] > 0 else 0) for m in range(jobs) for j in range(types)]
    bounds.append((0, None if alone is None else 0))
    limit = np.concatenate([np.ones(jobs), capacity, 1e-9 - floors])
    found = linprog(-gain, A_ub=a, b_ub=limit, bounds=bounds, method="highs")
    assert found.success
    return -float(found.fun)


def lexicographic(rows: Floats, gangs: Floats, capacity: Floats, weights_of: Weights) -> Floats:
    """Stage by stage: rise together, then ask for each job whether it could rise alone."""
    jobs = len(rows)
    levels, active = np.zeros(jobs), rows.max(axis=1) > 0
    while active.any():
        weights = weights_of(active)
        levels = levels + weights * best(rows, gangs, capacity, weights, levels, None)
        none = np.zeros(jobs)
        stuck = [
            m
            for m in (active & (weights > 0)).nonzero()[0].tolist()
            if best(rows, gangs, capacity, none, levels, m) <= levels[m] * (1 + 1e-6) + 1e-7
        ]
        assert stuck
        active[stuck] = False
    return levels


def flat_weights(entity: Ints, entity_weights: Floats, job_weights: Floats, fifo: Bools) -> Weights:
    """The weights of one layer of entities, written down from the definition."""

    def weights(active: Bools) -> Floats:
        given = np.zeros(len(entity))
        for number, weight in enumerate(entity_weights.tolist()):
            inside = [m for m in range(len(entity)) if entity[m] == number and active[m]]
            if inside and fifo[number]:
                given[inside[0]] = weight
            elif inside:
                given[inside] = weight * job_weights[inside] / job_weights[inside].sum()
        return given

    return weights


class Case:
    """A random cluster with random jobs in random entities."""

    def __init__(self, seed: int, most_jobs: int = 9) -> None:
        random = np.random.default_rng(seed)
        jobs, types = int(random.integers(2, most_jobs + 1)), int(random.integers(1, 4))
        rates = random.uniform(0.2, 10, (jobs, types)) * (random.random((jobs, types)) < 0.8)
        if seed % 3 == 0:
            rates = rates[random.integers(0, min(jobs, 3), jobs)]
        if seed % 5 == 0:
            rates = (rates > 0).astype(np.float64)
        self.capacity = random.integers(1, max(2, int(jobs * random.choice([0.4, 1.0, 1.5]))) + 1, types) * 1.0
        self.gangs = np.minimum(random.choice([1.0, 1.0, 1.0, 2.0], jobs), self.capacity.max())
        self.rates = rates * (self.gangs[:, None] <= self.capacity)
        count = int(random.integers(1, 4))
        self.entity, self.fifo = random.integers(0, count, jobs), random.random(count) < 0.3
        self.entity_weights, self.job_weights = random.choice([1.0, 2, 3], count), random.choice([1.0, 1, 2, 5], jobs)
        self.throughputs = Throughputs.alone(self.rates, self.gangs, self.capacity)
        self.per_unit = per_fair_share(self.throughputs, np.ones(jobs))
        self.rows = self.per_unit[:, None] * self.rates

    def filled(self) -> Filling:
        tree = Entities.flat(self.entity, self.entity_weights, self.job_weights, self.fifo)
        return fill(self.throughputs, self.per_unit, tree)


@pytest.mark.parametrize("seed", range(40))
def test_levels_are_those_of_an_independent_lexicographic_max_min(seed: int) -> None:
    case = Case(seed)
    weights_of = flat_weights(case.entity, case.entity_weights, case.job_weights, case.fifo)
    want = lexicographic(case.rows, case.gangs, case.capacity, weights_of)
    assert case.filled().levels == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("seed", range(100, 120))
def test_after_filling_no_job_can_rise_while_the_others_keep_theirs(seed: int) -> None:
    case = Case(seed)
    levels = case.filled().levels
    for m in range(len(levels)):
        alone = best(case.rows, case.gangs, case.capacity, np.zeros(len(levels)), levels * (1 - 1e-8), m)
        assert alone <= levels[m] * (1 + 1e-5) + 1e-6


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_an_allocation_keeps_its_limits(seed: int) -> None:
    case = Case(seed, most_jobs=30)
    filled = case.filled()
    x = filled.outcome.x
    assert filled.outcome.optimal
    assert (x >= 0).all()
    assert (x.sum(axis=1) <= 1 + 1e-9).all()
    assert (case.gangs @ x <= case.capacity * (1 + 1e-9)).all()
    assert filled.phases <= len(case.capacity)


@pytest.mark.parametrize(
    ("gpus", "want"),
    [(1, (1 / 6, 1 / 6, 2 / 3, 0)), (2, (1 / 3, 1 / 3, 1, 1 / 3)), (3, (0.5, 0.5, 1, 1)), (4, (1, 1, 1, 1))],
)
def test_the_worked_example_of_two_entities(gpus: int, want: tuple[float, ...]) -> None:
    """One entity of weight 1 with two fair jobs, one of weight 2 in order; four equal jobs."""
    jobs = [
        JobSpec(name, 0.0, gpus=1, duration_s=1e5, user=user)
        for name, user in (("a", "e0"), ("b", "e0"), ("c", "e1"), ("d", "e1"))
    ]
    snapshot = snapshot_of(jobs, f"v100:{gpus}")
    policy = make_policy("hierarchical:weights=e1:2,fifo=e1")
    memory = policy.decide(snapshot).memory
    assert np.asarray(memory["x"])[:, 0] == pytest.approx(want, abs=1e-6)


def alike(jobs: int, gpus: float) -> tuple[Throughputs, Floats]:
    throughputs = Throughputs.alone(np.ones((jobs, 1)), np.ones(jobs), np.array([gpus]))
    return throughputs, per_fair_share(throughputs, np.ones(jobs))


@given(st.lists(st.floats(0.2, 9.0), min_size=1, max_size=5), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_entities_with_enough_equal_jobs_have_the_cluster_in_proportion_to_their_weights(
    weights: list[float], gpus: int
) -> None:
    entity = np.repeat(np.arange(len(weights)), gpus)
    throughputs, per_unit = alike(len(entity), float(gpus))
    nobody = np.zeros(len(weights), dtype=np.bool_)
    tree = Entities.flat(entity, np.array(weights), np.ones(len(entity)), nobody)
    time = fill(throughputs, per_unit, tree).outcome.x.sum(axis=1)
    share = np.bincount(entity, time) / gpus
    assert share == pytest.approx(np.array(weights) / sum(weights), abs=1e-6)


def test_what_a_full_job_leaves_is_given_inside_its_entity_first() -> None:
    """Two entities of equal weight on 4 GPUs: one has a job of weight 3 and one of weight 1, the other four jobs."""
    throughputs, per_unit = alike(6, 4.0)
    nobody = np.zeros(2, dtype=np.bool_)
    tree = Entities.flat(np.array([0, 0, 1, 1, 1, 1]), np.ones(2), np.array([3.0, 1, 1, 1, 1, 1]), nobody)
    assert fill(throughputs, per_unit, tree).levels == pytest.approx([1, 1, 0.5, 0.5, 0.5, 0.5], abs=1e-6)


def test_nearly_tied_jobs_are_not_taken_for_one_another() -> None:
    """Three jobs on one GPU of each of two types, of which two differ in the fifth digit."""
    rates = np.array([[2.0, 1.0], [2.00002, 1.0], [1.0, 1.0]])
    throughputs = Throughputs.alone(rates, np.ones(3), np.ones(2))
    per_unit = per_fair_share(throughputs, np.ones(3))
    rows = per_unit[:, None] * rates
    weights_of = flat_weights(np.zeros(3, dtype=np.int64), np.ones(1), np.ones(3), np.zeros(1, dtype=np.bool_))
    want = lexicographic(rows, np.ones(3), np.ones(2), weights_of)
    assert fill(throughputs, per_unit, Entities.single(np.ones(3))).levels == pytest.approx(want, abs=1e-5)


def test_a_job_that_can_use_one_type_only_does_not_hold_down_the_others() -> None:
    """Two jobs fight for one GPU; the third has another type for itself."""
    rates = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 2.0]])
    throughputs = Throughputs.alone(rates, np.ones(3), np.ones(2))
    filled = fill(throughputs, np.ones(3), Entities.single(np.ones(3)))
    assert filled.levels == pytest.approx([0.5, 0.5, 2.0], abs=1e-6)


def test_jobs_without_weight_or_speed_take_nothing_from_the_others() -> None:
    rates = np.array([[1.0], [1.0], [0.0]])
    throughputs = Throughputs.alone(rates, np.ones(3), np.ones(1))
    filled = fill(throughputs, np.ones(3), Entities.single(np.array([1.0, 0.0, 1.0])))
    assert filled.levels == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)


def test_there_is_nothing_to_fill_without_jobs_or_gpus() -> None:
    empty = Throughputs.alone(np.zeros((0, 2)), np.zeros(0), np.ones(2))
    assert len(fill(empty, np.zeros(0), Entities.single(np.zeros(0))).levels) == 0
    down = Throughputs.alone(np.ones((2, 1)), np.ones(2), np.zeros(1))
    assert fill(down, np.ones(2), Entities.single(np.ones(2))).levels.tolist() == [0.0, 0.0]


def test_pairs_rise_higher_than_jobs_alone() -> None:
    """One GPU; two jobs that keep 0.6 of their speed beside each other; a third that shares with nobody."""
    factors = np.zeros((2, 2, 1, 2))
    factors[0, 0, 0] = 0.6
    throughputs = Throughputs(np.ones((3, 1)), np.ones(3), np.ones(1), np.array([0, 0, 1]), factors)
    filled = fill(throughputs, np.ones(3), Entities.single(np.ones(3)))
    assert filled.levels == pytest.approx([0.375, 0.375, 0.375], abs=1e-6)
    two = Entities.flat(np.array([0, 0, 1]), np.array([1.0, 1.0]), np.ones(3), np.zeros(2, dtype=np.bool_))
    assert fill(throughputs, np.ones(3), two).levels == pytest.approx([3 / 11, 3 / 11, 6 / 11], abs=1e-6)


def test_stages_with_pairs_go_on_behind_the_first_job_that_is_stuck() -> None:
    factors = np.zeros((2, 2, 2, 2))
    rates = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    factors[0, 0, 0] = 0.75
    throughputs = Throughputs(rates, np.ones(3), np.ones(2), np.array([0, 0, 1]), factors)
    filled = fill(throughputs, np.ones(3), Entities.single(np.ones(3)))
    assert filled.levels == pytest.approx([0.75, 0.75, 1.0], abs=1e-6)


def test_a_course_adds_up_and_never_falls() -> None:
    tree = Entities.flat(
        np.array([0, 1, 0, 1, 1]), np.array([1.0, 2]), np.array([1.0, 2, 3, 1, 1]), np.array([False, True])
    )
    caps = np.array([1.0, 2.0, 0.5, 0.0, 3.0])
    course = FillCourse(tree, caps)
    assert course.volume == pytest.approx(6.5)
    last = np.zeros(5)
    for volume in np.linspace(0, 6.5, 27).tolist():
        levels = course.at(volume)
        assert levels.sum() == pytest.approx(volume, abs=1e-9)
        assert (levels >= last - 1e-12).all()
        assert (levels <= caps + 1e-12).all()
        last = levels


def test_weights_flow_down_a_tree_of_three_layers() -> None:
    tree = Entities(
        [
            Tier(np.array([0, 0]), np.array([3.0, 1.0]), np.array([False])),
            Tier(np.array([0, 0, 1]), np.array([1.0, 2.0, 1.0]), np.array([False, False])),
            Tier(np.array([0, 1, 1, 2, 2]), np.array([1.0, 1, 3, 1, 1]), np.array([False, False, True])),
        ]
    )
    everybody = np.ones(5, dtype=np.bool_)
    assert tree.weights(everybody) == pytest.approx([0.25, 0.125, 0.375, 0.25, 0.0])
    assert tree.weights(np.array([False, True, True, False, True])) == pytest.approx([0, 0.1875, 0.5625, 0, 0.25])
    assert FillCourse(tree, np.full(5, 9.0)).at(1.0) == pytest.approx([0.25, 0.125, 0.375, 0.25, 0.0])


def owned(pairs: Sequence[tuple[str, str]]) -> list[JobSpec]:
    return [
        JobSpec(f"j{n}", 0.0, gpus=1, duration_s=1e5, queue=queue, user=user) for n, (queue, user) in enumerate(pairs)
    ]


def test_a_tree_of_queues_and_users_keeps_the_jobs_of_an_ordered_queue_together() -> None:
    snapshot = snapshot_of(owned([("prod", "ann"), ("prod", "bob"), ("lab", "ann"), ("lab", "bob")]), "v100:2")
    tree = entity_tree(snapshot, ("queue", "user"), {"prod": 3.0, "bob": 2.0}, {"prod"}, np.ones(4))
    everybody = np.ones(4, dtype=np.bool_)
    assert tree.weights(everybody) == pytest.approx([0.75, 0, 0.25 / 3, 0.5 / 3])
    fair = entity_tree(snapshot, ("queue", "user"), {"prod": 3.0, "bob": 2.0}, (), np.ones(4))
    assert fair.weights(everybody) == pytest.approx([0.25, 0.5, 0.25 / 3, 0.5 / 3])


@pytest.mark.parametrize(
    ("knobs", "error"),
    [
        ("levels=queue/queue", "levels must name"),
        ("levels=model", "must be one of queue, user"),
        ("weights=prod", "NAME:WEIGHT"),
        ("weights=prod:zero", "NAME:WEIGHT"),
        ("weights=prod:-1", "NAME:WEIGHT"),
        ("weights=prod:inf", "NAME:WEIGHT"),
        ("weights=:2", "NAME:WEIGHT"),
        ("weights=prod:1/prod:2", "twice"),
        ("fifo=prod/prod", "fifo must name"),
        ("fifo=", "fifo must name"),
    ],
)
def test_senseless_knobs_are_refused(knobs: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        make_policy(f"hierarchical:{knobs}")


@pytest.mark.parametrize(
    "policy", ["hierarchical:levels=queue/user,heterogeneity=agnostic", "water_filling:packing=on"]
)
def test_the_contract_holds_with_other_knobs(policy: str) -> None:
    check_policy(policy, seeds=[3], other_processes=ALL)


def test_water_filling_is_one_entity_and_max_min_fair() -> None:
    """The smallest level is that of max-min fairness; the jobs that can rise further do."""
    jobs = [job("a", 1), job("b", 1), job("c", 1)]
    snapshot = snapshot_of(jobs, "v100:1,k80:4")
    by_filling = np.asarray(make_policy("water_filling").decide(snapshot).memory["x"])
    one_user = np.asarray(make_policy("hierarchical").decide(snapshot).memory["x"])
    assert by_filling == pytest.approx(one_user, abs=1e-6)
    assert by_filling.sum(axis=1) == pytest.approx([1, 1, 1], abs=1e-6)


def test_a_vertex_keeps_floors_that_leave_no_room() -> None:
    rows = np.array([[2.0, 1.0], [1.0, 1.0]])
    base = Allocation.over(np.ones(2), np.ones(2), rows > 0)
    held = np.ones(2, dtype=np.bool_)
    problem = replace(base, rows=rows, floors=np.array([2.0, 0.0]), weights=np.array([0.0, 1.0]), held=held)
    found = solve_at_vertex(replace(problem, level_gain=1.0))
    assert found.optimal
    assert found.level == pytest.approx(1.0)
    assert found.x == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]), abs=1e-9)
    too_much = replace(problem, floors=np.array([2.0, 1.5]), level_gain=1.0)
    assert not solve_at_vertex(too_much).optimal
