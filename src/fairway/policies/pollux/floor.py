"""The cluster as Pollux sees it: jobs by nodes, what may not be touched, and concrete GPUs for what was found.

On a cluster with several GPU types each job stays on one type: the one that it holds, or for a waiting job the one that
has most room. Every type is then an allocation of its own.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Bools, Ints
from fairway.core.snapshot import Snapshot


class Floor:
    """Nodes, what each has to offer, and where jobs are. Rows in `pinned` stay as they are."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.held: Ints = _by_node(snapshot)
        self.partners: dict[int, int] = {}
        self.pinned: Bools = np.zeros(len(snapshot), dtype=np.bool_)
        if snapshot.guarded:
            self.pinned[snapshot.protected_rows] = True
        self._sort_out_guests()
        self.node_kind: Ints = np.array(snapshot.cluster.node_type, dtype=np.int64)
        stays = self.held[self.pinned]
        self.capacity: Ints = np.array(snapshot.node_sizes, dtype=np.int64) - stays.sum(axis=0)
        spread = stays[(stays > 0).sum(axis=1) > 1]
        self.closed: Bools = (spread > 0).any(axis=0)

    def _sort_out_guests(self) -> None:
        """Pollux lets no jobs share GPUs: guests lose their place, unless they may not be stopped yet."""
        snapshot = self.snapshot
        guests = (snapshot.host >= 0).nonzero()[0]
        for guest, host in zip(guests.tolist(), snapshot.rows_of(snapshot.host[guests]).tolist(), strict=True):
            if self.pinned[guest]:
                self.partners[guest], self.pinned[host] = host, True
            self.held[guest] = 0

    def kinds(self, gangs: Ints) -> Ints:
        """The GPU type on which each row is looked at; -1 for one that no type has room for. `gangs` is the least that
        rows need."""
        snapshot = self.snapshot
        if len(snapshot.capacity) == 1:
            return np.where(snapshot.speeds[0] > 0, 0, -1)
        rows, running = np.arange(len(snapshot)), self.held.any(axis=1) | self.pinned
        found = np.where(running, snapshot.gpu_type, -1)
        load = np.zeros(len(snapshot.capacity))
        np.add.at(load, found[running], gangs[running])
        for row in rows[~running].tolist():
            usable = (snapshot.speeds[:, row] > 0) & (snapshot.capacity >= gangs[row])
            left = np.where(usable, (snapshot.capacity - load - gangs[row]) / np.maximum(snapshot.capacity, 1), -np.inf)
            if usable.any():
                found[row] = int(left.argmax())
                load[found[row]] += gangs[row]
        return found

    def filled(self, rows: Ints, gangs: Ints) -> Ints:
        """Jobs by nodes, with idle GPUs given to jobs that wait, in their order: the least that they need."""
        free = self.capacity - rows[~self.pinned].sum(axis=0)
        waiting = (~rows.any(axis=1) & ~self.pinned).nonzero()[0].tolist() if free.any() else []
        spread = rows[(rows > 0).sum(axis=1) > 1]
        apart = (spread > 0).any(axis=0) | self.closed
        for row in waiting:
            speeds, gang = self.snapshot.speeds[:, row], int(gangs[row])
            for kind in np.argsort(-speeds, kind="stable").tolist():
                mine = _fit(np.where(self.node_kind == kind, free, 0), apart, gang) if speeds[kind] > 0 else None
                if mine is not None:
                    rows[row] = mine
                    free -= mine
                    apart |= (mine > 0) & ((mine > 0).sum() > 1)
                    break
        return rows

    def concrete(self, rows: Ints) -> dict[int, tuple[int, ...]]:
        """GPUs for the rows that change, from jobs by nodes; nodes in rising order."""
        snapshot, cluster = self.snapshot, self.snapshot.cluster
        changed = ((rows != self.held).any(axis=1) & rows.any(axis=1) & ~self.pinned).nonzero()[0].tolist()
        if not changed:
            return {}
        stay = (rows == self.held).all(axis=1) | self.pinned
        taken = set(snapshot.withheld_gpus)
        for row in (stay & snapshot.running).nonzero()[0].tolist():
            taken.update(snapshot.gpus_held(row))
        placed: dict[int, tuple[int, ...]] = {}
        for row in changed:
            gpus: list[int] = []
            for node in rows[row].nonzero()[0].tolist():
                first = cluster.first_gpu[node]
                free = [gpu for gpu in range(first, first + cluster.nodes[node].gpus) if gpu not in taken]
                gpus += free[: int(rows[row, node])]
            taken.update(gpus)
            placed[row] = tuple(gpus)
        return placed


def _fit(free: Ints, apart: Bools, gang: int) -> Ints | None:
    """GPUs by node for a gang: on the node with the least room that is enough, else on nodes without distributed jobs,
    those with most room first; None if there is no room."""
    mine = np.zeros_like(free)
    if (free >= gang).any():
        mine[int(np.where(free >= gang, free, free.max() + 1).argmin())] = gang
        return mine
    room = np.where(apart, 0, free)
    if int(room.sum()) < gang:
        return None
    for node in np.argsort(-room, kind="stable").tolist():
        mine[node] = min(int(room[node]), gang - int(mine.sum()))
    return mine


def _by_node(snapshot: Snapshot) -> Ints:
    """How many GPUs each row holds on each node."""
    node_of_gpu = snapshot.cluster.node_of_gpu
    held = np.zeros((len(snapshot), len(snapshot.cluster.nodes)), dtype=np.int64)
    for row in snapshot.running_rows.tolist():
        for gpu in snapshot.gpus_held(row):
            held[row, node_of_gpu[gpu]] += 1
    return held
