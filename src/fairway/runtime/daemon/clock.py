"""The scheduler's clock."""

from __future__ import annotations

import time
from typing import Protocol

_FOLLOW_S = 1.0
"""The clock follows the time of day if that is ahead by more than this."""


class TimeSource(Protocol):
    """Where a clock gets its time. Tests use a simulated source."""

    def monotonic(self) -> float:
        """Seconds that only go forward, whatever the time of day does."""
        ...

    def time(self) -> float:
        """The time of day, in seconds since 1970."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...


class SystemTime:
    """The time of this machine."""

    def monotonic(self) -> float:
        """Seconds that only go forward, whatever the time of day does."""
        return time.monotonic()

    def time(self) -> float:
        """The time of day, in seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        time.sleep(seconds)


SYSTEM_TIME = SystemTime()


class Clock:
    """Seconds since the scheduler's first start, which was at the date `origin_s`.

    If the time of day is set back, the clock goes on at its pace. If the time of day is set forward, or the machine has
    slept, the clock follows.
    """

    def __init__(
        self, origin_s: float | None = None, at_least_s: float = 0.0, source: TimeSource = SYSTEM_TIME
    ) -> None:
        self.source = source
        self.origin_s = source.time() if origin_s is None else origin_s
        self._base = (source.monotonic(), max(at_least_s, source.time() - self.origin_s))

    def now_s(self) -> float:
        """The present instant."""
        ticks_s, (base_ticks_s, base_s) = self.source.monotonic(), self._base
        now_s = max(base_s + ticks_s - base_ticks_s, base_s)
        today_s = self.source.time() - self.origin_s
        if today_s > now_s + _FOLLOW_S:
            now_s = today_s
            self._base = (ticks_s, now_s)
        return now_s

    def at_least(self, time_s: float) -> None:
        """Never again be earlier than this instant, which is known to have passed."""
        if self.now_s() < time_s:
            self._base = (self.source.monotonic(), time_s)

    def date_s(self, time_s: float) -> float:
        """An instant as seconds since 1970."""
        return self.origin_s + time_s
