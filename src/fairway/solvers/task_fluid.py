"""Tasks on mixed GPUs as work for one machine: a lower bound, and mean busy times that give orders.

Each GPU type has a price. A task takes at least the work that is cheapest for it over the types, price times seconds,
and all GPUs together do work at the sum of their prices. A job's completion comes at least a fixed time after the mean
busy time of each of its rounds, so its weight may be spread over its rounds at will. For given prices and shares, the
least weighted sum of mean busy times is that of a machine that does the work with the largest share per work first,
from the time at which it can start. Every choice of prices and shares gives a bound; a search looks for a large one.
With all prices 1 and tasks that can always start, this is the dual of the published relaxation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.kernels import compiled_as
from fairway.core.portable import exp
from fairway.solvers.task_jobs import GRID_S, TaskGpus, TaskGroups, TaskJobs, checked, growing, on_grid

_STEP, _LATER_STEP, _LAST_STEP = 1.0, 0.5, 0.25
"""How far shares move in one step: at first, from good shares, and at the end."""
_FIRST_STEPS, _PRICE_STEPS, _LAST_STEPS = 40, 4, 60
_LARGEST = 30.0
"""The largest exponent of a step: shares of jobs that take no time at all must stay numbers."""
_PRICE_FACTORS = (2.0, 1.4, 1.2, 1.1, 1.05)
"""By how much a price is raised or lowered, the next factor as soon as no price gains by this one."""
_PRICE_PASSES = 40
_LEAST_PRICE = 1.0 / 1024
_GAIN = 1e-5
"""The least gain, in proportion, for which a price is changed."""


class RoundShares(NamedTuple):
    """How weights are spread: over rounds, and what is left of each job for the time that it needs by itself."""

    rounds: Floats
    alone: Floats


class Dual(NamedTuple):
    """Prices of types and shares of rounds that give a bound."""

    prices: Floats
    shares: RoundShares
    value: float


class Fluid:
    """Rounds as work for one machine, and how far behind its mean busy time a round's job is complete."""

    def __init__(self, jobs: TaskJobs, gpus: TaskGpus) -> None:
        self.jobs = jobs = checked(jobs, gpus)
        self.groups = TaskGroups(jobs)
        self.free_s, self.kind = on_grid(gpus.free_s), gpus.kind
        self.types = jobs.task_s.shape[1]
        self.gpus_of = np.bincount(gpus.kind, minlength=self.types)
        self.alone_s, self.start_s, self.behind_s = self._chains()
        times_s = np.concatenate([self.start_s, self.free_s])
        self.releases_s, at = np.unique(times_s, return_inverse=True)
        self.release, self.freed = at[: len(self.start_s)], at[len(self.start_s) :]

    def _chains(self) -> tuple[Floats, Floats, Floats]:
        """When each job is complete if it has all GPUs, when rounds can start, how far behind them completion is."""
        jobs, groups = self.jobs, self.groups
        round_s, tail_s = _round_times_s(jobs, self.gpus_of, jobs.tasks)
        first_s, first_tail_s = _round_times_s(jobs, self.gpus_of, jobs.first_tasks)
        self.first_s, self.round_s = first_s, round_s
        start_s = groups.starts_s(jobs, first_s, round_s)
        behind_s = tail_s[groups.job]
        behind_s[groups.first] = first_tail_s
        behind_s += groups.later * round_s[groups.job]
        single = jobs.rounds == 1
        alone_s = start_s[groups.last] + np.where(single, first_s, round_s)
        return np.where(single, np.maximum(alone_s, jobs.first_synced_s), alone_s), start_s, behind_s

    def work(self, prices: Floats) -> Floats:
        """The least work of each round at prices of types."""
        return np.asarray(self.groups.tasks * (self.jobs.task_s * prices).min(axis=1)[self.groups.job])

    def mean_busy_s(self, shares: Floats, prices: Floats) -> Floats:
        """The mean busy time of each round if the largest share per work is done first."""
        work = self.work(prices)
        rate: Floats = np.cumsum(np.bincount(self.freed, prices[self.kind], len(self.releases_s)))
        room = np.where(rate > 0, rate, 0.0) * np.append(np.diff(self.releases_s), np.inf)
        used = work > 0
        order = np.argsort(-np.divide(shares, work, out=np.zeros_like(work), where=used), kind="stable")
        found = self.start_s.copy()
        fill(order[used[order]], work, self.release, self.releases_s, rate, room, found)
        return found

    def even(self) -> Dual:
        """Weights spread evenly, and prices by how fast types are."""
        jobs, groups = self.jobs, self.groups
        part = jobs.weight / (jobs.rounds + 1)
        rounds = np.where(groups.tasks > 0, part[groups.job], 0.0)
        speed = jobs.task_s.min(axis=1)[:, None] / jobs.task_s
        prices = np.where(self.gpus_of > 0, np.add.reduce(speed, axis=0) / len(speed), 1.0)
        prices = np.maximum(prices, _LEAST_PRICE)
        return Dual(prices, RoundShares(rounds, jobs.weight - np.add.reduceat(rounds, groups.first)), 0.0)

    def ascend(self, start: Dual, steps: int, step: float) -> Dual:
        """RoundShares with a larger bound: weight moves to those rounds that say that their job is complete later."""
        shares, best = start.shares, start._replace(value=-np.inf)
        for _ in range(steps):
            said_s = self.mean_busy_s(shares.rounds, start.prices) + self.behind_s
            value, onward = self._step(shares, said_s, step)
            if value > best.value:
                best = Dual(start.prices, shares, value)
            shares = onward
        return best

    def _step(self, shares: RoundShares, said_s: Floats, step: float) -> tuple[float, RoundShares]:
        """The bound of shares, and the shares after one step."""
        job, first, weight = self.groups.job, self.groups.first, self.jobs.weight
        sums = np.add.reduceat(shares.rounds * said_s, first) + shares.alone * self.alone_s
        mean_s = sums / weight
        pace = step / np.maximum(mean_s - self.jobs.ready_s, GRID_S)
        rounds = shares.rounds * exp(np.clip((said_s - mean_s[job]) * pace[job], -_LARGEST, _LARGEST))
        alone = shares.alone * exp(np.clip((self.alone_s - mean_s) * pace, -_LARGEST, _LARGEST))
        scale = weight / (np.add.reduceat(rounds, first) + alone)
        return float(np.add.reduce(sums)), RoundShares(rounds * scale[job], alone * scale)

    def refine(self, found: Dual) -> Dual:
        """The last digits of a bound."""
        better = self.ascend(found, _LAST_STEPS, _LAST_STEP)
        return better if better.value > found.value else found

    def average(self, dual: Dual, steps: int) -> Floats:
        """Mean busy times that nearly solve the relaxation: averages over steps, growing along the rounds of a job."""
        shares, total_s = dual.shares, np.zeros(len(self.start_s))
        for _ in range(steps):
            busy_s = self.mean_busy_s(shares.rounds, dual.prices)
            total_s += busy_s
            shares = self._step(shares, busy_s + self.behind_s, _LATER_STEP)[1]
        return growing(self.groups, total_s / steps)

    def spread(self, prices: Floats | None) -> Dual:
        """Good shares for prices; without prices, for those by how fast types are."""
        start = self.even()
        return self.ascend(start if prices is None else start._replace(prices=prices), _FIRST_STEPS, _STEP)

    def search(self, prices: Floats | None = None) -> Dual:
        """Prices and shares with a large bound. From given prices on, only small changes are tried, and once each."""
        found = self.spread(prices)
        if prices is not None:
            return self._reprice(found, _PRICE_FACTORS[-1])
        factors = list(_PRICE_FACTORS)
        for _ in range(_PRICE_PASSES):
            better = self._reprice(found, factors[0])
            if better is found:
                factors.pop(0)
            if not factors:
                break
            found = better
        return found

    def _reprice(self, found: Dual, factor: float) -> Dual:
        """Try a higher and a lower price for each type."""
        for kind in np.flatnonzero(self.gpus_of).tolist():
            for change in (1.0 / factor, factor):
                prices = found.prices.copy()
                prices[kind] *= change
                tried = self.ascend(found._replace(prices=prices), _PRICE_STEPS, _LATER_STEP)
                if tried.value > found.value * (1.0 + _GAIN):
                    found = tried
                    break
        return found


