"""The shortest-first family: by run time, by gang size, by what is left, by what is left times GPUs.

`sjf`, `srtf` and `srsf` are oracles: they read true run times, which no live scheduler knows. They bound the mean
completion time that a policy without that knowledge can reach. `smallest` needs no oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairway.core.admission import admit
from fairway.core.decision import Decision
from fairway.core.order import Order
from fairway.core.snapshot import Snapshot
from fairway.policies.registry import register

MOMENT_S = 1e-6
"""Remaining time is taken as of a moment ago, so that jobs which have just drawn level do not swap."""


@register
@dataclass(frozen=True)
class Sjf:
    """Shortest job first, by total run time; running jobs are left alone.

    Knows: true run times (oracle), gang sizes. Never preempts.
    """

    name: ClassVar[str] = "sjf"
    knows: ClassVar[frozenset[str]] = frozenset({"duration"})
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    serves_in: ClassVar[Order] = Order("shortest total run time first", lambda snapshot: snapshot.oracle.total_s)

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, lambda: snapshot.oracle.total_s, preempt=False)


@register
@dataclass(frozen=True)
class Smallest:
    """Fewest GPUs first (Tiresias' simulator calls it `sjf`).

    Knows: gang sizes. Preempts.
    """

    name: ClassVar[str] = "smallest"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    serves_in: ClassVar[Order] = Order("fewest GPUs first", lambda snapshot: snapshot.gpus, preempts=True)

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, snapshot.gpus, preempt=True)


@register
@dataclass(frozen=True)
class Srtf:
    """Shortest remaining time first.

    Knows: true remaining run times (oracle), gang sizes. Preempts.
    """

    name: ClassVar[str] = "srtf"
    knows: ClassVar[frozenset[str]] = frozenset({"duration"})
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    serves_in: ClassVar[Order] = Order(
        "shortest remaining time first", lambda snapshot: snapshot.oracle.remaining_s, preempts=True
    )

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, lambda: snapshot.oracle.before(MOMENT_S), preempt=True)


@register
@dataclass(frozen=True)
class Srsf:
    """Shortest remaining service first: least remaining time × GPUs.

    Knows: true remaining run times (oracle), gang sizes. Preempts.
    """

    name: ClassVar[str] = "srsf"
    knows: ClassVar[frozenset[str]] = frozenset({"duration"})
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    serves_in: ClassVar[Order] = Order(
        "least remaining time × GPUs first",
        lambda snapshot: snapshot.oracle.remaining_s * snapshot.gpus,
        preempts=True,
    )

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, lambda: snapshot.oracle.before(MOMENT_S, snapshot.gpus), preempt=True)
