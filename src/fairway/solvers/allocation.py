"""Allocation problems: how much time each job gets on which GPU type, and the proof that an answer is the best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats
from fairway.core.portable import dot, dots

TOLERANCE = 1e-6
"""The most that a plan may miss of the optimum, and the most by which it may breach a limit, as fractions.

`proof_of` holds every answer against it. The proof does not depend on the method that found the answer. Methods aim
lower."""

GRID, BITS = 1.0 / (1 << 30), 32
"""Times are whole multiples of `GRID`, as a fraction of all the time. Levels, multipliers and prices have `BITS` binary
digits. Both are far coarser than the error that a solver leaves."""


@dataclass(frozen=True)
class Allocation:
    """An allocation problem over x[job, type] >= 0 and a level t.

    Maximise  sum(gain · x) + level_gain · t  subject to
      sum over types of x[m] <= 1                                      (a job has at most all the time)
      sum over jobs of gangs[m] · x[m, j] <= capacity[j]               (a type has at most its GPUs)
      sum over types of rows[m] · x[m] - weights[m] · t >= floors[m]   for the jobs of `held`
    Entries of x outside of `usable` are zero.
    """

    gangs: Floats
    capacity: Floats
    usable: Bools
    gain: Floats
    rows: Floats
    weights: Floats
    floors: Floats
    held: Bools
    level_gain: float = 0.0

    @staticmethod
    def over(gangs: Floats, capacity: Floats, usable: Bools) -> Allocation:
        """A problem with its capacities only, to be completed by `replace`."""
        jobs, none = len(gangs), np.zeros(usable.shape)
        zero, nobody = np.zeros(jobs), np.zeros(jobs, dtype=np.bool_)
        return Allocation(gangs, capacity, usable, none, none, zero, zero, nobody)


class Proof(NamedTuple):
    """The most by which a point breaches a limit, and the most that it may miss of the optimum, as fractions."""

    breach: float
    gap: float

    @property
    def holds(self) -> bool:
        """Whether both are within the tolerance."""
        return self.breach <= TOLERANCE and self.gap <= TOLERANCE


UNPROVEN = Proof(math.inf, math.inf)


class Solution(NamedTuple):
    """A point; the multipliers of the rows, which sum to 1 over those that bind the level; whether it is optimal.

    `prices` are the multipliers of the types' capacities, in a unit of their own.
    """

    x: Floats
    level: float
    multipliers: Floats
    optimal: bool
    steps: int
    prices: Floats
    proof: Proof = UNPROVEN


def nothing_to_give(problem: Allocation) -> Solution:
    """The answer where no type has any GPUs."""
    found = nothing_found(problem)
    return found._replace(optimal=not (problem.held & (problem.floors > 0)).any(), proof=Proof(0.0, 0.0))


def nothing_found(problem: Allocation, steps: int = 0) -> Solution:
    """The answer where the floors cannot be kept, or where no method has found anything."""
    jobs, types = problem.usable.shape
    return Solution(np.zeros((jobs, types)), 0.0, np.zeros(jobs), False, steps, np.zeros(types))


@np.errstate(all="ignore")
def proof_of(problem: Allocation, x: Floats, level: float, multipliers: Floats, prices: Floats) -> Proof:
    """How good a point is, by weak duality: any multipliers and prices that are not negative bound every plan.

    If there is a level, the unit of multipliers and prices does not matter. The shortage of a row is counted as the
    time that would make it up.
    """
    z, floors = problem.gangs, np.where(problem.held, problem.floors, 0.0)
    weights = np.where(problem.held, problem.weights, 0.0)
    # Types come first, so that sums over them are sums of a few long rows.
    times, rows, usable = x.T, np.ascontiguousarray(problem.rows.T), (problem.usable & (problem.capacity > 0)).T
    most = np.where(usable, rows, 0.0).max(axis=0, initial=0.0)
    lacks = floors + weights * level - np.add.reduce(rows * times)
    capacity = np.where(problem.capacity > 0, problem.capacity, 1.0)
    breach = max(
        float((-x).max(initial=0.0)),
        float((np.add.reduce(times) - 1.0).max(initial=0.0)),
        float(((dots(times, z) - problem.capacity) / capacity).max(initial=0.0)),
        float((lacks / np.where(most > 0, most, 1.0))[problem.held].max(initial=0.0)),
    )
    worths, costs = np.where(problem.held, np.maximum(multipliers, 0.0), 0.0), np.maximum(prices, 0.0)
    unit = 1.0
    if problem.level_gain > 0:
        weighed = dot(worths, weights)
        unit = problem.level_gain / weighed if weighed > 0 else math.nan
    own = np.where(usable, problem.gain.T + unit * (worths * rows - costs[:, None] * z), 0.0).max(axis=0, initial=0.0)
    bound = float(np.add.reduce(own)) + unit * (dot(costs, problem.capacity) - dot(worths, floors))
    value = float(np.add.reduce((problem.gain * x).ravel())) + problem.level_gain * level
    most_gain = max(float(np.abs(problem.gain).max(initial=0.0)), abs(bound), abs(value)) if problem.gain.any() else 0.0
    unit = max(most_gain, problem.level_gain * abs(level))
    gap = (bound - value) / unit if unit > 0 else 0.0
    return Proof(breach, max(gap, 0.0) if gap == gap else math.inf)
