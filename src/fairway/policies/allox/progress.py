"""How far users have come: AlloX's progress scores, and which users they serve first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.snapshot import Snapshot


class UserProgress:
    """Each user's score: what its running jobs hold, as shares of the GPU types that suit them best, each times its
    speed over that on its best type. A job on a slow type counts less, so its owner is served sooner.

    `cumulative`: the integral of that over time instead, which the policy remembers.
    """

    def __init__(self, snapshot: Snapshot, *, cumulative: bool) -> None:
        self.user = snapshot.user
        self.now_s = snapshot.now_s
        self.since_s = snapshot.idle_since_s
        self.cumulative = cumulative
        speeds = snapshot.speeds
        best = speeds.argmax(axis=0)
        fastest = np.maximum(speeds.max(axis=0, initial=0.0), 1e-300)
        shares = snapshot.gpus / np.maximum(snapshot.cluster.gpus_by_type[best], 1)
        self.worth: Floats = speeds / fastest * shares
        users = len(snapshot.names.users)
        self.now = np.zeros(users)
        self.jobs_running = np.zeros(users, dtype=np.int64)
        for row in snapshot.running_rows.tolist():
            self.add(row, int(snapshot.gpu_type[row]))
        self.past = _past(snapshot, users) if cumulative else np.zeros(users)

    def add(self, row: int, kind: int) -> None:
        """Count a job that runs."""
        self.now[self.user[row]] += self.worth[kind, row]
        self.jobs_running[self.user[row]] += 1

    def without_running(self, rows: Ints) -> Bools:
        """Which of the rows belong to users without a running job."""
        return np.asarray(self.jobs_running[self.user[rows]] == 0)

    def lowest(self, waiting: Ints, alpha: float) -> Ints:
        """The rows of the users with the lowest scores, a part `alpha` of those that wait; ties by the longest wait."""
        since_s = np.full(len(self.now), np.inf)
        np.minimum.at(since_s, self.user[waiting], self.since_s[waiting])
        users = np.unique(self.user[waiting])
        count = math.ceil(alpha * len(users) - 1e-9)
        if count >= len(users):
            return waiting
        # Sums of the same shares in another order tie.
        score = portable.rounded(self.past if self.cumulative else self.now)
        order = np.lexsort((users, since_s[users], score[users]))
        chosen = np.zeros(len(score), dtype=bool)
        chosen[users[order[:count]]] = True
        rows: Ints = waiting[chosen[self.user[waiting]]]
        return rows

    def memory(self) -> dict[str, Any]:
        """What to remember: sums so far, and the rates at which they grow from now on."""
        if not self.cumulative:
            return {}
        return {"now_s": self.now_s, "past": self.past, "now": self.now}


def _past(snapshot: Snapshot, users: int) -> Floats:
    past, known = np.zeros(users), snapshot.memory
    if "past" in known:
        before = len(known["past"])
        past[:before] = np.asarray(known["past"]) + np.asarray(known["now"]) * (snapshot.now_s - known["now_s"])
    return past
