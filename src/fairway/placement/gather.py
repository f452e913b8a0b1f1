"""Free GPUs, node after node: shared by all placements that go by an order of nodes."""

from __future__ import annotations

from collections.abc import Iterable

from fairway.core.occupancy import Occupancy, lowest_bit


def gathered(occupancy: Occupancy, groups: Iterable[int], gpus: int) -> tuple[int, ...] | None:
    """The first `gpus` free GPUs of the nodes in `groups` (bit masks of nodes, each from the lowest number on)."""
    chosen: list[int] = []
    for nodes in groups:
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
