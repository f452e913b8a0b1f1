"""Water filling: raise all jobs together, in proportion to their weights, until none can rise further.

The staged method of Gavel (OSDI 2020, section 4.3) solves a linear program for each rise and a mixed-integer program to
learn which jobs are stuck. Neither is needed for jobs that do not share GPUs. A job stops rising for one of two
reasons: it has all the time on its best type, which is known beforehand; or the types that it needs are exhausted,
which happens at most once to each type. So the course of all levels is known up to the next exhaustion, and only the
volume at which that happens has to be found.

That is Newton's method in the dual. Prices p of the types give each job m a cost g(m, level): the cheapest mix of types
that makes the level. Levels can be kept exactly if, for all prices, the costs add up to no more than the worth of the
cluster, p · capacity. Prices at which this fails bound the volume; the largest volume within the bound is tried next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.portable import dot, dots
from fairway.policies.gavel.entities import Entities, FillCourse
from fairway.policies.gavel.throughputs import PlanOutcome, Throughputs
from fairway.solvers.allocation import Allocation
from fairway.solvers.interior import solve
from fairway.solvers.vertex import solve_at_vertex

EXACT = 1e-9
"""A volume that exceeds one that can be kept by this fraction counts as kept."""
STILL = 1e-6
"""A job that cannot rise by more than this fraction counts as filled up."""
NO_PRICE = 1e-7
"""A type that makes up less than this fraction of the cluster's worth has no price."""
ROUNDING = 1e-13
"""The relative error that adding up costs may cause."""
ONE_WAY = 1e-5
"""Costs that differ by less than this fraction may be equal."""
MOST_HALVINGS = 200
MOST_TRIALS = 40
"""Volumes tried before a phase settles for the smallest one."""
MOST_STAGES = 60
"""Stages with pairs. After them, what is left goes to the largest sum."""


class Filling(NamedTuple):
    """An allocation, the level of each job (`per_unit` times its throughput), and how many phases it took."""

    outcome: PlanOutcome
    levels: Floats
    phases: int


def fill(throughputs: Throughputs, per_unit: Floats, entities: Entities) -> Filling:
    """Fill up all jobs. A job's level is `per_unit` times its throughput; weights are those of the entities."""
    if not throughputs.jobs:
        nothing = np.zeros(0)
        return Filling(_outcome(throughputs, np.zeros_like(throughputs.rates), True), nothing, 0)
    if len(throughputs.factors):
        return _fill_in_stages(throughputs, per_unit, entities)
    return _fill_by_types(throughputs, per_unit, entities)


def _outcome(throughputs: Throughputs, x: Floats, optimal: bool) -> PlanOutcome:
    no_pairs = np.zeros((0, len(throughputs.capacity)))
    return PlanOutcome(x, no_pairs, throughputs.of(x), 0.0, np.ones(len(x)), optimal)


def _fill_by_types(throughputs: Throughputs, per_unit: Floats, entities: Entities) -> Filling:
    """Phases, each of which ends when a GPU type is exhausted."""
    opened = throughputs.capacity > 0
    rows = per_unit[:, None] * throughputs.rates * opened
    yard = _Yard(rows, throughputs.gangs, throughputs.capacity)
    caps, volume, phases = rows.max(axis=1, initial=0.0), 0.0, 0
    trial = _Trial(np.zeros_like(rows), np.zeros(len(opened)), not caps.any())
    made = np.zeros(len(rows))
    while opened.any() and (caps > made * (1.0 + STILL)).any():
        course = FillCourse(entities, caps)
        if course.volume <= volume * (1.0 + EXACT):
            break
        volume, last, exhausted = yard.highest(course, volume, made, opened)
        if not last.optimal:
            break
        phases, trial = phases + 1, last
        levels, made = course.at(volume), (rows * trial.x).sum(axis=1)
        opened = opened & ~exhausted
        caps = np.maximum(levels, rows[:, opened].max(axis=1, initial=0.0))
        yard.settle(levels, caps, trial, np.where(opened, 0.0, trial.prices))
    outcome = _outcome(throughputs, trial.x, trial.optimal)
    return Filling(outcome, per_unit * outcome.throughput, phases)


class _Trial(NamedTuple):
    """The result of trying levels: time by job and type, prices of the types, and whether a solver found them."""

    x: Floats
    prices: Floats
    optimal: bool


