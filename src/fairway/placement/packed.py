"""Packed placement: a gang on as few nodes as possible, small gangs where they leave the least behind.

A gang that fits on one node goes to the fullest node that still has room (best fit). A larger one takes wholly free
nodes first and puts the rest where it fits best. Only if that is impossible is a gang spread over the emptiest nodes.
"""

from __future__ import annotations

from fairway.core.occupancy import Occupancy, lowest_bit
from fairway.core.plan import AllAlike


class Packed(AllAlike):
    """As few nodes as possible."""

    name = "packed"
    located = True

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        by_free = occupancy.by_free[gpu_type]
        for free in range(gpus, len(by_free)):
            if by_free[free]:
                node = lowest_bit(by_free[free])
                return tuple(_gpus(occupancy, node, gpus))
        return _over_nodes(occupancy, gpus, gpu_type)


def _over_nodes(occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
    """The emptiest nodes first; the last, partial share goes to the node where it leaves the least behind."""
    by_free = occupancy.by_free[gpu_type]
    chosen: list[int] = []
    left = gpus
    for free in range(len(by_free) - 1, 0, -1):
        nodes = by_free[free]
        while nodes:
            if left < free:
                return _with_rest(occupancy, chosen, left, by_free)
            node = lowest_bit(nodes)
            nodes &= nodes - 1
            chosen.extend(_gpus(occupancy, node, free))
            left -= free
            if not left:
                return tuple(chosen)
    return None


def _with_rest(occupancy: Occupancy, chosen: list[int], left: int, by_free: list[int]) -> tuple[int, ...] | None:
    used = 0
    for gpu in chosen:
        used |= 1 << occupancy.node_of_gpu[gpu]
    for free in range(left, len(by_free)):
        nodes = by_free[free] & ~used
        if nodes:
            return (*chosen, *_gpus(occupancy, lowest_bit(nodes), left))
    return None


def _gpus(occupancy: Occupancy, node: int, count: int) -> list[int]:
    """The first free GPUs of a node."""
    mask, first = occupancy.free_mask[node], occupancy.cluster.first_gpu[node]
    out = []
    for _ in range(count):
        bit = mask & -mask
        out.append(first + bit.bit_length() - 1)
        mask ^= bit
    return out
