"""Policies about when jobs end: minimum makespan, and finish-time fairness as a program (Gavel, OSDI 2020).

Both ask for throughputs in proportion to something: so the highest common level of a linear program answers them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fairway.core.arrays import Floats
from fairway.policies.gavel.base import PlanningPolicy
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import Outcome, Throughputs
from fairway.policies.registry import register

SHORTEST_S, LONGEST_S, WIDTH = 100.0, 1e6, 1.05
"""Where the published bisection for the makespan begins, and the ratio of its ends at which it stops."""
RHO_TOLERANCE = 1e-5
MOST_PROGRAMS = 20


def _best_known_rate(situation: Situation, everywhere: bool) -> Floats:
    """What an agnostic policy that needs times takes for a job's speed on each type: that on the first type.

    Unless `everywhere`, as in the public code, a job has no speed where it cannot run.
    """
    first = situation.rates[:, :1]
    fastest = situation.rates.max(axis=1, keepdims=True, initial=0.0)
    known = np.where(first > 0, first, fastest)
    return np.where((situation.rates > 0) | everywhere, known, 0.0)


@register
@dataclass(frozen=True)
class MinMakespan(PlanningPolicy):
    """All present jobs end as early as possible: throughputs in proportion to the work that is left.

    Knows: true remaining work (an oracle), speeds by GPU type, gang sizes. Preempts.
    """

    name: ClassVar[str] = "min_makespan"
    oracles: ClassVar[frozenset[str]] = frozenset({"duration"})

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The speed on the first type, everywhere."""
        return _best_known_rate(situation, self.published)

    def plan(self, situation: Situation) -> Shares:
        """Throughputs in proportion to the work left, then the largest sum above them."""
        throughputs, left = self.throughputs(situation), situation.steps_left
        if self.published and not self.packing:
            return self.shares(throughputs, bisected_makespan(throughputs, left))
        runs = throughputs.rates.any(axis=1)
        outcome = throughputs.highest_level(np.ones(len(left)), left * runs)
        return self.shares(throughputs, throughputs.spend_rest(np.ones(len(left)), outcome, left))


def makespan_s(throughputs: Throughputs, left: Floats) -> float:
    """The shortest time in which all jobs can end."""
    level = throughputs.highest_level(np.ones(len(left)), left).level
    return 1.0 / level if level > 0 else float("inf")


def bisected_makespan(throughputs: Throughputs, left: Floats) -> Outcome:
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


@register
@dataclass(frozen=True)
class FinishTimeFairness(PlanningPolicy):
    """The job that is worst off against its own share of the cluster, by when it will end, is helped most.

    Knows: true remaining work (an oracle), speeds by GPU type, gang sizes. Preempts. The min-max-rho program that
    stands for Themis in many comparisons; `themis` holds the auctions.
    """

    name: ClassVar[str] = "finish_time_fairness"
    oracles: ClassVar[frozenset[str]] = frozenset({"duration"})

    def agnostic_rates(self, situation: Situation) -> Floats:
        """The speed on the first type, everywhere."""
        return _best_known_rate(situation, self.published)

    def plan(self, situation: Situation) -> Shares:
        """The smallest largest rho, then the largest sum that keeps it."""
        throughputs, left = self.throughputs(situation), situation.steps_left
        alone = throughputs.of(throughputs.even())
        alone = np.where(alone > 0, alone, 1.0)
        waited_s = situation.waited_s
        isolated_s, notes = self._isolated_so_far(situation, left, alone)
        outcome, _ = smallest_rho(throughputs, left, waited_s, isolated_s + left / alone)
        if not self.published and outcome.optimal:
            outcome = throughputs.spend_rest(np.ones(len(left)), outcome, alone)
        shares = self.shares(throughputs, outcome)
        return shares._replace(notes={**shares.notes, **notes})

    def _isolated_so_far(self, situation: Situation, left: Floats, alone: Floats) -> tuple[Floats, dict[str, Any]]:
        """How long each job's progress would have taken on its share: what was done since the last plan, at the share
        of then, added up."""
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


def smallest_rho(throughputs: Throughputs, left: Floats, waited_s: Floats, isolated_s: Floats) -> tuple[Outcome, float]:
    """The allocation with the smallest largest rho = (waited + left / throughput) / isolated.

    A given rho asks each job for the throughput left / (rho · isolated - waited). How much more than that all of them
    can have is the level of a linear program, and its multipliers tell how that level grows with rho: so Newton's
    method finds the rho at which it is 1 with a handful of programs.
    """
    ones, runs = np.ones(throughputs.jobs), throughputs.rates.any(axis=1)
    search = replace(throughputs, published=False)
    low = float((waited_s / isolated_s).max(initial=0.0, where=runs))
    rho = high = _rho(throughputs.of(throughputs.even()), left, waited_s, isolated_s, runs)
    outcome: Outcome | None = None
    wanted = np.where(runs, left, 0.0)
    for _ in range(MOST_PROGRAMS):
        time_s = np.maximum(rho * isolated_s - waited_s, 1e-9 * isolated_s)
        asked = np.where(runs, left / time_s, 0.0)
        found = search.highest_level(ones, asked, after=outcome)
        if not (found.optimal and found.level > 0):
            break
        outcome, wanted = found, asked
        parts = found.multipliers / max(float(found.multipliers.sum()), 1e-300)
        slope = float((parts * isolated_s / time_s).sum(where=runs))
        low, high = (low, rho) if found.level >= 1.0 else (rho, high)
        step = (found.level - 1.0) / (found.level * slope) if slope > 0 else 0.0
        if (found.level >= 1.0 and step <= RHO_TOLERANCE * rho) or high - low <= RHO_TOLERANCE * high:
            break
        # A little to the feasible side, where the search shall end.
        nearer = (rho - step) * (1.0 + RHO_TOLERANCE / 2)
        rho = nearer if low < nearer < high else (low + high) / 2
    if outcome is None or throughputs.published:
        outcome = throughputs.highest_level(ones, wanted)
    return outcome, _rho(outcome.throughput, left, waited_s, isolated_s, runs)


def _rho(throughput: Floats, left: Floats, waited_s: Floats, isolated_s: Floats, runs: Any) -> float:
    """The largest rho of the jobs that can run at all."""
    ends_s = waited_s + left / np.maximum(throughput, 1e-12)
    return float((ends_s / isolated_s).max(initial=0.0, where=runs))
