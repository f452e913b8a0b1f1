"""What an engine is asked to do, in the imperative. `reconcile` makes actions; an engine may refuse one with an event.

GPUs are cluster-wide numbers. The actions of one round belong together: jobs that are suspended, moved or resized all
let go of their GPUs before anyone takes new ones, so two jobs may trade places.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Suspend(NamedTuple):
    """Take all GPUs from a running job; it keeps its progress and will wait."""

    job: int


class Launch(NamedTuple):
    """Start or resume a waiting job on these GPUs. `partner` is the job it shares them with, or -1."""

    job: int
    gpus: tuple[int, ...]
    gpu_type: int
    partner: int = -1


class Resize(NamedTuple):
    """Restart a running job on another number of GPUs."""

    job: int
    gpus: tuple[int, ...]
    gpu_type: int
    partner: int = -1


class Move(NamedTuple):
    """Restart a running job on as many other GPUs."""

    job: int
    gpus: tuple[int, ...]
    gpu_type: int
    partner: int = -1


Start: TypeAlias = Launch | Resize | Move
Action: TypeAlias = Suspend | Launch | Resize | Move
