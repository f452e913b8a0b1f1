"""Least attained service: the job that has had the least goes first, so short jobs pass long ones although no run time
is known.

Service is counted in levels, not continuously: otherwise two long jobs of equal age would swap at every instant.
Inside a level, running jobs stay and the others follow in the order of submission. The idea is Nuyens and Wierman's
foreground-background scheduling; Tiresias (NSDI'19) brought it to GPU clusters with service in GPU-seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.order import Order
from fairway.core.snapshot import Snapshot
from fairway.policies import service_levels
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class Las:
    """Lowest level of attained service first; a job moves to the next level when it passes a limit.

    Knows: GPU-seconds (or seconds) attained so far, gang sizes. Preempts. `levels` are the limits in those units.
    """

    levels: tuple[float, ...] = (3600.0, 36000.0)
    metric: Literal["gpu_time", "time"] = "gpu_time"

    name: ClassVar[str] = "las"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if any(not limit > 0 for limit in self.levels) or list(self.levels) != sorted(set(self.levels)):
            raise ValueError("levels must be positive and rising")

    @property
    def serves_in(self) -> Order:
        """By level. Inside a level, running jobs stay."""
        reached = _limits(self.levels) * service_levels.REACHED
        return Order(
            "lowest level of service first",
            lambda snapshot: reached.searchsorted(self._service(snapshot), side="right"),
            preempts=True,
        )

    def decide(self, snapshot: Snapshot) -> Decision:
        limits = _limits(self.levels)
        decision = admit(
            snapshot, lambda: service_levels.level_ranks(self._service(snapshot), limits, snapshot.held), preempt=True
        )
        if np.count_nonzero(decision.reasons):
            speed = decision.gpus if self.metric == "gpu_time" else np.minimum(decision.gpus, 1)
            seconds = service_levels.next_limit(self._service(snapshot), limits, speed)
            decision = decision.waking(snapshot.now_s + max(seconds, 1e-6))
        return decision

    def _service(self, snapshot: Snapshot) -> Floats:
        return snapshot.attained_gpu_s if self.metric == "gpu_time" else snapshot.attained_s


@lru_cache
def _limits(levels: tuple[float, ...]) -> Floats:
    return np.array(levels)
