"""A job that is suspended in place ends its present step first: between two steps nothing on the GPU is half done.

The scheduler stops the processes of a suspended job at any point. It gives a job of one process, which says that it
looks here after every step, a moment to get there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from fairway.train.pace import finish_gpu_work

_LOOK_EVERY_S = 0.002
"""How soon a job that may go on does so."""


class Yielding:
    """The request to stand still, in the directory of an attempt; None: there is no scheduler.

    The file `yields` says that this is looked at, `rests` that the job stands still between two steps.
    """

    def __init__(self, folder: Path | None, ranks: int, hurried: Callable[[], bool]) -> None:
        whole = None if folder is None else folder.parent if folder.name == "shared" else folder
        self._paused = None if whole is None or ranks > 1 else whole / "paused"
        self._rests = None if folder is None else folder / "rests"
        self._hurried = hurried
        self._seen_ns = 0
        if self._paused is not None and folder is not None:
            with contextlib.suppress(OSError):
                (folder / "yields").touch()

    def rest(self) -> None:
        """After a step: stand still for as long as the scheduler wants it, but not if the job has to stop."""
        if self._paused is None or self._rests is None or not self._is_new() or not self._is_wanted():
            return
        finish_gpu_work()
        with contextlib.suppress(OSError):
            self._rests.touch()
        while self._is_wanted() and not self._hurried():
            time.sleep(_LOOK_EVERY_S)
        with contextlib.suppress(OSError):
            self._rests.unlink(missing_ok=True)

    def _is_new(self) -> bool:
        """Whether the request was written since it was last looked at. This is asked after every step."""
        try:
            written_ns = 0 if self._paused is None else self._paused.stat().st_mtime_ns
        except OSError:
            return False
        seen, self._seen_ns = self._seen_ns, written_ns
        return written_ns != seen

    def _is_wanted(self) -> bool:
        try:
            return self._paused is not None and self._paused.read_text(encoding="ascii") == "yes"
        except (OSError, ValueError):
            return False