def _round_times_s(jobs: TaskJobs, gpus_of: Ints, tasks: Ints) -> tuple[Floats, Floats]:
    """The least time of a round on all GPUs, and the least time from its mean busy time to its end, for each job.

    A GPU runs some tasks of a round one after the other. Its k-th task ends after k tasks, and its k-th task from the
    end lies k - 1/2 tasks and a synchronisation before the end. The best round takes the smallest of these.
    """
    most = int(tasks.max(initial=1))
    kinds = [kind for kind in range(len(gpus_of)) if gpus_of[kind]]
    deep = [(kind, k) for kind in kinds for k in range(1, -(-most // int(gpus_of[kind])) + 1)]
    room = np.array([gpus_of[kind] for kind, _ in deep])
    ends_s = np.stack([k * jobs.task_s[:, kind] + jobs.sync_s[:, kind] for kind, k in deep], axis=1)
    tails_s = np.stack([(k - 0.5) * jobs.task_s[:, kind] + jobs.sync_s[:, kind] for kind, k in deep], axis=1)
    rows = np.arange(len(tasks))
    at = np.argsort(ends_s, axis=1, kind="stable")
    last = (np.cumsum(room[at], axis=1) >= tasks[:, None]).argmax(axis=1)
    round_s = np.where(tasks > 0, ends_s[rows, at[rows, last]], 0.0)
    at = np.argsort(tails_s, axis=1, kind="stable")
    before = np.cumsum(room[at], axis=1) - room[at]
    taken = np.clip(tasks[:, None] - before, 0, room[at])
    sums_s = np.where(taken > 0, tails_s[rows[:, None], at], 0.0) * taken
    return round_s, np.add.reduce(sums_s, axis=1) / np.maximum(tasks, 1)


def _fill_loop(order: Any, work: Any, release: Any, releases_s: Any, rate: Any, room: Any, found: Any) -> None:
    count = len(releases_s)
    onward, filled = list(range(count)), [0.0] * count
    for at in range(count):
        if room[at] <= 0.0:
            onward[at] = at + 1
    for entry in order:
        need, moment, at = work[entry], 0.0, release[entry]
        while need > 0.0:
            while onward[at] != at:
                # Full spans are skipped, and the way past them is made shorter.
                onward[at] = onward[onward[at]]
                at = onward[at]
            taken = room[at] - filled[at]
            begin_s = releases_s[at] + filled[at] / rate[at]
            if need < taken:
                taken = need
            else:
                onward[at] = at + 1
            filled[at] += taken
            need -= taken
            moment += taken * (begin_s + taken / (2.0 * rate[at]))
        found[entry] = moment / work[entry]


@compiled_as(_fill_loop)
def fill(
    order: Ints, work: Floats, release: Ints, releases_s: Floats, rate: Floats, room: Floats, found: Floats
) -> None:
    """Let each round do its work as early as there is room from its release on, in order; write mean busy times."""
    lists = [each.tolist() for each in (order, work, release, releases_s, rate, room, found)]
    _fill_loop(*lists)
    found[:] = lists[-1]
