"""What the keeper of a job's attempt asks by files, answered between two iterations of the job in an executor.

The files are those of `runtime/processes/keeper.py`: `paused` and `throttle` from the keeper, `yields`, `rests` and
`eased-0` from us. `train/yielding.py` and `train/pace.py` do the same in a process that has nothing else to do.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

_SAY_EVERY_S = 1.0
_LOOK_EVERY_S = 0.2


class AttemptFiles:
    """The files of an attempt; None: nobody asks."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._whole = None if folder is None else folder.parent if folder.name == "shared" else folder
        self._seen = (0, 0)
        self._paused = False
        self._part = 1.0
        self._looked_s = self._said_s = -_SAY_EVERY_S
        self._touch("yields")

    def is_paused(self) -> bool:
        """Whether the job should stand still. This is asked before every iteration."""
        if self._whole is None:
            return False
        path = self._whole / "paused"
        try:
            about = path.stat()
            # A file is replaced as a whole, and the clock of file systems may be slow.
            version = (about.st_ino, about.st_mtime_ns)
            if version != self._seen:
                self._paused = path.read_text(encoding="ascii") == "yes"
                self._seen = version
        except (OSError, ValueError):
            self._paused, self._seen = False, (0, 0)
        return self._paused

    def rest(self) -> None:
        """The job stands still between two iterations."""
        self._touch("rests")

    def go_on(self) -> None:
        """The job computes again."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / "rests").unlink(missing_ok=True)

    def pause_after_s(self, took_s: float) -> float:
        """How long a job has to rest after an iteration, so that it computes only its part of the time."""
        now_s = time.monotonic()
        if self._whole is not None and now_s >= self._looked_s + _LOOK_EVERY_S:
            self._looked_s = now_s
            try:
                part = float((self._whole / "throttle").read_text(encoding="ascii"))
            except (OSError, ValueError):
                part = 1.0
            self._part = part if 0.0 < part < 1.0 else 1.0
        return took_s * (1.0 - self._part) / self._part

    def say_eased(self) -> None:
        """Say that the job keeps to its part of the time, so that nobody stops its process for that."""
        now_s = time.monotonic()
        if self._part < 1.0 and now_s >= self._said_s + _SAY_EVERY_S:
            self._said_s = now_s
            self._touch("eased-0")

    def _touch(self, name: str) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / name).touch()
