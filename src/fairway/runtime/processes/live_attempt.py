"""A live attempt as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fairway.core.batch import Split
from fairway.runtime.processes.site import Handle

AttemptStatus = Literal["running", "paused", "stopping"]


@dataclass
class Live:
    """A live attempt. `adopted`: an earlier scheduler started it and may have left it suspended.

    `paused` numbers the suspensions of all attempts: its latest one. `held_bytes` is what it had on each GPU then; 0 if
    nobody knows. `ready_bytes` of host memory are kept for it. `leaving`: its memory was asked to leave the GPU, for at
    most `allowed_bytes` of host memory; `emptied`: with all that its processes cannot move themselves. `stuck`: it
    could not. `in_plan` says how many suspended jobs of its GPU would go on before it; None if many would.
    """

    job: int
    gpus: tuple[int, ...]
    handle: Handle
    status: AttemptStatus = "running"
    adopted: bool = False
    throttle: float = 1.0
    batch: Split | None = None
    paused: int = 0
    held_bytes: int = 0
    ready_bytes: int = 0
    leaving: bool = False
    allowed_bytes: int = 0
    emptied: bool = False
    stuck: bool = False
    in_plan: int | None = None


class LiveAttempts(dict[int, Live]):
    """Live attempts by job, and by the GPUs that they are on. Only `move` changes the GPUs of one."""

    def __init__(self) -> None:
        super().__init__()
        self._on: dict[int, dict[int, Live]] = {}

    def put(self, live: Live) -> None:
        """Add an attempt."""
        self[live.job] = live
        self.move(live, live.gpus)

    def move(self, live: Live, gpus: tuple[int, ...]) -> None:
        """Put an attempt on these GPUs."""
        live.gpus = gpus
        for gpu in gpus:
            self._on.setdefault(gpu, {})[live.job] = live

    def on(self, gpus: Iterable[int]) -> list[Live]:
        """The attempts on any of these GPUs, each once."""
        found: dict[int, Live] = {}
        for gpu in gpus:
            there = self._on.get(gpu, {})
            # Those that have ended or have moved are forgotten when they are come across.
            for job in [job for job, one in there.items() if self.get(job) is not one or gpu not in one.gpus]:
                del there[job]
            found |= there
        return list(found.values())
