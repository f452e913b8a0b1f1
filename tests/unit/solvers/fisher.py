"""The equilibrium of a Fisher market whose goods are the rounds to come.

In Shockwave (Zheng et al., NSDI 2023) the GPU time of each round is a good of its own and a job is a buyer whose gain
differs from round to round, because its speed changes with its batch size. Equilibrium is the maximum of a concave
program (Eisenberg and Gale, 1959), the budget-weighted product of what buyers earn over all rounds:

    maximise  sum of budget[i] · log(earned[i] + sum over t of gain[i, t] · x[i, t])
    so that   sum over i of gang[i] · x[i, t] <= supply[t]  and  0 <= x <= 1

The multipliers of the supplies are prices. At given prices each buyer's best bundle has a closed form, and so has the
Lagrangian: any prices whatever bound the optimum from above. `Equilibrium.gap` is the distance of that bound from the
allocation returned; it needs no trust in the method that found both.

What an equilibrium promises when nobody has earned anything before:

* It is efficient over time: nobody can earn more unless another earns less.
* Prices take in at most the budgets. A buyer spends all of its budget but the *rents* of rounds that it has in full
  and would still buy more of; whatever it buys earns it most per price, the rounds that it has in full aside.
* A buyer without rents earns at least what its part of the budgets would earn as the same part of every round: that
  costs no more than its budget. Rents break this. With two GPUs in two rounds, one job that gains 1 in both and two
  that gain 1 in the first round only, the optimum gives each of them one round; an equal share would have earned the
  first one 4/3. In general U >= U(share) / (takings / budgets + rents of the buyer / its budget).
* Time is divisible here: a gang is whole but may run for part of a round. Whole rounds and gangs that do not fit beside
  one another can only do worse, so the bound holds for them too, while the second and third promise need not.

The method is Mehrotra's predictor-corrector on the central path of the program. As in the path of Ye (2008) for Fisher
markets, budget = price of utility · utility is one more product that each step brings to its target. A step costs a
system with as many equations as there are rounds. Among equal optima it ends at the middle, so that buyers that are
alike are treated alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats

GAP = 1e-9
MOST_STEPS = 100
BACK_OFF = 0.995
"""What part of the way to the nearest limit a step may go."""


@dataclass(frozen=True)
class Market:
    """Buyers and rounds: `gains[i, t]` is what buyer i earns by a whole round t with its gang of `gangs[i]` GPUs.

    `earned` is what each has before the first round. A buyer that has nothing and gains nothing in any round is left
    out: it gets nothing, and does not count in the objective.
    """

    budgets: Floats
    gangs: Floats
    gains: Floats
    supply: Floats
    earned: Floats

    @staticmethod
    def of(
        gains: Floats,
        supply: float | Floats,
        budgets: Floats | None = None,
        gangs: Floats | None = None,
        earned: Floats | None = None,
    ) -> Market:
        """A market with equal budgets, single GPUs, equal supplies and nothing earned where nothing else is said."""
        table = np.asarray(gains, dtype=np.float64)
        if table.ndim != 2:
            raise ValueError("gains are a table of buyers by rounds")
        buyers, rounds = table.shape
        market = Market(
            _column(budgets, buyers, 1.0),
            _column(gangs, buyers, 1.0),
            table,
            np.broadcast_to(np.asarray(supply, dtype=np.float64), (rounds,)),
            _column(earned, buyers, 0.0),
        )
        for name in ("gains", "earned", "budgets", "gangs", "supply"):
            values = getattr(market, name)
            if not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"{name} must be finite and not negative")
            if name not in ("gains", "earned") and not values.all():
                raise ValueError(f"{name} must be positive")
        return market

    @property
    def counted(self) -> Bools:
        """Buyers that have or can earn anything."""
        return np.asarray((self.earned > 0) | (self.gains > 0).any(axis=1))

    def utilities(self, x: Floats) -> Floats:
        """What each buyer has after an allocation."""
        return np.asarray(self.earned + (self.gains * x).sum(axis=1))

    def welfare(self, utilities: Floats) -> float:
        """The objective: the logarithm of the product of utilities, each to the power of its budget."""
        counts = self.counted
        if not (utilities[counts] > 0).all():
            return -np.inf
        return float((self.budgets[counts] * portable.log(utilities[counts])).sum())

    def share(self) -> Floats:
        """Each buyer's part of the budgets as the same part of every round, no more than the round itself."""
        part = self.budgets / self.budgets.sum()
        return np.asarray(np.minimum(1.0, np.outer(part / self.gangs, self.supply)))


class Equilibrium(NamedTuple):
    """An allocation, what it earns, the prices of a GPU in each round, and what certifies them.

    No allocation has a welfare above `bound`, and `gap` is (bound - welfare) / sum of budgets: the budget-weighted
    geometric mean of utilities is within a factor exp(-gap) of the largest. It is at most what was asked for, unless
    the steps did not suffice. Utilities converge with the root of the gap. `steps` is when this point was reached.
    """

    x: Floats
    utilities: Floats
    prices: Floats
    welfare: float
    bound: float
    gap: float
    steps: int


