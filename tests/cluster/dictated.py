"""A policy that gives every job the number of GPUs that a test says: `dictated:gpus=2`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies import register


@register
@dataclass(frozen=True)
class Dictated:
    """As many GPUs as somebody says, for every job."""

    gpus: int = 2

    name: ClassVar[str] = "dictated"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        reason = Reason.RUNS if self.gpus else Reason.OTHER
        jobs = len(snapshot)
        return Decision(np.full(jobs, self.gpus, dtype=np.int64), np.full(jobs, int(reason), dtype=np.int8))
