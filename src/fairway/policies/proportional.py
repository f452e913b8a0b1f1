"""Proportional share: each job or user gets GPU time in proportion to its weight, by rotation.

The simplest fair scheduler: the job that has received the least service per unit of weight and of time present goes
first, and turns are taken every quantum. A job's share is what it has attained since it came; a user's share also
counts the jobs that have ended, which the policy remembers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Floats
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class Proportional:
    """Least share received first, re-divided every `quantum_s` while jobs wait; per job or per user.

    Knows: GPU-seconds attained so far, ages, weights, owners, gang sizes. Preempts.
    """

    quantum_s: float = 300.0
    by: Literal["job", "user"] = "job"

    name: ClassVar[str] = "proportional"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.quantum_s) and self.quantum_s >= 0.1):
            raise ValueError(f"quantum_s must be at least 0.1, not {self.quantum_s:g}")

    def decide(self, snapshot: Snapshot) -> Decision:
        memory = _remember(snapshot) if self.by == "user" else {}
        decision = admit(snapshot, lambda: self._rank(snapshot, memory), preempt=True)
        waits = decision.gpus == 0
        if waits.any():
            reasons = np.multiply(waits, int(Reason.NOT_ITS_TURN), dtype=np.int8)
            decision = decision._replace(reasons=reasons).waking(self._next_turn_s(snapshot, decision))
        return decision.remembering(memory | {"granted": decision.gpus.copy()}) if memory else decision

    def _rank(self, snapshot: Snapshot, memory: Mapping[str, Any]) -> Floats:
        """Jobs that run and have not used up their quantum come first: between turns no job is stopped."""
        in_turn = snapshot.running & (snapshot.now_s - snapshot.since_s < self.quantum_s * (1 - 1e-9))
        share = _user_share(snapshot, memory) if memory else _job_share(snapshot)
        return np.where(in_turn, -1.0, share)

    def _next_turn_s(self, snapshot: Snapshot, decision: Decision) -> float:
        """The end of the first turn of the running jobs. A job that starts now has a whole quantum."""
        runs = decision.gpus > 0
        since = np.where(snapshot.running, snapshot.since_s, snapshot.now_s)
        ends = since[runs] + self.quantum_s
        ends = np.where(ends <= snapshot.now_s + 1e-6, snapshot.now_s + self.quantum_s, ends)
        return float(ends.min()) if len(ends) else math.inf


def _job_share(snapshot: Snapshot) -> Floats:
    """GPU-seconds per second of presence and unit of weight."""
    age_s = np.maximum(snapshot.now_s - snapshot.submitted_s, 1e-6)
    share: Floats = snapshot.attained_gpu_s / (age_s * snapshot.weight)
    return share


def _user_share(snapshot: Snapshot, memory: Mapping[str, Any]) -> Floats:
    """The same for each job's owner: all its jobs together, since it was first seen. The weights of its jobs are
    averaged."""
    users = len(memory["since_s"])
    gpu_s = memory["past_gpu_s"] + np.bincount(snapshot.user, snapshot.attained_gpu_s, minlength=users)
    jobs = np.maximum(np.bincount(snapshot.user, minlength=users), 1)
    weight = np.bincount(snapshot.user, snapshot.weight, minlength=users) / jobs
    age_s = np.maximum(snapshot.now_s - memory["since_s"], 1e-6)
    share: Floats = (gpu_s / (age_s * np.maximum(weight, 1e-9)))[snapshot.user]
    return share


def _remember(snapshot: Snapshot) -> dict[str, Any]:
    """When each user was first seen and what its ended jobs have attained, brought up to date."""
    users, known = len(snapshot.names.users), snapshot.memory
    since_s, past_gpu_s = np.full(users, np.inf), np.zeros(users)
    if known:
        before = len(known["since_s"])
        since_s[:before], past_gpu_s[:before] = known["since_s"], known["past_gpu_s"]
        gone = snapshot.rows_of(known["jobs"]) < 0
        # A job that has ended held its grant until now; otherwise it would have been seen in between.
        granted = np.asarray(known["granted"], dtype=np.int64)[gone]
        attained = np.asarray(known["attained_gpu_s"])[gone] + granted * (snapshot.now_s - known["now_s"])
        np.add.at(past_gpu_s, np.asarray(known["owners"], dtype=np.int64)[gone], attained)
    np.minimum.at(since_s, snapshot.user, snapshot.submitted_s)
    return {
        "now_s": snapshot.now_s,
        "since_s": since_s,
        "past_gpu_s": past_gpu_s,
        "jobs": snapshot.jobs.copy(),
        "owners": snapshot.user.copy(),
        "attained_gpu_s": snapshot.attained_gpu_s.copy(),
    }
