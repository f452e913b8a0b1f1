"""How good promises were, what was told of a start or an end beside what happened; and when an interval may be told."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, fsum
from statistics import median
from typing import Any, NamedTuple

SCORED = 200
"""Of how many forecasts, the latest of starts or of ends, it counts how many intervals held."""
LEAST_SCORED = 30
"""How many of these there have to be before an interval is told."""
LEAST_HELD_PERCENT = 70
"""How many of a hundred of them must have held."""


class Trust(NamedTuple):
    """How many of the latest forecasts of starts, or of ends, were scored, and how many of their intervals held.

    Only where enough of them held is an interval told.
    """

    scored: int = 0
    held: int = 0

    @property
    def tells_intervals(self) -> bool:
        """Whether forecasts are told with an interval; without one they are rough."""
        return self.scored >= LEAST_SCORED and 100 * self.held >= LEAST_HELD_PERCENT * self.scored

    @property
    def why(self) -> str:
        """Whether intervals are told, and why, in words."""
        if self.scored < LEAST_SCORED:
            return f"intervals are shown after {LEAST_SCORED} scored forecasts, now {self.scored}"
        held = f"{self.held} of the last {self.scored} held ({floor(100 * self.held / self.scored)} %)"
        if self.tells_intervals:
            return f"intervals are shown, because {held}"
        return f"intervals are shown from {LEAST_HELD_PERCENT} % that hold; {held}"


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
