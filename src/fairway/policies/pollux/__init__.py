"""Pollux (Qiao et al., OSDI 2021): GPUs and batch size of each job are chosen together, by goodput.

Goodput is throughput times what a sample is worth at the batch size. A model of each job's step times is fitted to what
the job reports, and predicts its best goodput on any GPUs. Every minute a search finds the placement with the largest
mean speedup over a fair share; a job that would have to restart counts for less. Jobs explore by growing to twice the
GPUs that they ever had.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.batch import BatchLimits
from fairway.core.decision import Decision, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.models.speedup_table import speedup_table
from fairway.models.step_fit import most_replicas
from fairway.policies.pollux.answer import decided, least_gpus
from fairway.policies.pollux.floor import Floor
from fairway.policies.pollux.jobs import LearnedJobs, learned
from fairway.policies.registry import register
from fairway.solvers.goodput_genetic import genetic_search
from fairway.solvers.goodput_placement import Placing, restart_factor
from fairway.solvers.goodput_search import search

LEAST_AGE_S = 1.0
"""A job counts as at least this old, or a start at the instant of its submission would seem to be worth nothing."""
_NO_LIMITS = BatchLimits(1, 1)


@register
@dataclass(frozen=True)
class Pollux:
    """GPUs and batch sizes chosen together by goodput, with the best mean speedup over a fair share.

    Knows: step times, gradient noise and limits of the batch that jobs report. Preempts, moves and resizes.

    The mean has the exponent `p`: 1 counts the sum of speedups, -1 cares for the slow jobs, -inf only for the slowest.
    `search=genetic` is the search of the paper. A job may begin with `begin_gpus`, with 1 in the paper.
    """

    p: float | Literal["-inf"] = -1.0
    search: Literal["own", "genetic"] = "own"
    begin_gpus: int = 2

    name: ClassVar[str] = "pollux"
    knows: ClassVar[frozenset[str]] = frozenset({"goodput"})
    heeds: ClassVar[frozenset[str]] = frozenset({"range"})
    round_s: ClassVar[float] = 60.0

    def __post_init__(self) -> None:
        if not float(self.p) <= 1:
            raise ValueError(f"p must be at most 1, not {self.p}")
        if self.begin_gpus < 1:
            raise ValueError(f"begin_gpus must be at least 1, not {self.begin_gpus}")

    def decide(self, snapshot: Snapshot) -> Decision:
        if not len(snapshot):
            return nothing_granted(0)
        jobs, floor = learned(snapshot), Floor(snapshot)
        rows = self._placed(snapshot, jobs, floor)
        decision = decided(snapshot, jobs, floor, rows)
        # Without rounds of a fixed length, the policy asks for them.
        return decision if snapshot.round_s > 0 else decision.waking(snapshot.now_s + self.round_s)

    def _placed(self, snapshot: Snapshot, jobs: LearnedJobs, floor: Floor) -> Ints:
        """Jobs by nodes, for each GPU type by itself."""
        least = least_gpus(snapshot, jobs)
        kinds = floor.kinds(least)
        found = np.where(floor.pinned[:, None], floor.held, 0)
        for kind in range(len(snapshot.capacity)):
            mine = (kinds == kind).nonzero()[0]
            rows, nodes = mine[~floor.pinned[mine]], (floor.node_kind == kind).nonzero()[0]
            if len(rows) and floor.capacity[nodes].any():
                here = np.ix_(rows, nodes)
                found[here] = self._searched(self._problem(snapshot, jobs, floor, kind, len(mine), rows), snapshot)
        found[found.sum(axis=1) < least] = 0
        return floor.filled(found, least)

    def _searched(self, placing: Placing, snapshot: Snapshot) -> Ints:
        if self.search == "own":
            return search(placing).rows
        return genetic_search(placing, [snapshot.seed, snapshot.round])[0]

    def _problem(
        self, snapshot: Snapshot, jobs: LearnedJobs, floor: Floor, kind: int, sharing: int, rows: Ints
    ) -> Placing:
        """The allocation of the GPUs of one type to some rows; `sharing` jobs have a fair share of them."""
        nodes = (floor.node_kind == kind).nonzero()[0]
        total = int(snapshot.capacity[kind])
        most = np.array([self._most(snapshot, jobs, row, total) for row in rows.tolist()], dtype=np.int64)
        table = speedup_table(
            [jobs.models[row] for row in rows.tolist()],
            jobs.noise[rows],
            [jobs.limits[row] or _NO_LIMITS for row in rows.tolist()],
            most,
            int(floor.capacity[nodes].max()),
            math.ceil(total / sharing),
        )
        too_few = np.arange(table.shape[2]) < least_gpus(snapshot, jobs)[rows, None]
        age_s = np.maximum(snapshot.now_s - snapshot.submitted_s[rows], LEAST_AGE_S)
        restarts = np.maximum(snapshot.launches[rows] - 1.0, 0.0)
        restart: Floats = restart_factor(age_s, restarts, snapshot.restart_s[rows])
        return Placing(
            np.where(too_few[:, None], 0.0, table * (len(nodes) / total)),
            floor.capacity[nodes],
            most,
            floor.held[np.ix_(rows, nodes)],
            restart,
            float(self.p),
            floor.closed[nodes],
        )

    def _most(self, snapshot: Snapshot, jobs: LearnedJobs, row: int, total: int) -> int:
        """The most GPUs that a row may get now."""
        limits = jobs.limits[row]
        if limits is None:
            return min(int(snapshot.gpus[row]), total)
        grown = most_replicas(int(jobs.seen[row]), total, limits.largest or limits.first, limits.smallest_local)
        # A job that has not timed a step yet keeps what it has.
        least = min(int(max(snapshot.held[row], snapshot.gpus_min[row], self.begin_gpus)), limits.most_gpus)
        return min(max(grown, least), int(snapshot.gpus_max[row]), total)
