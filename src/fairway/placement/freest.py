"""Freest placement: a gang takes all it can from the node with the most free GPUs, then from the next.

This is how the simulator of the Pollux artifact (OSDI 2021) places the gangs of Tiresias and Optimus. The GPUs come in
the order in which nodes were taken, which is also the order of the ring in which the gang exchanges gradients.
"""

from __future__ import annotations

from fairway.core.occupancy import Occupancy
from fairway.core.plan import AllAlike
from fairway.placement.gather import gathered


class Freest(AllAlike):
    """The emptiest nodes first, regardless of what is left behind."""

    name = "freest"
    located = True

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        return gathered(occupancy, reversed(occupancy.by_free[gpu_type][1:]), gpus)
