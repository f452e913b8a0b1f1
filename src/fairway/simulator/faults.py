"""Node failures for a simulation: from a schedule, or drawn at random from a mean time between failures and a seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairway.core.cluster import Cluster
from fairway.core.errors import InputError

_TABLE_END = 7.69
"""NumPy draws exponential numbers from a table. Numbers beyond this come from the C library's logarithm."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is down from `start_s` for `down_s` seconds (forever, if infinite)."""

    start_s: float
    node: int
    down_s: float


@dataclass(frozen=True)
class Faults:
    """Where outages come from. With `mtbf_s`, each node fails once in that time on average and is back after
    `repair_s`."""

    schedule: tuple[Outage, ...] = ()
    mtbf_s: float = math.inf
    repair_s: float = 3600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0 or not (math.isfinite(self.repair_s) and self.repair_s >= 0):
            raise InputError(f"mtbf {self.mtbf_s} s and repair {self.repair_s} s do not make sense")

    def outages(self, cluster: Cluster) -> Iterator[Outage]:
        """All outages in the order of their start. Random outages never end."""
        for outage in self.schedule:
            if not 0 <= outage.node < len(cluster.nodes) or not outage.start_s >= 0 or not outage.down_s > 0:
                raise InputError(f"the outage {outage} does not fit a cluster of {len(cluster.nodes)} nodes")
        planned = iter(sorted(self.schedule, key=lambda outage: (outage.start_s, outage.node)))
        return planned if math.isinf(self.mtbf_s) else heapq.merge(planned, self._drawn(cluster), key=_start)

    def _drawn(self, cluster: Cluster) -> Iterator[Outage]:
        random = np.random.default_rng([self.seed, 0xFA17])
        nodes = len(cluster.nodes)
        upcoming = [(self._gap_s(random), node) for node in range(nodes)]
        heapq.heapify(upcoming)
        while True:
            start_s, node = upcoming[0]
            yield Outage(start_s, node, max(self.repair_s, 1e-3))
            again_s = start_s + self.repair_s + self._gap_s(random)
            heapq.heapreplace(upcoming, (again_s, node))

    def _gap_s(self, random: np.random.Generator) -> float:
        drawn = float(random.standard_exponential())
        return self.mtbf_s * (drawn if drawn < _TABLE_END else round(drawn, 12))


def _start(outage: Outage) -> float:
    return outage.start_s
