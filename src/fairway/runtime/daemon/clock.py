"""The scheduler's clock. Setting the time of day does not move it.

The clock shows seconds since the scheduler's first start. It goes by the time since the machine was booted. That counts
sleep, and nobody can set it. The journal keeps the offset between the two, so a scheduler that starts again in the same
boot goes on exactly. In another boot only the time of day says how long the machine was off. It is believed within
limits.

Records keep dates by this clock: the date of its instant 0 (`origin_s`) plus the instant. The difference of two of them
is a duration, whatever was done to the time of day in between. People see the time of day, which is `shift_s` later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from fairway.runtime.processes import keeper
from fairway.runtime.processes.site import Moment

FACT = "clock"
"""The fact of the journal with the boot of the machine, the offset of the clock in it, and `shift_s`."""
JUMP_S = 2.0
"""The time of day was set if it is off by more than this from where it should be."""
MOST_OFF_S = 90 * 86400.0
"""The longest time for which a machine is believed to have been off. What is beyond it is taken for a wrong date."""


class TimeSource(Protocol):
    """Where a clock gets its time. Tests use a simulated source."""

    @property
    def boot(self) -> str:
        """The id of the machine's present boot; "" if it has none."""
        ...

    def uptime(self) -> float:
        """Seconds since the machine was booted, with the time for which it slept."""
        ...

    def time(self) -> float:
        """The time of day, in seconds since 1970."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...


class SystemTime:
    """The time of this machine."""

    def __init__(self) -> None:
        self.boot = keeper.boot_id()

    def uptime(self) -> float:
        """Seconds since the machine was booted, with the time for which it slept."""
        return keeper.uptime_s()

    def time(self) -> float:
        """The time of day, in seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        time.sleep(seconds)


SYSTEM_TIME = SystemTime()


class Jump(NamedTuple):
    """At an instant of the clock it was noticed that the time of day had been set ahead by this, or back (negative)."""

    time_s: float
    by_s: float


class Clock:
    """Seconds since the scheduler's first start, which was at the date `origin_s`.

    `facts` are those of the journal. `shift_s` is how much the time of day is ahead of the clock's own dates. `jump` is
    the last time that the time of day was set.
    """

    def __init__(self, facts: Mapping[str, Any], source: TimeSource = SYSTEM_TIME) -> None:
        self.source = source
        self.jump: Jump | None = None
        up_s, today_s = source.uptime(), source.time()
        self.origin_s = float(facts.get("origin_s", today_s))
        last_s, last = float(facts.get("last_s", 0.0)), facts.get(FACT, {})
        self.shift_s = float(last.get("shift_s", 0.0))
        self._before = str(last.get("boot", "")), float(last.get("offset_s", 0.0))
        if source.boot and source.boot == self._before[0]:
            now_s = max(up_s + self._before[1], last_s)
        else:
            now_s = min(max(today_s - self.shift_s - self.origin_s, last_s), last_s + MOST_OFF_S)
        self._offset_s = now_s - up_s
        self.look()

    def now_s(self) -> float:
        """The present instant."""
        return self.source.uptime() + self._offset_s

    def at_least(self, time_s: float) -> None:
        """Never again be earlier than this instant, which is known to have passed."""
        ahead_s = max(time_s - self.now_s(), 0.0)
        self._offset_s += ahead_s
        self.shift_s -= ahead_s

    def look(self) -> bool:
        """Look at the time of day. Returns whether it was set since the last look."""
        now_s = self.now_s()
        by_s = self.source.time() - self.today_s(now_s)
        if abs(by_s) <= JUMP_S or self.now_s() > now_s + JUMP_S / 2:
            # In the latter case we stood still between the two looks, and know nothing.
            return False
        self.shift_s += by_s
        self.jump = Jump(now_s, by_s)
        return True

    def remark(self) -> str:
        """What somebody has done to the time of day, in words; "" if that is nothing."""
        if self.jump is None:
            return ""
        noticed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.today_s(self.jump.time_s)))
        return f"{told(self.jump)} (noticed at {noticed})"

    def date_s(self, time_s: float) -> float:
        """The date of an instant by this clock, as records keep it."""
        return self.origin_s + time_s

    def today_s(self, time_s: float) -> float:
        """The date of an instant by the time of day as it is set now."""
        return self.origin_s + self.shift_s + time_s

    def instant_s(self, moment: Moment) -> float:
        """The instant of a moment that somebody else has written down, as well as that can be known."""
        for boot, offset_s in ((self.source.boot, self._offset_s), self._before):
            if boot and boot == moment.boot:
                return moment.uptime_s + offset_s
        return moment.date_s - self.shift_s - self.origin_s

    def fact(self) -> dict[str, Any]:
        """What the journal keeps under `FACT`."""
        return {"boot": self.source.boot, "offset_s": self._offset_s, "shift_s": self.shift_s}


def told(jump: Jump) -> str:
    """What happened to the time of day, in words."""
    size_s, way = abs(jump.by_s), "ahead" if jump.by_s > 0 else "back"
    for unit, seconds in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if size_s >= 2 * seconds:
            return f"the time of day was set {way} by {size_s / seconds:,.1f} {unit}; run times do not depend on it"
    return f"the time of day was set {way} by {size_s:,.1f} seconds; run times do not depend on it"
