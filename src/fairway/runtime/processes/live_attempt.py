"""A live attempt as the scheduler sees it."""

from __future__ import annotations

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
