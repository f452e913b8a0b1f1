"""A policy for tests of shared GPUs: all jobs are guests of the first job."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot


class Hosted:
    """All jobs share the GPUs of the first, for a `part` of the time."""

    name: ClassVar[str] = "hosted"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def __init__(self, part: float) -> None:
        self.part = part

    def decide(self, snapshot: Snapshot) -> Decision:
        """All jobs run, on one GPU."""
        jobs = len(snapshot)
        guests, gpus = range(1, jobs), np.ones(jobs, dtype=np.int64)
        reasons = np.full(jobs, int(Reason.RUNS), dtype=np.int8)
        throttles = dict.fromkeys(guests, self.part) if self.part < 1 else {}
        return Decision(gpus, reasons, partners=dict.fromkeys(guests, 0), throttles=throttles)
