"""Least attained service: who has had the least goes first, so short jobs pass long ones without anyone knowing
lengths.

Service is counted in levels, not continuously: two long jobs of equal age would otherwise swap at every instant.
Inside a level running jobs stay and the others come in the order of submission. The idea is Nuyens and Wierman's
foreground-background scheduling; Tiresias (NSDI'19) brought it to GPU clusters with service in GPU-seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Floats, Ints
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies.registry import register

_NEARLY = 1 - 1e-9
"""Service that has come this close to a limit has reached it; else rounding would ask for endless tiny steps."""


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
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if any(not limit > 0 for limit in self.levels) or list(self.levels) != sorted(set(self.levels)):
            raise ValueError("levels must be positive and rising")

    def decide(self, snapshot: Snapshot) -> Decision:
        service = snapshot.attained_gpu_s if self.metric == "gpu_time" else snapshot.attained_s
        limits = np.array(self.levels) * _NEARLY
        level = limits.searchsorted(service, side="right")
        decision = admit(snapshot, 2 * level + ~snapshot.running, preempt=True)
        decision.wake_s = min(decision.wake_s, self._next_demotion_s(snapshot, decision, service, level))
        return decision

    def _next_demotion_s(self, snapshot: Snapshot, decision: Decision, service: Floats, level: Ints) -> float:
        """When the first running job will pass its limit; of interest only while somebody waits."""
        if np.count_nonzero(decision.gpus) == len(snapshot):
            return math.inf
        rows = ((decision.gpus > 0) & (level < len(self.levels))).nonzero()[0]
        if not len(rows):
            return math.inf
        left = np.array(self.levels)[level[rows]] - service[rows]
        speed = decision.gpus[rows] if self.metric == "gpu_time" else 1.0
        return snapshot.now_s + max(float((left / speed).min()), 1e-6)
