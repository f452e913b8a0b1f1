"""Where adaptive jobs run: jobs by nodes, judged by a mean of their speedups (Pollux, Qiao et al., OSDI 2021).

A job's speedup depends on its replicas and on whether they share a node. A job whose row changes restarts, which costs
a part of its speedup. At most one distributed job uses a node, because two would slow each other down. The fitness is
the power mean of all speedups: p = 1 counts their sum, p = -1 cares for the slow ones, minus infinity only for
the slowest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints

LEAST_SPEEDUP = 1e-3
"""Added to speedups, so that a job without GPUs does not make all other jobs equal."""
MOST_UNEVEN = -8.0
"""The exponent by which a search ranks speedups if only the slowest counts."""


@dataclass(frozen=True)
class Placing:
    """One allocation to be made."""

    speedups: Floats
    """By job, by whether it is on one node (0) or on several (1), and by replicas from 0 on."""
    capacity: Ints
    """GPUs of each node."""
    most: Ints
    """The most replicas that each job may have."""
    held: Ints
    """Replicas of each job on each node now."""
    restart: Floats
    """What part of its speedup a job keeps if its row changes; see `restart_factor`."""
    p: float = -1.0
    closed: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Nodes that a distributed job uses which is not part of this: no other one may."""

    def __post_init__(self) -> None:
        if not len(self.closed):
            object.__setattr__(self, "closed", np.zeros(len(self.capacity), dtype=bool))
        if self.held.shape != (len(self.most), len(self.capacity)):
            raise ValueError(f"held is {self.held.shape}, not jobs by nodes {len(self.most), len(self.capacity)}")
        if len(self.most) and int(self.most.max()) >= self.speedups.shape[2]:
            raise ValueError("a job may have more replicas than there are speedups")
        if not (np.isfinite(self.speedups).all() and (self.speedups >= 0).all()):
            raise ValueError("a speedup is negative or no number")

    def scores(self, rows: Ints) -> Floats:
        """The speedups of placements (jobs by nodes, or a stack of those), less what restarts cost."""
        replicas, nodes = rows.sum(axis=-1), (rows > 0).sum(axis=-1)
        jobs, most = np.arange(rows.shape[-2]), self.speedups.shape[2] - 1
        found = self.speedups[jobs, (nodes > 1).astype(np.int64), np.minimum(replicas, most)]
        changed = (rows != self.held).any(axis=-1)
        return np.asarray(np.where(changed, found * self.restart, found))

    def fitness(self, rows: Ints) -> Floats:
        """The power mean of speedups."""
        return power_mean(self.scores(rows) + LEAST_SPEEDUP, self.p)

    @cached_property
    def moved(self) -> Floats:
        """Utilities like `speedups` for rows that change."""
        return utilities(self.speedups * self.restart[:, None, None], self.p)

    @cached_property
    def kept(self) -> Floats:
        """The utility of each job if its row does not change."""
        return utilities(self.scores(self.held), self.p)

    def broken(self, rows: Ints) -> str | None:
        """The law that a placement breaks, None if it keeps all."""
        if (rows < 0).any() or (rows.sum(axis=0) > self.capacity).any():
            return "a node has fewer GPUs"
        if (rows.sum(axis=1) > self.most).any():
            return "a job has more replicas than it may"
        if (distributed(rows).sum(axis=0) > ~self.closed).any():
            return "two distributed jobs use one node"
        return None


def distributed(rows: Ints) -> Bools:
    """Where the jobs on more than one node are."""
    there = rows > 0
    return np.asarray(there & (there.sum(axis=-1, keepdims=True) > 1))


def restart_factor(age_s: Floats, restarts: Floats, restart_s: float | Floats) -> Floats:
    """What part of its speedup a job keeps if it restarts once more: its useful time so far, of all its time."""
    return np.maximum(age_s - restarts * restart_s, 0.0) / (age_s + restart_s)


def power_mean(values: Floats, p: float) -> Floats:
    """The power mean over the last axis.

    >>> [round(float(power_mean(np.array([2.0, 0.5]), p)), 6) for p in (1.0, 0.0, -1.0, -math.inf)]
    [1.25, 1.0, 0.8, 0.5]
    """
    if p == -math.inf:
        return np.asarray(values.min(axis=-1))
    mean = np.asarray(np.add.reduce(_powers(values, p), axis=-1) / values.shape[-1])
    return np.asarray(portable.exp(mean)) if p == 0 else _powers(mean, 1.0 / p)


def utilities(speedups: Floats, p: float) -> Floats:
    """What speedups add to a sum that is largest where their power mean is."""
    p = max(p, MOST_UNEVEN)
    found = _powers(speedups + LEAST_SPEEDUP, p)
    return -found if p < 0 else found


def _powers(values: Floats, p: float) -> Floats:
    if p == 0:
        return np.asarray(portable.log(values))
    return portable.raised(values, p) if p > 0 else 1.0 / portable.raised(values, -p)
