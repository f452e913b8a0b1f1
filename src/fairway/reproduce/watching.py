"""What several cases need: the progress of jobs over time, and fair sharing of elastic jobs as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairway.core.action import Action
from fairway.core.arrays import Floats
from fairway.core.decision import Decision, Reason
from fairway.core.event import Event
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.policies.slaq import divided


@dataclass(frozen=True)
class EvenShares:
    """As many GPUs for everybody, divided again every `interval_s`: fair sharing of elastic jobs."""

    interval_s: float = 60.0

    name: ClassVar[str] = "even shares"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        """One GPU at a time to whoever has the fewest, when it is due; until then, running jobs stay."""
        next_s = snapshot.memory.get("next_s", -np.inf)
        due = snapshot.now_s >= next_s - 1e-6
        next_s = snapshot.now_s + self.interval_s if due else next_s
        fixed = np.zeros(len(snapshot), dtype=np.bool_) if due else snapshot.running.copy()
        fixed[snapshot.protected_rows] = True
        gpus, _ = divided(snapshot, fixed, lambda row, count: 1.0 - 1.0 / (1.0 + count), floor=True)
        reasons = np.multiply(gpus == 0, int(Reason.NOT_ITS_TURN), dtype=np.int8)
        return Decision(gpus, reasons, wake_s=next_s, memory={"next_s": next_s})


class ProgressCourse:
    """An observer that keeps each job's progress as straight pieces (time, progress, rate)."""

    def __init__(self, jobs: int) -> None:
        self.pieces: list[list[tuple[float, float, float]]] = [[] for _ in range(jobs)]

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Note the pieces that begin now."""
        snapshot = state.snapshot()
        ready_s = np.maximum(snapshot.now_s, np.where(snapshot.running, snapshot.idle_since_s, snapshot.now_s))
        columns = (snapshot.jobs, ready_s, snapshot.progress, snapshot.rate)
        for job, *piece in zip(*(column.tolist() for column in columns), strict=True):
            self.pieces[job].append((piece[0], piece[1], piece[2]))

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Part of the observer's protocol."""

    def at(self, job: int, times_s: Floats) -> Floats:
        """Progress at some times, not beyond the end of the piece that each falls into."""
        time_s, progress, rate = (np.array(column) for column in zip(*self.pieces[job], strict=True))
        index = np.maximum(np.searchsorted(time_s, times_s, side="right") - 1, 0)
        found: Floats = progress[index] + rate[index] * np.maximum(times_s - time_s[index], 0.0)
        return found
