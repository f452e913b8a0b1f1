"""Instants at which something is to be done for a job."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class Timers:
    """The instants ahead. They are set and handled in the scheduler's thread."""

    def __init__(self) -> None:
        self._instants: list[float] = []
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._calls = 0

    @property
    def next_s(self) -> float:
        """The next instant, or infinity."""
        return self._instants[0] if self._instants else math.inf

    def set(self, time_s: float) -> None:
        """Ask for a round at an instant in the future."""
        heapq.heappush(self._instants, time_s)

    def call_at(self, time_s: float, act: Callable[[float], None]) -> None:
        """Call a function at an instant, before the round of that instant."""
        self._calls += 1
        heapq.heappush(self._due, (time_s, self._calls, act))
        self.set(time_s)

    def ring(self, now_s: float) -> None:
        """Call the functions that are due by now."""
        while self._instants and self._instants[0] <= now_s:
            heapq.heappop(self._instants)
        while self._due and self._due[0][0] <= now_s:
            heapq.heappop(self._due)[2](now_s)
