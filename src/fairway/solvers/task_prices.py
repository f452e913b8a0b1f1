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

_FEWEST_SPANS, _MOST_SPANS = 1000, 4000
_MOST_WORK = 300_000_000
"""Spans times rounds times types that are looked at in all steps."""
_GOOD_STEPS, _MOST_STEPS = 30, 60
"""There are as many spans as allow for this many steps, and not more steps than this."""
_AMBITION, _LEAST_AMBITION, _PATIENCE = 0.2, 0.005, 4
"""By how much of the bound a step hopes to raise it; it hopes for half as much after so many steps in vain."""
_BALANCED = 1e-9
"""The search ends where the squares of GPU-seconds wanted too much or too little sum to this."""
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
    whole_s: list[float]
    """Task and synchronisation."""
    rounds_s: list[float]
    """The least time of each round on all GPUs."""


class TimePrices:
    """Jobs and GPUs over spans of time."""

    def __init__(self, fluid: Fluid, until_s: float) -> None:
        self.jobs = [own for job in range(len(fluid.jobs.weight)) if (own := _own(fluid, job)) is not None]
        rounds = max(sum(len(own.tasks) * len(own.kinds) for own in self.jobs), 1)
        self.spans = min(max(_MOST_WORK // (_GOOD_STEPS * rounds), _FEWEST_SPANS), _MOST_SPANS)
        self.steps = min(_MOST_STEPS, _MOST_WORK // (self.spans * rounds))
        self.span_s = until_s / self.spans
        edges_s = np.arange(self.spans + 1) * self.span_s
        up_s = np.clip(edges_s[1:, None] - fluid.free_s, 0.0, self.span_s)
        self.capacity_s = np.stack([np.add.reduce(up_s[:, fluid.kind == kind], axis=1) for kind in range(fluid.types)])
        """GPU-seconds of each type in each span."""
        single = (fluid.jobs.rounds == 1) & (fluid.jobs.first_tasks == 0)
        self.done = float(np.add.reduce((fluid.jobs.weight * fluid.alone_s)[single]))

    def bound(self, prices: Floats) -> tuple[float, Floats]:
        """The bound that prices (by type and span) give, and the GPU-seconds that jobs want there."""
        wanted_s = np.zeros_like(prices)
        sums = np.zeros((len(prices), 2 * self.spans + 4))
        sums[:, 1 : self.spans + 1] = np.cumsum(prices * self.span_s, axis=1)
        sums[:, self.spans + 1 :] = sums[:, self.spans, None]
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
    middle_s = np.asarray((np.arange(model.spans) + 0.5) * model.span_s, dtype=np.float64)
    first = dual.prices[:, None] * _waiting_weight(fluid, dual, middle_s)
    tried = [(*model.bound(scale * first), scale * first) for scale in _STARTS]
    best, wanted_s, prices = max(tried, key=lambda each: each[0])
    base = float(np.add.reduce(fluid.jobs.weight * fluid.jobs.ready_s))
    value, ambition, vain = best, _AMBITION, 0
    for _ in range(model.steps - len(_STARTS)):
        ways_s = wanted_s - model.capacity_s
        ways_s[(prices <= 0) & (ways_s < 0)] = 0.0
        square = float(np.add.reduce(np.add.reduce(ways_s * ways_s, axis=1)))
        if square <= _BALANCED or ambition < _LEAST_AMBITION:
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
    rounds_s = [float(fluid.first_s[job]), *[float(fluid.round_s[job])] * (rounds - 1)]
    begin_s, synced_s = float(jobs.ready_s[job]), float(jobs.first_synced_s[job])
    if not first:
        tasks, rounds_s, begin_s, synced_s = tasks[1:], rounds_s[1:], max(begin_s, synced_s), 0.0
    if not tasks:
        return None
    kinds = np.flatnonzero(np.isfinite(jobs.task_s[job])).tolist()
    whole_s = (jobs.task_s[job] + jobs.sync_s[job])[kinds].tolist()
    own_s = jobs.task_s[job, kinds].tolist()
    return _Own(float(jobs.weight[job]), begin_s, synced_s, tasks, kinds, own_s, whole_s, rounds_s)


def _until_s(fluid: Fluid, dual: Dual) -> float:
    """About when all is done."""
    busy_s = fluid.mean_busy_s(dual.shares.rounds, dual.prices) + fluid.behind_s
    return max(float(busy_s.max()), float(fluid.alone_s.max()))


def _waiting_weight(fluid: Fluid, dual: Dual, middle_s: Floats) -> Floats:
    """What a unit of work costs at times: the shares of rounds that come later, until all work is done once."""
    shares, work = dual.shares.rounds, fluid.work(dual.prices)
    busy_s = fluid.mean_busy_s(shares, dual.prices)
    rate = float(np.add.reduce(dual.prices[fluid.kind]))
    comes = np.bincount(fluid.release, work, len(fluid.releases_s))
    before = np.cumsum(comes) - comes - rate * fluid.releases_s
    idle_s = fluid.releases_s[before <= np.minimum.accumulate(before)]
    period = np.searchsorted(idle_s, busy_s, side="right")
    at = np.lexsort((busy_s, period))
    behind = np.append(np.cumsum(shares[at][::-1])[::-1], 0.0)
    ends = np.searchsorted(period[at], np.searchsorted(idle_s, middle_s, side="right"), side="right")
    later = np.minimum(np.searchsorted(np.maximum.accumulate(busy_s[at]), middle_s), ends)
    return np.asarray(np.maximum(behind[later] - behind[ends], 0.0) / rate)


def _cheapest(own: _Own, sums: Floats, span_s: float, wanted_s: Floats) -> float:
    """The least cost of a job by itself. Its tasks are added to what is wanted."""
    all_spans = wanted_s.shape[1]
    spans = all_spans - min(int(own.begin_s / span_s), all_spans - 1)
    cost, begin_s = np.zeros(spans), own.begin_s
    ways: list[_Way] = []
    for tasks, round_s in zip(own.tasks, own.rounds_s, strict=True):
        after, least = np.full(spans, np.inf), np.empty((len(own.kinds), spans))
        for row, (kind, task_s, whole_s) in enumerate(zip(own.kinds, own.task_s, own.whole_s, strict=True)):
            window, move = _slack(round_s, whole_s, span_s, spans)
            begin, end = begin_s / span_s, (begin_s + task_s) / span_s
            step(cost, sums[kind], begin, end, float(tasks), window, move, least[row], after)
        begin_s += round_s
        if not ways:
            floor = min(max(int((own.synced_s - begin_s) / span_s), 0), spans - 1)
            after[floor] = after[: floor + 1].min()
            after[:floor] = np.inf
        ways.append(_Way(begin_s - round_s, tasks, round_s, least))
        cost = after
    total = cost + own.weight * (begin_s + np.arange(spans) * span_s)
    at = int(total.argmin())
    _want(own, ways, at, span_s, wanted_s)
    return float(total[at])


def _slack(round_s: float, whole_s: float, span_s: float, spans: int) -> tuple[int, int]:
    """For how many spans a task on a type may wait without making its round longer, and by how many it makes it so."""
    window = int((round_s - whole_s) / span_s) + 1 if round_s > whole_s else 0
    return min(window, spans - 1), min(int(max(whole_s - round_s, 0.0) / span_s), spans - 1)


class _Way(NamedTuple):
    """A round: when it can begin, its tasks, its least time, and its least cost by type if it begins by each span."""

    begin_s: float
    tasks: int
    round_s: float
    least: Floats


def _want(own: _Own, ways: list[_Way], at: int, span_s: float, wanted_s: Floats) -> None:
    """Go back from the end of the cheapest schedule and add up the GPU-seconds of its tasks.

    Tasks that may wait for a while are spread evenly over it.
    """
    for way in reversed(ways):
        spans = way.least.shape[1]
        moves = [_slack(way.round_s, whole_s, span_s, spans)[1] for whole_s in own.whole_s]
        limits = [spans - 1 if at == spans - 1 else at - move for move in moves]
        values = [way.least[row, limit] if limit >= 0 else np.inf for row, limit in enumerate(limits)]
        row = int(np.argmin(values))
        at = int((way.least[row] == values[row]).argmax())
        if at == spans - 1:
            continue
        used, start = wanted_s[own.kinds[row]], way.begin_s / span_s + at + 0.5
        lasts = (own.task_s[row] + max(way.round_s - own.whole_s[row], 0.0)) / span_s
        level_s = way.tasks * own.task_s[row] / lasts
        end = min(start + lasts, float(len(used)))
        first, last = int(start), min(int(end), len(used) - 1)
        if first < len(used):
            used[first : last + 1] += level_s
            used[first] -= level_s * (start - first)
            used[last] -= level_s * (last + 1 - end)


def _step_loop(
    cost: Any, sums: Any, begin: float, end: float, tasks: float, window: int, move: int, least: Any, after: Any
) -> None:
    spans = len(cost)
    low, high = min(int(begin), len(sums) - spans - 3), min(int(end), len(sums) - spans - 3)
    low_part, high_part = begin - int(begin), end - int(end)
    ahead, behind = high_part + 1.0 - low_part, low_part + 1.0 - high_part
    ahead_at, behind_at = high + int(ahead), low + int(behind)
    ahead, behind = ahead - int(ahead), behind - int(behind)
    price = np.empty(spans)
    until = sums[high] + high_part * (sums[high + 1] - sums[high])
    until -= sums[low] + low_part * (sums[low + 1] - sums[low])
    for k in range(spans):
        here = until
        until = sums[high + k + 1] + high_part * (sums[high + k + 2] - sums[high + k + 1])
        until -= sums[low + k + 1] + low_part * (sums[low + k + 2] - sums[low + k + 1])
        other = sums[ahead_at + k] + ahead * (sums[ahead_at + k + 1] - sums[ahead_at + k]) - sums[low + k + 1]
        here = min(min(here, until), other)
        other = sums[behind_at + k] + behind * (sums[behind_at + k + 1] - sums[behind_at + k])
        price[k] = min(here, sums[high + k + 1] - other)
    price[spans - 1] = 0.0
    reach = 0
    while reach < window:
        more = min(reach + 1, window - reach)
        for k in range(spans):
            price[k] = min(price[k], price[min(k + more, spans - 1)])
        reach += more
    best = np.inf
    for k in range(spans):
        best = min(best, cost[k] + tasks * price[k])
        least[k] = best
        to = min(k + move, spans - 1)
        after[to] = min(after[to], best)


@compiled_as(_step_loop)
def step(
    cost: Floats,
    sums: Floats,
    begin: float,
    end: float,
    tasks: float,
    window: int,
    move: int,
    least: Floats,
    after: Floats,
) -> None:
    """One round on one type: from the least cost of being ready by each span to that of being synchronised by it.

    `sums` are the prices added up over spans; a task that takes from `begin` to `end`, counted in spans, pays the
    difference. It may start at any time within a span. The price is linear between the times at which its start or its
    end is at the border of a span, so it is smallest at one of these. The last span stands for all later times. A task
    may start up to `window` spans after its round, and makes the round `move` spans longer than its least time.
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
    reach = 0
    while reach < window:
        # Each pass looks twice as far, because what it looks at has looked ahead itself.
        more = min(reach + 1, window - reach)
        price = np.minimum(price, np.append(price[more:], np.full(more, price[-1])))
        reach += more
    np.minimum.accumulate(cost + tasks * price, out=least)
    np.minimum(after[move:], least[: spans - move], out=after[move:])
    after[-1] = min(after[-1], least[-1])


def _between(sums: Floats, at: int, part: float, count: int) -> Floats:
    """Sums between two borders of spans."""
    here = sums[at : at + count]
    return np.asarray(here + part * (sums[at + 1 : at + 1 + count] - here))
