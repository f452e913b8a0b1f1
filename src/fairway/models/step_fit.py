"""The step-time model of a job, fitted online to the steps that it has made (Pollux, OSDI 2021, and AdaptDL).

What a job has not tried yet cannot be fitted. It keeps the least time there is, so a job looks better on more replicas
than it may be, and is given the chance to show it. It may grow to twice the replicas that it ever had
(`most_replicas`), which keeps that exploration cheap.

The minimum of the loss (`step_loss`) is found by Newton's method within bounds, from starting values in closed form.
All of it is made of exact operations, so that the model is the same on every CPU. The roots in the loss have sharp tips
where timings are met exactly, as the few timings of a young job can be. So they are rounded off at first, and
less and less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.core.batch import Timing
from fairway.models.step_loss import (
    ACROSS,
    ACROSS_REPLICA,
    GROWTH_PENALTY,
    INSIDE,
    INSIDE_REPLICA,
    PASS,
    Growth,
    LossPoint,
    Seen,
    StepLoss,
)
from fairway.models.step_time import MOST_OVERLAP, TINY_S, StepModel

UNSEEN_ACROSS = 1.1
"""Synchronisation across nodes takes at least this many times as long as inside a node, until it was seen."""
MOST_STEPS = 60
"""Steps of Newton's method; most fits need fewer than 10."""
CLOSE = 1e-6
"""A step that would lower the loss by less is not made."""
FLATTEST, LEAST_FLAT = 3e-2, 1e-5
"""How far the tips of the roots are rounded off, at first and at last."""
FIRST_OVERLAP = 1.001
_LOW, _HIGH = (TINY_S,) * 6 + (1.0,), (math.inf,) * 6 + (MOST_OVERLAP,)
_LEAST_DAMPING, _FIRST_DAMPING, _MOST_DAMPING = 1e-4, 1e-3, 1e3
_UNDAMPED = 1e-2
"""A step with at most this damping says what is left to gain."""


