"""First in, first out, with and without skipping: the baselines of every cluster.

`fifo` blocks at the head of the queue like the simplest batch queue. `backfill` also starts later jobs that fit into
what is left over, without a reservation for the head (Tiresias' simulator calls it `fjf`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairway.core.admission import admit
from fairway.core.decision import Decision
from fairway.core.order import Order, submission
from fairway.core.snapshot import Snapshot
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class Fifo:
    """Strictly in the order of submission; a gang that does not fit blocks all jobs behind it.

    Knows: submit times and gang sizes. Never preempts.
    """

    name: ClassVar[str] = "fifo"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    serves_in: ClassVar[Order] = Order("strictly in the order of submission", submission, strict=True)

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, preempt=False, strict=True)


@register
@dataclass(frozen=True)
class Backfill:
    """In the order of submission, skipping gangs that do not fit.

    Knows: submit times and gang sizes. Never preempts; a large gang may wait long.
    """

    name: ClassVar[str] = "backfill"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    serves_in: ClassVar[Order] = Order("in the order of submission", submission)

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, preempt=False)
