"""What no bidder won: handed out a gang at a time, so that no GPU idles while a job can use it.

Apps that took no part come first, so that bidders gain nothing by leaving GPUs over. Among them, those with GPUs on the
same machines or of the same type come first, then chance decides. Bidders get what is left after that, the worst-off
first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairway.core.arrays import Bools, Ints
from fairway.core.snapshot import Snapshot
from fairway.policies.themis.bids import BidMarket, Grant, next_gang


def outsiders(snapshot: Snapshot, market: BidMarket, bidders: Sequence[int], on_offer: Bools) -> list[int]:
    """The apps that took no part, in the order in which they are asked."""
    took_part = set(bidders)
    outside = np.array([app for app in market.open_rows if app not in took_part], dtype=np.int64)
    rank = _distance(snapshot, market, on_offer)
    chance = np.random.default_rng([snapshot.seed, snapshot.round]).random(market.apps.number)
    order: list[int] = outside[np.lexsort((chance[outside], rank[outside]))].tolist()
    return order


def _distance(snapshot: Snapshot, market: BidMarket, on_offer: Bools) -> Ints:
    """0 for apps on a machine with GPUs to give (including their own GPUs whose lease is over), 1 for apps that have
    GPUs elsewhere, 2 for the others."""
    of_row = market.apps.of_row
    rank = np.full(market.apps.number, 2, dtype=np.int64)
    running = snapshot.running_rows
    kept = running[~on_offer[running]]
    np.minimum.at(rank, of_row[kept], 1)
    rank[of_row[running[on_offer[running]]]] = 0
    wanting = [row for row in kept.tolist() if int(of_row[row]) in market.open_rows]
    if wanting:
        node_of_gpu = snapshot.cluster.node_of_gpu
        used: dict[int, int] = {}
        for row in kept.tolist():
            for gpu in snapshot.gpus_held(row):
                used[node_of_gpu[gpu]] = used.get(node_of_gpu[gpu], 0) + 1
        sizes = snapshot.node_sizes
        room = {node for node, count in used.items() if count < sizes[node]}
        for row in wanting:
            if any(node_of_gpu[gpu] in room for gpu in snapshot.gpus_held(row)):
                rank[of_row[row]] = 0
    return rank


def hand_out(market: BidMarket, grants: dict[int, Grant], free: list[int], order: Sequence[int]) -> None:
    """Give a gang to one app after the other, in turns, while something fits."""
    turn: Sequence[int] = order
    while turn and any(free):
        again = []
        for app in turn:
            if _give_one(market, grants, free, market.open_rows[app]):
                again.append(app)
                if not any(free):
                    return
        turn = again


def _give_one(market: BidMarket, grants: dict[int, Grant], free: list[int], rows: Sequence[int]) -> bool:
    """Serve the first row of an app that waits and fits. Returns whether there was one."""
    for row in rows:
        grant = None if row in grants else next_gang(market, row, free)
        if grant is not None:
            grants[row] = grant
            free[grant.kind] -= grant.gpus
            return True
    return False


def enlarge(market: BidMarket, grants: dict[int, Grant], free: list[int], order: Sequence[int]) -> None:
    """Elastic rows take what no other row can use, a GPU at a time in turns."""
    turn = [
        row for app in order for row in market.open_rows[app] if row in grants and grants[row].gpus < market.high[row]
    ]
    while turn and any(free):
        again = []
        for row in turn:
            grant = grants[row]
            if free[grant.kind]:
                free[grant.kind] -= 1
                grants[row] = grant._replace(gpus=grant.gpus + 1)
                if grant.gpus + 1 < market.high[row]:
                    again.append(row)
        turn = again
