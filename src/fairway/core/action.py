"""What an engine is asked to do, in the imperative. `reconcile` makes actions; an engine may refuse one with an event.

GPUs are cluster-wide numbers. The actions of one round belong together: jobs that are suspended, moved or resized all
release their GPUs before any job takes new ones, so two jobs may trade places.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from fairway.core.batch import Split
from fairway.core.queues import Queues


class Suspend(NamedTuple):
    """Take all GPUs from a running job; it keeps its progress and will wait.

    `warm`: its state stays in the memory of its hosts, so that it resumes on the same GPUs within a second.
    """

    job: int
    warm: bool = False


class Launch(NamedTuple):
    """Start or resume a waiting job on these GPUs.

    `host` is the job whose GPUs it shares as a guest, or -1. A guest may be throttled: it then computes only that part
    of the time. `batch` is how it works through its batch; None: with the batch size that its owner chose.
    """

    job: int
    gpus: tuple[int, ...]
    gpu_type: int
    host: int = -1
    throttle: float = 1.0
    batch: Split | None = None


class Resize(NamedTuple):
    """Restart a running job on another number of GPUs. `warm`: its state goes over without a checkpoint."""

    job: int
    gpus: tuple[int, ...]
    gpu_type: int
    host: int = -1
    throttle: float = 1.0
    warm: bool = False
    batch: Split | None = None


class Move(NamedTuple):
    """Restart a running job on as many other GPUs. `warm`: its state goes over without a checkpoint."""

    job: int
    gpus: tuple[int, ...]
    gpu_type: int
    host: int = -1
    throttle: float = 1.0
    warm: bool = False
    batch: Split | None = None


class Throttle(NamedTuple):
    """Let a running job compute only this part of the time beside others from now on; it is not interrupted.

    `host` is the job whose guest it is at that moment, or -1.
    """

    job: int
    throttle: float
    host: int = -1


class SetBatch(NamedTuple):
    """Let a running job train with another batch from its next step on; it is not interrupted."""

    job: int
    batch: Split


class SetQueues(NamedTuple):
    """Let GPUs run these tasks in order from now on, in place of those that they have not begun."""

    queues: Queues


Start: TypeAlias = Launch | Resize | Move
Adjustment: TypeAlias = Throttle | SetBatch | SetQueues
"""Actions that give and take no GPUs by themselves."""
Action: TypeAlias = Suspend | Launch | Resize | Move | Adjustment
