"""Freest placement: a gang takes all it can from the node with the most free GPUs, then from the next.

This is how the simulator of the Pollux artifact (OSDI 2021) places the gangs of Tiresias and Optimus. The GPUs come in
the order in which nodes were taken, which is also the order of the ring in which the gang exchanges gradients.
"""

from __future__ import annotations

from fairway.core.occupancy import Occupancy, lowest_bit
from fairway.core.plan import AllAlike


class Freest(AllAlike):
    """The emptiest nodes first, whatever is left behind."""

    name = "freest"
    located = True

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        if occupancy.free_by_type[gpu_type] < gpus:
            return None
        chosen: list[int] = []
        for nodes in reversed(occupancy.by_free[gpu_type][1:]):
            while nodes:
                node = lowest_bit(nodes)
                nodes &= nodes - 1
                mask, first = occupancy.free_mask[node], occupancy.cluster.first_gpu[node]
                while mask:
                    chosen.append(first + lowest_bit(mask))
                    mask &= mask - 1
                    if len(chosen) == gpus:
                        return tuple(chosen)
        return None
