"""Gittins indices of the active jobs, from given samples of service or from the jobs that have ended.

The index is a step function of age with about a hundred cells (`models.gittins`). It is kept in the policy's memory and
computed again when the number of ended jobs has grown by a tenth. Indices are compared in steps of a quarter, so that a
job must be clearly better to take the place of a running one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.core.snapshot import Snapshot
from fairway.models.gittins import index_table

FEWEST_SAMPLES = 20
"""With fewer ended jobs than this all indices are equal."""
GROWTH = 1.1
STEP = portable.log(1.25)


class Indices(NamedTuple):
    """The step function: where cells begin and the rank there (lower goes first), from `count` ended jobs."""

    cells: Floats
    ranks: Floats
    samples: int

    @staticmethod
    def of(snapshot: Snapshot, given: Floats, metric: str, quantum: float | None) -> Indices:
        """From the given samples; else as remembered, or from the jobs that have ended so far."""
        known = snapshot.memory.get("index")
        if len(given):
            return _made(given, quantum, 0) if known is None else _remembered(known)
        count = snapshot.finished_count
        if known is not None and count < max(FEWEST_SAMPLES, GROWTH * known["samples"]):
            return _remembered(known)
        if count < FEWEST_SAMPLES:
            return Indices(np.zeros(1), np.zeros(1), count)
        ended = snapshot.finished
        return _made(ended.gpu_s if metric == "gpu_time" else ended.seconds, quantum, count)

    @property
    def table(self) -> tuple[Floats, Floats]:
        """Where cells begin, and their ranks."""
        return self.cells, self.ranks

    def memory(self) -> dict[str, Any]:
        """The step function as plain values."""
        return {"cells": self.cells, "ranks": self.ranks, "samples": self.samples}


def _remembered(known: dict[str, Any]) -> Indices:
    return Indices(np.asarray(known["cells"], dtype=np.float64), np.asarray(known["ranks"]), int(known["samples"]))


def _made(samples: Floats, quantum: float | None, count: int) -> Indices:
    cells, index = index_table(samples, quantum)
    best = float(index.max(initial=0.0))
    if not best > 0:
        return Indices(np.zeros(1), np.zeros(1), count)
    last = float(index[index > 0].min())
    ranks = np.round(-portable.log(np.maximum(index, last * 0.5) / best) / STEP)
    return Indices(cells, ranks, count)
