"""The policy: least-progress users take part, the matching chooses GPU types, and who is first in line starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.allox.floor import Floor
from fairway.policies.allox.matched import types_of
from fairway.policies.allox.progress import Progress
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class AlloX:
    """Least mean completion time over GPU types by matching, among the users with the least progress.

    Knows: run times, speeds by GPU type, gang sizes, owners. Does not preempt. `alpha` is the part of the users that
    takes part at a time: 1 looks at completion times alone.
    """

    alpha: float = 0.3
    score: Literal["instant", "cumulative"] = "instant"
    idle: Literal["wait", "fill"] = "wait"
    window: int = 100

    name: ClassVar[str] = "allox"
    knows: ClassVar[frozenset[str]] = frozenset({"duration"})
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha must be above 0 and at most 1, not {self.alpha:g}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1, not {self.window}")

    def decide(self, snapshot: Snapshot) -> Decision:
        floor, progress = Floor(snapshot), Progress(snapshot, cumulative=self.score == "cumulative")
        if self.alpha < 1:
            self._serve_overdue(snapshot, floor, progress)
        planned = self._serve(floor, progress)
        if self.idle == "fill":
            floor.fill()
        return _decision(snapshot, floor, planned, progress.memory())

    def _serve_overdue(self, snapshot: Snapshot, floor: Floor, progress: Progress) -> None:
        """Who has nothing running and has waited for its run time over alpha goes first: matching alone starves long
        jobs as long as shorter ones come."""
        limit_s = floor.times_s.min(axis=0, initial=np.inf) / self.alpha
        late = snapshot.now_s - snapshot.idle_since_s > limit_s
        while floor.free.any():
            rows = [row for row in floor.waiting.tolist() if late[row] and not progress.runs(row)]
            if not rows:
                return
            row = min(rows, key=lambda row: (snapshot.idle_since_s[row], row))
            if not floor.start_or_reserve(row):
                return
            progress.add(row, floor.kinds[row])

    def _serve(self, floor: Floor, progress: Progress) -> dict[int, int]:
        """Match and start until no more can be started; gives the types on which the others are planned."""
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


def _decision(snapshot: Snapshot, floor: Floor, planned: dict[int, int], memory: dict[str, Any]) -> Decision:
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