class _Yard:
    """The jobs (`rows[m, j]`: the level that job m makes with all the time on type j) and the GPUs."""

    def __init__(self, rows: Floats, gangs: Floats, capacity: Floats) -> None:
        self.rows, self.gangs, self.capacity = rows, gangs, capacity
        self._kinds: Ints = np.unique(np.column_stack([rows, gangs]), axis=0, return_inverse=True)[1].ravel()
        self._settled, self._x = np.zeros(len(rows), dtype=np.bool_), np.zeros_like(rows)

    def highest(self, course: FillCourse, volume: float, made: Floats, opened: Bools) -> tuple[float, _Trial, Bools]:
        """The largest volume whose levels can be kept, its result, and which open types it exhausts.

        `made` are levels that can be kept, at first those of the volume.
        """
        prices = opened * dots(self.rows.T, self.gangs)
        top = self._within_worth(course, prices, volume, course.volume)
        trial = self._tried(course.at(top), made)
        trials = 1
        while trial.optimal and trials < MOST_TRIALS:
            at = self._within_worth(course, trial.prices, volume, top)
            if top - at <= EXACT * top:
                break
            prices, top, trials = trial.prices, at, trials + 1
            trial = self._tried(course.at(at), made)
        return top, trial, self._exhausted(trial, prices, opened)

    def _exhausted(self, trial: _Trial, prices: Floats, opened: Bools) -> Bools:
        """The open types that have a price in the bound that was met, or in the solution, and no GPU-time left."""
        worth = self.capacity * opened
        worth = np.maximum(_parts(prices * worth), _parts(trial.prices * worth))
        slack = 1.0 - dots(trial.x.T, self.gangs) / np.where(self.capacity > 0, self.capacity, 1.0)
        found = worth > np.maximum(slack, NO_PRICE)
        return np.asarray(opened & (found if found.any() else slack <= slack[opened].min()))

    def settle(self, levels: Floats, caps: Floats, trial: _Trial, prices: Floats) -> None:
        """Leave out of later trials the jobs that are stuck and have only one way to make their levels.

        Whatever happens later, jobs that cannot rise make their levels as cheaply as they can at the prices at which
        the types were exhausted.
        """
        stuck = (levels > 0) & (caps <= levels * (1.0 + EXACT)) & ~self._settled
        if prices.any():
            stuck &= _Costs(self.rows, self.gangs, prices).has_one_way(levels)
            self._settled |= stuck
            self._x[stuck] = trial.x[stuck]

    def _capacity_left(self) -> Floats:
        """The GPUs that settled jobs leave."""
        return np.asarray(np.maximum(self.capacity - dots(self._x.T, self.gangs), 0.0))

    def _within_worth(self, course: FillCourse, prices: Floats, low: float, high: float) -> float:
        """The largest volume in a range at which the costs do not exceed the worth of the cluster.

        The lower end can be kept, so only what is added to it counts: costs that have reached the whole worth of a type
        before are not compared again.
        """
        free = ~self._settled
        costs = _Costs(self.rows[free], self.gangs[free], prices)
        spent, worth = costs.of(course.at(low)[free]), dot(prices, self._capacity_left())
        room = max(worth - float(spent.sum()), 0.0) + ROUNDING * worth

        def over(volume: float) -> float:
            return float((costs.of(course.at(volume)[free]) - spent).sum()) - room

        above = over(high)
        if above <= 0.0:
            return high
        below, last = -room, 0
        for step in range(MOST_HALVINGS):
            if high - low <= 1e-12 * high:
                break
            # The false position with the Illinois rule is exact as soon as both ends lie on one linear piece. Halving
            # at times brings it there.
            part = 0.5 if step % 4 == 3 else above / (above - below)
            middle = high - part * (high - low)
            value = over(middle)
            if abs(value) <= ROUNDING * room:
                return middle
            if value > 0:
                high, above, below, last = middle, value, below / 2 if last > 0 else below, 1
            else:
                low, below, above, last = middle, value, above / 2 if last < 0 else above, -1
        return high

    def _tried(self, levels: Floats, made: Floats) -> _Trial:
        """Rise from what is made towards levels, as far as all can in proportion."""
        jobs = (levels > 0) & ~self._settled
        x = self._x.copy()
        if not jobs.any():
            return _Trial(x, np.zeros(len(self.capacity)), True)
        member, count, first = self._classes(levels, made, jobs)
        rows, z = self.rows[first], self.gangs[first] * count
        base = Allocation.over(z, self._capacity_left(), rows > 0)
        problem = replace(base, rows=rows, weights=levels[first], held=np.ones(len(z), dtype=np.bool_), level_gain=1.0)
        found = None if made.any() else solve(problem)
        if found is None or not found.optimal:
            floors = np.minimum(made, levels)[first]
            rise = levels[first] - floors
            # What rounding has left between a stuck job and its level must not hold the others down.
            rise[rise <= STILL * levels[first]] = 0.0
            found = solve_at_vertex(replace(problem, weights=rise, floors=floors))
        x[jobs] = found.x[member]
        return _Trial(x, found.prices, found.optimal)

    def _classes(self, levels: Floats, made: Floats, jobs: Bools) -> tuple[Ints, Floats, Ints]:
        """Jobs that are alike count as one: the class of each job, the number of jobs in it, and one of them."""
        rows = jobs.nonzero()[0]
        order = np.lexsort((made[rows], levels[rows], self._kinds[rows]))
        ordered = rows[order]
        new = np.ones(len(rows), dtype=np.bool_)
        new[1:] = np.diff(self._kinds[ordered]) != 0
        for values in (levels[ordered], made[ordered]):
            new[1:] |= np.abs(np.diff(values)) > 1e-12 * values[1:]
        member = np.empty(len(rows), dtype=np.int64)
        member[order] = np.cumsum(new) - 1
        return member, np.bincount(member).astype(np.float64), ordered[new]


