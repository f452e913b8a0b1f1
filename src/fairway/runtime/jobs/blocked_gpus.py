"""GPUs on which no job is started now, because foreign processes compute there or the GPUs are out of order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class BlockedGpus:
    """GPUs by number, with the reason. The scheduler's thread changes them; any thread may read."""

    def __init__(self) -> None:
        self.why: Mapping[int, str] = {}

    def set(self, why: Mapping[int, str]) -> None:
        """Block exactly these GPUs."""
        self.why = dict(why)

    def among(self, gpus: Iterable[int]) -> bool:
        """Whether any of these GPUs is blocked."""
        return bool(self.why) and any(gpu in self.why for gpu in gpus)
