"""Allocations with pairs: against a program that writes all pairs down, and the laws that any plan keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fairway.core.arrays import Floats, Ints
from fairway.solvers import paired
from fairway.solvers.allocation import Allocation
from fairway.solvers.classes import classes_of, grouped, members, partners
from fairway.solvers.interior import solve
from fairway.solvers.paired import Effort, Paired, PairedSolution, Start, solve_paired

SEEDS = range(12)


def _factors(random: np.random.Generator, kinds: int, types: int) -> Floats:
    """What kinds keep beside one another; a sixth of the pairs does not fit in memory."""
    keeps = random.uniform(0.2, 1.0, (kinds, kinds, types)) * (random.random((kinds, kinds, types)) > 0.15)
    fits = (keeps > 0) & (keeps.transpose(1, 0, 2) > 0)
    factors = np.stack([keeps, keeps.transpose(1, 0, 2)], axis=-1) * fits[..., None]
    return np.asarray(factors)


def _problem(seed: int, jobs: int = 14, *, alike: bool = True, level: bool = True) -> Paired:
    """Jobs of a few kinds (all alike within a kind, or all different) of gangs of 1 and 2 on three types."""
    random = np.random.default_rng(seed)
    kinds, types = 5, 3
    kind = random.integers(kinds, size=jobs)
    gangs = np.array([1.0, 1.0, 2.0, 1.0, 2.0])[kind]
    rates = (random.uniform(1, 50, (kinds, types)) * (random.random((kinds, types)) > 0.1))[kind]
    rates[:, 0] = np.maximum(rates[:, 0], 1.0)
    weights = np.array([1.0, 2.0, 1.0, 1.0, 3.0])[kind]
    if not alike:
        rates, weights = rates * random.uniform(0.7, 1.3, rates.shape), random.uniform(0.5, 2.0, jobs)
    capacity = np.array([3.0, 2.0, 4.0])
    base = Allocation.over(gangs, capacity, rates > 0)
    normal = rates @ (capacity / capacity.sum())
    everybody = np.ones(jobs, dtype=np.bool_)
    if level:
        rows = rates * (gangs / normal)[:, None]
        alone = replace(base, rows=rows, weights=weights, held=everybody, level_gain=1.0)
    else:
        share = rates * np.minimum(capacity / (jobs * 2 * gangs[:, None]), 1.0 / types)
        floors = share.sum(axis=1) * random.choice([0.0, 0.5, 1.0], jobs)
        alone = replace(base, rows=rates, floors=floors, held=floors > 0, gain=rates / normal[:, None])
    return Paired(alone, kind, _factors(random, kinds, types))


def _all_pairs(problem: Paired) -> float:
    """The optimum of the program with every pair written down, by another solver's interface."""
    from scipy.optimize import linprog

    a = problem.alone
    jobs, types = a.usable.shape
    costs: list[float] = []
    columns: list[Floats] = []

    def add(gain: float, uses: list[tuple[int, float]], gpus: float, kind: int) -> None:
        column = np.zeros(2 * jobs + types)
        for job, row in uses:
            column[job] += 1.0
            column[jobs + types + job] -= row
        column[jobs + kind] = gpus
        columns.append(column)
        costs.append(-gain)

    for job, kind in zip(*a.usable.nonzero(), strict=True):
        add(a.gain[job, kind], [(job, a.rows[job, kind])], a.gangs[job], kind)
    for i in range(jobs):
        for j in range(i + 1, jobs):
            if a.gangs[i] != a.gangs[j]:
                continue
            for kind in range(types):
                first, second = problem.factors[problem.kinds[i], problem.kinds[j], kind]
                if min(first, second) > 0 and a.usable[i, kind] and a.usable[j, kind]:
                    gain = a.gain[i, kind] * first + a.gain[j, kind] * second
                    add(gain, [(i, a.rows[i, kind] * first), (j, a.rows[j, kind] * second)], a.gangs[i], kind)
    columns.append(np.concatenate([np.zeros(jobs + types), a.weights]))
    costs.append(-a.level_gain)
    bounds = np.concatenate([np.ones(jobs), a.capacity, -a.floors])
    keep = np.concatenate([np.ones(jobs + types, dtype=np.bool_), a.held])
    found = linprog(costs, np.array(columns).T[keep], bounds[keep], method="highs-ds")
    assert found.status == 0
    return -float(found.fun)


def _rows(problem: Paired, found: PairedSolution) -> Floats:
    """The rows of all jobs under a plan."""
    return _counted(problem, found, problem.alone.rows)


def _counted(problem: Paired, found: PairedSolution, each: Floats) -> Floats:
    total = (each * found.x).sum(axis=1)
    for (i, j), times in zip(found.pairs.tolist(), found.pair_x, strict=True):
        keeps = problem.factors[problem.kinds[i], problem.kinds[j]]
        total[i] += float((each[i] * keeps[:, 0]) @ times)
        total[j] += float((each[j] * keeps[:, 1]) @ times)
    return np.asarray(total)


