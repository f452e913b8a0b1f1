"""Nodes for the configurations that jobs were given (see `models.configurations`).

Jobs that keep their configuration stay where they are if they can. The others are placed from the largest to the
smallest, each where it leaves the least room. A larger job may push smaller ones to other nodes, if there is no room
for it otherwise. Where nodes of a type have 2, 4, 8 … GPUs, every configuration finds a place this way.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Bools, Ints


def placed(kind: Ints, nodes: Ints, gpus: Ints, held: Ints, node_kind: Ints, capacity: Ints, closed: Bools) -> Ints:
    """Jobs by nodes. `kind`, `nodes` and `gpus` are what each job gets; 0 GPUs for none.

    `held` is where jobs are now, jobs by nodes. `closed` are nodes that no job on several nodes may use unless it holds
    them. A job that finds no place, because nodes have odd sizes, has none.
    """
    there = held > 0
    on_kind = node_kind[there.argmax(axis=1)] == kind if len(node_kind) else np.zeros(len(kind), dtype=np.bool_)
    stays = (gpus > 0) & on_kind & (held.sum(axis=1) == gpus) & (there.sum(axis=1) == nodes)
    floor = _Floor(held, stays, node_kind, capacity, closed)
    part = -(-gpus // np.maximum(nodes, 1))
    for job in np.lexsort((~stays, -gpus, -part)).tolist():
        if gpus[job] > 0:
            floor.put(job, int(kind[job]), int(nodes[job]), int(gpus[job]))
    return floor.rows


class _Floor:
    """Nodes that are filled. `room` is free, but for the jobs that have `pending` places because they stay."""

    def __init__(self, held: Ints, stays: Bools, node_kind: Ints, capacity: Ints, closed: Bools) -> None:
        self.held, self.stays, self.node_kind = held, stays.copy(), node_kind
        self.rows: Ints = np.zeros_like(held)
        self.room = capacity.copy()
        self.pending: Ints = held[stays].sum(axis=0) if stays.any() else np.zeros_like(capacity)
        self.apart = closed.copy()

    def put(self, job: int, kind: int, nodes: int, gpus: int) -> None:
        """Place a job, where it is now if it may stay."""
        if self.stays[job]:
            self.pending -= self.held[job]
            self._take(job, self.held[job])
            return
        here = self.node_kind == kind
        parts = [gpus] if nodes == 1 else _parts(np.where(here & ~self.apart, self.room, 0), gpus)
        row = np.zeros_like(self.room)
        for part in parts:
            usable = here & (row == 0) & (self.room >= part) & ~(self.apart if len(parts) > 1 else False)
            if not usable.any():
                return
            row[self._node_for(part, usable)] = part
        for node in row.nonzero()[0].tolist():
            self._clear(node, int(row[node]))
        self._take(job, row)

    def _take(self, job: int, row: Ints) -> None:
        self.rows[job] = row
        self.room = self.room - row
        if (row > 0).sum() > 1:
            self.apart |= row > 0

    def _node_for(self, gpus: int, usable: Bools) -> int:
        """The node with the least room that is enough, or the one where the fewest GPUs must be cleared."""
        free = self.room - self.pending
        enough = usable & (free >= gpus)
        if enough.any():
            return int(np.where(enough, free, free.max() + 1).argmin())
        lacking = gpus - free
        return int(np.where(usable, lacking, lacking.max() + 1).argmin())

    def _clear(self, node: int, gpus: int) -> None:
        """Jobs that were to stay on a node go elsewhere until there is room: those with the most GPUs first."""
        if self.room[node] - self.pending[node] >= gpus:
            return
        here = (self.stays & (self.held[:, node] > 0) & ~self.rows.any(axis=1)).nonzero()[0]
        for job in here[np.argsort(-self.held[here, node], kind="stable")].tolist():
            if self.room[node] - self.pending[node] >= gpus:
                return
            self.stays[job] = False
            self.pending -= self.held[job]


def _parts(room: Ints, gpus: int) -> list[int]:
    """How a job on several nodes is divided: as much as possible on each, or one part that is too large for a node."""
    parts: list[int] = []
    for size in np.sort(room)[::-1].tolist():
        if gpus and size:
            parts.append(min(size, gpus))
            gpus -= parts[-1]
    return parts if not gpus else [gpus + sum(parts)]
