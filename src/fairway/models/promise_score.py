"""How good promises were: what was told of a start or an end, and what happened."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum
from statistics import median
from typing import Any, NamedTuple


class DecidedPromise(NamedTuple):
    """A promise of which it is known what happened.

    `told_s` and `decided_s` are dates. The others are seconds since it was told: what was forecast, the interval, what
    happened. `whole_s` is the wait, or the time to completion, that was told, from the job's submission on.
    """

    policy: str
    user: str
    kind: str
    basis: str
    told_s: float
    decided_s: float
    lead_s: float
    low_s: float
    high_s: float
    actual_s: float
    whole_s: float
    scored_as: str

    @property
    def error_s(self) -> float:
        """How far off it was."""
        return abs(self.actual_s - self.lead_s)

    @property
    def kept(self) -> bool:
        """Whether what happened lies in the interval."""
        return self.low_s <= self.actual_s <= self.high_s


def figures(some: Iterable[DecidedPromise]) -> dict[str, Any]:
    """How good some promises were. Relative errors are over the wait, or the time to completion, that was told."""
    some = list(some)
    relative = [one.error_s / one.whole_s for one in some if one.whole_s >= 1.0]
    return {
        "promises": len(some),
        "median_error_s": median(one.error_s for one in some) if some else None,
        "median_relative_error": median(relative) if relative else None,
        "mean_relative_error": fsum(relative) / len(relative) if relative else None,
        "within": sum(one.kept for one in some) / len(some) if some else None,
        "median_width_s": median(one.high_s - one.low_s for one in some) if some else None,
    }