def demands(market: Market, prices: Floats) -> Floats:
    """What each buyer would take at given prices: the x within 0..1 of the largest budget · log(utility) - cost.

    A buyer takes the rounds in the order of cost per gain, until one more unit of utility costs more than it adds.
    """
    unit = np.maximum(market.gains.max(axis=1, initial=0.0), market.earned)
    unit = np.where(unit > 0, unit, 1.0)
    gains, earned = market.gains / unit[:, None], market.earned / unit
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        unit_costs = np.where(gains > 0, np.outer(market.gangs, prices) / gains, np.inf)
    order = np.argsort(unit_costs, axis=1, kind="stable")
    steps = np.take_along_axis(gains, order, axis=1)
    before = earned[:, None] + np.cumsum(steps, axis=1) - steps
    with np.errstate(divide="ignore", over="ignore"):
        wanted = market.budgets[:, None] / np.take_along_axis(unit_costs, order, axis=1) - before
    parts = np.clip(wanted / np.where(steps > 0, steps, 1.0), 0.0, 1.0) * (steps > 0)
    x = np.empty_like(gains)
    np.put_along_axis(x, order, parts, axis=1)
    return x


def bound(market: Market, prices: Floats) -> float:
    """A welfare that no allocation exceeds, from any prices that are not negative (weak duality)."""
    x = demands(market, prices)
    left = market.supply - portable.dots(x.T, market.gangs)
    return market.welfare(market.utilities(x)) + portable.dot(prices, left)


def rents(market: Market, found: Equilibrium) -> Floats:
    """What each buyer would pay beyond the price to have more of rounds that it has in full."""
    counts = market.counted
    worth = np.zeros(len(counts))
    worth[counts] = market.budgets[counts] / found.utilities[counts]
    return np.asarray(np.maximum(0.0, worth[:, None] * market.gains - np.outer(market.gangs, found.prices)))


def equilibrium(market: Market, gap: float = GAP, most_steps: int = MOST_STEPS) -> Equilibrium:
    """The equilibrium to within a relative `gap`, or the best point of so many steps; its own gap tells which."""
    counts = market.counted
    x, prices = np.zeros(market.gains.shape), np.zeros(len(market.supply))
    if not counts.any() or not len(prices):
        return _certified(market, x, prices, 0)
    path = _Path(market, counts)
    best = _certified(market, *path.point(), 0)
    for step in range(1, most_steps + 1):
        if best.gap <= gap or not path.advance():
            break
        found = _certified(market, *path.point(), step)
        best = found if found.gap < best.gap else best
    return best


def _column(values: Floats | None, size: int, default: float) -> Floats:
    """Given values, or the default for everybody."""
    column = np.full(size, default) if values is None else np.asarray(values, dtype=np.float64)
    if column.shape != (size,):
        raise ValueError(f"{size} buyers want {size} values each")
    return column


def _certified(market: Market, x: Floats, prices: Floats, steps: int) -> Equilibrium:
    """A point as an answer: moved into the feasible set by what rounding has left, and judged by its prices."""
    x = np.where(market.gains > 0, np.clip(x, 0.0, 1.0), 0.0)
    x = x / np.maximum(1.0, portable.dots(x.T, market.gangs) / market.supply)
    utilities = market.utilities(x)
    welfare, most = market.welfare(utilities), bound(market, prices)
    budgets = float(market.budgets[market.counted].sum())
    return Equilibrium(
        x, utilities, prices, welfare, most, max(0.0, (most - welfare) / budgets) if budgets else 0.0, steps
    )