def _value(problem: Paired, found: PairedSolution) -> float:
    """What a plan is really worth, from its times alone."""
    a = problem.alone
    if not a.level_gain:
        return float(_counted(problem, found, a.gain).sum())
    weighs = a.weights > 0
    return float(((_rows(problem, found) - a.floors)[weighs] / a.weights[weighs]).min())


def _check_limits(problem: Paired, found: PairedSolution) -> None:
    a = problem.alone
    time, load = found.x.sum(axis=1), a.gangs @ found.x
    for (i, j), times in zip(found.pairs.tolist(), found.pair_x, strict=True):
        assert i < j
        assert a.gangs[i] == a.gangs[j]
        used = times > 0
        assert (problem.factors[problem.kinds[i], problem.kinds[j]][used].min(initial=1.0)) > 0
        assert (a.usable[i] & a.usable[j])[used].all()
        time[[i, j]] += times.sum()
        load += a.gangs[i] * times
    assert found.x.min() >= 0
    assert found.pair_x.min(initial=0.0) >= 0
    assert time.max() <= 1.0 + 1e-9
    assert (load <= a.capacity + 1e-9).all()
    assert (_rows(problem, found)[a.held] >= a.floors[a.held] - 1e-7).all()


@pytest.mark.parametrize("level", [True, False])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_plan_is_as_good_as_the_best_over_all_pairs(seed: int, alike: bool, level: bool) -> None:
    problem = _problem(seed, alike=alike, level=level)
    found = solve_paired(problem)
    assert found.optimal
    assert _value(problem, found) == pytest.approx(_all_pairs(problem), rel=1e-6)
    assert found.proof.gap < 1e-6
    _check_limits(problem, found)


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_never_make_a_plan_worse(seed: int) -> None:
    problem = _problem(seed)
    assert _value(problem, solve_paired(problem)) >= solve(problem.alone).level * (1 - 1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coarse_start_does_not_change_what_is_reached(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(seed, jobs=20, alike=False)
    plain = solve_paired(problem)
    monkeypatch.setattr(paired, "MANY", 4)
    monkeypatch.setattr(paired, "GROUPS", 6)
    coarse = solve_paired(problem)
    assert _value(problem, coarse) == pytest.approx(_value(problem, plain), rel=1e-6)
    _check_limits(problem, coarse)


def _without(problem: Paired, gone: list[int]) -> Paired:
    """The problem after some jobs have ended."""
    a, stay = problem.alone, np.delete(np.arange(len(problem.kinds)), gone)
    parts = ("gangs", "usable", "gain", "rows", "weights", "floors", "held")
    alone = replace(a, **{part: getattr(a, part)[stay] for part in parts})
    return replace(problem, alone=alone, kinds=problem.kinds[stay])


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_may_begin_where_one_of_other_jobs_ended(seed: int, alike: bool) -> None:
    everybody = _problem(seed, jobs=18, alike=alike)
    names = 7 * np.arange(18) + 3
    before, now = [2, 9, 17], [0, 5]
    found = solve_paired(_without(everybody, before))
    assert found.start is not None
    noted = json.loads(json.dumps(found.start.plain(np.delete(names, before))))
    start = Start.from_plain(noted, np.delete(names, now), 3)
    problem = _without(everybody, now)
    again = solve_paired(problem, start)
    assert _value(problem, again) == pytest.approx(_all_pairs(problem), rel=1e-6)
    _check_limits(problem, again)


def test_a_start_saves_iterations() -> None:
    problem = _problem(4, jobs=40, alike=False)
    found = solve_paired(problem)
    assert found.start is not None
    names = np.arange(40)
    start = Start.from_plain(found.start.plain(names), names, 3)
    for one, other in zip(start, found.start, strict=True):
        assert one.tolist() == other.tolist()
    again = solve_paired(problem, start)
    assert again.iterations == 0
    assert found.iterations > 20
    assert again.level == pytest.approx(found.level, rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_start_with_pairs_that_must_not_share_does_no_harm(seed: int) -> None:
    problem = _problem(seed, alike=False)
    a, kinds, nobody = problem.alone, problem.kinds, np.zeros(0, dtype=np.int64)
    problem.factors[...] = np.where(problem.factors > 0, np.maximum(problem.factors, 0.8), 0.0)
    wrong = [
        (i, j, kind)
        for i in range(14)
        for j in range(i + 1)
        for kind in range(3)
        if i == j or a.gangs[i] != a.gangs[j] or not problem.factors[kinds[i], kinds[j], kind].all()
    ]
    found = solve_paired(problem, Start(np.array(wrong), nobody, nobody, nobody))
    assert _value(problem, found) == pytest.approx(_all_pairs(problem), rel=1e-6)
    _check_limits(problem, found)


def test_a_poor_start_is_helped_by_the_coarse_program(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = np.zeros(0, dtype=np.int64)
    poor = Start(np.zeros((0, 3), dtype=np.int64), nobody, nobody, nobody)
    monkeypatch.setattr(paired, "MANY", 4)
    monkeypatch.setattr(paired, "NEW_PARTNERS", 1)
    problems = [_problem(seed, jobs=40, alike=False) for seed in SEEDS]

    def reached() -> float:
        short = Effort(classes=0, missing=0.0, turns=1)
        return sum(solve_paired(problem, poor, short).level for problem in problems)

    helped = reached()
    monkeypatch.setattr(paired, "POOR", 1e9)
    assert reached() < 0.999 * helped


def test_what_is_missing_bounds_what_a_short_search_loses() -> None:
    losses = []
    for seed in SEEDS:
        problem = _problem(seed, jobs=24, alike=False)
        short = solve_paired(problem, effort=Effort(classes=0, missing=0.0, turns=1))
        best = _all_pairs(problem)
        assert _value(problem, short) * (1 + short.proof.gap) >= best * (1 - 1e-6)
        losses.append(1 - _value(problem, short) / best)
    assert max(losses) > 1e-4, "a search of one turn that loses nothing anywhere tests nothing"


def test_floors_that_cannot_be_kept_are_reported() -> None:
    problem = _problem(1, level=False)
    hard = replace(problem, alone=replace(problem.alone, floors=problem.alone.rows.max(axis=1), held=np.ones(14, bool)))
    assert not solve_paired(hard).optimal


def test_two_jobs_that_keep_six_tenths_each_are_always_together() -> None:
    found = solve_paired(_two(0.6, 0.6))
    assert found.level == pytest.approx(0.6)
    assert found.pair_x.tolist() == [[pytest.approx(1.0)]]


def test_an_uneven_pair_is_evened_out_by_time_alone() -> None:
    found = solve_paired(_two(0.9, 0.2))
    assert found.level == pytest.approx(9 / 17)
    assert found.pair_x.tolist() == [[pytest.approx(10 / 17)]]
    assert found.x.ravel().tolist() == pytest.approx([0.0, 7 / 17])


def test_a_pair_that_gains_nothing_is_not_used() -> None:
    found = solve_paired(_two(0.5, 0.5))
    assert found.level == pytest.approx(0.5)
    assert not len(found.pairs)


def _two(first: float, second: float) -> Paired:
    """Two jobs of one step a second on one GPU."""
    base = Allocation.over(np.ones(2), np.ones(1), np.ones((2, 1), dtype=np.bool_))
    alone = replace(base, rows=np.ones((2, 1)), weights=np.ones(2), held=np.ones(2, dtype=np.bool_), level_gain=1.0)
    factors = np.zeros((2, 2, 1, 2))
    factors[0, 1, 0], factors[1, 0, 0] = (first, second), (second, first)
    return Paired(alone, np.arange(2), factors)


def test_units_of_steps_do_not_matter() -> None:
    problem = _problem(5)
    a = problem.alone
    unit = np.random.default_rng(0).uniform(1e-6, 1e6, len(a.gangs))
    other = replace(problem, alone=replace(a, rows=a.rows * unit[:, None], weights=a.weights * unit * 1e6))
    assert solve_paired(other).level * 1e6 == pytest.approx(solve_paired(problem).level, rel=1e-6)


def test_jobs_that_are_alike_are_planned_alike() -> None:
    problem = _problem(2, jobs=30)
    found = solve_paired(problem)
    rows = _rows(problem, found)
    for kind in range(5):
        assert np.ptp(rows[problem.kinds == kind]) == pytest.approx(0.0, abs=1e-9)
    assert len(classes_of(problem.alone, problem.kinds).sizes) == 5
    assert len(found.pairs) < 4 * 30


def test_groups_keep_kinds_and_gangs_apart() -> None:
    problem = _problem(2, jobs=40, alike=False)
    classes = classes_of(problem.alone, problem.kinds)
    groups = grouped(classes, 10)
    assert groups.sizes.sum() == 40
    for group, inside in enumerate(members(groups)):
        assert set(classes.kinds[inside]) == {groups.kinds[group]}
        assert set(classes.one.gangs[inside]) == {groups.one.gangs[group]}
        assert groups.one.rows[group] == pytest.approx(classes.one.rows[inside].mean(axis=0))


@pytest.mark.parametrize("one", range(1, 8))
@pytest.mark.parametrize("other", range(1, 8))
def test_everybody_takes_an_equal_part(one: int, other: int) -> None:
    left, right = np.arange(one), 100 + np.arange(other)
    first, second, part = partners(left, right)
    assert len(first) <= one + other - 1
    assert _sums(first, part, one) == pytest.approx(np.full(one, 1 / one))
    assert _sums(second - 100, part, other) == pytest.approx(np.full(other, 1 / other))


@pytest.mark.parametrize("count", range(2, 10))
def test_inside_a_class_nobody_has_more_than_two_partners(count: int) -> None:
    everybody = np.arange(count)
    first, second, part = partners(everybody, everybody)
    assert (first != second).all()
    assert _sums(first, part, count) + _sums(second, part, count) == pytest.approx(np.full(count, 2 / count))
    assert np.bincount(np.concatenate([first, second]), minlength=count).max() <= 2


def _sums(who: Ints, part: Floats, count: int) -> Floats:
    return np.bincount(who, part, minlength=count)
