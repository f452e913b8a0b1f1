"""The forecast that all web pages share: made in the background, for a small share of the time, while somebody looks.

It is made again when something has happened, or when it has grown old.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from fairway.api.events import Stream
from fairway.api.short_list import LEVEL, PackedAnswer

SHARE = 0.1
"""The share of the time of one CPU that forecasts may take."""
WALL_S = 3.0
"""How long one forecast may take."""
LEAST_S, OLDEST_S = 2.0, 300.0
"""The time between two forecasts at least, and at most while somebody looks."""
LOOKED_S = 30.0
"""How long after the last look somebody is taken to look still."""
_PAUSE_S = 0.5


class PageForecast:
    """The latest forecast. `make` makes one, and may take long. Any thread may call this."""

    def __init__(self, make: Callable[[], dict[str, Any]], stream: Stream) -> None:
        self._make, self._stream = make, stream
        self._changed = threading.Condition()
        self._latest: PackedAnswer | None = None
        self._looked_s = self._due_s = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def look(self) -> PackedAnswer | None:
        """The latest forecast; None if the first one is still being made."""
        with self._changed:
            self._looked_s = time.monotonic()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="page forecast", daemon=True)
                self._thread.start()
        return self._latest

    def close(self) -> None:
        """Make no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _work(self) -> None:
        while self._goes_on():
            now_s = time.monotonic()
            if now_s >= self._due_s and self._is_old(now_s):
                self._make_one()
            with self._changed:
                self._changed.wait(_PAUSE_S)

    def _goes_on(self) -> bool:
        with self._changed:
            if self._closed or time.monotonic() > self._looked_s + LOOKED_S:
                self._thread = None
                return False
            return True

    def _is_old(self, now_s: float) -> bool:
        last = self._latest
        return last is None or last.version != (self._stream.last,) or now_s > last.made_s + OLDEST_S

    def _make_one(self) -> None:
        began_s, used_s, event = time.monotonic(), time.thread_time(), self._stream.last
        try:
            told = self._make()
        except Exception as error:
            told = _failed(error)
        told["event"] = event
        text = json.dumps(told, separators=(",", ":")).encode("ascii")
        took_s = time.thread_time() - used_s
        self._latest = PackedAnswer(gzip.compress(text, LEVEL, mtime=0), (event,), began_s, took_s)
        self._due_s = time.monotonic() + max(LEAST_S, took_s / SHARE)


def _failed(error: Exception) -> dict[str, Any]:
    """An answer that says what went wrong. The scheduler goes on, so the page does, too."""
    now_s = time.time()
    problem = f"there is no forecast: {type(error).__name__}: {error}"
    nothing: dict[str, Any] = {"policy": "", "cut": "", "note": "", "jobs": {}, "spans": []}
    return {"made_s": now_s, "until_s": now_s, "problem": problem, **nothing}
