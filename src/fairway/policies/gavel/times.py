"""Policies about when jobs end: minimum makespan, and finish-time fairness as a program (Gavel, OSDI 2020).

Both need throughputs in proportion to something, so the highest common level of a linear program answers them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairway.core.arrays import Floats
from fairway.policies.gavel.base import PlanningPolicy
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import PlanOutcome, Throughputs
from fairway.policies.registry import register

RHO_TOLERANCE = 1e-5
MOST_PROGRAMS = 20


def best_known_rate(situation: Situation) -> Floats:
    """What an agnostic policy that needs times uses as each job's speed: that on the first type."""
    first = situation.rates[:, :1]
    fastest = situation.rates.max(axis=1, keepdims=True, initial=0.0)
    return np.where(first > 0, first, fastest)


@register
@dataclass(frozen=True)
class MinMakespan(PlanningPolicy):
    """All present jobs end as early as possible: throughputs in proportion to the work that is left.

    Knows: true remaining work (an oracle), speeds by GPU type, gang sizes. Preempts.
    """

    name: ClassVar[str] = "min_makespan"
    oracles: ClassVar[frozenset[str]] = frozenset({"duration"})

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The speed on the first type, wherever the job can run."""
        return np.where(situation.rates > 0, best_known_rate(situation), 0.0)

    def plan(self, situation: Situation) -> Shares:
        """Throughputs in proportion to the work left, then the largest sum above them."""
        throughputs, left = self.throughputs(situation), situation.steps_left
        runs = throughputs.rates.any(axis=1)
        outcome = throughputs.highest_level(np.ones(len(left)), left * runs)
        return self.shares(throughputs, throughputs.spend_rest(np.ones(len(left)), outcome, left))


@register
@dataclass(frozen=True)
class FinishTimeFairness(PlanningPolicy):
    """The job whose end is latest, compared with a run on its own share of the cluster, is helped most.

    Knows: true remaining work (an oracle), speeds by GPU type, gang sizes. Preempts. The min-max-rho program that
    stands for Themis in many comparisons; `themis` holds the auctions.
    """

    name: ClassVar[str] = "finish_time_fairness"
    oracles: ClassVar[frozenset[str]] = frozenset({"duration"})
    spends_rest: ClassVar[bool] = True
    """Whether a second program spends what the smallest rho leaves over."""

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The speed on the first type, wherever the job can run."""
        return np.where(situation.rates > 0, best_known_rate(situation), 0.0)

    def plan(self, situation: Situation) -> Shares:
        """The smallest largest rho, then the largest sum that keeps it."""
        throughputs, left = self.throughputs(situation), situation.steps_left
        alone = throughputs.of(throughputs.even())
        alone = np.where(alone > 0, alone, 1.0)
        waited_s = situation.waited_s
        isolated_s, notes = self._isolated_so_far(situation, left, alone)
        outcome = self.outcome(throughputs, left, waited_s, isolated_s + left / alone)
        if self.spends_rest and outcome.optimal:
            outcome = throughputs.spend_rest(np.ones(len(left)), outcome, alone)
        shares = self.shares(throughputs, outcome)
        return shares._replace(notes={**shares.notes, **notes})

    def outcome(self, throughputs: Throughputs, left: Floats, waited_s: Floats, isolated_s: Floats) -> PlanOutcome:
        """The allocation with the smallest largest rho."""
        return smallest_rho(throughputs, left, waited_s, isolated_s)[0]

    def _isolated_so_far(self, situation: Situation, left: Floats, alone: Floats) -> tuple[Floats, dict[str, Any]]:
        """How long each job's progress would have taken on its share: the sum of what was done since each plan, at the
        share of that time."""
        before, jobs = situation.notes.get("isolated", {}), situation.snapshot.jobs.tolist()
        spent_s = np.zeros(len(left))
        for row, job in enumerate(jobs):
            if str(job) in before:
                so_far_s, left_then, alone_then = before[str(job)]
                spent_s[row] = so_far_s + max(left_then - left[row], 0.0) / alone_then
        noted = {
            str(job): [spent, todo, rate]
            for job, spent, todo, rate in zip(jobs, spent_s.tolist(), left.tolist(), alone.tolist(), strict=True)
        }
        return spent_s, {"isolated": noted}


def smallest_rho(
    throughputs: Throughputs, left: Floats, waited_s: Floats, isolated_s: Floats
) -> tuple[PlanOutcome, float]:
    """The allocation with the smallest largest rho = (waited + left / throughput) / isolated, and that rho."""
    runs = throughputs.rates.any(axis=1)
    outcome, wanted = found_at_smallest_rho(throughputs, left, waited_s, isolated_s)
    if outcome is None:
        outcome = throughputs.highest_level(np.ones(throughputs.jobs), wanted)
    return outcome, _rho(outcome.throughput, left, waited_s, isolated_s, runs)


def found_at_smallest_rho(
    throughputs: Throughputs, left: Floats, waited_s: Floats, isolated_s: Floats
) -> tuple[PlanOutcome | None, Floats]:
    """The last outcome of the search for the smallest rho, if any, and the throughputs that it was asked for.

    A given rho asks each job for the throughput left / (rho · isolated - waited). The level of a linear program is how
    much more than that all of them can have, and its multipliers show how that level grows with rho. So Newton's method
    finds the rho at which it is 1 with a handful of programs.
    """
    ones, runs = np.ones(throughputs.jobs), throughputs.rates.any(axis=1)
    low = float((waited_s / isolated_s).max(initial=0.0, where=runs))
    rho = high = _rho(throughputs.of(throughputs.even()), left, waited_s, isolated_s, runs)
    outcome: PlanOutcome | None = None
    wanted = np.where(runs, left, 0.0)
    for _ in range(MOST_PROGRAMS):
        time_s = np.maximum(rho * isolated_s - waited_s, 1e-9 * isolated_s)
        asked = np.where(runs, left / time_s, 0.0)
        found = throughputs.highest_level(ones, asked, after=outcome)
        if not (found.optimal and found.level > 0):
            break
        outcome, wanted = found, asked
        parts = found.multipliers / max(float(found.multipliers.sum()), 1e-300)
        slope = float((parts * isolated_s / time_s).sum(where=runs))
        low, high = (low, rho) if found.level >= 1.0 else (rho, high)
        step = (found.level - 1.0) / (found.level * slope) if slope > 0 else 0.0
        if (found.level >= 1.0 and step <= RHO_TOLERANCE * rho) or high - low <= RHO_TOLERANCE * high:
            break
        # A little to the feasible side, where the search should end.
        nearer = (rho - step) * (1.0 + RHO_TOLERANCE / 2)
        rho = nearer if low < nearer < high else (low + high) / 2
    return outcome, wanted


def _rho(throughput: Floats, left: Floats, waited_s: Floats, isolated_s: Floats, runs: Any) -> float:
    """The largest rho of the jobs that can run at all."""
    ends_s = waited_s + left / np.maximum(throughput, 1e-12)
    return float((ends_s / isolated_s).max(initial=0.0, where=runs))
