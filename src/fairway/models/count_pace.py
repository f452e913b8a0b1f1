"""How fast a count grows: the pace of a job's last part.

Pauses, as for an evaluation, count as often as they were seen. The first steps, in which programs are compiled and
caches filled, do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

OVER_S, DEAD_S = 120.0, 600.0
"""A job that goes on so long after its count has ended, or stood still, does something else now."""
MOST_SAMPLES = 96
FEW = 3
"""A jump from the first of so few values says nothing."""
BEGINNING, LATEST = 0.2, 0.5
"""The first part of what was seen does not count for the pace. Whether it is faster or slower now than on average is
seen in the last part."""
FASTEST, SLOWEST = 0.05, 0.15
"""The parts that are left out when two paces are compared: a pause is no change of speed."""


class CountPace:
    """How fast a count grows, from values that were seen at run times."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._apart = 0.0

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def span_s(self) -> float:
        """From the first value to the last, in seconds."""
        return self._seen[-1][0] - self._seen[0][0] if self._seen else 0.0

    def quiet_s(self, now_s: float) -> float:
        """How long nothing has grown, in seconds."""
        return now_s - self._seen[-1][0] if self._seen else 0.0

    def is_dead(self, now_s: float, *, over: bool) -> bool:
        """Whether nothing has grown for so long that nothing more is to be expected of this count."""
        usual_s = self.span_s / max(len(self._seen) - 1, 1)
        limit_s = max(OVER_S, 0.1 * self.span_s) if over else max(DEAD_S, 0.5 * self.span_s, 4.0 * usual_s)
        return self.quiet_s(now_s) > limit_s

    @property
    def last(self) -> float:
        """The latest value."""
        return self._seen[-1][1] if self._seen else -math.inf

    def note(self, now_s: float, done: float) -> None:
        """A value, if it is higher than the latest one."""
        if done <= self.last:
            return
        if self._seen and now_s <= self._seen[-1][0]:
            self._seen[-1] = self._seen[-1][0], done
            return
        if len(self._seen) > 1 and done - self._seen[-2][1] < self._apart:
            self._seen.pop()
        self._seen.append((now_s, done))
        if len(self._seen) > MOST_SAMPLES:
            self._apart = 2.0 * (done - self._seen[0][1]) / MOST_SAMPLES
            self._seen = [*self._seen[:-1:2], self._seen[-1]]

    def since(self, date_s: float) -> None:
        """Forget what was seen earlier: something has changed then."""
        while self._seen and self._seen[0][0] < date_s:
            del self._seen[0]

    def per_s(self) -> float:
        """Units per second; NaN if too little was seen."""
        stretches = self._stretches(BEGINNING)
        if not stretches:
            return math.nan
        unit_s = sum(time_s for time_s, _ in stretches) / sum(units for _, units in stretches)
        return 1.0 / (unit_s * _change(_usual(self._stretches(LATEST)), _usual(stretches)))

    def _stretches(self, skipped: float) -> list[tuple[float, float]]:
        """Seconds and units between values, without the first part of the units."""
        seen = self._seen
        # A job that goes on from a checkpoint jumps there.
        while len(seen) > FEW and 2 * seen[1][1] > seen[0][1] + seen[-1][1]:
            seen = seen[1:]
        if len(seen) < 2:
            return []
        begin = seen[0][1] + skipped * (seen[-1][1] - seen[0][1])
        first = next(index for index, (_, done) in enumerate(seen) if done >= begin)
        first = min(first, len(seen) - 2)
        pairs = zip(seen[first:], seen[first + 1 :], strict=False)
        return [(after[0] - before[0], after[1] - before[1]) for before, after in pairs]


def _usual(stretches: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean time per unit, without the fastest and the slowest ones: without pauses. And how far it may be off."""
    order = sorted((time_s / units, units) for time_s, units in stretches)
    all_units = sum(units for _, units in order)
    low, high = FASTEST * all_units, (1.0 - SLOWEST) * all_units
    at = time_s = squares = 0.0
    for unit_s, units in order:
        part = max(min(at + units, high) - max(at, low), 0.0)
        time_s += unit_s * part
        squares += unit_s * unit_s * part
        at += units
    mean = time_s / (high - low)
    return mean, math.sqrt(max(squares / (high - low) - mean * mean, 0.0) / len(order))


def _change(latest: tuple[float, float], before: tuple[float, float]) -> float:
    """How much slower it is now than before. What may be chance does not count."""
    change, error = latest[0] / before[0] - 1.0, latest[1] / before[0]
    return 1.0 + (change * max(1.0 - error / change * (error / change), 0.0) if change else 0.0)
