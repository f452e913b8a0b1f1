"""The scheduler's clock."""

from __future__ import annotations

import time

_FOLLOW_S = 1.0
"""By how much the time of day has to be ahead for the clock to follow it."""


class Clock:
    """Seconds since the scheduler's first start.

    When the time of day is set back it goes on at its pace; when that is set forward, or the machine has slept, it
    follows.
    """

    def __init__(self, origin_s: float, at_least_s: float = 0.0) -> None:
        self.origin_s = origin_s
        self._base = (time.monotonic(), max(at_least_s, time.time() - origin_s))

    def now_s(self) -> float:
        """The present instant."""
        ticks_s, (base_ticks_s, base_s) = time.monotonic(), self._base
        now_s = max(base_s + ticks_s - base_ticks_s, base_s)
        today_s = time.time() - self.origin_s
        if today_s > now_s + _FOLLOW_S:
            now_s = today_s
            self._base = (ticks_s, now_s)
        return now_s

    def at_least(self, time_s: float) -> None:
        """Be no earlier than an instant of the past that is known."""
        if self.now_s() < time_s:
            self._base = (time.monotonic(), time_s)

    def date_s(self, time_s: float) -> float:
        """An instant as seconds since 1970."""
        return self.origin_s + time_s
