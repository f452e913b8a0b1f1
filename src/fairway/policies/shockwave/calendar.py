"""The rounds of a plan, and which of them is on: what the policy remembers from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairway.core.arrays import Bools, Ints
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts

_KEY = "shockwave"


@dataclass
class Calendar:
    """Planned rounds as lists of job numbers; `at` is the next one to begin, and the present one began at `began_s`.

    `order` is the order in which jobs take GPUs that the plan leaves idle. `jobs`, `batches` and `capacity` are those
    that were planned for, `kinds` the GPU type of each job. `fair` and `paces` belong to the estimates. `gap` is that
    of the last plan.
    """

    rounds: list[list[int]] = field(default_factory=list)
    at: int = 0
    began_s: float = -np.inf
    order: list[int] = field(default_factory=list)
    jobs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    batches: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kinds: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    capacity: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    fair: Mapping[str, Any] = field(default_factory=dict)
    paces: dict[str, Any] = field(default_factory=dict)
    gap: float = 0.0

    @staticmethod
    def recall(memory: Mapping[str, Any]) -> Calendar:
        """What an earlier decision remembered; an empty calendar if there is nothing, or nothing of this policy."""
        known = memory.get(_KEY)
        if not isinstance(known, Mapping) or known.keys() != vars(Calendar()).keys():
            return Calendar()
        columns = ("jobs", "batches", "kinds", "capacity")
        about: dict[str, Any] = {name: np.asarray(value) if name in columns else value for name, value in known.items()}
        return Calendar(**about)

    def memory(self) -> dict[str, Any]:
        """Plain values that `recall` reads."""
        return {_KEY: dict(vars(self))}

    def is_stale(self, snapshot: Snapshot, replan_rounds: int) -> bool:
        """Whether a new plan is due: a job came, left or changed its batch size, nodes did, or the plan is old."""
        return (
            self.at >= min(replan_rounds, len(self.rounds))
            or not np.array_equal(self.jobs, snapshot.jobs)
            or not np.array_equal(self.batches, snapshot.batch_size)
            or not np.array_equal(self.capacity, snapshot.capacity)
        )

    def same_jobs(self, snapshot: Snapshot) -> bool:
        """Whether no job has come or left since the last plan."""
        return bool(np.array_equal(self.jobs, snapshot.jobs) and np.array_equal(self.capacity, snapshot.capacity))

    def write(self, snapshot: Snapshot, plan: Bools, urgency: Any, kinds: Ints, gap: float) -> None:
        """Write down a new plan from the present instant on."""
        jobs = snapshot.jobs.tolist()
        self.rounds = [[jobs[row] for row in planned.nonzero()[0].tolist()] for planned in plan]
        self.at, self.gap = 0, gap
        first = np.where(plan.any(axis=0), plan.argmax(axis=0), len(plan))
        self.order = [jobs[row] for row in np.lexsort((-urgency, first)).tolist()]
        self.jobs, self.batches, self.kinds = snapshot.jobs.copy(), snapshot.batch_size.copy(), kinds
        self.capacity = snapshot.capacity.copy()

    def kind_of(self, snapshot: Snapshot) -> Ints:
        """The GPU type that every row is planned for, -1 where there is no plan."""
        return snapshot.recall("kinds", -1, {"jobs": self.jobs, "kinds": self.kinds})

    def texts(self, snapshot: Snapshot, waiting: Ints, round_s: float) -> Texts:
        """What the plan says about every waiting row."""
        jobs, next_s = snapshot.jobs.copy(), max(self.began_s + round_s - snapshot.now_s, 0.0)

        def say(row: int) -> str:
            job = int(jobs[row])
            for ahead, planned in enumerate(self.rounds[self.at :]):
                if job in planned:
                    return f"planned to run in {next_s + ahead * round_s:.0f} s, if nobody comes or leaves before"
            if job not in self.order:
                return f"came after the last plan; the next round, in {next_s:.0f} s, is planned with it"
            return f"has no round among the next {len(self.rounds) - self.at}: they are worth more to others"

        return Texts(waiting, say)
