"""Shockwave's program as in its public code (Zheng et al., NSDI 2023).

It differs from Fairway's (`policies.shockwave.program`) in its units: the logarithm of progress is piecewise linear,
the makespan is in seconds, and fair finish times are clock times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.policies.shockwave import Shockwave
from fairway.policies.shockwave.program import LEAST_RHO, MOST_RHO, WindowMarket
from fairway.solvers.window import Preference, Window, concave

LOG_BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
LOG_VALUES = portable.log(np.maximum(LOG_BASES, 1e-6))
"""The logarithm of progress at the bases. The published code interpolates linearly between them."""
_NEARLY_DONE_POWER = 100.0
_MOST_BUDGET = 1e30
_FORCED = 1e6


@dataclass(frozen=True)
class PublishedShockwave(Shockwave):
    """Shockwave with the published program."""

    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    def window(self, market: WindowMarket) -> tuple[Window, Preference]:
        """The published program of a market."""
        return published_program(market, self.makespan_weight, self.ftf_power)


def published_program(market: WindowMarket, makespan_weight: float, ftf_power: float) -> tuple[Window, Preference]:
    """The program of the public code: piecewise logarithm of progress, makespan in seconds, rho of clock times.

    It first demands that every job keeps its fair finish time. If that is impossible, jobs that miss it weigh more.
    """
    outlook = market.outlook
    jobs, rounds = len(outlook.left_s), market.rounds
    epochs = market.given_s / outlook.epoch_s[:, None]
    progress = np.minimum((outlook.done[:, None] + epochs) / outlook.epochs[:, None], 1.0)
    logs = portable.interpolates(progress, LOG_BASES, LOG_VALUES) / (jobs * rounds)
    budgets, least = np.ones(jobs), _fair_rounds(market)
    if (least <= rounds).all() and float((least * market.gangs).sum()) <= market.capacity * rounds:
        short = np.minimum(np.arange(rounds + 1) - least[:, None], 0)
        # A round that is owed outweighs everything that the makespan could gain by it.
        owed = _FORCED + 2.0 * makespan_weight * rounds * market.round_s
        values = logs + owed * short
    else:
        budgets = published_budgets(market, ftf_power)
        values = budgets[:, None] * logs
    left_s = market.left_after(outlook.left_s)
    window = Window(market.gangs, market.capacity, concave(values), left_s, makespan_weight)
    return window, Preference(budgets, market.running, 1.0)


def published_budgets(market: WindowMarket, ftf_power: float) -> Floats:
    """Weights of jobs that would miss their fair finish times. Jobs that are nearly done weigh most."""
    finish_s = market.now_s + market.outlook.left_s / market.share
    fair_s = market.now_s - market.age_s + market.fair_s
    rho = np.clip(portable.rounded(finish_s / np.maximum(fair_s, 1e-9)), LEAST_RHO, MOST_RHO)
    nearly = market.outlook.left_s < market.round_s
    budgets = np.where(nearly, portable.raised(rho, _NEARLY_DONE_POWER), portable.raised(rho, ftf_power))
    return np.minimum(np.where(rho > 1.0, budgets, 1.0), _MOST_BUDGET)


def _fair_rounds(market: WindowMarket) -> Floats:
    """How many rounds each job needs to keep its fair finish time, with the whole window charged to every job."""
    fair_s = market.now_s - market.age_s + market.fair_s
    spare_s = (fair_s - market.now_s - market.rounds * market.round_s) * market.share
    rounds = np.ceil((market.outlook.left_s - spare_s) / market.round_s - 1e-9)
    return np.where(spare_s < 0, np.inf, np.maximum(rounds, 0.0))
