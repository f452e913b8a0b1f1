"""From fractions of time to rounds: the mechanism of all policies that plan shares of time (Gavel, OSDI 2020).

A policy gives each job a fraction of time on each GPU type. In every round the jobs that are furthest behind their
fraction go first: the priority is the fraction over what the job has received of the type since the plan. What a plan
still owes is carried on as a deficit that breaks ties. A plan is made when the set of jobs changes, at most every
`replan_interval_s`. If the scheduler also asks at events between rounds, idle GPUs are filled and no job is stopped.

A gang that does not fit behind smaller jobs of higher priority would lose its turn again and again, because every plan
starts counting from zero. After `PATIENCE` such rounds, or once it is owed a whole round, it is served before others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Ints
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.policies.gavel.account import NOBODY, ShareAccount, recall
from fairway.policies.gavel.select import EQUAL_S, choose
from fairway.policies.gavel.situation import Shares, Situation

ROUND_S = 360.0
"""The default length of a round."""
MOMENT_S = 1e-3
PATIENCE = 3
"""How often in a row a gang may be passed over before it is served first."""

Plan = Callable[[Situation], Shares]


def as_listed(snapshot: Snapshot) -> Sequence[int]:
    """The GPU types in the order of the cluster."""
    return range(len(snapshot.capacity))


class Style(NamedTuple):
    """How a plan is carried out.

    `published` works like the Gavel artifact: no gang is served out of turn, plans do not follow a change of speeds,
    and a plan is made in each of the first two rounds. `idle_fill` lets jobs without a share use GPUs that would idle.
    `order` is the order of the GPU types in a round.
    """

    published: bool = False
    idle_fill: bool = True
    order: Callable[[Snapshot], Sequence[int]] = as_listed

    @property
    def fills(self) -> bool:
        """Whether idle GPUs go at once to jobs that wait, in the plan or not."""
        return self.idle_fill and not self.published

    @property
    def in_order(self) -> bool:
        """Whether no job is served out of turn."""
        return not self.idle_fill and not self.published


NATIVE = Style()


def decide_by_shares(snapshot: Snapshot, plan: Plan, style: Style = NATIVE, *, replan: bool = False) -> Decision:
    """Plan if it is time to, then choose the jobs of this round.

    Between two rounds no job is stopped: idle GPUs are given to jobs that wait. `replan` says that something other than
    jobs and speeds has changed on which the plan depends.
    """
    if not len(snapshot):
        return nothing_granted(0)
    half_s = (snapshot.round_s or ROUND_S) / 2
    account = recall(snapshot, half_s)
    account.stale |= replan
    between = style.fills and snapshot.round_s == 0 and snapshot.now_s < account.began_s + ROUND_S - MOMENT_S
    if not between:
        account.began_s = snapshot.now_s
        if _is_due(account, snapshot, style):
            account = _planned(account, snapshot, plan, half_s)
    rows = account.rows(snapshot)
    kept = snapshot.running_rows.tolist() if between else _protected(snapshot)
    ran = _next_round(snapshot, account, rows, kept, style, between)
    account.ran = np.array(_going_on(snapshot, account, rows, kept) + ran, dtype=np.int64).reshape(-1, 2)
    return _decision(snapshot, account, rows, kept, ran, style)


def _next_round(
    snapshot: Snapshot, account: ShareAccount, rows: Ints, kept: list[int], style: Style, between: bool
) -> list[tuple[int, int]]:
    """The units that run, and on which type, beside the rows that keep what they have."""
    free = snapshot.capacity.copy()
    for row in kept:
        if snapshot.host[row] < 0:
            free[snapshot.gpu_type[row]] -= snapshot.held[row]
    chosen = choose(
        account,
        rows,
        snapshot.gpus[rows[:, 0]],
        _can_run(snapshot, account, rows),
        np.maximum(free, 0).tolist(),
        style.order(snapshot),
        taken=kept,
        first=() if style.published else _reserved(snapshot, account, rows),
        idle_fill=style.idle_fill,
        unplanned=style.fills,
        running=None if style.published else _running(snapshot, account, rows),
    )
    if not between:
        account.skipped[chosen.passed] += 1
    account.skipped[[unit for unit, _ in chosen.units]] = 0
    return chosen.units


def _going_on(snapshot: Snapshot, account: ShareAccount, rows: Ints, kept: list[int]) -> list[tuple[int, int]]:
    """The units of rows that keep what they have: a job alone, or the pair that runs."""
    units = [(row, int(snapshot.gpu_type[row])) for row in kept]
    if not len(account.units) > len(snapshot):
        return units
    pairs = {frozenset(pair): unit for unit, pair in enumerate(rows.tolist()) if pair[1] >= 0}
    for row in kept:
        if snapshot.host[row] >= 0:
            host = int(np.searchsorted(snapshot.jobs, snapshot.host[row]))
            unit = pairs.get(frozenset((row, host)))
            if unit is not None:
                kind = int(snapshot.gpu_type[row])
                units = [one for one in units if one[0] not in (row, host)] + [(unit, kind)]
    return units


def _is_due(account: ShareAccount, snapshot: Snapshot, style: Style) -> bool:
    """Whether a plan is due."""
    if not account.stale and (style.published or not _speeds_changed(account, snapshot)):
        return False
    since_s = snapshot.now_s - account.planned_s
    return account.planned_s <= 0.0 or since_s >= snapshot.replan_interval_s - MOMENT_S


def _speeds_changed(account: ShareAccount, snapshot: Snapshot) -> bool:
    """Whether a job has another speed than at the last plan."""
    last = account.notes.get("speeds")
    return last is None or not np.array_equal(np.asarray(last), snapshot.speeds.T)


def _planned(account: ShareAccount, snapshot: Snapshot, plan: Plan, half_s: float) -> ShareAccount:
    """Settle the old plan, make a new one and open its accounts."""
    rows, types = len(snapshot), len(snapshot.capacity)
    since_s = snapshot.now_s - account.planned_s if account.planned_s >= 0 else 0.0
    owed_s = account.x * since_s - (account.received_s - half_s)
    account.deficit_s = account.deficit_s + np.where(account.planned[:, None], owed_s, 0.0)
    shares = plan(Situation(snapshot, account.x[:rows], account.notes))
    pairs, pair_x = shares.pairs, shares.pair_x.reshape(-1, types)
    jobs = snapshot.jobs
    units = np.concatenate([np.column_stack([jobs, np.full(rows, NOBODY)]), jobs[pairs].reshape(-1, 2)])
    return ShareAccount(
        units=units,
        planned=np.ones(len(units), dtype=bool),
        x=np.concatenate([shares.x, pair_x]),
        received_s=np.full((len(units), types), half_s),
        deficit_s=np.concatenate([account.deficit_s[:rows], np.zeros((len(pairs), types))]),
        skipped=np.concatenate([account.skipped[:rows], np.zeros(len(pairs), dtype=np.int64)]),
        ran=account.ran,
        attained_s=account.attained_s,
        capacity=account.capacity,
        planned_s=snapshot.now_s,
        began_s=account.began_s,
        stale=False,
        notes={**shares.notes, "speeds": snapshot.speeds.T.copy()},
    )


def _protected(snapshot: Snapshot) -> list[int]:
    """Rows that have just started and stay where they are, with the rows whose GPUs they share."""
    rows = set(snapshot.protected_rows.tolist()) if snapshot.guarded else set()
    for row in list(rows):
        host = int(snapshot.host[row])
        if host >= 0:
            rows.add(int(np.searchsorted(snapshot.jobs, host)))
    return sorted(rows)


def _can_run(snapshot: Snapshot, account: ShareAccount, rows: Ints) -> Bools:
    """Where each unit can run. Both jobs of a pair must have a speed there, and the plan must have chosen the pair."""
    usable = snapshot.speeds.T > 0
    second = np.where(account.is_pair[:, None], usable[rows[:, 1]], True)
    return usable[rows[:, 0]] & second


def _reserved(snapshot: Snapshot, account: ShareAccount, rows: Ints) -> list[int]:
    """The gangs that go first: passed over too often, or owed a whole round more than the mean."""
    length_s = snapshot.round_s or ROUND_S
    since_s = snapshot.now_s - account.planned_s if account.planned_s >= 0 else 0.0
    owed_s = np.add.reduce(account.deficit_s + account.x * since_s - (account.received_s - length_s / 2), axis=1)
    usual_s = max(float(owed_s[account.planned].mean()), 0.0) if account.planned.any() else 0.0
    owed_s = np.rint((owed_s - usual_s) / EQUAL_S) * EQUAL_S
    gangs = (snapshot.gpus[rows[:, 0]] > 1) & account.planned & (owed_s >= length_s)
    waiting = ((account.skipped >= PATIENCE) | gangs).nonzero()[0].tolist()
    return sorted(waiting, key=lambda unit: (-float(owed_s[unit]), unit))


def _running(snapshot: Snapshot, account: ShareAccount, rows: Ints) -> Ints:
    """The type on which a unit runs now, unchanged, or -1."""
    alone = np.where(snapshot.running & (snapshot.host < 0), snapshot.gpu_type, -1)
    kinds = alone[rows[:, 0]]
    for unit in account.is_pair.nonzero()[0].tolist():
        a, b = rows[unit].tolist()
        kinds[unit] = int(snapshot.gpu_type[a]) if snapshot.share_gpus(a, b) else -1
    return kinds


def _decision(
    snapshot: Snapshot, account: ShareAccount, rows: Ints, kept: list[int], ran: list[tuple[int, int]], style: Style
) -> Decision:
    """Grants from the chosen units. Jobs that have just started go on as they are."""
    gpus, kinds = np.zeros(len(snapshot), dtype=np.int64), np.full(len(snapshot), -1, dtype=np.int64)
    partners: dict[int, int] = {}
    for row in kept:
        gpus[row], kinds[row] = snapshot.held[row], snapshot.gpu_type[row]
        if snapshot.host[row] >= 0:
            partners[row] = int(np.searchsorted(snapshot.jobs, snapshot.host[row]))
    for unit, kind in ran:
        a, b = _host_first(snapshot, *rows[unit].tolist())
        gpus[a], kinds[a] = snapshot.gpus[a], kind
        if b >= 0:
            gpus[b], kinds[b], partners[b] = snapshot.gpus[b], kind, a
    waits = np.where(snapshot.launches > 0, int(Reason.NOT_ITS_TURN), int(Reason.OUTRANKED))
    reasons = np.where(gpus > 0, int(Reason.RUNS), waits).astype(np.int8)
    ahead = -1
    if style.in_order and not gpus.all():
        first = int(np.argmin(gpus > 0))
        reasons[gpus == 0], reasons[first] = int(Reason.BEHIND), int(Reason.TYPE_FULL)
        ahead = int(snapshot.jobs[first])
    wake_s = snapshot.now_s + snapshot.round_s if snapshot.round_s else account.began_s + ROUND_S
    if not gpus.any():
        wake_s = account.planned_s + snapshot.replan_interval_s if account.stale else math.inf
        wake_s = wake_s if wake_s > snapshot.now_s else math.inf
    return Decision(gpus, reasons, kinds, ahead, wake_s=wake_s, memory=account.memory(), partners=partners)


def _host_first(snapshot: Snapshot, a: int, b: int) -> tuple[int, int]:
    """The two rows of a unit, the host before the guest: as they run now, otherwise the first submitted."""
    if b >= 0 and snapshot.host[a] == snapshot.jobs[b]:
        return b, a
    return a, b
