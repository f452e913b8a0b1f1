"""When a job would be done on its fair share of the cluster. Its actual finish is compared with that.

A job's fair run time is its run time over its share. The share depends on how many jobs there are, so it is estimated
again whenever a job comes or leaves. The target is the mean of the estimates over the job's life so far, with some
weight on the latest (Shockwave, NSDI 2023, as its artifact does it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.snapshot import Snapshot

LATEST_WEIGHT = 0.1
"""The weight of the latest estimate beside the mean over the past."""

ShareRule = Literal["jobs", "gpus"]


def share_of(snapshot: Snapshot, rule: ShareRule) -> Floats:
    """The part of the time that each job may run on an equal share of the cluster.

    `jobs` compares the number of jobs with that of GPUs, whatever the gangs (as Shockwave and its metric do). `gpus`
    takes into account that a gang of w GPUs runs only a w-th as often on its share of the cluster.
    """
    gpus, jobs = float(snapshot.capacity.sum()), len(snapshot)
    equal = gpus / jobs if jobs else 1.0
    gangs = np.ones(jobs) if rule == "jobs" else snapshot.gpus.astype(np.float64)
    share: Floats = np.minimum(1.0, max(equal, 1e-9) / gangs)
    return share


@dataclass
class FairTimes:
    """The estimates of every row so far: their integral over time, how long that is, and the latest one."""

    summed: Floats
    since_s: Floats
    latest_s: Floats
    updated_s: float

    @staticmethod
    def recall(snapshot: Snapshot, memory: Mapping[str, Any]) -> FairTimes:
        """The remembered estimates for the jobs in the snapshot; NaN for new jobs."""
        return FairTimes(
            snapshot.recall("summed", 0.0, memory),
            snapshot.recall("since_s", 0.0, memory),
            snapshot.recall("latest_s", np.nan, memory),
            float(memory.get("updated_s", snapshot.now_s)),
        )

    def advance(self, now_s: float) -> None:
        """The latest estimates have held until now."""
        known = ~np.isnan(self.latest_s)
        passed_s = max(now_s - self.updated_s, 0.0)
        self.summed[known] += self.latest_s[known] * passed_s
        self.since_s[known] += passed_s
        self.updated_s = now_s

    def estimate(self, total_s: Floats, share: Floats, *, renew: bool) -> None:
        """Estimate all fair run times (`renew`), or only those of new jobs."""
        fresh = np.isnan(self.latest_s) | renew
        self.latest_s = np.where(fresh, total_s / share, self.latest_s)

    @property
    def target_s(self) -> Floats:
        """The fair run time, from submission to finish, that counts for each row."""
        mean_s = np.where(self.since_s > 0, self.summed / np.maximum(self.since_s, 1e-9), self.latest_s)
        target_s: Floats = (1.0 - LATEST_WEIGHT) * mean_s + LATEST_WEIGHT * self.latest_s
        return target_s

    def memory(self, snapshot: Snapshot) -> dict[str, Any]:
        """Plain values that `recall` reads."""
        about = {"summed": self.summed, "since_s": self.since_s, "latest_s": self.latest_s}
        return {"jobs": snapshot.jobs.copy(), "updated_s": self.updated_s, **about}
