"""Effective throughput: what an allocation of time gives each job, and the one place where programs over it are built.

The effective throughput of a job is a sum over GPU types and over the partners beside which it runs: the time that it
gets there times its speed there. Every policy of the family is a linear program in these quantities: floors under them,
a common level below them, a weighted sum of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.solvers.allocation import UNPROVEN, Allocation, Proof, Solution
from fairway.solvers.classes import solve_alike
from fairway.solvers.paired import Paired, Start, solve_paired

NO_PAIRS: Ints = np.zeros((0, 2), dtype=np.int64)

KEEP = 1.0 - 1e-6
"""The part of the level of the first stage that a second stage must keep."""


BINDS = 1e-5
"""A multiplier of this fraction of the mean shows that the level holds a job down."""


class PlanOutcome(NamedTuple):
    """An allocation: time alone and in pairs, the throughput of each job, the level, and which rows hold it down.

    `multipliers` are positive for the jobs whose rows cannot rise while all others keep theirs; `prices` are those of
    the GPU types. `start` is where a similar program may start its search for pairs, `rest` where its second stage may.
    `proof` bounds the breach of a limit and what may be missing.
    """

    x: Floats
    pair_x: Floats
    throughput: Floats
    level: float
    multipliers: Floats
    optimal: bool
    pairs: Ints = NO_PAIRS
    start: Start | None = None
    rest: Start | None = None
    prices: Floats | None = None
    proof: Proof = UNPROVEN


@dataclass(frozen=True)
class Throughputs:
    """Speeds alone (jobs by types) and, where jobs may share GPUs, what each keeps beside the other.

    `kinds` is the kind of each job and `factors[kind, kind, type]` what the two jobs keep. Without any factors, jobs
    never share. Each program finds which of the possible pairs to use, and its outcome names them. `start` and `rest`
    are where the searches for pairs in the two stages of an earlier plan ended.
    """

    rates: Floats
    gangs: Floats
    capacity: Floats
    kinds: Ints
    factors: Floats
    start: Start | None = None
    rest: Start | None = None
    names: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def alone(cls, rates: Floats, gangs: Floats, capacity: Floats) -> Self:
        """Jobs that never share."""
        nobody = np.zeros((0, 0, len(capacity), 2))
        return cls(rates, gangs, capacity, np.zeros(len(gangs), dtype=np.int64), nobody)

    @property
    def jobs(self) -> int:
        return len(self.gangs)

    def even(self) -> Floats:
        """Every job alone on its n-th of each type, time-sliced if its gang is larger, never more than all the time."""
        split = self.capacity[None, :] / (self.jobs * self.gangs[:, None])
        return np.asarray(split / np.maximum(split.sum(axis=1, keepdims=True), 1.0))

    def of(self, x: Floats, pairs: Ints | None = None, pair_x: Floats | None = None) -> Floats:
        """The effective throughput of each job under an allocation."""
        total: Floats = (self.rates * x).sum(axis=1)
        if pairs is not None and pair_x is not None and len(pairs):
            keeps = self.factors[self.kinds[pairs[:, 0]], self.kinds[pairs[:, 1]]]
            for side in (0, 1):
                rows = pairs[:, side]
                total += np.bincount(rows, (self.rates[rows] * keeps[..., side] * pair_x).sum(axis=1), self.jobs)
        return total

    def highest_level(
        self, per_unit: Floats, weights: Floats, floors: Floats | None = None, after: PlanOutcome | None = None
    ) -> PlanOutcome:
        """The largest t with  per_unit[m] · throughput(m) >= weights[m] · t (+ floors[m])  for all jobs.

        Jobs of weight 0 only keep their floors. `after` is the outcome of a similar program; its pairs are tried first.
        """
        zero = np.zeros(self.jobs) if floors is None else floors
        # A row without any speed has no room above its floor. Such a job waits whatever is planned.
        held = np.asarray(self.rates.any(axis=1) & (per_unit > 0))
        return self._solve(per_unit, np.where(held, weights, 0.0), zero, held, np.zeros_like(self.rates), 1.0, after)

    def largest_sum(
        self,
        value: Floats,
        per_unit: Floats | None = None,
        floors: Floats | None = None,
        after: PlanOutcome | None = None,
    ) -> PlanOutcome:
        """The largest sum of throughputs, where each second on a type is worth `value[m, type]` per unit.

        With floors, per_unit[m] · throughput(m) >= floors[m] for all jobs whose floor is positive.
        """
        if per_unit is None or floors is None:
            none = np.zeros(self.jobs)
            return self._solve(none, none, none, np.zeros(self.jobs, dtype=np.bool_), value, 0.0, after)
        found = self._solve(per_unit, np.zeros(self.jobs), floors, floors > 0, value, 0.0, after)
        if found.optimal or not len(self.factors):
            return found
        # Perhaps only jobs that share can keep these floors: see how far all can rise, and go on from there.
        first = self.highest_level(per_unit, floors, after=after)
        if not (first.optimal and first.level >= 1.0):
            return found
        return self._solve(per_unit, np.zeros(self.jobs), floors, floors > 0, value, 0.0, first)

    def above(self, floors: Floats) -> PlanOutcome:
        """Some allocation in which every throughput reaches its floor; not optimal if there is none."""
        able = np.asarray(self.rates.any(axis=1))
        ones, nothing = np.ones(self.jobs), np.zeros(self.jobs)
        return self._solve(ones, nothing, floors, able, np.zeros_like(self.rates), 0.0)

    def spend_rest(self, per_unit: Floats, outcome: PlanOutcome, normal: Floats) -> PlanOutcome:
        """A second stage: keep every row of an outcome, and use the remaining capacity for the largest sum.

        A job's throughput is counted in units of `normal`, so that no job is favoured because of how it counts steps.
        If the level holds every job down, there is nothing left to spend.
        """
        able = self.rates.any(axis=1)
        if not len(self.factors) and outcome.optimal and (outcome.multipliers[able] > BINDS / self.jobs).all():
            return outcome
        floors = per_unit * outcome.throughput * KEEP
        worth = np.broadcast_to((1.0 / np.where(normal > 0, normal, 1.0))[:, None], self.rates.shape)
        after = outcome._replace(start=outcome.start if self.rest is None else self.rest)
        second = self.largest_sum(worth, per_unit, np.maximum(floors, 0.0), after)
        if not second.optimal:
            return outcome
        return second._replace(level=outcome.level, start=outcome.start, rest=second.start)

    def planned(self) -> Bools:
        """Where a job may get time: on types on which it makes progress."""
        return np.asarray(self.rates > 0)

    def solved(self, problem: Allocation, after: PlanOutcome | None) -> Solution:
        """The solution of a program without pairs."""
        return solve_alike(problem, _near(after))

    def _no_pairs(self) -> Floats:
        return np.zeros((0, len(self.capacity)))

    def _solve(
        self,
        per_unit: Floats,
        weights: Floats,
        floors: Floats,
        held: Bools,
        value: Floats,
        level_gain: float,
        after: PlanOutcome | None = None,
    ) -> PlanOutcome:
        base = Allocation.over(self.gangs, self.capacity, self.planned())
        problem = replace(
            base,
            gain=value * self.rates,
            rows=per_unit[:, None] * self.rates,
            weights=weights,
            floors=floors,
            held=held,
            level_gain=level_gain,
        )
        if not len(self.factors):
            found = self.solved(problem, after)
            return PlanOutcome(
                found.x,
                self._no_pairs(),
                self.of(found.x),
                found.level,
                found.multipliers,
                found.optimal,
                prices=found.prices,
                proof=found.proof,
            )
        start = self.start if after is None or after.start is None else after.start
        shared = solve_paired(Paired(problem, self.kinds, self.factors), start)
        throughput = self.of(shared.x, shared.pairs, shared.pair_x)
        return PlanOutcome(
            shared.x,
            shared.pair_x,
            throughput,
            shared.level,
            shared.multipliers,
            shared.optimal,
            shared.pairs,
            shared.start,
            proof=shared.proof,
        )


def _near(after: PlanOutcome | None) -> Solution | None:
    """An outcome as a place to start from."""
    if after is None or after.prices is None:
        return None
    return Solution(after.x, after.level, after.multipliers, after.optimal, 0, after.prices)
