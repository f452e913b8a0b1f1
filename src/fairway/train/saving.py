"""When to save: every few steps or seconds, and never so often that saving takes much of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fairway.train.ranks import GO_ON, SAVE, Ranks

Save = Callable[[Path], object]
"""Writes the state of the training to a path: a file, or a directory that it makes."""
Load = Callable[[Path], object]
"""Reads what was written."""

SHARE = 20.0
"""Between two saves by the clock lies at least this many times the duration of the last one."""


class Saving:
    """How a loop saves. Rank 0 watches the clock for all; steps are the same for all anyway."""

    def __init__(
        self,
        save: Save | None,
        ranks: Ranks,
        *,
        every: int | None = None,
        every_s: float = 300.0,
        everyone: bool = False,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"there is nothing to save every {every} steps")
        if not every_s > 0:
            raise ValueError(f"there is nothing to save every {every_s} s")
        self.save = save
        self.everyone = everyone
        self._ranks = ranks
        self._every = every
        self._every_s = every_s
        self._next_s = time.monotonic() + every_s

    def wish(self) -> int:
        """What this rank would like to do after a step, by the clock."""
        # Ranks that are not connected cannot save together at an instant that only one of them knows.
        alone = self._ranks.rank == 0 and (self._ranks.connected or not self.everyone)
        return SAVE if alone and time.monotonic() >= self._next_s else GO_ON

    def due(self, step: int) -> bool:
        """Whether the number of the step says that it is time."""
        return self._every is not None and step % self._every == 0

    def note(self, took_s: float) -> None:
        """Note that a checkpoint was saved."""
        self._next_s = time.monotonic() + max(self._every_s, SHARE * took_s)