def _parts(values: Floats) -> Floats:
    return np.asarray(values / max(float(values.sum()), 1e-300))


class _Costs:
    """What levels cost at given prices: the cheapest mix of two types, or of one type and idling."""

    def __init__(self, rows: Floats, gangs: Floats, prices: Floats) -> None:
        jobs, types = rows.shape
        self._made = made = np.vstack([np.zeros(jobs), rows.T])
        self._cost = cost = np.vstack([np.zeros(jobs), prices[:, None] * gangs])
        a, b = np.triu_indices(types + 1, 1)
        self._low, self._high = np.minimum(made[a], made[b]), np.maximum(made[a], made[b])
        wide, width = self._high > self._low, made[b] - made[a]
        self._slope = np.divide(cost[b] - cost[a], width, out=np.zeros_like(width), where=wide)
        self._start = np.where(wide, cost[a] - self._slope * made[a], np.inf)
        self._most = made.max(axis=0)

    def of(self, levels: Floats) -> Floats:
        """The cost of each job's level."""
        return np.where(levels > 0, self._ways(levels).min(axis=0), 0.0)

    def has_one_way(self, levels: Floats) -> Bools:
        """Whether each level has a single cheapest mix, clearly cheaper than all others."""
        ways = self._ways(levels)
        at, column = ways.argmin(axis=0), np.arange(len(levels))
        line = self._start[at, column] + self._slope[at, column] * self._made
        above = self._cost - line
        near = above <= ONE_WAY * np.maximum(self._cost.max(axis=0), 1e-300)
        return np.asarray(np.isfinite(ways.min(axis=0)) & ((near & (self._made > 0)).sum(axis=0) + near[0] <= 2))

    def _ways(self, levels: Floats) -> Floats:
        levels = np.minimum(levels, self._most)
        inside = (self._low <= levels) & (levels <= self._high)
        with np.errstate(invalid="ignore"):
            return np.where(inside, self._start + self._slope * levels, np.inf)


def _fill_in_stages(throughputs: Throughputs, per_unit: Floats, entities: Entities) -> Filling:
    """With pairs: rise as far as all can, take out the jobs with a positive multiplier, and repeat."""
    levels = np.zeros(throughputs.jobs)
    active = np.asarray(throughputs.rates.any(axis=1) & (per_unit > 0))
    best: PlanOutcome | None = None
    stages = 0
    while active.any() and stages < MOST_STAGES:
        weights = entities.weights(active)
        if not weights.any():
            break
        outcome = throughputs.highest_level(per_unit, weights, levels * (1.0 - 1e-9), best)
        if not outcome.optimal:
            break
        stages, best = stages + 1, outcome
        levels = levels + weights * outcome.level
        stuck = (weights > 0) & (outcome.multipliers > 1e-9 * max(float(outcome.multipliers.max()), 1e-300))
        if not stuck.any():
            break
        active = active & ~stuck
    if best is None:
        best = _outcome(throughputs, np.zeros_like(throughputs.rates), False)
    elif active.any():
        best = throughputs.spend_rest(
            per_unit, best, np.where(per_unit > 0, 1.0 / np.where(per_unit > 0, per_unit, 1.0), 1.0)
        )
    return Filling(best, per_unit * best.throughput, stages)
