"""Count-only placement: the first free GPUs by number. Where a gang sits means nothing, so nothing is ever "spread"."""

from __future__ import annotations

from fairway.core.occupancy import Occupancy, lowest_bit
from fairway.core.plan import AllAlike


class Count(AllAlike):
    """GPU counts only: every free GPU of the type is as good as any other."""

    name = "count"
    located = False

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        if occupancy.free_by_type[gpu_type] < gpus:
            return None
        chosen: list[int] = []
        nodes = 0
        for row in occupancy.by_free[gpu_type][1:]:
            nodes |= row
        while len(chosen) < gpus:
            node = lowest_bit(nodes)
            nodes &= nodes - 1
            mask, first = occupancy.free_mask[node], occupancy.cluster.first_gpu[node]
            while mask and len(chosen) < gpus:
                chosen.append(first + lowest_bit(mask))
                mask &= mask - 1
        return tuple(chosen)
