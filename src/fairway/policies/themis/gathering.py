"""Placement-sensitive winners: a job that runs slowly on scattered GPUs moves to fewer machines.

S is the part of its speed that a gang keeps when it is spread. A scheduler does not know it in advance. It is known
once the job runs: the measured speed over that of its gang. If that loss is larger than the cost of a restart, and
machines have room, a job that wins as many GPUs of its type again gets them closer together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fairway.core.arrays import Bools
from fairway.core.snapshot import Snapshot
from fairway.policies.themis.bids import BidMarket, Grant


def gathered(
    snapshot: Snapshot, market: BidMarket, keeps: Bools, grants: Mapping[int, Grant]
) -> dict[int, tuple[int, ...]]:
    """GPUs for the winners that should move closer together."""
    stays = [row for row, (_, kind, gpus) in grants.items() if (market.kind[row], market.held[row]) == (kind, gpus)]
    scattered = [row for row in stays if _is_slow(market, row) and _is_scattered(snapshot, row)]
    if not scattered:
        return {}
    rows = [*keeps.nonzero()[0].tolist(), *stays]
    taken = {gpu for row in rows for gpu in snapshot.gpus_held(row)}.union(snapshot.withheld_gpus)
    placements: dict[int, tuple[int, ...]] = {}
    for row in scattered:
        own = snapshot.gpus_held(row)
        found = _close_together(snapshot, market.kind[row], len(own), taken.difference(own))
        if found:
            placements[row] = found
            taken = taken.difference(own).union(found)
    return placements


def _is_slow(market: BidMarket, row: int) -> bool:
    """Whether a row would get more done on as many GPUs elsewhere, restart included."""
    held = market.held[row]
    # By more than rounding: if a restart is free, both are the same speed, computed in two ways.
    return held > 1 and market.stays[row] < held * market.speed[market.kind[row]][row] * (1.0 - 1e-9)


def _is_scattered(snapshot: Snapshot, row: int) -> bool:
    gpus, cluster = snapshot.gpus_held(row), snapshot.cluster
    needed = cluster.nodes_needed(int(snapshot.gpu_type[row]), len(gpus))
    return len({cluster.node_of_gpu[gpu] for gpu in gpus}) > needed


def _close_together(snapshot: Snapshot, kind: int, count: int, taken: Collection[int]) -> tuple[int, ...]:
    """Free GPUs of a type on as few nodes as a gang can have, or none. A single node is chosen by best fit."""
    cluster = snapshot.cluster
    room: list[Sequence[int]] = []
    for node, about in enumerate(cluster.nodes):
        if cluster.node_type[node] == kind and node not in snapshot.down_nodes:
            first = cluster.first_gpu[node]
            room.append([gpu for gpu in range(first, first + about.gpus) if gpu not in taken])
    large = [gpus for gpus in room if len(gpus) >= count]
    if large:
        return tuple(min(large, key=len)[:count])
    room.sort(key=len, reverse=True)
    together = [gpu for gpus in room[: cluster.nodes_needed(kind, count)] for gpu in gpus]
    return tuple(sorted(together[:count])) if len(together) >= count else ()
