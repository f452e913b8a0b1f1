"""How badly a step-time model explains the timings of a job, with first and second derivatives in closed form.

The loss is that of AdaptDL: the root mean square error of the logarithms of pass times, the same of step times, and
small penalties on overlap and on growth with replicas. With g and s the logarithms of pass and synchronisation time and
o the overlap, the logarithm of the last pass of a step is g + log(1 + exp(o·(s - g))) / o, and all derivatives follow
from the weight of the synchronisation in it, 1 / (1 + exp(-o·(s - g))).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.models.step_time import TINY_S, StepModel

PASS, SAMPLE, ACROSS, ACROSS_REPLICA, INSIDE, INSIDE_REPLICA, OVERLAP = range(7)
OVERLAP_PENALTY, GROWTH_PENALTY = 1e-3, 1e-2
_KINDS = np.array([0, 0, 1, 1, 1, 1, 2])
"""Whether a parameter acts through the pass time, the synchronisation time or the overlap."""


class Seen(NamedTuple):
    """Timings as columns; the time of a single pass is NaN where it is unknown."""

    nodes: Floats
    replicas: Floats
    local: Floats
    accumulation: Floats
    step_s: Floats
    gradient_s: Floats


class Growth(NamedTuple):
    """Penalties on growth with replicas, across nodes and inside."""

    across: float = GROWTH_PENALTY
    inside: float = GROWTH_PENALTY


class Derivatives(NamedTuple):
    """First derivatives of a function of the seven parameters, and second ones."""

    slopes: list[float]
    bends: list[list[float]]


def loss(model: StepModel, seen: Seen) -> float:
    """How badly a model explains the timings seen, with the penalties on its parameters."""
    return StepLoss(seen).point([float(value) for value in model]).loss(0.0)


class StepLoss:
    """The loss of a model as a function of its parameters."""

    def __init__(self, seen: Seen, growth: Growth | None = None) -> None:
        across, inside = seen.nodes > 1, (seen.nodes == 1) & (seen.replicas > 1)
        more = np.maximum(seen.replicas - 2.0, TINY_S)
        rows = (np.ones_like(more), seen.local, across, across * more, inside, inside * more)
        self.design = np.array(rows, dtype=np.float64)
        self.alone_s = np.where(across | inside, 0.0, TINY_S + TINY_S * TINY_S)
        self.accumulation = seen.accumulation if seen.accumulation.any() else None
        timed = seen.gradient_s > 0
        self.log_step = portable.log(seen.step_s)
        self.log_pass = portable.log(np.where(timed, seen.gradient_s, 1.0))
        self.share = np.full(len(timed), 1.0 / len(timed))
        self.pass_share = timed / max(int(timed.sum()), 1)
        self.growth = growth or Growth()

    def point(self, at: list[float]) -> LossPoint:
        """What is known at given parameters."""
        design, overlap = self.design, at[OVERLAP]
        pass_s = at[PASS] + at[SAMPLE] * design[SAMPLE]
        sync_s = self.alone_s + at[ACROSS] * design[ACROSS] + at[ACROSS_REPLICA] * design[ACROSS_REPLICA]
        sync_s += at[INSIDE] * design[INSIDE]
        sync_s += at[INSIDE_REPLICA] * design[INSIDE_REPLICA]
        log_pass, log_sync = portable.log(np.stack([pass_s, sync_s]))
        gap = log_sync - log_pass
        lead = overlap * gap
        small = portable.exp(-np.abs(lead))
        excess = (np.maximum(lead, 0.0) + portable.log(1.0 + small)) / overlap
        weight = np.where(lead > 0.0, 1.0, small) / (1.0 + small)
        log_step, last = log_pass + excess, np.ones_like(gap)
        if self.accumulation is not None:
            last_s = portable.exp(log_step)
            whole_s = self.accumulation * pass_s + last_s
            last, log_step = last_s / whole_s, portable.log(whole_s)
        missed, pass_missed = log_step - self.log_step, log_pass - self.log_pass
        return LossPoint(self, at, _Times(pass_s, sync_s, gap, excess, weight, last, missed, pass_missed))


class _Times(NamedTuple):
    """What a model says about each timing, from which derivatives follow."""

    pass_s: Floats
    sync_s: Floats
    gap: Floats
    """The logarithm of synchronisation time over pass time."""
    excess: Floats
    """The logarithm of the last pass with its synchronisation over a pass without."""
    weight: Floats
    """The part that synchronisation has in the last pass, as its derivative."""
    last: Floats
    """The part that the last pass has in the step."""
    missed: Floats
    pass_missed: Floats


class LossPoint:
    """The loss at given parameters. The root mean squares may be rounded off at their tip, where they have no slope."""

    def __init__(self, of: StepLoss, at: list[float], times: _Times) -> None:
        self.of, self.at, self._times = of, at, times
        self._square = float(np.add.reduce(times.missed * times.missed * of.share))
        self._pass_square = float(np.add.reduce(times.pass_missed * times.pass_missed * of.pass_share))
        self._sums: tuple[Floats, Floats, Floats, Floats] | None = None

    def loss(self, flat: float) -> float:
        """The loss; `flat` says how far the tips of root mean squares are rounded off."""
        over = self.at[OVERLAP] - 1.0
        found = math.sqrt(self._square + flat * flat) + math.sqrt(self._pass_square + flat * flat)
        found += OVERLAP_PENALTY * over * over
        for base, penalty in zip((ACROSS, INSIDE), self.of.growth, strict=True):
            ratio = self.at[base + 1] / self.at[base]
            found += penalty * ratio * ratio
        return found

    def derivatives(self, flat: float) -> Derivatives:
        """The derivatives of the loss."""
        if self._sums is None:
            unit = np.empty((7, len(self._times.gap)))
            np.divide(self.of.design[:2], self._times.pass_s, out=unit[:2])
            np.divide(self.of.design[2:], self._times.sync_s, out=unit[2:6])
            unit[6] = 1.0
            self._sums = (*self._of_steps(unit), *self._of_passes(unit[:2]))
        step_slopes, step_bends, pass_slopes, pass_bends = self._sums
        root, pass_root = math.sqrt(self._square + flat * flat), math.sqrt(self._pass_square + flat * flat)
        slopes, others = step_slopes / root, pass_slopes / pass_root
        bends = (step_bends - slopes[:, None] * slopes) / root
        bends[:2, :2] += (pass_bends - others[:, None] * others) / pass_root
        slopes[:2] += others
        return self._penalised(Derivatives(slopes.tolist(), bends.tolist()))

    def _of_steps(self, unit: Floats) -> tuple[Floats, Floats]:
        """Derivatives of half the mean square of step errors; `unit` has those of the logarithms of pass and sync."""
        _, _, gap, excess, weight, last, missed, _ = self._times
        overlap, share = self.at[OVERLAP], self.of.share
        missed = missed * share
        by_sync = last * weight
        by_pass = 1.0 - by_sync
        own = (weight * gap - excess) / overlap
        by_overlap = last * own
        turn, rest = by_sync * (1.0 - weight), (1.0 - last) * by_sync
        both = missed * (overlap * turn + rest * weight)
        mixed = missed * (gap * turn + rest * own)
        bent = missed * (turn * gap * gap / overlap - 2.0 * by_overlap / overlap + (1.0 - last) * own * by_overlap)
        by = np.stack([by_pass, by_sync, by_overlap])
        kinds = by[:, None] * (by * share)
        kinds[0, 0] += both - missed * by_pass
        kinds[1, 1] += both - missed * by_sync
        kinds[2, 2] += bent
        kinds[0, 1] -= both
        kinds[1, 0] -= both
        kinds[0, 2] -= mixed
        kinds[2, 0] -= mixed
        kinds[1, 2] += mixed
        kinds[2, 1] += mixed
        slopes = np.add.reduce(unit * (by * missed)[_KINDS], axis=-1)
        return slopes, np.add.reduce(unit[:, None] * unit * kinds[_KINDS[:, None], _KINDS], axis=-1)

    def _of_passes(self, unit: Floats) -> tuple[Floats, Floats]:
        """Derivatives of half the mean square of pass errors."""
        missed = self._times.pass_missed
        weighted = unit * self.of.pass_share
        bends = np.add.reduce(unit[:, None] * (weighted * (1.0 - missed)), axis=-1)
        return np.add.reduce(weighted * missed, axis=-1), bends

    def _penalised(self, found: Derivatives) -> Derivatives:
        at, (slopes, bends) = self.at, found
        slopes[OVERLAP] += 2.0 * OVERLAP_PENALTY * (at[OVERLAP] - 1.0)
        bends[OVERLAP][OVERLAP] += 2.0 * OVERLAP_PENALTY
        for a, penalty in zip((ACROSS, INSIDE), self.of.growth, strict=True):
            b, ratio, weight = a + 1, at[a + 1] / at[a], 2.0 * penalty
            by_a, by_b = -ratio / at[a], 1.0 / at[a]
            slopes[a] += weight * ratio * by_a
            slopes[b] += weight * ratio * by_b
            bends[a][a] += 3.0 * weight * by_a * by_a
            bends[b][b] += weight * by_b * by_b
            bends[a][b] += 2.0 * weight * by_a * by_b
            bends[b][a] += 2.0 * weight * by_a * by_b
        return found
