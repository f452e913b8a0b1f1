"""The policy: least-progress users take part, the matching chooses GPU types, and the jobs first in line start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.allox.floor import GpuTimeline
from fairway.policies.allox.matched import types_of
from fairway.policies.allox.progress import UserProgress
from fairway.policies.registry import check_native, register


@register
@dataclass(frozen=True)
class AlloX:
    """Least mean completion time over GPU types by matching, among the users with the least progress.

    Knows: run times (an oracle), speeds by GPU type, gang sizes, owners. Does not preempt. `alpha` is the part of the
    users that takes part at a time: with 1 only completion times count. `published` plans shares of time as Gavel's
    port of AlloX does.
    """

    alpha: float = 0.3
    score: Literal["instant", "cumulative"] = "instant"
    idle: Literal["wait", "fill"] = "wait"
    patience: float = 10.0
    window: int = 50
    published: bool = False

    name: ClassVar[str] = "allox"
    knows: ClassVar[frozenset[str]] = frozenset({"duration"})
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {"published": (True,)}

    def __post_init__(self) -> None:
        check_native(self)
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha must be above 0 and at most 1, not {self.alpha:g}")
        if not self.patience >= 0:
            raise ValueError(f"patience must be at least 0, not {self.patience:g}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1, not {self.window}")

    def decide(self, snapshot: Snapshot) -> Decision:
        floor, progress = GpuTimeline(snapshot), UserProgress(snapshot, cumulative=self.score == "cumulative")
        if self.alpha < 1:
            self._serve_overdue(snapshot, floor, progress)
        planned = self._serve(floor, progress)
        if self.idle == "fill":
            floor.fill()
        return _decision(snapshot, floor, planned, progress.memory())

    def _serve_overdue(self, snapshot: Snapshot, floor: GpuTimeline, progress: UserProgress) -> None:
        """Jobs that have waited much longer than their work takes, and whose owner has none running, go first: matching
        alone starves long jobs for as long as shorter ones come."""
        work_s = np.where(floor.possible, floor.times_s.min(axis=0, initial=np.inf), 0.0) * floor.gangs
        late = snapshot.now_s - snapshot.idle_since_s > self.patience * work_s
        while floor.free.any():
            rows = floor.waiting[late[floor.waiting] & progress.without_running(floor.waiting)]
            if not len(rows):
                return
            row = int(rows[snapshot.idle_since_s[rows].argmin()])
            if not floor.start_or_reserve(row):
                return
            progress.add(row, floor.kinds[row])

    def _serve(self, floor: GpuTimeline, progress: UserProgress) -> dict[int, int]:
        """Match and start until no more jobs can start. Returns the types on which the others are planned."""
        alpha, planned = self.alpha, dict[int, int]()
        while len(rows := floor.waiting) and floor.has_room(rows):
            chosen = progress.lowest(rows, alpha)
            kinds = types_of(floor, chosen, self.window)
            started = floor.start_in_order(kinds)
            for row in started:
                progress.add(row, floor.kinds[row])
            planned.update(kinds)
            if not started:
                if alpha >= 1:
                    break
                alpha = min(2 * alpha, 1.0)
        return planned


def _decision(snapshot: Snapshot, floor: GpuTimeline, planned: dict[int, int], memory: dict[str, Any]) -> Decision:
    gpus = floor.gpus
    reasons = np.zeros(len(gpus), dtype=np.int8)
    waits = gpus == 0
    reasons[waits] = int(Reason.NOT_ITS_TURN if floor.free.any() else Reason.NO_FREE_GPUS)
    names = [kind.name for kind in snapshot.cluster.types]
    texts = {}
    for row, kind in planned.items():
        if waits[row]:
            texts[row] = f"planned on {names[kind]}, where it ends sooner after others than elsewhere now"
    unfit = waits & ~floor.possible
    reasons[unfit] = int(Reason.TYPE_FULL)
    return Decision(gpus, reasons, gpu_types=floor.kinds, memory=memory, texts=texts, wake_s=math.inf)
