"""Water filling, for jobs and for trees of entities (Gavel, OSDI 2020, section 4.3).

Max-min fairness stops at the level of the job that can rise least. Water filling goes on with the others, until no job
can rise further. With entities, what is poured is first divided among queues or users by weight, and inside each of
them among its jobs: by weight, or all of it to the first in order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.snapshot import Snapshot
from fairway.policies.gavel.base import PlanningPolicy
from fairway.policies.gavel.entities import Entities, Tier
from fairway.policies.gavel.fair import per_fair_share
from fairway.policies.gavel.filling import fill
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class WaterFilling(PlanningPolicy):
    """Max-min fairness that goes on with the other jobs when some can rise no further.

    Knows: speeds by GPU type, gang sizes, weights. Preempts.
    """

    name: ClassVar[str] = "water_filling"
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})

    def plan(self, situation: Situation) -> Shares:
        """Fill up the jobs in proportion to their weights."""
        return self._filled(situation, Entities.single(situation.weights))

    def _filled(self, situation: Situation, entities: Entities) -> Shares:
        throughputs = self.throughputs(situation)
        per_unit = per_fair_share(throughputs, np.ones(throughputs.jobs))
        return self.shares(throughputs, fill(throughputs, per_unit, entities).outcome)


@register
@dataclass(frozen=True)
class Hierarchical(WaterFilling):
    """Shares for queues and users by weight, and inside them for jobs, by water filling.

    Knows: speeds by GPU type, gang sizes, owners, queues, weights. Preempts. `levels` is the tree from the top down,
    `weights` the weights of its entities (1 if not given), `fifo` names those whose jobs go in order.
    """

    levels: tuple[Literal["queue", "user"], ...] = ("user",)
    weights: tuple[str, ...] = ()
    fifo: tuple[str, ...] = ()

    name: ClassVar[str] = "hierarchical"
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"levels must name queue, user or both once, not {'/'.join(self.levels) or 'nothing'}")
        read_weights(self.weights)
        if not all(self.fifo) or len(set(self.fifo)) < len(self.fifo):
            raise ValueError(f"fifo must name entities once, not {'/'.join(self.fifo)!r}")

    def plan(self, situation: Situation) -> Shares:
        """Fill up the tree of entities."""
        weights = read_weights(self.weights)
        tree = entity_tree(situation.snapshot, self.levels, weights, frozenset(self.fifo), situation.weights)
        return self._filled(situation, tree)


def read_weights(texts: Sequence[str]) -> dict[str, float]:
    """Weights of entities from `name:weight`."""
    weights: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or not (0.0 < weight < math.inf):
            raise ValueError(f"weights must be NAME:WEIGHT with a positive weight, not {text!r}")
        if name in weights:
            raise ValueError(f"weights name {name!r} twice")
        weights[name] = weight
    return weights


def entity_tree(
    snapshot: Snapshot,
    levels: Sequence[str],
    weights: Mapping[str, float],
    fifo: Collection[str],
    job_weights: Floats,
) -> Entities:
    """The queues and users of the active jobs as a tree. An entity whose jobs go in order has only jobs below it."""
    names = {"queue": snapshot.names.queues, "user": snapshot.names.users}
    codes = {"queue": snapshot.queue, "user": snapshot.user}
    node, in_order = np.zeros(len(snapshot), dtype=np.int64), np.zeros(len(snapshot), dtype=np.bool_)
    nodes, tiers = 1, []
    for level in levels:
        # All jobs of an entity that serves in order stay together on the way down.
        code = np.where(in_order, 0, codes[level] + 1)
        key = node * (len(names[level]) + 1) + code
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        called = [names[level][each - 1] if each else "" for each in code[first].tolist()]
        own = np.array([weights.get(name, 1.0) for name in called])
        tiers.append(Tier(node[first], own, np.zeros(nodes, dtype=np.bool_)))
        node, nodes = inverse.ravel(), len(first)
        in_order = in_order | np.array([name in fifo for name in called], dtype=np.bool_)[node]
    ordered = np.zeros(nodes, dtype=np.bool_)
    ordered[node[in_order]] = True
    return Entities([*tiers, Tier(node, job_weights, ordered)])
