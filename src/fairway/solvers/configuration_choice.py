"""One configuration for each job, of the least total cost: the integer program of Sia (Jayaram Subramanya, SOSP 2023).

A configuration is a number of GPUs of one type. Each job gets at most one, and no type has more GPUs than there are.
Prices of the GPU types give a bound: at such prices each job chooses by itself. The jobs are then gone through one
after the other, and for every combination of GPUs in use the cheapest way there is kept. Choices that the bound shows
to be too dear are left out, so few combinations are left, and the answer is mostly the best there is. If there are too
many, some are left out, and the answer says how far from the best it can be.

Costs are whole numbers, so nothing is ever rounded and equals are equal: of equally good answers the same is found on
every CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints

UNIT = 1 << 20
"""Costs are counted in parts of this."""
WAITS = -1
FIRST_STEPS, STEP_SHRINKS, MOST_BIDS = 8, 8, 32
WIDTHS = (64, 1000)
"""How many combinations of GPUs in use are kept: at first, and when that finds nothing cheaper."""
MOST_REPEATS = 4
MOST_STATES = 250_000
"""The most combinations that are kept in all; with many jobs fewer are kept after each of them."""


@dataclass(frozen=True)
class Choosing:
    """One program. Configurations are columns with a GPU type and a number of GPUs."""

    costs: Ints
    """Jobs by configurations, in parts of `UNIT`."""
    allowed: Bools
    """Jobs by configurations."""
    waiting: Ints
    """The cost of each job without GPUs."""
    kind: Ints
    gpus: Ints
    capacity: Ints
    """GPUs of each type."""

    def __post_init__(self) -> None:
        jobs, count = self.costs.shape
        if self.allowed.shape != (jobs, count) or self.waiting.shape != (jobs,) or self.kind.shape != (count,):
            raise ValueError("costs, waiting and configurations differ in size")
        if (self.gpus <= 0).any() or (self.capacity < 0).any():
            raise ValueError("a configuration needs GPUs, and a type has no fewer than none")


class ChosenConfigurations(NamedTuple):
    """The configuration of each job, `WAITS` for none, what that costs, and what every answer costs at least."""

    configurations: Ints
    cost: int
    bound: int


def choose(problem: Choosing, widths: tuple[int, ...] = WIDTHS) -> ChosenConfigurations:
    """The cheapest choice; of equally cheap ones always the same."""
    jobs, count = problem.costs.shape
    if not jobs:
        return ChosenConfigurations(np.zeros(0, dtype=np.int64), 0, 0)
    table = _Table(problem)
    prices = _prices(table)
    priced = table.costs + prices[table.kind] * table.gpus
    least = np.where(table.allowed, priced, np.iinfo(np.int64).max).min(axis=1)
    bound = int(least.sum() - (prices * table.capacity).sum())
    search = _Search(table, priced - least[:, None], prices)
    chosen = search.repaired()
    over = search.over(chosen)
    best = over == 0
    for width in widths:
        for _ in range(MOST_REPEATS):
            if best:
                break
            found = search.cheaper(chosen, over, max(min(width, MOST_STATES // jobs), 1))
            best = found.whole
            if found.over >= over:
                break
            chosen, over = found.chosen, found.over
    return ChosenConfigurations(np.where(chosen == count, WAITS, chosen), bound + over, bound + over if best else bound)


class _Table:
    """A program in which waiting is one more configuration, without GPUs."""

    def __init__(self, problem: Choosing) -> None:
        jobs = len(problem.costs)
        fits = problem.gpus <= problem.capacity[problem.kind]
        self.costs: Ints = np.concatenate([problem.costs, problem.waiting[:, None]], axis=1)
        self.allowed: Bools = np.concatenate([problem.allowed & fits, np.ones((jobs, 1), dtype=np.bool_)], axis=1)
        self.kind: Ints = np.append(problem.kind, 0)
        self.gpus: Ints = np.append(problem.gpus, 0)
        self.capacity: Ints = problem.capacity


def _prices(table: _Table) -> Ints:
    """Prices of GPUs by type, at which choices that are made job by job nearly use what there is.

    They rise like bids in an auction, from too low to where nothing is overbooked, in large steps and then in smaller
    ones. The bound is a concave function of the prices; those of the best bound are returned.
    """
    costs, jobs = np.where(table.allowed, table.costs, np.int64(1) << 50), np.arange(len(table.costs))
    kinds = len(table.capacity)
    prices = best = np.zeros(kinds, dtype=np.int64)
    best_bound = -(1 << 62)
    step = max(int(np.abs(table.costs[:, -1]).max()) // FIRST_STEPS, 1)
    while True:
        for _ in range(MOST_BIDS * kinds):
            priced = costs + prices[table.kind] * table.gpus
            at = priced.argmin(axis=1)
            bound = int(priced[jobs, at].sum() - (prices * table.capacity).sum())
            if bound > best_bound:
                best, best_bound = prices, bound
            used = np.bincount(table.kind[at], weights=table.gpus[at], minlength=kinds)
            if (used <= table.capacity).all():
                break
            prices = np.where(used > table.capacity, prices + step, prices)
        if step == 1:
            return best
        prices, step = np.maximum(best - step, 0), max(step // STEP_SHRINKS, 1)


class _Found(NamedTuple):
    """A choice, by how much it is `over` the bound, and whether nothing was left out on the way to it."""

    chosen: Ints
    over: int
    whole: bool


class _Search:
    """The search for choices that cost little more than the bound: `extra` is what each option adds to it."""

    def __init__(self, table: _Table, extra: Ints, prices: Ints) -> None:
        self.table, self.extra, self.prices = table, extra, prices
        self.needs: Ints = np.zeros((len(table.gpus), len(table.capacity)), dtype=np.int64)
        self.needs[np.arange(len(table.gpus)), table.kind] = table.gpus
        self.radix: Ints = np.concatenate([[1], np.cumprod(table.capacity[:-1] + 1)]).astype(np.int64)

    def over(self, chosen: Ints) -> int:
        """By how much a choice is above the bound."""
        unused = self.table.capacity - self.needs[chosen].sum(axis=0)
        return int(self.extra[np.arange(len(chosen)), chosen].sum() + (self.prices * unused).sum())

    def repaired(self) -> Ints:
        """The choice at the prices, with changes until no type is overbooked, and then until none makes it cheaper.

        First the changes that cost least for each GPU that is too many, then those that save most.
        """
        allowed = self.table.allowed
        chosen: Ints = np.where(allowed, self.extra, np.iinfo(np.int64).max).argmin(axis=1)
        while self._changed(chosen, self._ranks(chosen)):
            pass
        return chosen

    def _ranks(self, chosen: Ints) -> Floats:
        """How good it is to change a job to an option: the smallest first, infinite where it is no use."""
        table, at = self.table, np.arange(len(chosen))
        used = self.needs[chosen].sum(axis=0)
        after = used + self.needs - self.needs[chosen][:, None]
        excess = int(np.maximum(used - table.capacity, 0).sum())
        relief = excess - np.maximum(after - table.capacity, 0).sum(axis=2)
        if excess:
            dearer = self.extra - self.extra[at, chosen][:, None]
            return np.where(table.allowed & (relief > 0), dearer / np.maximum(relief, 1), np.inf)
        saved = table.costs - table.costs[at, chosen][:, None]
        return np.where(table.allowed & (relief == 0) & (saved < 0), saved, np.inf)

    def _changed(self, chosen: Ints, ranks: Floats) -> bool:
        """Change jobs to their best option, as far as that is still of use after the changes before."""
        options = ranks.argmin(axis=1)
        ranked = ranks[np.arange(len(chosen)), options]
        kind, gpus = self.table.kind.tolist(), self.table.gpus.tolist()
        room: list[int] = (self.table.capacity - self.needs[chosen].sum(axis=0)).tolist()
        overbooked, any_changed = min(room) < 0, False
        for job in np.argsort(ranked, kind="stable")[: int(np.isfinite(ranked).sum())].tolist():
            old, new = int(chosen[job]), int(options[job])
            before = sum(min(free, 0) for free in room)
            room[kind[old]] += gpus[old]
            room[kind[new]] -= gpus[new]
            after = sum(min(free, 0) for free in room)
            if after > before if overbooked else after == 0:
                chosen[job], any_changed = new, True
            else:
                room[kind[old]] -= gpus[old]
                room[kind[new]] += gpus[new]
        return any_changed

    def cheaper(self, guide: Ints, most: int, width: int) -> _Found:
        """The cheapest choice among those that are less than `most` over the bound.

        A state is a number of GPUs in use of each type, with the cheapest way there. Jobs with few options go first. If
        there are more than `width` states, those are kept that use about as many GPUs as the choice `guide`.
        """
        capacity, kinds = self.table.capacity, len(self.table.capacity)
        allowed = self.table.allowed & (self.extra < most)
        used, over, whole = np.zeros((1, kinds), dtype=np.int64), np.zeros(1, dtype=np.int64), True
        guided = np.zeros(kinds, dtype=np.int64)
        trail: list[tuple[int, Ints, Ints]] = []
        for job in np.argsort(allowed.sum(axis=1), kind="stable").tolist():
            options = allowed[job].nonzero()[0]
            more: Ints = (used[:, None] + self.needs[options]).reshape(-1, kinds)
            cost: Ints = (over[:, None] + self.extra[job, options]).ravel()
            fits = ((more <= capacity).all(axis=1) & (cost < most)).nonzero()[0]
            if not len(fits):
                return _Found(guide, most, whole)
            key = (more[fits] * self.radix).sum(axis=1)
            order = np.lexsort((cost[fits], key))
            kept = fits[order[np.append(True, key[order][1:] != key[order][:-1])]]
            guided = guided + self.needs[guide[job]]
            if len(kept) > width:
                score = cost[kept] + (np.abs(more[kept] - guided) * self.prices).sum(axis=1)
                kept, whole = np.sort(kept[np.argsort(score, kind="stable")[:width]]), False
            trail.append((job, kept // len(options), options[kept % len(options)]))
            used, over = more[kept], cost[kept]
        total = over + ((capacity - used) * self.prices).sum(axis=1)
        at = int(total.argmin())
        least, chosen = int(total[at]), np.zeros(len(allowed), dtype=np.int64)
        for job, before, option in reversed(trail):
            chosen[job], at = option[at], int(before[at])
        return _Found(chosen, least, whole) if least < most else _Found(guide, most, whole)
