"""A lower bound for tasks on mixed GPUs by prices that change over time.

A GPU of each type has a price in each span of time. Every job looks for the schedule of its own that is cheapest for
it: the weight of its completion time, and the prices of the time that its tasks take. The sum over jobs, less what all
GPUs earn at these prices, is below the cost of any schedule, whatever the prices are (Lagrangian relaxation of the
capacity of each type). The bound of `task_fluid` has one price per type and takes the fastest type for the time
between rounds. This one knows that a cheap type may be slow. Prices begin at those of that bound. They rise where more
is wanted than there is, and fall where less is.

A job's search goes round by round over spans. Time counts from the first moment at which the round could begin, so that
nothing is lost by rounding on the fastest way. Where a time is rounded, it is rounded down.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.kernels import compiled_as
from fairway.solvers.task_fluid import Dual, Fluid

_SPANS = 1000
_MOST_WORK = 300_000_000
"""Spans times rounds times types that are looked at in all steps."""
_MOST_STEPS = 60
_AMBITION, _LEAST_AMBITION, _PATIENCE = 0.2, 0.005, 4
"""By how much of the bound a step hopes to raise it; it hopes for half as much after so many steps in vain."""
_STARTS = (1.0, 0.5, 0.0)
"""What is tried as a multiple of the first prices."""


class _Own(NamedTuple):
    """One job: what it weighs, when it begins, tasks of each round, and its times on the types where it can run."""

    weight: float
    begin_s: float
    synced_s: float
    tasks: list[int]
    kinds: list[int]
    task_s: list[float]
    later_s: list[float]
    """How much later than on the fastest type a round is synchronised."""
    round_s: float


class TimePrices:
    """Jobs and GPUs over spans of time."""

    def __init__(self, fluid: Fluid, until_s: float) -> None:
        self.span_s = until_s / _SPANS
        self.jobs = [own for job in range(len(fluid.jobs.weight)) if (own := _own(fluid, job)) is not None]
        edges_s = np.arange(_SPANS + 1) * self.span_s
        up_s = np.clip(edges_s[1:, None] - fluid.free_s, 0.0, self.span_s)
        self.capacity_s = np.stack([np.add.reduce(up_s[:, fluid.kind == kind], axis=1) for kind in range(fluid.types)])
        """GPU-seconds of each type in each span."""
        single = (fluid.jobs.rounds == 1) & (fluid.jobs.first_tasks == 0)
        self.done = float(np.add.reduce((fluid.jobs.weight * fluid.alone_s)[single]))
        work = sum(len(own.tasks) * len(own.kinds) for own in self.jobs) * _SPANS
        self.steps = min(_MOST_STEPS, _MOST_WORK // max(work, 1))

    def bound(self, prices: Floats) -> tuple[float, Floats]:
        """The bound that prices (by type and span) give, and the GPU-seconds that jobs want there."""
        wanted_s = np.zeros_like(prices)
        sums = np.zeros((len(prices), 2 * _SPANS + 4))
        sums[:, 1 : _SPANS + 1] = np.cumsum(prices * self.span_s, axis=1)
        sums[:, _SPANS + 1 :] = sums[:, _SPANS, None]
        total = self.done
        for own in self.jobs:
            total += _cheapest(own, sums, self.span_s, wanted_s)
        return total - float(np.add.reduce(np.add.reduce(prices * self.capacity_s, axis=1))), wanted_s


def time_bound(fluid: Fluid, dual: Dual) -> float:
    """A bound from prices over time; 0 if there is too much to look at."""
    until_s = 1.25 * _until_s(fluid, dual)
    model = TimePrices(fluid, until_s)
    if model.steps < len(_STARTS):
        return 0.0
    first = dual.prices[:, None] * _waiting_weight(fluid, dual, model.span_s)
    tried = [(*model.bound(scale * first), scale * first) for scale in _STARTS]
    best, wanted_s, prices = max(tried, key=lambda each: each[0])
    base = float(np.add.reduce(fluid.jobs.weight * fluid.jobs.ready_s))
    value, ambition, vain = best, _AMBITION, 0
    for _ in range(model.steps - len(_STARTS)):
        ways_s = wanted_s - model.capacity_s
        ways_s[(prices <= 0) & (ways_s < 0)] = 0.0
        square = float(np.add.reduce(np.add.reduce(ways_s * ways_s, axis=1)))
        if square <= 0 or ambition < _LEAST_AMBITION:
            break
        prices = np.maximum(prices + (best + ambition * (best - base) - value) / square * ways_s, 0.0)
        value, wanted_s = model.bound(prices)
        vain = 0 if value > best else vain + 1
        best = max(best, value)
        if vain == _PATIENCE:
            vain, ambition = 0, ambition / 2
    return best


def _own(fluid: Fluid, job: int) -> _Own | None:
    """A job as its search needs it; None if it has no tasks left."""
    jobs = fluid.jobs
    first, rounds = int(jobs.first_tasks[job]), int(jobs.rounds[job])
    tasks = [first, *[int(jobs.tasks[job])] * (rounds - 1)]
    begin_s, synced_s = float(jobs.ready_s[job]), float(jobs.first_synced_s[job])
    if not first:
        tasks, begin_s, synced_s = tasks[1:], max(begin_s, synced_s), 0.0
    if not tasks:
        return None
    kinds = np.flatnonzero(np.isfinite(jobs.task_s[job])).tolist()
    whole_s = (jobs.task_s[job] + jobs.sync_s[job])[kinds]
    round_s = float(whole_s.min())
    own_s = jobs.task_s[job, kinds].tolist()
    return _Own(float(jobs.weight[job]), begin_s, synced_s, tasks, kinds, own_s, (whole_s - round_s).tolist(), round_s)


def _until_s(fluid: Fluid, dual: Dual) -> float:
    """About when all is done."""
    busy_s = fluid.mean_busy_s(dual.shares.rounds, dual.prices) + fluid.behind_s
    return max(float(busy_s.max()), float(fluid.alone_s.max()))


def _waiting_weight(fluid: Fluid, dual: Dual, span_s: float) -> Floats:
    """What a unit of work costs in each span: the shares of rounds that come later, until all work is done once."""
    shares, work = dual.shares.rounds, fluid.work(dual.prices)
    busy_s = fluid.mean_busy_s(shares, dual.prices)
    rate = float(np.add.reduce(dual.prices[fluid.kind]))
    comes = np.bincount(fluid.release, work, len(fluid.releases_s))
    before = np.cumsum(comes) - comes - rate * fluid.releases_s
    idle_s = fluid.releases_s[before <= np.minimum.accumulate(before)]
    period = np.searchsorted(idle_s, busy_s, side="right")
    at = np.lexsort((busy_s, period))
    behind = np.append(np.cumsum(shares[at][::-1])[::-1], 0.0)
    middle_s = (np.arange(_SPANS) + 0.5) * span_s
    ends = np.searchsorted(period[at], np.searchsorted(idle_s, middle_s, side="right"), side="right")
    later = np.minimum(np.searchsorted(np.maximum.accumulate(busy_s[at]), middle_s), ends)
    return np.asarray(np.maximum(behind[later] - behind[ends], 0.0) / rate)


def _cheapest(own: _Own, sums: Floats, span_s: float, wanted_s: Floats) -> float:
    """The least cost of a job by itself. Its tasks are added to what is wanted."""
    spans = _SPANS - min(int(own.begin_s / span_s), _SPANS - 1)
    cost, ways = np.zeros(spans), []
    moves = [min(int(later_s / span_s), spans - 1) for later_s in own.later_s]
    for number, tasks in enumerate(own.tasks):
        begin_s = own.begin_s + number * own.round_s
        after, least = np.full(spans, np.inf), np.empty((len(own.kinds), spans))
        for at, (kind, task_s) in enumerate(zip(own.kinds, own.task_s, strict=True)):
            begin, end = begin_s / span_s, (begin_s + task_s) / span_s
            step(cost, sums[kind], begin, end, float(tasks), moves[at], least[at], after)
        if number == 0:
            floor = min(max(int((own.synced_s - begin_s - own.round_s) / span_s), 0), spans - 1)
            after[floor] = after[: floor + 1].min()
            after[:floor] = np.inf
        ways.append(least)
        cost = after
    ends_s = own.begin_s + len(own.tasks) * own.round_s + np.arange(spans) * span_s
    total = cost + own.weight * ends_s
    at = int(total.argmin())
    _want(own, ways, moves, at, span_s, wanted_s)
    return float(total[at])


def _want(own: _Own, ways: list[Floats], moves: list[int], at: int, span_s: float, wanted_s: Floats) -> None:
    """Go back from the end of the cheapest schedule and add up the GPU-seconds of its tasks."""
    for number in range(len(own.tasks) - 1, -1, -1):
        least = ways[number]
        spans = least.shape[1]
        limits = [spans - 1 if at == spans - 1 else at - move for move in moves]
        values = [least[row, limit] if limit >= 0 else np.inf for row, limit in enumerate(limits)]
        row = int(np.argmin(values))
        at = int((least[row] == values[row]).argmax())
        if at == spans - 1:
            continue
        start = (own.begin_s + number * own.round_s) / span_s + at + 0.5
        end = min(start + own.task_s[row] / span_s, float(_SPANS))
        first, last = int(start), min(int(end), _SPANS - 1)
        if first < _SPANS:
            used = wanted_s[own.kinds[row]]
            used[first : last + 1] += own.tasks[number] * span_s
            used[first] -= own.tasks[number] * span_s * (start - first)
            used[last] -= own.tasks[number] * span_s * (last + 1 - end)


def _step_loop(cost: Any, sums: Any, begin: float, end: float, tasks: float, move: int, least: Any, after: Any) -> None:
    spans = len(cost)
    low, high = min(int(begin), len(sums) - spans - 3), min(int(end), len(sums) - spans - 3)
    low_part, high_part = begin - int(begin), end - int(end)
    ahead, behind = high_part + 1.0 - low_part, low_part + 1.0 - high_part
    ahead_at, behind_at = high + int(ahead), low + int(behind)
    ahead, behind = ahead - int(ahead), behind - int(behind)
    best = np.inf
    until = sums[high] + high_part * (sums[high + 1] - sums[high])
    until -= sums[low] + low_part * (sums[low + 1] - sums[low])
    for k in range(spans):
        price = until
        until = sums[high + k + 1] + high_part * (sums[high + k + 2] - sums[high + k + 1])
        until -= sums[low + k + 1] + low_part * (sums[low + k + 2] - sums[low + k + 1])
        price = min(price, until)
        other = sums[ahead_at + k] + ahead * (sums[ahead_at + k + 1] - sums[ahead_at + k]) - sums[low + k + 1]
        price = min(price, other)
        other = sums[behind_at + k] + behind * (sums[behind_at + k + 1] - sums[behind_at + k])
        price = min(price, sums[high + k + 1] - other)
        if k == spans - 1:
            price = 0.0
        best = min(best, cost[k] + tasks * price)
        least[k] = best
        to = min(k + move, spans - 1)
        after[to] = min(after[to], best)


@compiled_as(_step_loop)
def step(
    cost: Floats, sums: Floats, begin: float, end: float, tasks: float, move: int, least: Floats, after: Floats
) -> None:
    """One round on one type: from the least cost of being ready by each span to that of being synchronised by it.

    `sums` are the prices added up over spans; a task that takes from `begin` to `end`, counted in spans, pays the
    difference. It may start at any time within a span. The price is linear between the times at which its start or its
    end is at the border of a span, so it is smallest at one of these. The last span stands for all later times.
    """
    spans = len(cost)
    low, high = min(int(begin), len(sums) - spans - 3), min(int(end), len(sums) - spans - 3)
    low_part, high_part = begin - int(begin), end - int(end)
    ends = _between(sums, high, high_part, spans + 1) - _between(sums, low, low_part, spans + 1)
    price = np.minimum(ends[:-1], ends[1:])
    ahead, behind = high_part + 1.0 - low_part, low_part + 1.0 - high_part
    shifted = _between(sums, high + int(ahead), ahead - int(ahead), spans) - sums[low + 1 : low + 1 + spans]
    price = np.minimum(price, shifted)
    shifted = sums[high + 1 : high + 1 + spans] - _between(sums, low + int(behind), behind - int(behind), spans)
    price = np.minimum(price, shifted)
    price[-1] = 0.0
    np.minimum.accumulate(cost + tasks * price, out=least)
    np.minimum(after[move:], least[: spans - move], out=after[move:])
    after[-1] = min(after[-1], least[-1])


def _between(sums: Floats, at: int, part: float, count: int) -> Floats:
    """Sums between two borders of spans."""
    here = sums[at : at + count]
    return np.asarray(here + part * (sums[at + 1 : at + 1 + count] - here))
