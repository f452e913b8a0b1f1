"""Waiting for what other threads and processes do, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 120.0
"""How long tests wait for anything. It ends a test that waits for what never happens; it says nothing about speed."""
_QUIET_S = 0.3

T = TypeVar("T")


def wait_for(true: Callable[[], T], what: str = "", seconds: float = WAIT_S) -> T:
    """Wait until something is true, and return it."""
    end_s = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end_s, f"waited {seconds:g} s in vain for {what or true}"
        time.sleep(0.01)
    return value


def at_rest(value: Callable[[], T]) -> T:
    """Wait until a value does not change for a moment, and return it."""
    before = value()

    def rests() -> bool:
        nonlocal before
        time.sleep(_QUIET_S)
        before, last = value(), before
        return before == last

    wait_for(rests, "something to stand still")
    return before
