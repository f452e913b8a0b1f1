"""What is in the way of the tenants: GPUs that no job can have, and opportunistic jobs on the others."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fairway.core import columns as c
from fairway.core.arrays import Ints
from fairway.core.snapshot import Snapshot
from fairway.placement.cells import BLOCKED, UNUSABLE
from fairway.placement.hierarchy import Layout

_SHORT = 1 << 20
"""What each bad GPU of a cell costs: more than all opportunistic jobs that could be in it."""


class Squatters:
    """Where opportunistic jobs sit, and which GPUs are bad, as a cost of cells.

    A bad GPU is one of a node that is down, or one that no job can have now. `some_bad` is whether there are any, and
    `partly_bad` whether a cell may have sound ones beside them.
    """

    def __init__(self, snapshot: Snapshot, layout: Layout) -> None:
        self.until_s = math.inf
        self._snapshot = snapshot
        self._layout = layout
        self._on: dict[int, int] = {}
        self._fixed: dict[int, int] = {}
        self._bad: dict[int, int] = {}
        cluster = snapshot.cluster
        for node in snapshot.down_nodes:
            first = cluster.first_gpu[node]
            self._mark(self._bad, range(first, first + cluster.nodes[node].gpus))
        self._mark(self._bad, snapshot.withheld_gpus)
        self.some_bad = bool(self._bad)
        whole = all(mask == (1 << layout.top_gpus[top]) - 1 for top, mask in self._bad.items())
        self.partly_bad = not whole

    def settle(self, rows: Ints) -> None:
        """Note where the opportunistic jobs in these rows sit."""
        snapshot = self._snapshot
        until_s = snapshot.floats[c.PROTECTED_UNTIL_S]
        for row in rows[snapshot.held[rows] > 0].tolist():
            self._mark(self._on, snapshot.gpus_held(row))
            if until_s[row] > snapshot.now_s:
                self.until_s = min(self.until_s, float(until_s[row]))
                self._mark(self._fixed, snapshot.gpus_held(row))

    def _mark(self, masks: dict[int, int], gpus: Iterable[int]) -> None:
        for gpu in gpus:
            top, bit = self._bit(gpu)
            masks[top] = masks.get(top, 0) | bit

    def _bit(self, gpu: int) -> tuple[int, int]:
        place = self._layout.place_of[gpu]
        top = self._layout.top_of[place]
        return top, 1 << (place - self._layout.first[top])

    def cost(self, start: int, size: int) -> int:
        """How many GPUs of the cell opportunistic jobs hold; more if some are bad."""
        top = self._layout.top_of[start]
        if top not in self._on:
            return self.harm(start, size)
        cell = ((1 << size) - 1) << (start - self._layout.first[top])
        held = (self._on[top] & cell).bit_count() + BLOCKED * bool(self._fixed.get(top, 0) & cell)
        return min(held + self.harm(start, size), UNUSABLE)

    def harm(self, start: int, size: int) -> int:
        """The cost of the cell if nobody sits there."""
        top = self._layout.top_of[start]
        if top not in self._bad:
            return 0
        bad = (self._bad[top] >> (start - self._layout.first[top]) & ((1 << size) - 1)).bit_count()
        return UNUSABLE if bad == size else bad * _SHORT

    def bad_in(self, start: int, size: int) -> list[int]:
        """The bad GPUs of the cell, counted from its start."""
        top = self._layout.top_of[start]
        mask = self._bad.get(top, 0) >> (start - self._layout.first[top])
        return [k for k in range(size) if mask >> k & 1] if mask else []

    def is_bad(self, gpu: int) -> bool:
        """Whether no job can have a GPU."""
        top, bit = self._bit(gpu)
        return bool(self._bad.get(top, 0) & bit)

    def fixed_on(self, gpus: tuple[int, ...]) -> bool:
        """Whether any of these GPUs is held by an opportunistic job that may not be stopped yet."""
        if not self._fixed:
            return False
        return any(self._fixed.get(top, 0) & bit for top, bit in map(self._bit, gpus))
