"""Which jobs run in this quantum: one walk by rising pass, then idle GPUs for jobs that can use them.

A small job runs if its home has room; a big one (larger than a node) runs on the fewest nodes with room. A gang that
does not fit is skipped. Its pass stands still, so it comes first at the next boundary, when all jobs release their
GPUs. Then only jobs that were started between two boundaries and may not be stopped yet can keep it out. After a few
such quanta its node is closed to new jobs until it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairway.core.arrays import Floats, Ints
from fairway.policies.gandiva_fair.rooms import Parts, Rooms


@dataclass
class Turn:
    """The jobs as a walk sees them; lists have one entry per row.

    `sizes` are gangs, `here` is where running rows are, `left` the GPUs on which rows ran last. The outcome: where the
    `granted` rows are, their GPU `counts` and `types`, and the `blocked` rows, whose turn it was.
    """

    rooms: Rooms
    sizes: list[int]
    kinds: list[int]
    homes: list[int]
    speeds: Floats
    here: dict[int, Parts]
    left: dict[int, tuple[int, ...]]
    granted: dict[int, Parts] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    types: dict[int, int] = field(default_factory=dict)
    blocked: list[int] = field(default_factory=list)

    def keep(self, rows: Sequence[int], held: Ints, kinds: Ints) -> None:
        """Let rows go on as they are, whatever their pass."""
        for row in rows:
            self._grant(row, int(kinds[row]), int(held[row]), self.here[row])

    def walk(self, order: Sequence[int], roams: Sequence[bool], patience: Sequence[int], most_patience: int) -> None:
        """Serve rows in turn at the beginning of a quantum.

        `roams` marks jobs that go elsewhere if they find no room at home, `patience` how often each was blocked so far.
        """
        fixed, rooms = self._fixed_gpus(), self.rooms
        by_type, kinds, sizes = rooms.by_type, self.kinds, self.sizes
        for row in order:
            if row in self.granted:
                continue
            parts: Parts | None = None
            if by_type[kinds[row]] >= sizes[row]:
                parts = self._place_at_home(row)
                if parts is None and roams[row]:
                    parts = rooms.on_one_node(kinds[row], sizes[row], row)
            if parts is not None:
                self._grant(row, kinds[row], sizes[row], parts)
            elif fixed and self._is_blocked(row, fixed):
                self.blocked.append(row)
                if patience[row] + 1 >= most_patience:
                    self._close_for(row, fixed)

    def fill(self, order: Sequence[int]) -> None:
        """Give idle GPUs to waiting rows in turn: at home, else where they can move to, else spread out."""
        by_type, sizes = self.rooms.by_type, self.sizes
        for row in order:
            if row in self.granted or sizes[row] > max(by_type):
                continue
            found = self._place_anywhere(row)
            if found is not None:
                self._grant(row, found[0], sizes[row], found[1])
                if not any(by_type):
                    break

    def _grant(self, row: int, kind: int, gpus: int, parts: Parts) -> None:
        self.rooms.take(kind, gpus, parts)
        self.granted[row], self.counts[row], self.types[row] = parts, gpus, kind

    def _place_at_home(self, row: int) -> Parts | None:
        rooms, kind, size, home = self.rooms, self.kinds[row], self.sizes[row], self.homes[row]
        if home >= 0:
            if rooms.free[home] < size:
                return None
            stays = self.here.get(row) == ((home, size),)
            return ((home, size),) if stays or rooms.open_to(home, row) else None
        here = self.here.get(row)
        before = here if here is not None else rooms.parts_of(self.left.get(row, ()))
        if before and rooms.nodes.cluster.node_type[before[0][0]] == kind and sum(n for _, n in before) == size:
            opened = here is not None or all(rooms.open_to(node, row) for node, _ in before)
            if opened and rooms.has(kind, size, before):
                return before
        return rooms.on_few_nodes(kind, size, row)

    def _place_anywhere(self, row: int) -> tuple[int, Parts] | None:
        rooms, size, own, home = self.rooms, self.sizes[row], self.kinds[row], self.homes[row]
        if home >= 0 and rooms.free[home] >= size and rooms.open_to(home, row):
            return own, ((home, size),)
        speed = self.speeds[:, row].tolist()
        kinds = [kind for kind, count in enumerate(rooms.by_type) if count >= size and speed[kind] > 0]
        kinds.sort(key=lambda kind: (kind != own, -speed[kind]))
        for kind in kinds:
            parts = rooms.on_one_node(kind, size, row)
            if parts is not None:
                return kind, parts
        for kind in kinds:
            parts = rooms.on_few_nodes(kind, size, row)
            if parts is not None:
                return kind, parts
        return None

    def _fixed_gpus(self) -> dict[int, int]:
        """By node, the GPUs of rows that may not be stopped."""
        fixed: dict[int, int] = {}
        for parts in self.granted.values():
            for node, count in parts:
                fixed[node] = fixed.get(node, 0) + count
        return fixed

    def _is_blocked(self, row: int, fixed: dict[int, int]) -> bool:
        """Whether the row would run now if no job had just started."""
        rooms, home = self.rooms, self.homes[row]
        if home >= 0:
            return rooms.free[home] + fixed.get(home, 0) >= self.sizes[row]
        free = sum(rooms.free[node] + fixed.get(node, 0) for node in rooms.nodes.of_type[self.kinds[row]])
        return free >= self.sizes[row]

    def _close_for(self, row: int, fixed: dict[int, int]) -> None:
        """Keep new jobs off the nodes that this row will run on as soon as it can."""
        rooms, need = self.rooms, self.sizes[row]
        if self.homes[row] >= 0:
            rooms.closed.setdefault(self.homes[row], row)
            return
        for node in sorted(rooms.nodes.of_type[self.kinds[row]], key=lambda node: fixed.get(node, 0)):
            if need > 0:
                rooms.closed.setdefault(node, row)
                need -= rooms.nodes.sizes[node]
