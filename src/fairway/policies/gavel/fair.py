"""Max-min fairness on mixed GPUs: least attained service as a linear program (Gavel, OSDI 2020).

The job that gets least, relative to what an equal split of the cluster would give it and per GPU of its gang, gets as
much as possible. Because every job may hold its n-th of each type, no job does worse than in an equal split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.portable import dots
from fairway.policies.gavel.base import PlanningPolicy
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import PlanOutcome, Throughputs
from fairway.policies.registry import register


def equal_split_throughput(rates: Floats, capacity: Floats) -> Floats:
    """What a job makes per second when its time is spread over the types as their GPUs are."""
    return dots(rates, capacity / max(float(np.add.reduce(capacity)), 1.0))


def per_fair_share(throughputs: Throughputs, weights: Floats) -> Floats:
    """What one unit of a job's throughput adds to its level: GPUs over weight and over the equal split's throughput."""
    normal = equal_split_throughput(throughputs.rates, throughputs.capacity)
    return np.asarray(throughputs.gangs / (weights * np.where(normal > 0, normal, 1.0)))


@register
@dataclass(frozen=True)
class MaxMinFairness(PlanningPolicy):
    """The job with the smallest normalised throughput gets as much as possible (least attained service as an LP).

    Knows: speeds by GPU type, gang sizes, weights. Preempts. What the smallest level leaves unused goes, in a second
    program, to the largest sum of normalised throughputs.
    """

    name: ClassVar[str] = "max_min_fairness"
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})

    def plan(self, situation: Situation) -> Shares:
        """The highest level, then the largest sum above it."""
        throughputs = self.throughputs(situation)
        per_unit = per_fair_share(throughputs, situation.weights)
        first = throughputs.highest_level(per_unit, np.ones(throughputs.jobs), after=_last_time(situation))
        # Beyond the level, the progress of a heavier job is worth more, not less.
        normal = 1.0 / (per_unit * (situation.weights * situation.weights))
        shares = self.shares(throughputs, throughputs.spend_rest(per_unit, first, normal))
        return shares._replace(notes={**shares.notes, **_noted(situation, first)})


def _noted(situation: Situation, outcome: PlanOutcome) -> dict[str, Any]:
    """Where the next plan may start: few jobs come or go between two plans."""
    if outcome.prices is None or not outcome.optimal:
        return {}
    near = {"x": outcome.x, "multipliers": outcome.multipliers, "prices": outcome.prices, "level": outcome.level}
    return {"near": {"jobs": situation.snapshot.jobs.copy(), **near}}


def _last_time(situation: Situation) -> PlanOutcome | None:
    """The outcome of the last plan for the present jobs. New jobs get a mean job's part in it."""
    near = situation.notes.get("near")
    if near is None or len(near["prices"]) != len(situation.capacity) or not len(near["jobs"]):
        return None
    snapshot, jobs = situation.snapshot, len(situation.snapshot)
    if 2 * int(np.count_nonzero(snapshot.rows_of(near["jobs"]) >= 0)) < jobs:
        return None
    mean_x, mean = np.asarray(near["x"]).mean(axis=0), float(np.asarray(near["multipliers"]).mean())
    x, multipliers = snapshot.recall("x", np.tile(mean_x, (jobs, 1)), near), snapshot.recall("multipliers", mean, near)
    prices, none = np.asarray(near["prices"], dtype=np.float64), np.zeros((0, len(situation.capacity)))
    return PlanOutcome(x, none, np.zeros(jobs), float(near["level"]), multipliers, True, prices=prices)