class _Path:
    """A point on the way to the equilibrium, feasible in all linear equations from its start.

    Rounds are sold as wholes (supply 1, so `use` is gang / supply), budgets sum to 1 and gains are at most 1. Two
    vectors hold the point, and each product of their entries has an end: x·z and v·y end at 0 (v = limit - x; z is
    what a round lacks in worth, y its rent), s·p as well (what is left of a round, and its price), and utility · worth
    ends at the budget. Equations: z - y = use · p - worth · gain, s = 1 - sum of use · x, and utility = earned + sum
    of gain · x.
    """

    def __init__(self, market: Market, counts: Bools) -> None:
        self._market, self._counts = market, counts
        gains, earned, budgets = market.gains[counts], market.earned[counts], market.budgets[counts]
        unit = np.maximum(gains.max(axis=1), earned)
        self.gains, self.use = gains / unit[:, None], market.gangs[counts, None] / market.supply
        self.budgets = budgets / budgets.sum()
        buyers, rounds = gains.shape
        self.primal, self.dual = np.empty((2, 2 * gains.size + rounds + buyers))
        self.ends = np.zeros_like(self.primal)
        self.ends[-buyers:] = self.budgets
        x, v, s, utility = self._parts(self.primal)
        x[:] = 0.5 / np.maximum(1.0, self.use.sum(axis=0))
        # A gang as large as the supply needs no limit of its own; with both, price and rent would not be distinct.
        v[:], s[:] = np.where(self.use < 1.0, 1.0, 2.0) - x, 1.0 - (self.use * x).sum(axis=0)
        utility[:] = earned / unit + (self.gains * x).sum(axis=1)
        z, y, p, worth = self._parts(self.dual)
        worth[:], p[:] = self.budgets / utility, 1.0 / rounds
        # Both solutions of z - y = lacks, z·y = level² are positive, whichever sign `lacks` has.
        lacks = self.use * p - worth[:, None] * self.gains
        level = 1.0 / (gains.size * np.sqrt(x * v))
        larger = np.sqrt(0.25 * lacks * lacks + level * level) + 0.5 * np.abs(lacks)
        z[:] = np.where(lacks > 0, larger, level * level / larger)
        y[:] = np.where(lacks > 0, level * level / larger, larger)

    def point(self) -> tuple[Floats, Floats]:
        """The allocation of all buyers, and the prices of a GPU in the unit of the budgets."""
        x = np.zeros(self._market.gains.shape)
        x[self._counts] = self._parts(self.primal)[0]
        budgets = float(self._market.budgets[self._counts].sum())
        return x, self._parts(self.dual)[2] * budgets / self._market.supply

    def advance(self) -> bool:
        """One step of predictor and corrector; False where rounding allows none."""
        primal, dual, zeros = self.primal, self.dual, len(self.primal) - len(self.budgets)
        products = primal * dual
        to_end = self.ends - products
        d_primal, d_dual = self._newton(to_end)
        a, b = _length(primal, d_primal), _length(dual, d_dual)
        mean = float(products[:zeros].mean())
        after = float(((primal + a * d_primal) * (dual + b * d_dual))[:zeros].mean())
        to_end -= d_primal * d_dual
        to_end[:zeros] += mean * portable.power(min(1.0, after / mean), 3)
        d_primal, d_dual = self._newton(to_end)
        if not (np.isfinite(d_primal).all() and np.isfinite(d_dual).all()):
            return False
        primal += BACK_OFF * _length(primal, d_primal) * d_primal
        dual += BACK_OFF * _length(dual, d_dual) * d_dual
        return bool((primal > 0).all() and (dual > 0).all())

    def _parts(self, vector: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """x, v, s and utility of the one vector; z, y, p and worth of the other."""
        buyers, rounds = self.gains.shape
        size = buyers * rounds
        x, v = vector[: 2 * size].reshape(2, buyers, rounds)
        return x, v, vector[2 * size : -buyers], vector[-buyers:]

    def _newton(self, to_end: Floats) -> tuple[Floats, Floats]:
        """Changes of both vectors that bring each product nearer to its end by `to_end`, to first order.

        All but the prices is eliminated: a round of a buyer by a division, a buyer's worth by one more, since its
        rounds meet in a single sum. What is left for the prices is symmetric and positive definite.
        """
        x, v, s, utility = self._parts(self.primal)
        z, y, p, worth = self._parts(self.dual)
        of_x, of_v, of_s, of_utility = self._parts(to_end)
        gains, use = self.gains, self.use
        stiff = z / x + y / v
        pull = (of_x / x - of_v / v) / stiff
        gain_by_stiff, use_by_stiff = gains / stiff, use / stiff
        give = utility + worth * (gains * gain_by_stiff).sum(axis=1)
        still = (of_utility - worth * (gains * pull).sum(axis=1)) / give
        meet = use * gain_by_stiff
        matrix = portable.product(-(meet * (worth / give)[:, None]).T, meet)
        matrix.flat[:: len(p) + 1] += s / p + (use * use_by_stiff).sum(axis=0)
        wanted = of_s / p + (use * pull).sum(axis=0) + portable.dots(meet.T, still)
        d_primal, d_dual = np.empty((2, len(to_end)))
        dx, dv, ds, d_utility = self._parts(d_primal)
        dz, dy, dp, d_worth = self._parts(d_dual)
        dp[:] = portable.solve_stack(matrix[None], wanted[None, :, None])[0, :, 0]
        d_worth[:] = still + worth / give * portable.dots(meet, dp)
        dx[:] = pull - use_by_stiff * dp + gain_by_stiff * d_worth[:, None]
        dv[:], ds[:], d_utility[:] = -dx, -(use * dx).sum(axis=0), (gains * dx).sum(axis=1)
        dz[:], dy[:] = (of_x - z * dx) / x, (of_v + y * dx) / v
        return d_primal, d_dual


def _length(vector: Floats, change: Floats) -> float:
    """What part of a change, up to all of it, a positive vector can take before an entry reaches 0."""
    return float(1.0 / max(1.0, (-change / vector).max()))
