"""The remedy against starvation: a job that has waited long compared with what it has had is promoted and goes first.

A job is due when its wait reaches K times the longer of the time that it ran since its last promotion and the time
that its first turn lasts (the first threshold, but not less than two restarts, or it would get nothing done). Promoted
jobs go before all others, in the order of promotion, until each has had one such turn; then it goes on in the second
queue. While one of them waits, no job behind it is started. So its wait ends at the latest when those promoted before
it have had their turns: see docs/policies/tiresias.md for the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.service_levels import REACHED


@dataclass(frozen=True)
class Promotions:
    """By row: service, seconds of running and instant at the last promotion; NaN and 0 where there was none."""

    since_s: Floats
    base_service: Floats
    base_s: Floats

    @staticmethod
    def of(snapshot: Snapshot) -> Promotions:
        """As remembered, for the rows of this snapshot."""
        known = snapshot.memory.get("promoted", {})
        since_s = snapshot.recall("since_s", np.nan, known)
        return Promotions(since_s, snapshot.recall("service", 0.0, known), snapshot.recall("seconds", 0.0, known))

    def updated(self, snapshot: Snapshot, service: Floats, factor: float, turn_s: Floats, turn: Floats) -> Promotions:
        """Promote jobs whose wait is long enough. `turn` is the service of a first turn."""
        due = self._due_s(snapshot, service, factor, turn_s, turn) <= snapshot.now_s * (1 + 1e-12) + 1e-6
        if not due.any():
            return self
        return Promotions(
            np.where(due, snapshot.now_s, self.since_s),
            np.where(due, service, self.base_service),
            np.where(due, snapshot.attained_s, self.base_s),
        )

    def first(self, service: Floats, turn: Floats) -> Bools:
        """Jobs that have been promoted and have not had their turn yet."""
        mine: Bools = ~np.isnan(self.since_s) & (service - self.base_service < turn * REACHED)
        return mine

    def next_s(self, snapshot: Snapshot, service: Floats, factor: float, turn_s: Floats, turn: Floats) -> float:
        """The next instant at which a waiting job is due."""
        return float(np.min(self._due_s(snapshot, service, factor, turn_s, turn), initial=np.inf))

    def turn_ends_s(self, service: Floats, turn: Floats, speed: Ints) -> float:
        """In how many seconds the first of the running promoted jobs will have had its turn."""
        rows = (self.first(service, turn) & (speed > 0)).nonzero()[0]
        left = turn[rows] - (service[rows] - self.base_service[rows])
        return float(np.min(left / speed[rows], initial=np.inf))

    def held_back(self, snapshot: Snapshot, decision: Decision, first: Bools) -> Decision:
        """The decision without starts of jobs behind the first promoted one that waits: they would only delay it.

        A gang that is larger than the available GPUs of every type that it can use holds no job back: it cannot start.
        """
        able = (snapshot.speeds > 0) & (snapshot.capacity[:, None] >= snapshot.gpus)
        blocked = (first & (decision.gpus == 0) & able.any(axis=0)).nonzero()[0]
        if not len(blocked):
            return decision
        head = int(blocked[self.since_s[blocked].argmin()])
        behind = ~first | (self.since_s > self.since_s[head])
        late = behind & (snapshot.held == 0) & (decision.gpus > 0)
        if decision.gpu_types is not None:
            late &= able[decision.gpu_types, head]
        held_back = decision.without(late.nonzero()[0].tolist(), Reason.BEHIND)
        return held_back._replace(ahead=int(snapshot.jobs[head]))

    def memory(self, snapshot: Snapshot) -> dict[str, Any]:
        """What to remember about the rows that were promoted."""
        rows = (~np.isnan(self.since_s)).nonzero()[0]
        columns = {"since_s": self.since_s, "service": self.base_service, "seconds": self.base_s}
        return {"jobs": snapshot.jobs[rows], **{name: column[rows] for name, column in columns.items()}}

    def _due_s(self, snapshot: Snapshot, service: Floats, factor: float, turn_s: Floats, turn: Floats) -> Floats:
        """When each waiting job that is not among the first will have waited long enough."""
        ran_s = snapshot.attained_s - self.base_s
        due_s = snapshot.idle_since_s + factor * np.maximum(ran_s, turn_s)
        return np.where((snapshot.held == 0) & ~self.first(service, turn), due_s, np.inf)
