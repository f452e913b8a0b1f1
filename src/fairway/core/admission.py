"""From a priority order to grants: walk the order and give each gang what it needs while GPUs last.

Priority policies are "a key plus `admit`". The walk is vectorised for clusters of one GPU type: each pass accepts the
longest prefix that fits and drops every gang larger than what is left, so it needs at most one pass per gang size.
"""

from __future__ import annotations

import math

import numpy as np

from fairway.core.arrays import Codes, Floats, Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot

_NO_ROWS: Ints = np.empty(0, dtype=np.int64)


def admit(
    snapshot: Snapshot, key: Floats | Ints | None = None, *, preempt: bool, strict: bool = False, wake_s: float = math.inf
) -> Decision:
    """Grant gangs in rising order of `key` (ties and None: the order of submission).

    `preempt`: running jobs compete with waiting ones (all but those just started, which the rules protect); else they
    keep what they hold. `strict`: stop at the first gang that does not fit instead of skipping it.
    """
    if preempt:
        fixed = snapshot.protected
        guarded = bool(fixed.any())
        grants = np.where(fixed, snapshot.held, 0) if guarded else np.zeros(len(snapshot), dtype=np.int64)
        rows = (~fixed).nonzero()[0] if guarded else np.arange(len(snapshot))
    else:
        guarded = False
        grants = snapshot.held.copy()
        rows = (grants == 0).nonzero()[0]
    if len(snapshot.capacity) > 1:
        decision = _admit_typed(snapshot, grants, rows, key, strict)
    else:
        decision = _admit_single(snapshot, grants, rows, key, strict)
    decision.wake_s = wake_s
    _explain(snapshot, decision, preempt=preempt, strict=strict)
    if guarded:
        decision.wake_s = min(wake_s, _protection_ends(snapshot, decision, key))
    return decision


def _admit_single(snapshot: Snapshot, grants: Ints, rows: Ints, key: Floats | Ints | None, strict: bool) -> Decision:
    needs = snapshot.gpus[rows]
    free = int(snapshot.capacity[0]) - int(grants.sum())
    if int(needs.sum()) <= free:
        grants[rows] = needs
    elif free > 0:
        if not strict:
            rows = rows[needs <= free]
        if strict:
            chosen = _prefix(_ordered(rows, key), snapshot.gpus, free)
        else:
            chosen = _first_fits(rows, key, snapshot.gpus, free)
        grants[chosen] = snapshot.gpus[chosen]
    return Decision(grants, _blank(grants))


def _ordered(rows: Ints, key: Floats | Ints | None) -> Ints:
    if key is None:
        return rows
    return rows[key[rows].argsort(kind="stable")]


def _prefix(rows: Ints, gpus: Ints, free: int) -> Ints:
    """The longest prefix of the order that fits."""
    return rows[: int(gpus[rows].cumsum().searchsorted(free, side="right"))]


def _first_fits(rows: Ints, key: Floats | Ints | None, gpus: Ints, free: int) -> Ints:
    """Everybody in the order who fits into what those before have left."""
    head = _head(rows, key, free)
    chosen, free = _walk(_ordered(head, key), gpus, free)
    if free == 0 or len(head) == len(rows):
        return chosen
    rest = np.setdiff1d(rows, head, assume_unique=True)
    more, _ = _walk(_ordered(rest, key), gpus, free)
    return np.concatenate([chosen, more])


def _head(rows: Ints, key: Floats | Ints | None, free: int) -> Ints:
    """The rows that come first, enough to fill the cluster in the common case, so that not all need be sorted."""
    count = 2 * free
    if key is None or len(rows) <= 4 * count:
        return rows
    values = key[rows]
    limit = np.partition(values, count)[count]
    return rows[values <= limit]


def _walk(rows: Ints, gpus: Ints, free: int) -> tuple[Ints, int]:
    chosen: list[Ints] = []
    while free > 0 and len(rows):
        needs = gpus[rows]
        ends = needs.cumsum()
        fit = int(ends.searchsorted(free, side="right"))
        if fit:
            chosen.append(rows[:fit])
            free -= int(ends[fit - 1])
        if fit == len(rows):
            break
        rows = rows[fit + 1 :]
        rows = rows[gpus[rows] <= free]
    return (np.concatenate(chosen) if chosen else _NO_ROWS), free


def _admit_typed(snapshot: Snapshot, grants: Ints, rows: Ints, key: Floats | Ints | None, strict: bool) -> Decision:
    """The same walk where GPUs differ: each gang goes to one type, its own if it runs, else the fastest with room."""
    types = np.where(grants > 0, snapshot.gpu_type, -1)
    free = [int(count) for count in snapshot.capacity]
    for row in (grants > 0).nonzero()[0].tolist():
        free[types[row]] -= int(grants[row])
    speeds = snapshot.speeds
    preference = np.argsort(-speeds, axis=0, kind="stable")
    gpus, held, kinds = snapshot.gpus, snapshot.held, snapshot.gpu_type
    for row in _ordered(rows, key).tolist():
        need = int(gpus[row])
        choices = preference[:, row].tolist()
        if held[row]:
            choices.insert(0, int(kinds[row]))
        kind = next((k for k in choices if free[k] >= need and speeds[k, row] > 0), -1)
        if kind >= 0:
            grants[row], types[row] = need, kind
            free[kind] -= need
        elif strict:
            break
        if not any(free):
            break
    return Decision(grants, _blank(grants), gpu_types=types)


def _blank(grants: Ints) -> Codes:
    return np.zeros(len(grants), dtype=np.int8)


def _explain(snapshot: Snapshot, decision: Decision, *, preempt: bool, strict: bool) -> None:
    """Say for every waiting row why it waits."""
    waits = decision.gpus == 0
    if not waits.any():
        return
    if strict:
        decision.reasons[waits] = int(Reason.BEHIND)
        head = int(waits.argmax())
        decision.reasons[head] = int(Reason.NO_FREE_GPUS)
        decision.detail = np.full(len(snapshot), snapshot.jobs[head])
    elif len(snapshot.capacity) > 1:
        decision.reasons[waits] = int(Reason.TYPE_FULL)
    else:
        decision.reasons[waits] = int(Reason.OUTRANKED if preempt else Reason.NO_FREE_GPUS)


def _protection_ends(snapshot: Snapshot, decision: Decision, key: Floats | Ints | None) -> float:
    """When the first job that keeps a better-ranked one waiting only by being new may be stopped."""
    waits = decision.gpus == 0
    if key is None or not waits.any():
        return math.inf
    outranked = snapshot.protected & (key > key[waits].min())
    ends = snapshot.protected_until_s[outranked]
    return float(ends.min()) if len(ends) else math.inf
