"""Jobs on the same GPUs: what shares of a GPU add up to, and which guest becomes the host when a host leaves.

State and engines must agree on both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairway.core.arrays import Floats, Ints

WHOLE = 1000
"""Shares are counted in thousandths of a GPU, so that their sums are exact."""


def thousandths(shares: Floats) -> Ints:
    """Shares of a GPU in thousandths, rounded down, at least 1."""
    counted: Ints = np.maximum(np.floor(shares * WHOLE + 1e-6), 1).astype(np.int64)
    return counted


def heirs(guests: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """The new host of each guest, by job number; -1 for a guest that becomes a host itself.

    Guests of one host are nested or apart. So of those that overlap, the largest (among equals, the first) holds all
    GPUs of the others.
    """
    hosts: dict[int, int] = {}
    seats: dict[int, set[int]] = {}
    for job in sorted(guests, key=lambda job: (-len(guests[job]), job)):
        mine = set(guests[job])
        hosts[job] = next((heir for heir, held in seats.items() if mine <= held), -1)
        if hosts[job] < 0:
            seats[job] = mine
    return hosts
