"""Effective throughput: what an allocation of time gives each job, and the one place where programs over it are built.

The effective throughput of a job is the sum, over GPU types and over the partners beside which it runs, of the time
that it gets there times its speed there. Every policy of the family is a linear program in these quantities: floors
under them, a common level below them, a weighted sum of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.solvers.interior import Allocation, centre, solve
from fairway.solvers.paired import Paired, solve_paired

KEEP = 1.0 - 1e-6
"""What a second stage must keep of the level that the first has reached."""


class Outcome(NamedTuple):
    """An allocation: time alone and in pairs, the throughput of each job, the level, and which rows hold it down.

    `multipliers` are positive for the jobs whose rows cannot rise while all others keep theirs.
    """

    x: Floats
    pair_x: Floats
    throughput: Floats
    level: float
    multipliers: Floats
    optimal: bool


@dataclass(frozen=True)
class Throughputs:
    """Speeds alone (jobs by types) and, where pairs are allowed, of pairs (pairs by types by the two jobs)."""

    rates: Floats
    gangs: Floats
    capacity: Floats
    pairs: Ints
    pair_rates: Floats

    @staticmethod
    def alone(rates: Floats, gangs: Floats, capacity: Floats) -> Throughputs:
        """Jobs that never share."""
        none = np.zeros((0, len(capacity), 2))
        return Throughputs(rates, gangs, capacity, np.zeros((0, 2), dtype=np.int64), none)

    @property
    def jobs(self) -> int:
        return len(self.gangs)

    def of(self, x: Floats, pair_x: Floats | None = None) -> Floats:
        """The effective throughput of each job under an allocation."""
        total: Floats = (self.rates * x).sum(axis=1)
        if pair_x is not None and len(self.pairs):
            for side in (0, 1):
                np.add.at(total, self.pairs[:, side], (self.pair_rates[:, :, side] * pair_x).sum(axis=1))
        return total

    def highest_level(self, per_unit: Floats, weights: Floats, floors: Floats | None = None) -> Outcome:
        """The largest t with  per_unit[m] · throughput(m) >= weights[m] · t (+ floors[m])  for all jobs.

        Jobs of weight 0 only keep their floors.
        """
        zero = np.zeros(self.jobs) if floors is None else floors
        # A row without any speed has no room above its floor; such a job waits whatever is planned.
        held = np.asarray(self.rates.any(axis=1) & (per_unit > 0))
        return self._solve(per_unit, np.where(held, weights, 0.0), zero, held, np.zeros_like(self.rates), 1.0)

    def largest_sum(self, value: Floats, per_unit: Floats | None = None, floors: Floats | None = None) -> Outcome:
        """The largest sum of throughputs, each second on a type worth `value[m, type]` per unit.

        With floors, per_unit[m] · throughput(m) >= floors[m] for all jobs whose floor is positive.
        """
        if per_unit is None or floors is None:
            none = np.zeros(self.jobs)
            return self._solve(none, none, none, np.zeros(self.jobs, dtype=np.bool_), value, 0.0)
        return self._solve(per_unit, np.zeros(self.jobs), floors, floors > 0, value, 0.0)

    def centre_above(self, floors: Floats) -> Outcome:
        """The analytic centre of the allocations in which every throughput reaches its floor. Jobs alone only."""
        base = Allocation.over(self.gangs, self.capacity, self.rates > 0)
        found = centre(replace(base, rows=self.rates, floors=floors, held=np.asarray(self.rates.any(axis=1))))
        return Outcome(found.x, self._no_pairs(), self.of(found.x), 0.0, found.multipliers, found.optimal)

    def spend_rest(self, per_unit: Floats, outcome: Outcome, normal: Floats) -> Outcome:
        """A second stage: keep every row of an outcome, and use what capacity is left for the largest sum.

        A job's throughput counts in units of `normal`, so that no job is favoured for counting its steps otherwise.
        """
        floors = per_unit * outcome.throughput * KEEP
        worth = np.broadcast_to((1.0 / np.where(normal > 0, normal, 1.0))[:, None], self.rates.shape)
        second = self.largest_sum(worth, per_unit, np.maximum(floors, 0.0))
        return second._replace(level=outcome.level) if second.optimal else outcome

    def _no_pairs(self) -> Floats:
        return np.zeros((len(self.pairs), len(self.capacity)))

    def _solve(
        self, per_unit: Floats, weights: Floats, floors: Floats, held: Bools, value: Floats, level_gain: float
    ) -> Outcome:
        base = Allocation.over(self.gangs, self.capacity, self.rates > 0)
        problem = replace(
            base,
            gain=value * self.rates,
            rows=per_unit[:, None] * self.rates,
            weights=weights,
            floors=floors,
            held=held,
            level_gain=level_gain,
        )
        if not len(self.pairs):
            found = solve(problem)
            throughput = self.of(found.x)
            return Outcome(found.x, self._no_pairs(), throughput, found.level, found.multipliers, found.optimal)
        both = self.pair_rates
        a, b = self.pairs[:, 0], self.pairs[:, 1]
        gain = value[a] * both[:, :, 0] + value[b] * both[:, :, 1]
        rows = both * np.stack([per_unit[a], per_unit[b]], axis=1)[:, None, :]
        shared = solve_paired(Paired(problem, self.pairs, rows, gain))
        throughput = self.of(shared.x, shared.pair_x)
        return Outcome(shared.x, shared.pair_x, throughput, shared.level, shared.multipliers, shared.optimal)
