"""Cells of GPUs and their buddy allocation, after HiveD (Zhao et al., OSDI'20).

`hierarchy` says which cells there are. A cell is cut only if no free one of the wanted size is left, or if taking one
would disturb a job and the reservations that are not in use can do without the larger cell. It is whole again as soon
as all its parts are free. Then a set of reservations that fits into the empty cluster can be met at any time, in
whatever order cells were taken and given back: reservations never fragment each other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fairway.placement.hierarchy import Layout

Cost: TypeAlias = Callable[[int, int], int]
"""The cost of taking the cell (start, size); the cheapest is chosen. See `UNUSABLE` and `BLOCKED`."""

BLOCKED = 1 << 40
"""From this cost on a cell cannot be taken now, but will be: that is no reason to cut a larger one that is needed."""
UNUSABLE = 1 << 60
"""The cost of a cell that is out of order."""


def free_of_charge(start: int, size: int) -> int:
    """The cost if all cells are alike."""
    return 0


class Cells:
    """The free cells of a cluster: sorted starts for each chain and level (0 is the largest size)."""

    __slots__ = ("_free", "_unused", "layout")

    def __init__(
        self,
        layout: Layout,
        free: Sequence[Sequence[Sequence[int]]] | None = None,
        unused: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """All cells are free, or those that `plain` listed.

        `unused` says how many cells of each chain and level are reserved and not taken. Larger cells that these do not
        need may be cut although smaller ones are free. Then only reserved cells may be taken.
        """
        self.layout = layout
        self._unused = [list(chain) for chain in unused] if unused is not None else None
        if free is not None:
            self._free = [[list(starts) for starts in chain] for chain in free]
            return
        self._free = [[[] for _ in chain.sizes] for chain in layout.chains]
        for number, chain in enumerate(layout.chains):
            for top in layout.chain_tops[number]:
                level = chain.sizes.index(layout.top_gpus[top])
                self._free[number][level].append(layout.first[top])

    def copy(self) -> Cells:
        """An independent copy of the free cells."""
        return Cells(self.layout, self._free, self._unused)

    def plain(self) -> list[list[list[int]]]:
        """The free cells as JSON values. Not a copy."""
        return self._free

    def take(self, chain: int, level: int, cost: Cost = free_of_charge, home: int = -1) -> int | None:
        """Take a free cell and return its start: the cheapest, then the one at `home`, then the first.

        None if there is no free cell, or if the free ones cannot be taken yet.
        """
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        best, cut, limit = (UNUSABLE, -1, -1), level, -1
        for above in range(level, -1, -1):
            if above < limit:
                break
            found = self._cheapest(free[above], sizes[above], sizes[level], cost, home)
            if found[0] < best[0]:
                best, cut = found, above
            if not best[0]:
                break
            if best[0] < UNUSABLE and limit < 0:
                limit = self._limit(chain, level, cost)
        price, whole, start = best
        if price >= BLOCKED:
            return None
        self._cut(chain, cut, whole, level, start)
        if self._unused is not None:
            self._unused[chain][level] -= 1
        return start

    def _limit(self, chain: int, level: int, cost: Cost) -> int:
        """The level of the largest cells that may be cut, for one of `level`, while smaller ones are free.

        Cutting a cell costs each level from its own down to the one above `level` one cell. That cell must be to spare:
        left over when the reservations that are not in use have got theirs, from the largest down.
        """
        if self._unused is None:
            return level
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        spare, limit = 0, 0
        for above in range(level):
            sound = sum(cost(start, sizes[above]) < UNUSABLE for start in free[above])
            parts = sizes[above - 1] // sizes[above] if above else 0
            spare = spare * parts + sound - self._unused[chain][above]
            if spare < 1:
                limit = above + 1
        return limit

    def _cheapest(self, starts: list[int], whole: int, size: int, cost: Cost, home: int) -> tuple[int, int, int]:
        """The cheapest cell of `size` within free cells of size `whole`: its cost, the free cell around it, itself."""
        if home >= 0:
            around = self.layout.around(home, whole)
            if (
                whole <= self.layout.top_gpus[self.layout.top_of[home]]
                and _holds(starts, around)
                and cost(home, size) == 0
            ):
                return 0, around, home
        best = (UNUSABLE, -1, -1)
        for around in starts:
            for start in range(around, around + whole, size):
                price = cost(start, size)
                if price < best[0]:
                    best = (price, around, start)
                    if not price:
                        return best
        return best

    def _cut(self, chain: int, above: int, whole: int, level: int, start: int) -> None:
        """Take a cell out of a free one and leave the other parts free."""
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        del free[above][bisect_left(free[above], whole)]
        for below in range(above + 1, level + 1):
            size = sizes[below]
            part = whole + (start - whole) // size * size
            for other in range(whole, whole + sizes[below - 1], size):
                if other != part:
                    insort(free[below], other)
            whole = part

    def give(self, chain: int, level: int, start: int) -> None:
        """A taken cell is free again; with all its buddies free it becomes part of the larger cell again."""
        if self._unused is not None:
            self._unused[chain][level] += 1
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        gpus = self.layout.top_gpus[self.layout.top_of[start]]
        while sizes[level] < gpus:
            size, whole = sizes[level], sizes[level - 1]
            around = self.layout.around(start, whole)
            buddies = [other for other in range(around, around + whole, size) if other != start]
            if not all(_holds(free[level], other) for other in buddies):
                break
            for other in buddies:
                del free[level][bisect_left(free[level], other)]
            level, start = level - 1, around
        insort(free[level], start)

    def claim(self, chain: int, level: int, start: int) -> bool:
        """Take this very cell, if it is free and the reservations that are not in use can be met without it."""
        free, sizes = self._free[chain], self.layout.chains[chain].sizes
        for above in range(level, -1, -1):
            whole = self.layout.around(start, sizes[above])
            if sizes[above] <= self.layout.top_gpus[self.layout.top_of[start]] and _holds(free[above], whole):
                self._cut(chain, above, whole, level, start)
                if self._unused is not None:
                    self._unused[chain][level] -= 1
                if self._enough(chain):
                    return True
                self.give(chain, level, start)
                return False
        return False

    def _enough(self, chain: int) -> bool:
        """Whether the free cells are enough for the reservations that are not in use, from the largest down."""
        if self._unused is None:
            return True
        sizes, spare = self.layout.chains[chain].sizes, 0
        for level, starts in enumerate(self._free[chain]):
            parts = sizes[level - 1] // sizes[level] if level else 0
            spare = spare * parts + len(starts) - self._unused[chain][level]
            if spare < 0:
                return False
        return True

    def count(self, kind: int) -> int:
        """How many GPUs of a type are in free cells."""
        pairs = zip(self.layout.chains, self._free, strict=True)
        return sum(
            len(starts) * size
            for chain, free in pairs
            if chain.kind == kind
            for size, starts in zip(chain.sizes, free, strict=True)
        )


def _holds(starts: list[int], start: int) -> bool:
    at = bisect_left(starts, start)
    return at < len(starts) and starts[at] == start
