"""Spread placement: one GPU at a time from the emptiest node, so that a failure or a busy link hurts least."""

from __future__ import annotations

from fairway.core.occupancy import Occupancy, lowest_bit
from fairway.core.plan import AllAlike


class Spread(AllAlike):
    """As many nodes as possible, evenly."""

    name = "spread"
    located = True

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        if occupancy.free_by_type[gpu_type] < gpus:
            return None
        scratch = occupancy.copy()
        chosen: list[int] = []
        by_free = scratch.by_free[gpu_type]
        for _ in range(gpus):
            free = next(count for count in range(len(by_free) - 1, 0, -1) if by_free[count])
            node = lowest_bit(by_free[free])
            gpu = scratch.cluster.first_gpu[node] + lowest_bit(scratch.free_mask[node])
            scratch.take((gpu,))
            chosen.append(gpu)
        return tuple(sorted(chosen))
