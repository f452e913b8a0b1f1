"""What part of the time each job on a GPU may compute, so that all get their shares of it.

A GPU without further help gives equal slices of time to all processes that have work for it. So a job with a small
share must rest. It rests at times of its own, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fairway.core.arrays import Floats

_ROUNDS = 40
_LEAST = 0.01
"""No job rests longer than this leaves it."""


def turns(shares: Sequence[int]) -> tuple[float, ...]:
    """The throttles of jobs with these shares, in their order. The largest share is never throttled.

    >>> turns([700, 300])
    (1.0, 0.6)
    >>> turns([250, 500, 250])
    (0.634, 1.0, 0.634)
    """
    order = sorted(range(len(shares)), key=lambda at: -shares[at])
    found = _turns(tuple(shares[at] for at in order))
    by_place = dict(zip(order, found, strict=True))
    return tuple(by_place[at] for at in range(len(shares)))


@lru_cache(maxsize=4096)
def _turns(shares: tuple[int, ...]) -> tuple[float, ...]:
    """Raise what is too small and lower what is too large until the time is divided as the shares are."""
    if shares[0] == shares[-1]:
        return (1.0,) * len(shares)
    asked = np.array(shares, dtype=np.float64)
    parts = asked / asked[0]
    for _ in range(_ROUNDS):
        parts = asked / _slices(parts)
        parts = parts / parts.max()
    return tuple(round(max(part, _LEAST), 3) for part in parts.tolist())


def _slices(parts: Floats) -> Floats:
    """What each job gets of the GPU while it computes, on average: 1 / (1 + how many others compute).

    `others[i, k]` is the probability that k jobs besides job i compute.
    """
    count = len(parts)
    others = np.zeros((count, count))
    others[:, 0] = 1.0
    for job, part in enumerate(parts.tolist()):
        computes = np.full((count, 1), part)
        computes[job] = 0.0
        more = others * computes
        others -= more
        others[:, 1:] += more[:, :-1]
    slices: Floats = np.add.reduce(others / np.arange(1.0, count + 1.0), axis=1)
    return slices
