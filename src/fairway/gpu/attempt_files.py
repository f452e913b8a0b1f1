"""What the keeper of a job's attempt asks by files, answered between two iterations of the job in an executor.

The files are those of `runtime/processes/keeper.py`: `paused` and `throttle` from the keeper, `in_plan` from the
scheduler, `yields`, `rests` and `eased-0` from us. `train/yielding.py` and `train/pace.py` do the same in a process
that has nothing else to do.
"""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

_SAY_EVERY_S = 1.0
_LOOK_EVERY_S = 0.2


class _Word:
    """A small file that somebody else replaces. It is read only if it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (0, 0)
        self._text = ""

    def read(self) -> str:
        """What it says; "" if it is not there."""
        try:
            about = self._path.stat()
            # A file is replaced as a whole, and the clock of file systems may be slow.
            version = (about.st_ino, about.st_mtime_ns)
            if version != self._seen:
                self._text = self._path.read_text(encoding="ascii")
                self._seen = version
        except (OSError, ValueError):
            self._text, self._seen = "", (0, 0)
        return self._text


class AttemptFiles:
    """The files of an attempt; None: nobody asks."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._whole = None if folder is None else folder.parent if folder.name == "shared" else folder
        self._paused = None if self._whole is None else _Word(self._whole / "paused")
        self._in_plan = None if self._whole is None else _Word(self._whole / "in_plan")
        self._part = 1.0
        self._looked_s = self._said_s = -_SAY_EVERY_S
        self._touch("yields")

    def is_paused(self) -> bool:
        """Whether the job should stand still. This is asked before every iteration."""
        return self._paused is not None and self._paused.read() == "yes"

    def in_plan(self) -> float:
        """How many other jobs that stand still go on before this one, as the policy plans; infinity if many do."""
        text = "" if self._in_plan is None else self._in_plan.read()
        return int(text) if text.isdecimal() else math.inf

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
