"""How busy the GPUs of this machine are, and how full: for people who look. No decision depends on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from fairway.runtime.processes.machine import Nvml
from fairway.runtime.processes.site import GpuLoad

EVERY_S = 2.0
"""The driver is asked at most this often."""
OLD_S = 10.0
"""Answers that are older are not told: the driver does not answer any more."""


class GpuLoads:
    """What the driver last said. It is asked in a thread of its own, one at a time, since it may never answer."""

    def __init__(self, nvml: Nvml, uuids: Sequence[str]) -> None:
        self._nvml = nvml
        self._uuids = uuids
        self._asking = threading.Lock()
        self._asked_s = self._told_s = float("-inf")
        self._told: Mapping[int, GpuLoad] = {}

    def look(self) -> Mapping[int, GpuLoad]:
        """What was last said of each GPU, by number; nothing if that is old. Asks again for the next time.

        Any thread may call this. It never waits.
        """
        now_s = time.monotonic()
        if now_s >= self._asked_s + EVERY_S and self._asking.acquire(blocking=False):
            self._asked_s = now_s
            try:
                threading.Thread(target=self._ask, name="gpu-loads", daemon=True).start()
            except RuntimeError:
                # There can be no more threads now.
                self._asking.release()
        return self._told if now_s <= self._told_s + OLD_S else {}

    def _ask(self) -> None:
        try:
            self._told = {gpu: self._nvml.load(uuid) for gpu, uuid in enumerate(self._uuids)}
            self._told_s = time.monotonic()
        finally:
            self._asking.release()
