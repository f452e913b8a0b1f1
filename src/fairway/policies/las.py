"""Least attained service: who has had the least goes first, so short jobs pass long ones without anyone knowing
lengths.

Service is counted in levels, not continuously: two long jobs of equal age would otherwise swap at every instant.
Inside a level running jobs stay and the others come in the order of submission. The idea is Nuyens and Wierman's
foreground-background scheduling; Tiresias (NSDI'19) brought it to GPU clusters with service in GPU-seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Floats, Ints, Ranks
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
        decision = admit(snapshot, lambda: self._rank(snapshot), preempt=True)
        if np.count_nonzero(decision.reasons):
            decision.wake_s = min(decision.wake_s, self._next_demotion_s(snapshot, decision))
        return decision

    def _rank(self, snapshot: Snapshot) -> Ranks:
        """By level, and inside a level those that run before those that wait."""
        service, rank = self._service(snapshot), (~snapshot.running).astype(np.int16)
        for limit in self.levels:
            rank += 2 * (service >= limit * _NEARLY)
        return rank

    def _service(self, snapshot: Snapshot) -> Floats:
        return snapshot.attained_gpu_s if self.metric == "gpu_time" else snapshot.attained_s

    def _level(self, service: Floats) -> Ints:
        """How many limits each job has passed."""
        return _limits(self.levels)[0].searchsorted(service, side="right")

    def _next_demotion_s(self, snapshot: Snapshot, decision: Decision) -> float:
        """When the first running job will pass its next limit; of interest only while somebody waits."""
        rows = (decision.gpus > 0).nonzero()[0]
        service = self._service(snapshot)[rows]
        left = _limits(self.levels)[1][self._level(service)] - service
        if self.metric == "gpu_time":
            left /= decision.gpus[rows]
        return snapshot.now_s + max(float(np.minimum.reduce(left, initial=math.inf)), 1e-6)


@lru_cache
def _limits(levels: tuple[float, ...]) -> tuple[Floats, Floats]:
    """The limits with their tolerance, and the limit that each level ends with (none for the last)."""
    return np.array(levels) * _NEARLY, np.array([*levels, math.inf])
