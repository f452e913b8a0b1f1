"""The order in which published runs of agnostic policies go through the GPU types: another one each round.

The artifact shuffles its list of types with Python's generator, seeded once. To repeat its figures the same orders are
needed. So Python's way to seed the generator (MT19937, by an array) and its shuffle are repeated here on NumPy's.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

SEED_OFFSET = 5


class _Orders:
    """The shuffled orders of `count` items, drawn one after another and kept."""

    def __init__(self, seed: int, count: int) -> None:
        self._bits = np.random.MT19937(0)
        self._bits._legacy_seeding([seed])
        self._count = count
        self._drawn: list[tuple[int, ...]] = []

    def at(self, turn: int) -> tuple[int, ...]:
        while len(self._drawn) <= turn:
            self._drawn.append(self._draw())
        return self._drawn[turn]

    def _draw(self) -> tuple[int, ...]:
        items = list(range(self._count))
        for last in range(self._count - 1, 0, -1):
            other = self._below(last + 1)
            items[last], items[other] = items[other], items[last]
        return tuple(items)

    def _below(self, limit: int) -> int:
        """A whole number below a limit, from as many leading bits as the limit has. It is drawn again if too large."""
        while True:
            value = int(self._bits.random_raw()) >> (32 - limit.bit_length())
            if value < limit:
                return value


@lru_cache(maxsize=16)
def _orders(seed: int, count: int) -> _Orders:
    return _Orders(seed, count)


def shuffled_types(seed: int, count: int, turn: int) -> tuple[int, ...]:
    """The order of `count` GPU types in a round, counted from 0."""
    if count <= 1:
        return tuple(range(count))
    return _orders((seed + SEED_OFFSET) % 2**32, count).at(turn)
