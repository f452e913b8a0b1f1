"""Proportional share: everybody's GPU time in proportion to weight, by rotation.

The simplest fair scheduler: who has received the least service per unit of weight and of time present goes first, and
turns are taken every quantum. Stateless: the share is read off what the job has attained since it came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Floats
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class Proportional:
    """Least share received first, re-divided every `quantum_s` while somebody waits; per job or per user.

    Knows: GPU-seconds attained so far, ages, weights, owners, gang sizes. Preempts.
    """

    quantum_s: float = 300.0
    by: Literal["job", "user"] = "job"

    name: ClassVar[str] = "proportional"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.quantum_s) and self.quantum_s > 0):
            raise ValueError(f"quantum_s must be a positive number, not {self.quantum_s}")

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = admit(snapshot, lambda: self._rank(snapshot), preempt=True)
        waits = decision.gpus == 0
        if waits.any():
            decision.reasons[waits] = int(Reason.NOT_ITS_TURN)
            decision.wake_s = min(decision.wake_s, self._next_turn_s(snapshot, decision))
        return decision

    def _rank(self, snapshot: Snapshot) -> Floats:
        """Who runs and has not used up its quantum comes first: between turns nobody is stopped."""
        in_turn = snapshot.running & (snapshot.now_s - snapshot.since_s < self.quantum_s * (1 - 1e-9))
        return np.where(in_turn, -1.0, self._share(snapshot))

    def _share(self, snapshot: Snapshot) -> Floats:
        """GPU-seconds per second of presence and unit of weight."""
        age = np.maximum(snapshot.now_s - snapshot.submitted_s, 1e-6)
        rate: Floats = snapshot.attained_gpu_s / (age * snapshot.weight)
        if self.by == "user":
            users = len(snapshot.names.users)
            total = np.bincount(snapshot.user, weights=rate, minlength=users)
            rate = np.asarray(total[snapshot.user])
        return rate

    def _next_turn_s(self, snapshot: Snapshot, decision: Decision) -> float:
        """The end of the first turn of those that run; a job that starts now has a whole quantum before it."""
        runs = decision.gpus > 0
        since = np.where(snapshot.running, snapshot.since_s, snapshot.now_s)
        ends = since[runs] + self.quantum_s
        ends = np.where(ends <= snapshot.now_s + 1e-6, snapshot.now_s + self.quantum_s, ends)
        return float(ends.min()) if len(ends) else math.inf
