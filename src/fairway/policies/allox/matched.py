"""Which GPU type each job is planned on: the matching, with gangs, on as many jobs as a decision has time for."""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.policies.allox.floor import GpuTimeline
from fairway.solvers.matching import least_completion


def types_of(floor: GpuTimeline, rows: Ints, window: int) -> dict[int, int]:
    """A type for each row in the window, so that the sum of their completion times is least.

    A gang of g GPUs counts as one job that takes g times as long: it has as much work, and the same place in the order.
    Its own completion takes the run time only once, so the rest is subtracted. For single GPUs the matching is exact.
    """
    times_s, gangs = floor.times_s[:, rows], floor.gangs[rows]
    if len(floor.capacity) == 1:
        return dict.fromkeys(rows.tolist(), 0)
    area = times_s * gangs
    inside = shortest(area, window)
    finite_s = np.where(np.isfinite(times_s), times_s, 0.0)
    own = -finite_s * (gangs - 1)
    if len(inside) < len(rows):
        own += finite_s * gangs * jobs_behind(area, inside, floor.capacity)[:, None]
    seats = [floor.free_at_s(kind) for kind in range(len(floor.capacity))]
    matched = least_completion(area[:, inside], seats, own[:, inside])
    return dict(zip(rows[inside].tolist(), matched.types.tolist(), strict=True))


def shortest(area: Floats, window: int) -> Ints:
    """The jobs that are among the shortest on some type, taken by turns, at most `window` of them."""
    if area.shape[1] <= window:
        return np.arange(area.shape[1])
    ranks = np.argsort(np.argsort(area, axis=1, kind="stable"), axis=1, kind="stable")
    best = np.where(np.isfinite(area), ranks, area.shape[1]).min(axis=0)
    return np.sort(np.argsort(best, kind="stable")[:window])


def jobs_behind(area: Floats, inside: Ints, capacity: Ints) -> Floats:
    """How many of the jobs outside the window will queue behind those inside, per GPU of each type.

    They are all longer, so they come later. Types take them in proportion to how fast they work.
    """
    outside = np.ones(area.shape[1], dtype=bool)
    outside[inside] = False
    finite = np.isfinite(area) & outside
    able = finite.sum(axis=1)
    mean_s = np.where(finite, area, 0.0).sum(axis=1) / np.maximum(able, 1)
    pace = np.where((able > 0) & (mean_s > 0), able / np.maximum(mean_s, 1e-9), 0.0)
    total = float((pace * capacity).sum())
    behind: Floats = pace * (outside.sum() / total) if total > 0 else np.zeros(len(capacity))
    return behind
