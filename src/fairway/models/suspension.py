"""Switching GPUs by suspending jobs: their memory stays on a GPU while nobody needs it, and moves out of the way then.

What each way costs comes from a table of measurements (`models.suspend_table`). If it has no restarts, these cost as
much as under `restart`. See docs/switching.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairway.core.job import JobSpec
from fairway.models.suspend_table import H200, OUT_WAYS, SuspendTable, Way, WayCosts
from fairway.models.switching import POSTER, Switching, working_bytes


@dataclass(frozen=True)
class Suspension(Switching):
    """The ways of suspending a job. Each node keeps at most `host_bytes` of suspended jobs in its own memory.

    With `pinned`, host memory is pinned while a job runs, so that it leaves as quickly the first time as later.
    """

    ways: SuspendTable = H200
    host_bytes: float = math.inf
    pinned: bool = False

    def cost_s(self, job: JobSpec) -> float:
        """What it costs to take a job off its GPUs and to bring it back, if others need all the memory."""
        size = working_bytes(job)
        found = [costs for way in OUT_WAYS if (costs := self.costs(way)) and math.isfinite(size)]
        around = (costs.out_s(size, first=False) + costs.back_s(size) for costs in found)
        return min([self.restart_s(job), *around])

    @property
    def typical_s(self) -> float:
        """What a switch to a job costs of which nothing is known: it is started again."""
        restart = self.costs("restart")
        return POSTER.median.restart_s if restart is None else restart.out_s(0.0, first=False) + restart.back_s(0.0)

    def costs(self, way: Way) -> WayCosts | None:
        """The costs of a way, if it was measured."""
        return self.ways.ways.get(way)

    def restart_s(self, job: JobSpec) -> float:
        """What it costs to end a job and to start it again: as it says itself, as measured, or as for its model."""
        if job.checkpoint_s is not None:
            return job.checkpoint_s
        restart, size = self.costs("restart"), working_bytes(job)
        if restart is None:
            return POSTER.times(job.model).restart_s
        size = size if math.isfinite(size) else 0.0
        return restart.out_s(size, first=False) + restart.back_s(size)