def averaged(timings: Iterable[Timing]) -> Seen:
    """The mean timings of each allocation and batch size.

    A timing that cannot be is left out: one that is not positive and finite, or of fewer replicas than nodes. A pass
    time that cannot be counts as unknown.
    """
    steps: dict[tuple[int, int, int, int], list[float]] = {}
    passes: dict[tuple[int, int, int, int], list[float]] = {}
    for nodes, replicas, local, accumulation, step_s, gradient_s, _ in timings:
        if not (1 <= nodes <= replicas and local >= 1 and accumulation >= 0 and 0 < step_s < math.inf):
            continue
        key = (nodes, replicas, local, accumulation)
        steps.setdefault(key, []).append(step_s)
        if 0 < gradient_s < math.inf:
            passes.setdefault(key, []).append(gradient_s)
    rows = [(*key, _mean(steps[key]), _mean(passes.get(key, []))) for key in sorted(steps)]
    return Seen(*np.array(rows, dtype=np.float64).reshape(-1, 6).T)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def most_replicas(largest_seen: int, cluster_gpus: int, largest_batch: int, smallest_local: int = 1) -> int:
    """The most replicas that a job may get next: twice as many as it ever had, and no more than its batch can feed."""
    return min(max(2 * largest_seen, 1), cluster_gpus, max(largest_batch // max(smallest_local, 1), 1))


def fit(seen: Seen) -> StepModel | None:
    """The model of the timings seen; None without any."""
    if not len(seen.step_s):
        return None
    across, inside = bool((seen.nodes > 1).any()), bool(((seen.nodes == 1) & (seen.replicas > 1)).any())
    large, sizes = bool((seen.replicas > 2).any()), bool((seen.local != seen.local[0]).any())
    free = (sizes, True, across, across and large, inside, inside and large, True)
    # What was not seen across nodes will follow from what was seen inside, which is then penalised for both.
    growth = Growth() if across or not inside else Growth(GROWTH_PENALTY, 2.0 * GROWTH_PENALTY)
    step_loss = StepLoss(seen, growth)
    at = _descended(step_loss, _start(seen, step_loss.design, free), free).at
    if not across:
        at[ACROSS] = max(at[ACROSS], UNSEEN_ACROSS * at[INSIDE])
        at[ACROSS_REPLICA] = max(at[ACROSS_REPLICA], UNSEEN_ACROSS * at[INSIDE_REPLICA])
    return StepModel(*at)


def _start(seen: Seen, design: Floats, free: tuple[bool, ...]) -> list[float]:
    """Starting values: least squares for the passes, then for what the steps take beyond them."""
    timed = seen.gradient_s > 0
    # Where no pass was timed, steps of single replicas show as much, and other steps a little.
    known = timed | (seen.replicas == 1)
    known = known if known.any() else ~known
    pass_s = np.where(timed, seen.gradient_s, seen.step_s / (seen.accumulation + 1.0))[known]
    ones, local = 1.0 / pass_s, seen.local[known] / pass_s
    if free[PASS]:
        base, slope = _line(ones, local, np.ones_like(ones))
    else:
        base = 0.5 * float(np.add.reduce(pass_s)) / len(pass_s)
        slope = max(portable.dot(local, 1.0 - base * ones) / portable.dot(local, local), TINY_S)
    at = [base, slope, TINY_S, TINY_S, TINY_S, TINY_S, FIRST_OVERLAP]
    passes_s = base + slope * seen.local
    beyond_s = np.maximum(seen.step_s - (seen.accumulation + 1.0) * passes_s, 1e-4 * seen.step_s)
    for first in (ACROSS, INSIDE):
        if free[first]:
            here = design[first] > 0
            x, y, z = (row[here] / seen.step_s[here] for row in (design[first], design[first + 1], beyond_s))
            if free[first + 1]:
                at[first : first + 2] = _sync(x, y, z)
            else:
                at[first] = portable.dot(x, z) / portable.dot(x, x)
    return [min(max(value, low), high) for value, low, high in zip(at, _LOW, _HIGH, strict=True)]


def _sync(x: Floats, y: Floats, z: Floats) -> tuple[float, float]:
    """The line through what steps take beyond their passes. One that grows too much would be penalised."""
    base, slope = _line(x, y, z)
    if slope <= 0.5 * base:
        return base, slope
    both = x + 0.5 * y
    base = portable.dot(both, z) / portable.dot(both, both)
    return base, 0.5 * base


def _line(x: Floats, y: Floats, z: Floats) -> tuple[float, float]:
    """The a and b of z = a·x + b·y by least squares; both positive."""
    xx, xy, yy = portable.dot(x, x), portable.dot(x, y), portable.dot(y, y)
    xz, yz = portable.dot(x, z), portable.dot(y, z)
    whole, least = xx * yy - xy * xy, 0.05 * xz / xx
    if whole > 1e-6 * xx * yy:
        a, b = (xz * yy - yz * xy) / whole, (yz * xx - xz * xy) / whole
        if b > 0.0:
            return (a, b) if a >= least else (least, (yz - least * xy) / yy)
    b = 0.01 * xz / max(xx, xy)
    return (xz - b * xy) / xx, b


def _descended(step_loss: StepLoss, start: list[float], free: tuple[bool, ...]) -> LossPoint:
    """The point at which the loss falls no further."""
    here, damping, flat = step_loss.point(start), _FIRST_DAMPING, FLATTEST
    for _ in range(MOST_STEPS):
        step = _step(here, free, flat, damping)
        while step.ends(flat):
            if flat <= LEAST_FLAT:
                return here
            matters = here.loss(flat) - here.loss(LEAST_FLAT) > 10.0 * CLOSE
            flat = max(0.1 * flat, LEAST_FLAT) if matters else LEAST_FLAT
            step = _step(here, free, flat, min(step.damping, _UNDAMPED))
        there = step_loss.point(step.to)
        if there.loss(flat) < here.loss(flat):
            here, damping = there, 0.1 * step.damping
        else:
            damping = 10.0 * max(step.damping, _LEAST_DAMPING)
    return here


class _Step(NamedTuple):
    """Where a step leads, the damping that it took, and about how much the loss should fall."""

    to: list[float]
    damping: float
    gain: float

    def ends(self, flat: float) -> bool:
        """Whether there is no more to gain, as long as the tips are rounded off so far."""
        little = self.damping <= _UNDAMPED and 0.0 <= self.gain < max(CLOSE, 0.03 * flat)
        return little or self.damping > _MOST_DAMPING


def _step(here: LossPoint, free: tuple[bool, ...], flat: float, damping: float) -> _Step:
    """A damped step of Newton's method within the bounds."""
    at, (slopes, bends) = here.at, here.derivatives(flat)
    # Base times shrink by steps: growth is penalised relative to them.
    low = [max(low, 0.1 * at[k]) if k in (PASS, ACROSS, INSIDE) else low for k, low in enumerate(_LOW)]
    moving = [
        k
        for k in range(7)
        if free[k] and not (at[k] <= _LOW[k] and slopes[k] > 0) and not (at[k] >= _HIGH[k] and slopes[k] < 0)
    ]
    right, to = [-slope for slope in slopes], list(at)
    while moving:
        found = _solved(_damped(bends, moving, damping), [right[k] for k in moving])
        if found is None:
            damping = 10.0 * max(damping, _LEAST_DAMPING)
            continue
        for k, change in zip(moving, found, strict=True):
            to[k] = at[k] + change
        beyond = next((k for k in moving if not low[k] <= to[k] <= _HIGH[k]), None)
        if beyond is None:
            break
        # It stops at its bound, and the others take that into account.
        to[beyond] = min(max(to[beyond], low[beyond]), _HIGH[beyond])
        moving.remove(beyond)
        for k in moving:
            right[k] -= bends[k][beyond] * (to[beyond] - at[beyond])
    gain = -0.5 * math.fsum(slope * (new - old) for slope, new, old in zip(slopes, to, at, strict=True))
    return _Step(to, damping, gain)


def _damped(bends: list[list[float]], rows: list[int], damping: float) -> list[list[float]]:
    table = [[bends[i][j] for j in rows] for i in rows]
    for k, i in enumerate(rows):
        table[k][k] += damping * abs(bends[i][i]) + 1e-12
    return table


def _solved(rows: list[list[float]], right: list[float]) -> list[float] | None:
    """The solution of a symmetric system; None unless it is positive definite."""
    size = len(rows)
    for k in range(size):
        pivot = rows[k]
        if not 0.0 < pivot[k] < math.inf:
            return None
        for i in range(k + 1, size):
            row = rows[i]
            factor = row[k] / pivot[k]
            right[i] -= factor * right[k]
            for j in range(k + 1, size):
                row[j] -= factor * pivot[j]
    for k in range(size - 1, -1, -1):
        for j in range(k + 1, size):
            right[k] -= rows[k][j] * right[j]
        right[k] /= rows[k][k]
    return right
