"""Sia (Jayaram Subramanya et al., SOSP 2023): goodput on a cluster with several GPU types.

As under `pollux`, GPUs and batch size of each job are chosen together. In addition each job has a model of its step
times for each GPU type, and its goodput on types that it has not tried is projected. Every minute each job is given one
configuration, a number of GPUs of one type, so that the sum of costs is least: an integer program. Rigid jobs are part
of it with a single size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.decision import Decision, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.models.configurations import Configurations, configurations
from fairway.policies.pollux.answer import decided, least_gpus
from fairway.policies.pollux.floor import Floor
from fairway.policies.registry import register
from fairway.policies.sia.costs import choosing, offers
from fairway.policies.sia.jobs import TypedJobs, learned_by_type
from fairway.solvers.configuration_choice import WAITS, choose
from fairway.solvers.configuration_placement import placed


@register
@dataclass(frozen=True)
class Sia:
    """GPU type, GPUs and batch size of each job chosen together by goodput, for clusters with several GPU types.

    Knows: step times, gradient noise and limits of the batch that jobs report. Preempts, moves and resizes.

    A cost is goodput to the power of `p`, which is negative: the nearer to 0, the less the slow jobs count. A job may
    begin with `begin_gpus`. The paper has -0.5 and 1.
    """

    p: float = -0.25
    begin_gpus: int = 2

    name: ClassVar[str] = "sia"
    knows: ClassVar[frozenset[str]] = frozenset({"goodput"})
    heeds: ClassVar[frozenset[str]] = frozenset({"range"})
    round_s: ClassVar[float] = 60.0

    def __post_init__(self) -> None:
        if not -8 <= self.p < 0:
            raise ValueError(f"p must be negative and at least -8, not {self.p}")
        if self.begin_gpus < 1:
            raise ValueError(f"begin_gpus must be at least 1, not {self.begin_gpus}")

    def decide(self, snapshot: Snapshot) -> Decision:
        if not len(snapshot):
            return nothing_granted(0)
        jobs, floor = learned_by_type(snapshot), Floor(snapshot)
        least = least_gpus(snapshot, jobs.on(snapshot.gpu_type))
        rows = np.where(floor.pinned[:, None], floor.held, self._placed(snapshot, jobs, floor))
        rows = floor.filled(rows, least)
        kinds = np.where(rows.any(axis=1), floor.node_kind[rows.argmax(axis=1)], snapshot.gpu_type)
        decision = decided(snapshot, jobs.on(kinds), floor, rows)
        # Without rounds of a fixed length, the policy asks for them.
        return decision if snapshot.round_s > 0 else decision.waking(snapshot.now_s + self.round_s)

    def _placed(self, snapshot: Snapshot, jobs: TypedJobs, floor: Floor) -> Ints:
        """Jobs by nodes: the best configurations, and nodes for them."""
        gangs = snapshot.gpus[~jobs.adapts | (snapshot.gpus_min > 1)].tolist()
        where = configurations(floor.node_kind, floor.capacity, gangs)
        if not len(where.kind):
            return np.zeros_like(floor.held)
        offered = offers(snapshot, jobs, where, _present(floor, where), self.begin_gpus)
        offered.allowed[floor.pinned] = False
        free = np.bincount(floor.node_kind, weights=floor.capacity, minlength=len(snapshot.capacity))
        chosen = choose(choosing(snapshot, jobs, offered, self.p, free.astype(np.int64))).configurations
        runs = chosen != WAITS
        kind, nodes, gpus = (np.where(runs, column[chosen], 0) for column in where[:3])
        return placed(kind, nodes, gpus, floor.held, floor.node_kind, floor.capacity, floor.closed)


def _present(floor: Floor, where: Configurations) -> Ints:
    """The configuration that each row has now."""
    there = floor.held > 0
    return where.find(floor.node_kind[there.argmax(axis=1)], there.sum(axis=1), floor.held.sum(axis=1))
