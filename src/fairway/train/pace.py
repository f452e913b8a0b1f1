"""A job that shares its GPU may be throttled to a part of the time; it then rests between its steps.

Otherwise the scheduler would stop its processes for a part of every period, at any point. Between two steps is better:
no lock is held, and no other rank waits. A file that is renewed all the time says that this is done here.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

LONGEST_STEP_S = 1.0
"""Steps longer than this are left to the scheduler, which can stop them half way."""
RETRY_S = 60.0
"""After a step that was too long, this much time passes until steps are timed again."""
_LOOK_EVERY_S = 0.2
_SAY_EVERY_S = 1.0
_SLICE_S = 0.05
"""The longest time until a request to stop, or another throttle, ends a rest."""


class Pace:
    """How much of the time one rank computes. The ranks of the node share `folder`; None: no throttle. `rank` is the
    number of this one among them."""

    def __init__(self, folder: Path | None, rank: int, hurried: Callable[[], bool]) -> None:
        whole = None if folder is None else folder.parent if folder.name == "shared" else folder
        self._throttle = None if whole is None else whole / "throttle"
        self._word = None if folder is None else folder / f"eased-{rank}"
        self._hurried = hurried
        self._since_s = self._looked_s = time.monotonic()
        self._said_s = -_SAY_EVERY_S
        self._retry_s = 0.0
        self._part = 1.0
        self._keeps = False

    def rest(self) -> None:
        """After a step: rest for as long as the throttle asks for, but not if the job has to stop."""
        if self._told() < 1.0:
            finish_gpu_work()
            took_s = time.monotonic() - self._since_s
            if not self._keeps:
                self._take_over()
            elif took_s <= LONGEST_STEP_S:
                self._rest(took_s * (1.0 - self._part) / self._part)
            else:
                self._give_up()
        else:
            self._keeps = False
        self._since_s = time.monotonic()

    def _take_over(self) -> None:
        """From the next step on this rank keeps the throttle; that step is the first whose length is known."""
        if time.monotonic() >= self._retry_s:
            self._keeps = True
            self._say()

    def _give_up(self) -> None:
        self._keeps = False
        self._said_s, self._retry_s = -_SAY_EVERY_S, time.monotonic() + RETRY_S
        if self._word is not None:
            with contextlib.suppress(OSError):
                self._word.unlink(missing_ok=True)

    def _rest(self, seconds: float) -> None:
        part, until_s = self._part, time.monotonic() + seconds
        while not self._hurried() and self._told() == part:
            self._say()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _SLICE_S))

    def _told(self) -> float:
        """The throttle, read a few times per second."""
        now_s = time.monotonic()
        if self._throttle is not None and now_s >= self._looked_s + _LOOK_EVERY_S:
            self._looked_s = now_s
            try:
                part = float(self._throttle.read_text(encoding="ascii"))
            except (OSError, ValueError):
                part = 1.0
            self._part = part if 0.0 < part < 1.0 else 1.0
        return self._part

    def _say(self) -> None:
        """Say in a file that this rank keeps the throttle; if there is no room for it, the scheduler throttles."""
        now_s = time.monotonic()
        if self._word is not None and now_s >= self._said_s + _SAY_EVERY_S:
            self._said_s = now_s
            with contextlib.suppress(OSError):
                self._word.touch()


def finish_gpu_work() -> None:
    """Wait until the GPU has done its work: otherwise it would go on during the rest, and be idle after it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()
