"""Policies that maximise a sum: steps per second, or steps per dollar, with deadlines where there are any.

From Gavel (OSDI 2020). A sum is not fair: jobs that make few steps wait as long as others want the GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.portable import rounded
from fairway.core.snapshot import Snapshot
from fairway.policies.gavel.base import PlanningPolicy
from fairway.policies.gavel.shares import ROUND_S
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import PlanOutcome, Throughputs
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class MaxThroughput(PlanningPolicy):
    """As many steps per second as possible, all jobs together.

    Knows: speeds by GPU type, gang sizes. Preempts. Not fair: jobs that make few steps a second wait.
    """

    name: ClassVar[str] = "max_throughput"

    def value(self, situation: Situation) -> Floats:
        """What a unit of throughput is worth on each GPU type."""
        return np.ones(len(situation.capacity))

    def plan(self, situation: Situation) -> Shares:
        """The largest sum."""
        throughputs = self.throughputs(situation)
        return self.shares(throughputs, self.outcome(throughputs, situation))

    def outcome(self, throughputs: Throughputs, situation: Situation) -> PlanOutcome:
        """The solved program."""
        return throughputs.largest_sum(np.broadcast_to(self.value(situation), throughputs.rates.shape))


@register
@dataclass(frozen=True)
class MinCost(MaxThroughput):
    """As many steps per dollar as possible: the steps on each GPU type count by its price.

    Knows: speeds by GPU type, prices, gang sizes. Preempts. Types without a price count as 1 dollar an hour.
    """

    name: ClassVar[str] = "min_cost"

    def value(self, situation: Situation) -> Floats:
        """Steps per dollar instead of per second. A type without a price costs 1."""
        prices = [kind.price_per_h for kind in situation.snapshot.cluster.types]
        return np.array([1.0 / price if price and price > 0 else 1.0 for price in prices])


@register
@dataclass(frozen=True)
class MinCostSlo(MinCost):
    """As many steps per dollar as possible while every deadline is kept.

    Knows: speeds by GPU type, prices, deadlines, true remaining work (an oracle). Preempts. If not all deadlines can be
    kept, the most demanding ones are given up one by one.
    """

    name: ClassVar[str] = "min_cost_slo"
    heeds: ClassVar[frozenset[str]] = frozenset({"deadline"})
    oracles: ClassVar[frozenset[str]] = frozenset({"duration"})

    def decide(self, snapshot: Snapshot) -> Decision:
        """Like others, but with a plan for every round while there are deadlines, to make up for restarts."""
        return self.decided(snapshot, replan=bool(np.isfinite(snapshot.deadline_s).any()))

    def outcome(self, throughputs: Throughputs, situation: Situation) -> PlanOutcome:
        """The largest sum above the throughputs that deadlines need."""
        value = np.broadcast_to(self.value(situation), throughputs.rates.shape)
        floors = needed_for_deadlines(situation, throughputs)
        return with_deadlines(throughputs, value, floors)


def needed_for_deadlines(situation: Situation, throughputs: Throughputs) -> Floats:
    """The throughput that each job needs to end in time; 0 where it has no deadline or has missed it.

    A job that has begun gets an allowance for its restarts (the one that it waits for, and one more, because a job with
    only a part of the time is stopped again) and for a round. If it can then hardly make it, it asks for all the time.
    """
    snapshot, best = situation.snapshot, throughputs.rates.max(axis=1, initial=0.0)
    begun = snapshot.launches > 0
    spare_s = begun * (snapshot.restart_s * (1.0 + ~snapshot.running) + (snapshot.round_s or ROUND_S))
    left_s = snapshot.deadline_s - snapshot.now_s
    asks = np.isfinite(left_s) & (left_s > 0)
    need = np.where(asks, situation.steps_left / np.maximum(np.where(asks, left_s - spare_s, 1.0), 1e-3), 0.0)
    return np.where(begun, np.minimum(need, best), np.where(need <= best, need, 0.0))


def with_deadlines(throughputs: Throughputs, value: Floats, floors: Floats) -> PlanOutcome:
    """The largest sum above the floors. If not all floors can be kept, as few as possible are given up.

    The most demanding ones (in GPUs of the cluster, at the job's best speed) are given up first. A bisection finds how
    many, so a dozen programs decide among a thousand deadlines.
    """
    best = throughputs.rates.max(axis=1, initial=0.0)
    demand = throughputs.gangs * floors / np.where(best > 0, best, 1.0)
    order = np.argsort(-rounded(demand), kind="stable")[: int((floors > 0).sum())]
    ones = np.ones(throughputs.jobs)

    def without(count: int) -> PlanOutcome:
        kept = floors.copy()
        kept[order[:count]] = 0.0
        return throughputs.largest_sum(value, ones, kept)

    outcome = without(0)
    if outcome.optimal or not len(order):
        return outcome
    least, most = 0, len(order)
    outcome = without(most)
    while most - least > 1:
        middle = (least + most) // 2
        tried = without(middle)
        if tried.optimal:
            most, outcome = middle, tried
        else:
            least = middle
    return outcome
