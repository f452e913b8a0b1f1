"""What a policy is shown of a live cluster: jobs that may run. The others wait outside, each with its reason.

A job is kept outside while its owner holds it, while it waits for another job, for a time or for a retry, or while its
user has all the GPUs that the configuration allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Ints, frozen
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot

RETRY_S = 10.0
"""After a decision that failed, when the policy is asked again."""

Limits = Callable[[Snapshot, Decision], Mapping[int, str]]
"""Rows whose grants go beyond what their users may have, with the reason."""


class Gate:
    """A policy behind a gate. `outside` maps job numbers to the reason why they are not let in."""

    def __init__(self, policy: Policy, limits: Limits | None = None) -> None:
        self.policy = policy
        self.outside: dict[int, str] = {}
        self.limits = limits
        self.problem = ""

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def knows(self) -> frozenset[str]:
        return self.policy.knows

    @property
    def round_s(self) -> float:
        return self.policy.round_s

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision about those inside. If it fails, everything stays as it is, and it is asked again."""
        rows = self._inside(snapshot)
        everybody = len(rows) == len(snapshot)
        view = snapshot if everybody else _view(snapshot, rows)
        try:
            decision = self.policy.decide(view) if len(rows) else nothing_granted(0)
            self.problem = ""
        except Exception as error:
            self.problem = f"the policy {self.policy.name} failed: {type(error).__name__}: {error}"
            decision = _as_it_is(view, self.problem)
        if not everybody:
            decision = self._whole(snapshot, decision, rows)
        if self.limits is not None:
            _cut(snapshot, decision, self.limits(snapshot, decision))
        return decision

    def _inside(self, snapshot: Snapshot) -> Ints:
        if not self.outside:
            return np.arange(len(snapshot))
        return np.array([row for row, job in enumerate(snapshot.jobs.tolist()) if job not in self.outside], dtype=int)

    def _whole(self, snapshot: Snapshot, decision: Decision, rows: Ints) -> Decision:
        """A decision about some rows as one about all: those outside get nothing."""
        total = len(snapshot)
        gpus = np.zeros(total, dtype=np.int64)
        reasons = np.full(total, int(Reason.OTHER), dtype=np.int8)
        gpus[rows], reasons[rows] = decision.gpus, decision.reasons
        kinds = None
        if decision.gpu_types is not None:
            kinds = np.full(total, -1, dtype=np.int64)
            kinds[rows] = decision.gpu_types
        at = rows.tolist()
        jobs = snapshot.jobs.tolist()
        texts = {row: self.outside[jobs[row]] for row in range(total) if jobs[row] in self.outside}
        return Decision(
            gpus,
            reasons,
            kinds,
            decision.ahead,
            decision.wake_s,
            decision.memory,
            {at[guest]: at[host] for guest, host in decision.partners.items()},
            {at[row]: gpus for row, gpus in decision.placements.items()},
            {at[row]: part for row, part in decision.throttles.items()},
            [at[row] for row in decision.order],
            decision.warm,
            texts | {at[row]: text for row, text in decision.texts.items()},
        )


def _view(snapshot: Snapshot, rows: Ints) -> Snapshot:
    """The snapshot without those who are outside; what they hold will be free."""
    floats, ints = frozen(snapshot.floats[:, rows]), frozen(snapshot.ints[:, rows])
    busy = int(ints[c.HELD][ints[c.HOST] < 0].sum())
    free = int(snapshot.capacity.sum()) - busy
    demand = int(np.where(ints[c.HELD] > 0, ints[c.HELD], ints[c.GPUS]).sum())
    about = (snapshot.frame, floats, ints, snapshot.now_s, snapshot.round, snapshot.capacity, snapshot.memory)
    return Snapshot(*about, snapshot.knows, free, demand, snapshot.guarded)


def _as_it_is(snapshot: Snapshot, why: str) -> Decision:
    """Everybody keeps what it has."""
    gpus = snapshot.held.copy()
    reasons = np.where(gpus > 0, int(Reason.RUNS), int(Reason.OTHER)).astype(np.int8)
    kinds = np.where(gpus > 0, snapshot.gpu_type, -1)
    rows = {int(job): row for row, job in enumerate(snapshot.jobs)}
    partners = {row: rows[int(host)] for row, host in enumerate(snapshot.host) if host >= 0 and int(host) in rows}
    texts = {int(row): why for row in (gpus == 0).nonzero()[0]}
    return Decision(
        gpus,
        reasons,
        kinds,
        wake_s=snapshot.now_s + RETRY_S,
        memory=snapshot.memory,
        partners=partners,
        throttles={row: float(snapshot.throttle[row]) for row in partners if snapshot.throttle[row] < 1},
        texts=texts,
    )


def _cut(snapshot: Snapshot, decision: Decision, over: Mapping[int, str]) -> None:
    """Take grants away from waiting rows that go beyond a limit."""
    if not over:
        return
    texts = dict(decision.texts)
    for row, why in over.items():
        decision.gpus[row], decision.reasons[row] = 0, int(Reason.OTHER)
        texts[row] = why
    guests = {guest: host for guest, host in decision.partners.items() if decision.gpus[guest] and decision.gpus[host]}
    for guest in decision.partners.keys() - guests.keys():
        decision.gpus[guest] = 0
    decision.partners = guests
    decision.placements = {row: gpus for row, gpus in decision.placements.items() if decision.gpus[row]}
    decision.throttles = {row: part for row, part in decision.throttles.items() if row in guests}
    decision.texts = texts
    if not math.isfinite(decision.wake_s):
        decision.wake_s = snapshot.now_s + RETRY_S
