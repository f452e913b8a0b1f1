"""What a plan is worth: the market of a window, in Fairway's form.

The market (Volatile Fisher Market; Zheng et al., NSDI 2023) maximises the budget-weighted sum of the logarithms of what
each job gets out of the window, less a price on the longest run time that is left. Budgets rise with a power of the
finish-time fairness that a job can still reach, so jobs that have fallen behind can afford more rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.policies.shockwave.outlook import JobOutlook
from fairway.solvers.window import Preference, Window, concave

ENDOWMENT = 1.0
"""What a job has without the window: all that is left will be done some time."""
CAUTION = 0.5
"""For the makespan, a job is assumed to end at this point between its expected and its longest run time. A job that
turns out longer than expected cannot be helped any more; one that turns out shorter does no harm."""
STAY = 2.0
"""How many times as urgent a job must be to take the place of one that runs."""
LEAST_RHO, MOST_RHO = 1e-2, 1e2


class WindowMarket(NamedTuple):
    """The buyers of a window, one entry per job, and what there is to buy."""

    gangs: Ints
    capacity: int
    running: Bools
    weights: Floats
    age_s: Floats
    restart_s: Floats
    share: Floats
    fair_s: Floats
    outlook: JobOutlook
    round_s: float
    rounds: int
    now_s: float

    @property
    def given_s(self) -> Floats:
        """Run time that 0, 1, … rounds give."""
        return np.arange(self.rounds + 1) * np.float64(self.round_s)

    def left_after(self, left_s: Floats) -> Floats:
        """What each job has left after 0, 1, … rounds."""
        return np.maximum(0.0, left_s[:, None] - self.given_s)


def best_rho(market: WindowMarket) -> Floats:
    """The finish-time fairness that each job can still reach if it runs from now on: its age and remaining run time,
    over its fair run time."""
    rho = (market.age_s + market.outlook.left_s) / np.maximum(market.fair_s, 1e-9)
    # New jobs reach the same value, but their quotients end in other digits.
    return np.clip(portable.rounded(rho), LEAST_RHO, MOST_RHO)


def own_program(market: WindowMarket, makespan_weight: float, ftf_power: float) -> tuple[Window, Preference]:
    """Fairway's form: a job's utility is the part of its remaining run time that the window does.

    Lengths of jobs and the number of jobs cancel out, and the makespan is counted in windows. So one set of parameters
    serves small and large clusters.
    """
    left_s = market.outlook.left_s
    # A job that does not run has to start first: a part of its first round is lost.
    start_s = np.where(market.running, 0.0, market.restart_s)
    done = np.clip(market.given_s - start_s[:, None], 0.0, left_s[:, None]) / left_s[:, None]
    budgets = market.weights * portable.raised(best_rho(market), ftf_power)
    values = concave(budgets[:, None] / budgets.mean() * portable.log(ENDOWMENT + done) / len(left_s))
    price = makespan_weight / (market.rounds * market.round_s)
    needed = np.maximum(np.ceil(left_s / market.round_s), 1.0)
    urgency = budgets / (market.gangs * needed)
    late_s = left_s + CAUTION * np.maximum(market.outlook.longest_s - left_s, 0.0)
    window = Window(market.gangs, market.capacity, values, market.left_after(late_s), price)
    return window, Preference(urgency, market.running, STAY)
