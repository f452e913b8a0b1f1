"""Count-only placement: the first free GPUs by number. Positions mean nothing, so no gang is ever "spread"."""

from __future__ import annotations

from fairway.core.occupancy import Occupancy
from fairway.core.plan import AllAlike
from fairway.placement.gather import gathered


class Count(AllAlike):
    """GPU counts only: every free GPU of the type is as good as any other."""

    name = "count"
    located = False

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        nodes = 0
        for row in occupancy.by_free[gpu_type][1:]:
            nodes |= row
        return gathered(occupancy, (nodes,), gpus)
