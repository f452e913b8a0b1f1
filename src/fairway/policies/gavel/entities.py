"""A tree of entities with jobs as its leaves, and the level of each job for a volume that is poured in at the top.

Water filling gives every entity a part of what is poured, by its weight. An entity passes it on to the entities or jobs
inside in the same way. What one of them cannot use goes to its siblings first. So all levels depend on one number only,
the volume poured so far, and on how far each job can rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints


class Tier(NamedTuple):
    """One layer of the tree: the parent (in the layer above) and weight of each node; which parents serve in order."""

    parent: Ints
    weights: Floats
    fifo: Bools


@dataclass(frozen=True)
class Entities:
    """The layers from the root down; the nodes of the last one are the jobs, in the order of submission."""

    tiers: Sequence[Tier]

    @staticmethod
    def single(job_weights: Floats) -> Entities:
        """No entities: all jobs share by their weights."""
        return Entities([Tier(np.zeros(len(job_weights), dtype=np.int64), job_weights, np.zeros(1, dtype=np.bool_))])

    @staticmethod
    def flat(entity: Ints, entity_weights: Floats, job_weights: Floats, fifo: Bools) -> Entities:
        """One layer of entities: the number of each job's entity, the weights of entities, which serve in order."""
        top = Entities.single(entity_weights).tiers
        return Entities([*top, Tier(entity, job_weights, fifo)])

    def weights(self, active: Bools) -> Floats:
        """The part of what is poured next that each job gets, if only the active ones can rise."""
        alive = [active]
        for tier in reversed(self.tiers[1:]):
            alive.append(np.bincount(tier.parent, alive[-1], len(tier.fifo)) > 0)
        part = np.ones(1)
        for tier, able in zip(self.tiers, reversed(alive), strict=True):
            first = np.full(len(tier.fifo), len(able))
            np.minimum.at(first, tier.parent[able], able.nonzero()[0])
            by_order = (np.arange(len(able)) == first[tier.parent]).astype(np.float64)
            weights = np.where(tier.fifo[tier.parent], by_order, tier.weights * able)
            total = np.bincount(tier.parent, weights, len(tier.fifo))[tier.parent]
            part = np.divide(part[tier.parent] * weights, total, out=np.zeros(len(able)), where=total > 0)
        return part


class FillCourse:
    """The level of each job by the volume poured in, if each job can rise to its cap and no further.

    `volume` is all that the jobs can take.
    """

    def __init__(self, entities: Entities, caps: Floats) -> None:
        basins: list[_Basins] = []
        for tier in reversed(entities.tiers):
            basins.append(_Basins(tier, caps))
            caps = basins[-1].holds
        self._basins = basins[::-1]
        self.volume = float(caps.sum())

    def at(self, volume: float) -> Floats:
        """The level of each job."""
        levels = np.array([volume])
        for basins in self._basins:
            levels = basins.filled(levels)
        return levels


class _Basins:
    """The nodes of a layer, sorted within each parent by the order in which they fill up."""

    def __init__(self, tier: Tier, caps: Floats) -> None:
        parents = len(tier.fifo)
        fifo = tier.fifo[tier.parent]
        caps = np.where(fifo | (tier.weights > 0), caps, 0.0)
        full_at = np.divide(caps, tier.weights, out=np.zeros(len(caps)), where=tier.weights > 0)
        self.order = order = np.lexsort((np.where(fifo, np.arange(len(caps)), full_at), tier.parent))
        self.parent, self.fifo, self.caps, self.w = tier.parent[order], fifo[order], caps[order], tier.weights[order]
        size = np.bincount(self.parent, minlength=parents)
        self.start = np.concatenate([[0], np.cumsum(size)])
        self.size = size
        self.below = _within(self.caps, self.start, self.parent)
        ahead = np.bincount(self.parent, self.w, parents)[self.parent] - _within(self.w, self.start, self.parent)
        self.ahead = np.maximum(ahead, self.w)
        self.volume_at = np.where(self.fifo, self.below + self.caps, self.below + full_at[order] * self.ahead)
        self.holds: Floats = np.bincount(self.parent, self.caps, parents).astype(np.float64)

    def filled(self, volume: Floats) -> Floats:
        """What each node holds, for the volume in each parent."""
        mine = volume[self.parent]
        full = np.bincount(self.parent, self.volume_at <= mine, len(volume)).astype(np.int64)
        at = np.minimum(self.start[:-1] + full, len(self.caps) - 1)
        height = np.divide(volume - self.below[at], self.ahead[at], out=np.zeros(len(volume)), where=self.ahead[at] > 0)
        height[full >= self.size] = np.inf
        with np.errstate(invalid="ignore"):
            rising = np.where(self.w > 0, self.w * height[self.parent], 0.0)
        levels = np.empty(len(self.caps))
        levels[self.order] = np.clip(np.where(self.fifo, mine - self.below, rising), 0.0, self.caps)
        return levels


def _within(values: Floats, start: Ints, parent: Ints) -> Floats:
    """The sum of what comes before each node inside its parent."""
    before = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(np.maximum(before[:-1] - before[start[parent]], 0.0))
