"""The policies of the Gavel family as in the public simulators of Gavel (OSDI 2020) and Shockwave (NSDI 2023).

Programs are solved by the method of ECOS, and there are no second stages. Agnostic policies treat all GPU types as
equal, even those that a job cannot use, and they go through the types in another order each round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies.gavel import (
    FinishTimeFairness,
    GavelFifo,
    GavelSjf,
    Hierarchical,
    Isolated,
    MaxMinFairness,
    MaxThroughput,
    MinCost,
    MinCostSlo,
    MinMakespan,
    WaterFilling,
)
from fairway.policies.gavel.base import PlanningPolicy, usable
from fairway.policies.gavel.fair import per_fair_share
from fairway.policies.gavel.orders import served_in_order
from fairway.policies.gavel.shares import Style, as_listed
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import PlanOutcome, Throughputs
from fairway.policies.gavel.times import best_known_rate, found_at_smallest_rho, smallest_rho
from fairway.published.embedding import solve_embedded
from fairway.published.shuffles import shuffled_types
from fairway.solvers.allocation import Allocation, Solution

SHORTEST_S, LONGEST_S, WIDTH = 100.0, 1e6, 1.05
"""The interval in which the bisection for the makespan begins, and the ratio of its ends at which it stops."""


def shuffled(snapshot: Snapshot) -> Sequence[int]:
    """The GPU types in another order each round."""
    return shuffled_types(snapshot.seed, len(snapshot.capacity), snapshot.round)


class EmbeddedThroughputs(Throughputs):
    """Programs without pairs, solved by the method of ECOS."""

    def planned(self) -> Bools:
        """All types: time on a type where a job makes no progress moves the centre of its other times."""
        return np.ones(self.rates.shape, dtype=np.bool_)

    def solved(self, problem: Allocation, after: PlanOutcome | None) -> Solution:
        """The solution by the method of ECOS, or by Fairway's own if that fails."""
        found = solve_embedded(problem)
        return found if found.optimal else super().solved(problem, after)


@dataclass(frozen=True)
class _Published(PlanningPolicy):
    """What all published forms have in common."""

    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    programs: ClassVar[type[Throughputs]] = EmbeddedThroughputs

    @property
    def style(self) -> Style:
        """No gang is served out of turn, and agnostic policies shuffle the GPU types."""
        order = shuffled if self.heterogeneity == "agnostic" else as_listed
        return super().style._replace(published=True, order=order)

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The same on every type."""
        return np.ones_like(situation.rates)


@dataclass(frozen=True)
class PublishedMaxMinFairness(_Published, MaxMinFairness):
    """The highest level, and nothing above it."""

    def plan(self, situation: Situation) -> Shares:
        """One program."""
        throughputs = self.throughputs(situation)
        per_unit = per_fair_share(throughputs, situation.weights)
        return self.shares(throughputs, throughputs.highest_level(per_unit, np.ones(throughputs.jobs)))


@dataclass(frozen=True)
class PublishedIsolated(_Published, Isolated):
    """Speeds do not count, so the types are always shuffled."""

    @property
    def style(self) -> Style:
        """As an agnostic policy."""
        return super().style._replace(order=shuffled)


@dataclass(frozen=True)
class PublishedFifo(_Published, GavelFifo):
    """All jobs are served again at each plan, and smaller jobs pass a gang that does not fit."""

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The same on every type that a job can use: a job that is sent elsewhere would never run."""
        return usable(situation)

    def served(self, throughputs: Throughputs, situation: Situation, order: Ints) -> Floats:
        """The agnostic form stays where it was."""
        rates, gangs, capacity = throughputs.rates, throughputs.gangs, throughputs.capacity
        keep = np.zeros_like(rates)
        if self.heterogeneity == "agnostic":
            keep = _still_there(situation.previous, rates, gangs, capacity)
        return served_in_order(rates, gangs, capacity, order, keep, strict=False)


