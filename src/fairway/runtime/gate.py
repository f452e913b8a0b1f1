"""What a policy is shown of a live cluster: jobs that may run. The others wait outside, each with its reason.

A job is kept outside while its owner holds it, while it waits for another job, for a time or for a retry, or while its
user has all the GPUs that the configuration allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Ints, frozen
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot

RETRY_S = 10.0
"""After a decision that failed, when the policy is asked again."""

MOST_ASKS, ENOUGH_S = 64, 0.25
"""How often, and for how long, a policy is asked at one instant, each time without those who are at a limit."""


class Cut(NamedTuple):
    """The most GPUs that a row may be granted and why; `gpu_type` if that is so for GPUs of one type only."""

    gpus: int
    why: str
    gpu_type: int = -1


Limits = Callable[[Snapshot, Decision], Mapping[int, Cut]]
"""Rows whose grants go beyond what their users may have, and those that wait while nothing is left for them."""


class Gate:
    """A policy behind a gate.

    `outside` maps job numbers to the reason why they are not let in. `blocked` gives the GPUs that nobody can be
    started on now, by number with the reason.
    """

    def __init__(self, policy: Policy, limits: Limits | None = None) -> None:
        self.policy = policy
        self.outside: dict[int, str] = {}
        self.limits = limits
        self.blocked: Callable[[], Mapping[int, str]] = dict
        self.problem = ""
        self.took_s = 0.0

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
        """The policy's decision about those inside. If it fails, everything stays as it is, and it is asked again.

        Whoever goes beyond a limit is kept outside and the policy is asked again, so that others get those GPUs.
        """
        began_s = time.perf_counter()
        shut: dict[int, str] = {}
        barred: dict[int, set[int]] = {}
        for _ in range(MOST_ASKS):
            decision = self._asked(snapshot, shut, barred)
            over = self.limits(snapshot, decision) if self.limits is not None else {}
            beyond = [row for row, cut in over.items() if decision.gpus[row] > cut.gpus]
            if not beyond or time.perf_counter() - began_s > ENOUGH_S or not _shut(snapshot, over, shut, barred):
                break
        if self.limits is not None:
            _cut(snapshot, decision, over, shut)
        self.took_s = time.perf_counter() - began_s
        return decision

    def _asked(self, snapshot: Snapshot, shut: Mapping[int, str], barred: Mapping[int, set[int]]) -> Decision:
        rows = self._inside(snapshot, shut)
        everybody = len(rows) == len(snapshot)
        lacking = self._lacking(snapshot)
        view = snapshot if everybody and lacking is None and not barred else _view(snapshot, rows, lacking, barred)
        try:
            decision = self.policy.decide(view) if len(rows) else nothing_granted(0)
            check(view, decision)
            self.problem = ""
        except Exception as error:
            self.problem = f"the policy {self.policy.name} failed: {type(error).__name__}: {error}"
            decision = _as_it_is(view, self.problem)
        return decision if everybody else self._whole(snapshot, decision, rows)

    def _inside(self, snapshot: Snapshot, shut: Mapping[int, str]) -> Ints:
        """The rows that the policy is asked about. Whoever runs is among them: only starts are kept outside."""
        if not self.outside and not shut:
            return np.arange(len(snapshot))
        held, outside = snapshot.held.tolist(), self.outside
        jobs = enumerate(snapshot.jobs.tolist())
        return np.array([row for row, job in jobs if held[row] or (job not in outside and row not in shut)], dtype=int)

    def _lacking(self, snapshot: Snapshot) -> Ints | None:
        """How many GPUs of each type nobody can have now, although the cluster counts them; None if there are none."""
        blocked = set(self.blocked())
        if not blocked:
            return None
        for gpus in snapshot.frame.held_gpus.values():
            blocked.difference_update(gpus)
        counts, cluster = np.zeros(len(snapshot.capacity), dtype=np.int64), snapshot.cluster
        for gpu in blocked:
            node = cluster.node_of_gpu[gpu]
            counts[cluster.node_type[node]] += node not in snapshot.down_nodes
        return counts

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


def _view(
    snapshot: Snapshot, rows: Ints, lacking: Ints | None = None, barred: Mapping[int, set[int]] | None = None
) -> Snapshot:
    """The snapshot without those who are outside, without GPUs that are blocked, and types that rows may not use."""
    floats, ints = snapshot.floats[:, rows], frozen(snapshot.ints[:, rows])
    if barred:
        for at, row in enumerate(rows.tolist()):
            for kind in barred.get(row, ()):
                floats[c.SPEEDS + kind, at] = 0.0
    capacity = snapshot.capacity if lacking is None else frozen(snapshot.capacity - lacking)
    busy = int(ints[c.HELD][ints[c.HOST] < 0].sum())
    demand = int(np.where(ints[c.HELD] > 0, ints[c.HELD], ints[c.GPUS]).sum())
    about = (snapshot.frame, frozen(floats), ints, snapshot.now_s, snapshot.round, capacity, snapshot.memory)
    return Snapshot(*about, snapshot.knows, max(int(capacity.sum()) - busy, 0), demand, snapshot.guarded)


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


def _shut(snapshot: Snapshot, over: Mapping[int, Cut], shut: dict[int, str], barred: dict[int, set[int]]) -> bool:
    """Keep rows outside for which a limit leaves nothing, or from the GPU type of which it does; whether any is new."""
    before = len(shut), sum(map(len, barred.values()))
    for row, cut in over.items():
        if cut.gpus:
            continue
        if cut.gpu_type >= 0:
            kinds = barred.setdefault(row, set())
            kinds.add(cut.gpu_type)
            usable = set((snapshot.speeds[:, row] > 0).nonzero()[0].tolist())
            if usable - kinds:
                continue
        shut[row] = cut.why
    return before != (len(shut), sum(map(len, barred.values())))


def _cut(snapshot: Snapshot, decision: Decision, over: Mapping[int, Cut], shut: Mapping[int, str]) -> None:
    """Take away what goes beyond a limit, and tell those who were kept outside why."""
    if not over and not shut:
        return
    texts = {**decision.texts, **shut}
    for row, cut in over.items():
        if decision.gpus[row] > cut.gpus:
            decision.gpus[row] = cut.gpus
            decision.reasons[row] = int(Reason.RUNS if cut.gpus else Reason.OTHER)
        if not decision.gpus[row]:
            texts[row] = cut.why
    guests = {guest: host for guest, host in decision.partners.items() if decision.gpus[guest] and decision.gpus[host]}
    for guest in decision.partners.keys() - guests.keys():
        decision.gpus[guest], decision.reasons[guest] = 0, int(Reason.OTHER)
    decision.partners = guests
    placed = decision.placements.items()
    decision.placements = {row: gpus for row, gpus in placed if decision.gpus[row] == len(gpus)}
    decision.throttles = {row: part for row, part in decision.throttles.items() if row in guests}
    decision.texts = texts
