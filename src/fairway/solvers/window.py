"""A window of rounds: how many rounds each gang gets, and which ones.

Each job has a value that grows, ever more slowly, with the number of rounds that it gets of the `T` rounds of a window.
All gangs of a round must fit into the cluster. The sum of the values counts, and so does the *latest finish*, at a
price: the longest run time that a job would have left after the window. This is the program that Shockwave (Zheng et
al., NSDI 2023) solves in every plan, as a mixed-integer program with a variable for each job and round.

It has a simpler form. In the relaxation only the number of rounds of a job matters: fractions of a round can be spread
evenly over the window, so the capacities of all rounds are one knapsack, and because values are concave, the greedy
filling of the knapsack is the best. What remains is one price of GPU time and the latest finish. For each price, one
pass over sorted steps looks at all latest finishes, and a bisection finds the price. The result is a bound for the
integer program. A plan is then made by taking the most valuable rounds first and packing them. It says how far below
the bound it is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints

_BISECTIONS = 100
_CLOSE = 1e-9
_CLOSE_ENOUGH = 1e-4
"""If rounds worth this fraction of all that can be gained are lost, more latest finishes are tried."""
_ZOOMS, _POINTS = 5, 8


class Window(NamedTuple):
    """The problem.

    `values[i, c]` is what job i's plan is worth with c rounds, concave and not falling in c = 0 … T. `left[i, c]` is
    what the job then has left (not rising in c). `latest_price` is what a unit of the latest finish costs.
    """

    gangs: Ints
    capacity: int
    values: Floats
    left: Floats
    latest_price: float = 0.0

    @property
    def rounds(self) -> int:
        """How many rounds the window has."""
        return int(self.values.shape[1] - 1)

    def objective(self, counts: Ints) -> float:
        """What a plan with these numbers of rounds is worth."""
        rows = np.arange(len(counts))
        latest = float(self.left[rows, counts].max(initial=0.0))
        # Rounded, so that plans that are worth the same tie whatever the order of their sums.
        return portable.rounded(float(self.values[rows, counts].sum()) - self.latest_price * latest)


class Preference(NamedTuple):
    """Which rounds of the window a job should have: more urgent jobs earlier, jobs in `runs` without a break.

    `stay` is how many times as urgent another job must be to interrupt a running one.
    """

    urgency: Floats
    runs: Bools
    stay: float = 1.0


class Planned(NamedTuple):
    """A plan: `rounds[t, i]` says whether job i has round t, `counts` how many it has.

    `bound` is a value that no plan can exceed, `idle` is the value of doing nothing.
    """

    rounds: Bools
    counts: Ints
    objective: float
    bound: float
    idle: float

    @property
    def gap(self) -> float:
        """How far the plan may fall short of the best one, as a fraction of what can be gained over doing nothing."""
        gain = self.bound - self.idle
        return max(self.bound - self.objective, 0.0) / gain if gain > 0 else 0.0


def plan_window(window: Window, preference: Preference | None = None) -> Planned:
    """The best plan that was found, with its bound."""
    jobs, rounds = len(window.gangs), window.rounds
    if preference is None:
        preference = Preference(np.ones(jobs), np.zeros(jobs, dtype=bool))
    bound, limits = _bound(window)
    idle = window.objective(np.zeros(jobs, dtype=np.int64))
    gains = _gains(window)
    fillings = [_filled(window, gains, limit) for limit in limits]
    if max(map(window.objective, fillings), default=bound) < bound - _CLOSE_ENOUGH * (bound - idle):
        fillings += [_filled(window, gains, limit) for limit in _closer(window, gains, limits)]
    plans = (_packed(window, gains, counts, preference) for counts in fillings)
    best = max(plans, key=lambda plan: window.objective(plan.sum(axis=0)), default=np.zeros((rounds, jobs), dtype=bool))
    counts = best.sum(axis=0)
    return Planned(best, counts, window.objective(counts), bound, idle)


def _gains(window: Window) -> Floats:
    """What each further round of a job gains per GPU, rounded so that equals tie; 0 after the last."""
    return portable.rounded(np.diff(window.values, axis=1, append=window.values[:, -1:]) / window.gangs[:, None])


def concave(values: Floats) -> Floats:
    """The smallest concave table above each row. `plan_window` needs it where a value grows faster later on."""
    out = np.array(values, dtype=np.float64)
    bent = np.diff(out, 2, axis=1) > _CLOSE * (1.0 + np.abs(out[:, 1:-1]))
    for row in np.flatnonzero(bent.any(axis=1)).tolist():
        out[row] = _hull(out[row].tolist())
    return out


def _hull(values: list[float]) -> list[float]:
    """The upper hull of one table, by the usual scan."""
    corners = [0]
    for at in range(1, len(values)):
        while len(corners) > 1:
            before, last = corners[-2], corners[-1]
            if (values[last] - values[before]) * (at - last) <= (values[at] - values[last]) * (last - before):
                corners.pop()
            else:
                break
        corners.append(at)
    hull = list(values)
    for left, right in pairwise(corners):
        slope = (values[right] - values[left]) / (right - left)
        for at in range(left + 1, right):
            hull[at] = slope * (at - left) + values[left]
    return hull


class _Steps:
    """The single rounds of all jobs: what each adds, and what its job has left without it, the largest first."""

    def __init__(self, window: Window) -> None:
        self.gains = np.diff(window.values, axis=1)
        without = window.left[:, :-1].ravel()
        self.order = np.argsort(-without, kind="stable")
        self.without = without[self.order]
        self.gangs = np.broadcast_to(window.gangs[:, None], self.gains.shape)
        self.room = float(window.capacity * window.rounds)
        self.least = float(window.left[:, -1].max(initial=0.0))
        """No plan has an earlier latest finish than this."""


def _bound(window: Window) -> tuple[float, list[float]]:
    """An upper bound of all plans, and latest finishes to try."""
    if not len(window.gangs) or not window.rounds:
        return window.objective(np.zeros(len(window.gangs), dtype=np.int64)), []
    steps = _Steps(window)
    low, high = (
        0.0,
        float((steps.gains / steps.gangs).max(initial=0.0))
        + window.latest_price * float(np.ptp(window.left, axis=1).max(initial=0.0)),
    )
    start = float(window.values[:, 0].sum())
    bound, limits = np.inf, set[float]()
    for _ in range(_BISECTIONS):
        price = (low + high) / 2
        value, used, limit = _at_price(window, steps, price)
        limits.add(limit)
        bound = min(bound, value)
        if used > steps.room:
            low = price
        else:
            high = price
        if high - low <= _CLOSE * high:
            break
    free, _, limit = _at_price(window, steps, 0.0)
    return start + min(bound, free), _worth_trying([*limits, limit, *_at_ends(window, steps, high)])


def _at_price(window: Window, steps: _Steps, price: float) -> tuple[float, float, float]:
    """The best that can be reached when GPU time costs `price` and there is no limit to it.

    Returns the value (including what the supply would sell for), the GPU rounds bought, and the latest finish.
    """
    worth = steps.gains - price * steps.gangs
    gained = float(np.maximum(worth, 0.0).sum())
    # A round that is not worth its price must still be bought if the job would end too late without it.
    forced = np.cumsum(np.maximum(-worth, 0.0).ravel()[steps.order])
    ends = np.maximum(np.append(steps.without, -np.inf), steps.least)
    costs = window.latest_price * ends + np.concatenate([[0.0], forced])
    # To end at `ends[k]` all rounds before the k-th of the order must be bought.
    at = int(np.argmin(costs))
    bought = worth.ravel() > 0
    bought[steps.order[:at]] = True
    used = float(steps.gangs.ravel()[bought].sum())
    return gained - float(costs[at]) + price * steps.room, used, float(ends[at])


def _at_ends(window: Window, steps: _Steps, price: float) -> list[float]:
    """The latest finish a little below and above the price at which the window is full."""
    return [_at_price(window, steps, price * factor)[2] for factor in (0.9, 0.99, 1.01, 1.1)]


def _worth_trying(limits: list[float]) -> list[float]:
    """Distinct limits, few enough to make a plan for each."""
    distinct = sorted(set(limits))
    if len(distinct) <= 4:
        return distinct
    middle = len(distinct) // 2
    return sorted({distinct[0], distinct[middle - 1], distinct[middle], distinct[-1]})


def _closer(window: Window, gains: Floats, limits: list[float]) -> list[float]:
    """Latest finishes between the limits, closer and closer around the one with the best filling.

    At the price that fills the window two latest finishes may be worth the same, one with too many rounds and one with
    too few. The best plan then ends between them. Except for the rounding to whole rounds, the worth of a filling is
    concave in its latest finish.
    """
    low, high = limits[0], limits[-1]
    worth = dict[float, float]()
    for _ in range(_ZOOMS):
        points = np.linspace(low, high, _POINTS + 1).tolist()
        for point in points:
            if point not in worth:
                worth[point] = window.objective(_filled(window, gains, point))
        at = max(range(len(points)), key=lambda at: worth[points[at]])
        low, high = points[max(at - 1, 0)], points[min(at + 1, _POINTS)]
    return sorted(sorted(worth), key=lambda point: -worth[point])[:3]


def _filled(window: Window, gains: Floats, latest: float) -> Ints:
    """Numbers of rounds: as many as needed to end by `latest`, then the most valuable ones while there is room."""
    rounds = window.rounds
    late = window.left > latest * (1 + _CLOSE) + _CLOSE
    counts = np.minimum(late.sum(axis=1), rounds)
    room = window.capacity * rounds
    wanted = int((counts * window.gangs).sum())
    if wanted > room:
        counts = _cut(window, counts, room)
        wanted = int((counts * window.gangs).sum())
    useful = (gains > 0) & (np.arange(rounds + 1) >= counts[:, None])
    jobs, _ = useful.nonzero()
    order = portable.order(-gains[useful])
    sizes = window.gangs[jobs[order]]
    filled = wanted + np.cumsum(sizes)
    whole = int(np.searchsorted(filled, room, side="right"))
    counts = counts + np.bincount(jobs[order[:whole]], minlength=len(counts))
    left = room - (int(filled[whole - 1]) if whole else wanted)
    closed = set[int]()
    for job, size in zip(jobs[order[whole:]].tolist(), sizes[whole:].tolist(), strict=True):
        if not left:
            break
        if size <= left and job not in closed:
            counts[job] += 1
            left -= size
        else:
            closed.add(job)
    return np.asarray(counts)


def _cut(window: Window, counts: Ints, room: int) -> Ints:
    """Where not even the latest finish can be kept, take away rounds of the jobs that have least left."""
    order = np.argsort(-window.left[np.arange(len(counts)), counts], kind="stable")
    kept = counts.copy()
    for job in order[::-1].tolist():
        excess = int((kept * window.gangs).sum()) - room
        if excess <= 0:
            break
        kept[job] -= min(int(kept[job]), -(-excess // int(window.gangs[job])))
    return kept


def _packed(window: Window, gains: Floats, counts: Ints, preference: Preference) -> Bools:
    """Rounds for all jobs: laid out from the first round on, or in another way if that fits better.

    From the first round on, more urgent jobs come first, and late gangs may find no room. From the last round on, less
    urgent jobs are laid out first; these are large and long, and what is left for the first rounds is small and fits.
    If not every job finds room, the jobs that end last should not be the ones that miss rounds.
    """
    wanted = window.objective(counts)
    best, reached = np.zeros((window.rounds, len(counts)), dtype=bool), -np.inf
    for last_first, backward in ((False, False), (False, True), (True, False), (True, True)):
        plan = _laid_out(window, counts, preference, backward=backward, last_first=last_first)
        _fill_gaps(window, gains, plan)
        value = window.objective(plan.sum(axis=0))
        if value > reached:
            best, reached = plan, value
        if reached >= wanted - _CLOSE * abs(wanted):
            break
    return best


def _laid_out(window: Window, counts: Ints, preference: Preference, *, backward: bool, last_first: bool) -> Bools:
    """Round by round: first the jobs that would otherwise miss some, then by urgency.

    With `last_first`, jobs whose missing a round would make the latest finish later go before all others.
    """
    rounds, jobs = window.rounds, len(counts)
    plan = np.zeros((rounds, jobs), dtype=bool)
    free = np.full(rounds, window.capacity)
    owed = counts.copy()
    critical = _ends_last(window, counts) if last_first else np.zeros(jobs, dtype=bool)
    ran = np.zeros(jobs, dtype=bool) if backward else preference.runs
    for left, at in zip(range(rounds, 0, -1), range(rounds)[:: -1 if backward else 1], strict=True):
        urgency = preference.urgency * np.where(preference.runs if backward else ran, preference.stay, 1.0)
        rank = np.where(ran, urgency / preference.stay, urgency) if backward else -urgency
        must = owed >= left
        order = np.lexsort((rank, -np.where(must, window.gangs, 0), ~(must & critical), ~must))
        order = order[owed[order] > 0]
        free[at] = _take(plan[at], order, window.gangs, window.capacity)
        owed -= plan[at]
        ran = plan[at]
    _settle(window, plan, free, owed)
    return plan


def _ends_last(window: Window, counts: Ints) -> Bools:
    """The jobs that would end later than all others end now, if they missed a round."""
    rows = np.arange(len(counts))
    latest = window.left[rows, counts].max(initial=0.0)
    ends_last: Bools = (counts > 0) & (window.left[rows, np.maximum(counts - 1, 0)] > latest)
    return ends_last


def _take(chosen: Bools, order: Ints, gangs: Ints, free: int) -> int:
    """Choose jobs in order while they fit. Returns the GPUs that stay free."""
    sizes = gangs[order]
    taken = np.cumsum(sizes)
    whole = int(np.searchsorted(taken, free, side="right"))
    chosen[order[:whole]] = True
    free -= int(taken[whole - 1]) if whole else 0
    if free and whole < len(order):
        for job, size in zip(order[whole:].tolist(), sizes[whole:].tolist(), strict=True):
            if size <= free:
                chosen[job] = True
                free -= size
                if not free:
                    break
    return free


def _settle(window: Window, plan: Bools, free: Ints, owed: Ints) -> None:
    """Give jobs the rounds that they missed, where others can move into rounds that have room.

    Small jobs that have every round and gangs that come late get into each other's way; there is room in other rounds.
    """
    for job in np.lexsort((window.gangs, -window.left[:, -1])).tolist():
        while owed[job] > 0 and free.sum() >= window.gangs[job]:
            if not any(
                _step_aside(window.gangs, plan, free, job, at) for at in np.argsort(-free, kind="stable").tolist()
            ):
                break
            owed[job] -= 1


def _step_aside(gangs: Ints, plan: Bools, free: Ints, job: int, at: int) -> bool:
    """Give a job the round `at`, if the jobs in its way can be moved to other rounds."""
    if plan[at, job]:
        return False
    lacking, moves = int(gangs[job] - free[at]), list[tuple[int, int]]()
    rooms = free.copy()
    rooms[at] = 0
    for other in (plan[at] & (gangs <= rooms.max(initial=0))).nonzero()[0].tolist():
        if lacking <= 0:
            break
        there = ((rooms >= gangs[other]) & ~plan[:, other]).nonzero()[0]
        if len(there):
            to = int(there[np.argmin(np.abs(there - at))])
            rooms[to] -= gangs[other]
            lacking -= int(gangs[other])
            moves.append((other, to))
    if lacking > 0:
        return False
    for other, to in moves:
        plan[at, other], plan[to, other] = False, True
        free[at] += gangs[other]
        free[to] -= gangs[other]
    plan[at, job] = True
    free[at] -= gangs[job]
    return True


def _fill_gaps(window: Window, gains: Floats, plan: Bools) -> None:
    """Give what stayed free to the jobs that gain most from it."""
    counts = plan.sum(axis=0)
    jobs, rooms = np.arange(len(counts)), window.capacity - (plan * window.gangs).sum(axis=1)
    for at, free in enumerate(rooms.tolist()):
        while free:
            gain = np.where(plan[at] | (window.gangs > free), 0.0, gains[jobs, counts])
            best = int(np.argmax(gain))
            if not gain[best] > 0:
                break
            plan[at, best] = True
            counts[best] += 1
            free -= int(window.gangs[best])