@dataclass(frozen=True)
class PublishedSjf(_Published, GavelSjf):
    """Shortest job first."""

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The same on every type that a job can use: a job that is sent elsewhere would never run."""
        return usable(situation)


@dataclass(frozen=True)
class PublishedMaxThroughput(_Published, MaxThroughput):
    """The largest sum of throughputs."""


@dataclass(frozen=True)
class PublishedMinCost(_Published, MinCost):
    """The most steps per dollar."""


@dataclass(frozen=True)
class PublishedMinCostSlo(_Published, MinCostSlo):
    """The most steps per dollar with deadlines."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide. Deadlines alone are no reason for another plan."""
        return self.decided(snapshot)


@dataclass(frozen=True)
class PublishedMinMakespan(_Published, MinMakespan):
    """The makespan is found by bisection."""

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The speed on the first type, everywhere."""
        return np.repeat(best_known_rate(situation), len(situation.capacity), axis=1)

    def plan(self, situation: Situation) -> Shares:
        """An allocation with a makespan within 5 % of the shortest. With pairs it is that of Fairway's form."""
        if self.packing:
            return super().plan(situation)
        throughputs = self.throughputs(situation)
        return self.shares(throughputs, bisected_makespan(throughputs, situation.steps_left))


@dataclass(frozen=True)
class PublishedFinishTimeFairness(_Published, FinishTimeFairness):
    """The smallest largest rho, and nothing above it."""

    spends_rest: ClassVar[bool] = False

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The speed on the first type, everywhere."""
        return np.repeat(best_known_rate(situation), len(situation.capacity), axis=1)

    def outcome(self, throughputs: Throughputs, left: Floats, waited_s: Floats, isolated_s: Floats) -> PlanOutcome:
        """Fairway's own method finds the smallest rho; the method of ECOS solves the last program."""
        if self.packing:
            return smallest_rho(throughputs, left, waited_s, isolated_s)[0]
        own = Throughputs.alone(throughputs.rates, throughputs.gangs, throughputs.capacity)
        _, wanted = found_at_smallest_rho(own, left, waited_s, isolated_s)
        return throughputs.highest_level(np.ones(len(left)), wanted)


@dataclass(frozen=True)
class PublishedWaterFilling(_Published, WaterFilling):
    """Water filling."""


@dataclass(frozen=True)
class PublishedHierarchical(_Published, Hierarchical):
    """Water filling over a tree."""


def makespan_s(throughputs: Throughputs, left: Floats) -> float:
    """The shortest time in which all jobs can end."""
    level = throughputs.highest_level(np.ones(len(left)), left).level
    return 1.0 / level if level > 0 else float("inf")


def bisected_makespan(throughputs: Throughputs, left: Floats) -> PlanOutcome:
    """As the Gavel artifact does it: halve an interval until its ends are within 5 %, and take a point inside.

    Whether a makespan is possible is known from the exact one, so only the last of these programs is solved.
    """
    exact_s = makespan_s(throughputs, left)
    if exact_s == math.inf:
        return throughputs.above(np.zeros(len(left)))
    shortest_s, longest_s = SHORTEST_S, LONGEST_S
    while longest_s < exact_s:
        longest_s *= 10.0
    last_s = longest_s
    while WIDTH * shortest_s < longest_s:
        middle_s = (shortest_s + longest_s) / 2
        if middle_s >= exact_s:
            longest_s = last_s = middle_s
        else:
            shortest_s = middle_s
    return throughputs.above(left / last_s)


def _still_there(previous: Floats, rates: Floats, gangs: Floats, capacity: Floats) -> Floats:
    """The previous shares. If a type has lost GPUs, the latest jobs lose their shares first."""
    keep = np.where(rates > 0, previous, 0.0)
    for kind in range(len(capacity)):
        holders: Bools = keep[:, kind] > 0
        over = np.cumsum(gangs * holders) > capacity[kind]
        keep[over & holders, kind] = 0.0
    return keep
