"""How long something takes, in a unit that holds on slow and on busy machines.

A limit in seconds fails on a machine that is slower than the one it was written on. Here the unit is the CPU time of a
fixed loop of plain Python, about five milliseconds on a core of 2024, and timed between the calls of what is looked at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def loops(work: Callable[[], object], tries: int = 5) -> float:
    """The CPU time of `work` in loops: the quickest of several calls, over the quickest of as many loops."""
    work_s, loop_s = math.inf, math.inf
    for _ in range(tries):
        loop_s = min(loop_s, _cpu_s(_loop))
        work_s = min(work_s, _cpu_s(work))
    return work_s / min(loop_s, _cpu_s(_loop))


def _cpu_s(work: Callable[[], object]) -> float:
    before_s = time.process_time()
    work()
    return time.process_time() - before_s


def _loop() -> int:
    total = 0
    for number in range(100_000):
        total = (total + number) % 1_000_003
    return total
