"""From a priority order to grants: walk the order and give each gang what it needs while GPUs last.

Priority policies are "a key plus `admit`". The walk is vectorised for clusters of one GPU type: each pass accepts the
longest prefix that fits and drops every gang larger than what is left, so it needs at most one pass per gang size. The cost
of a round is the number of NumPy calls, hence the plain reductions (`np.add.reduce`, `np.count_nonzero`) throughout.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot

_NO_ROWS: Ints = np.empty(0, dtype=np.int64)


def admit(snapshot: Snapshot, key: Floats | Ints | None = None, *, preempt: bool, strict: bool = False) -> Decision:
    """Grant gangs in rising order of `key` (ties and None: the order of submission).

    `preempt`: running jobs compete with waiting ones; else they keep what they hold. `strict`: stop at the first gang that
    does not fit instead of skipping it. A running job that loses its place but was started too recently to be stopped keeps
    its GPUs; then the lowest-ranked newcomers wait instead, and the decision wakes when the protection ends.
    """
    if len(snapshot.capacity) > 1:
        grants = np.zeros_like(snapshot.held) if preempt else snapshot.held.copy()
        decision = _admit_typed(snapshot, grants, key, strict)
    elif preempt:
        decision = _decision(_fill(snapshot, np.zeros_like(snapshot.held), None, key, strict))
    else:
        decision = _decision(_fill(snapshot, snapshot.held.copy(), snapshot.running_rows, key, strict))
    if preempt and snapshot.guarded:
        decision = _respect_protection(snapshot, decision, key, strict)
    _explain(snapshot, decision, preempt=preempt, strict=strict)
    return decision


def _decision(grants: Ints) -> Decision:
    return Decision(grants, np.zeros(len(grants), dtype=np.int8))


def _fill(snapshot: Snapshot, grants: Ints, fixed: Ints | None, key: Floats | Ints | None, strict: bool) -> Ints:
    """Add to the grants of the `fixed` rows (None: there are none) those of the others, in order, while GPUs last."""
    gpus, free = snapshot.gpus, int(snapshot.capacity[0])
    if fixed is not None:
        free -= int(np.add.reduce(grants[fixed]))
        if free == 0:
            return grants
        rows = (grants == 0).nonzero()[0]
        if strict and key is None:
            rows = rows[: free + 1]
        needs = gpus[rows]
        if int(np.add.reduce(needs)) <= free:
            grants[rows] = needs
            return grants
        if not strict:
            rows = rows[needs <= free]
    elif int(np.add.reduce(gpus)) <= free:
        return gpus.copy()
    else:
        rows = _all_rows(len(gpus))
    chosen = _prefix(_ordered(rows, key), gpus, free) if strict else _first_fits(rows, key, gpus, free)
    grants[chosen] = gpus[chosen]
    return grants


@lru_cache(maxsize=64)
def _all_rows(count: int) -> Ints:
    rows = np.arange(count)
    rows.flags.writeable = False
    return rows


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
    rest = rest[gpus[rest] <= free]
    if not len(rest):
        return chosen
    more, _ = _walk(_ordered(rest, key), gpus, free)
    return np.concatenate([chosen, more])


def _head(rows: Ints, key: Floats | Ints | None, free: int) -> Ints:
    """The rows that come first, enough to fill the cluster in the common case, so that not all need be sorted."""
    if key is None or len(rows) <= 2 * free:
        return rows
    values = key if len(rows) == len(key) else key[rows]
    first: Ints = (values <= np.partition(values, free)[free]).nonzero()[0]
    return first if len(rows) == len(key) else rows[first]


def _walk(rows: Ints, gpus: Ints, free: int) -> tuple[Ints, int]:
    chosen: list[Ints] = []
    while free > 0 and len(rows):
        ends = gpus[rows].cumsum()
        fit = int(ends.searchsorted(free, side="right"))
        if fit:
            chosen.append(rows[:fit])
            free -= int(ends[fit - 1])
        if fit == len(rows):
            break
        rows = rows[fit + 1 :]
        rows = rows[gpus[rows] <= free]
    if len(chosen) == 1:
        return chosen[0], free
    return (np.concatenate(chosen) if chosen else _NO_ROWS), free


def _admit_typed(snapshot: Snapshot, grants: Ints, key: Floats | Ints | None, strict: bool) -> Decision:
    """The same walk where GPUs differ: each gang goes to one type, its own if it runs, else the fastest with room."""
    types = np.where(grants > 0, snapshot.gpu_type, -1)
    free = [int(count) for count in snapshot.capacity]
    for row in (grants > 0).nonzero()[0].tolist():
        free[types[row]] -= int(grants[row])
    speeds = snapshot.speeds
    preference = np.argsort(-speeds, axis=0, kind="stable")
    gpus, held, kinds = snapshot.gpus, snapshot.held, snapshot.gpu_type
    for row in _ordered((grants == 0).nonzero()[0], key).tolist():
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
    return Decision(grants, np.zeros(len(grants), dtype=np.int8), gpu_types=types)


def _respect_protection(snapshot: Snapshot, ideal: Decision, key: Floats | Ints | None, strict: bool) -> Decision:
    """Undo what would stop a job that was started a moment ago.

    No other running job is stopped in its stead: that would only shift the preemption, and add one when the protection ends.
    """
    protected = snapshot.protected_rows
    changed = ideal.gpus[protected] != snapshot.held[protected]
    if ideal.gpu_types is not None:
        changed |= ideal.gpu_types[protected] != snapshot.gpu_type[protected]
    spared = protected[changed]
    if not len(spared):
        return ideal
    running = snapshot.running_rows
    stay = np.concatenate([spared, running[ideal.gpus[running] > 0]])
    grants = np.zeros_like(snapshot.held)
    grants[stay] = snapshot.held[stay]
    if ideal.gpu_types is None:
        decision = _decision(_fill(snapshot, grants, grants.nonzero()[0], key, strict))
    else:
        decision = _admit_typed(snapshot, grants, key, strict)
    displaced = spared[ideal.gpus[spared] == 0]
    if len(displaced):
        decision.wake_s = float(snapshot.protected_until_s[displaced].min())
    return decision


def _explain(snapshot: Snapshot, decision: Decision, *, preempt: bool, strict: bool) -> None:
    """Say for every waiting row why it waits."""
    waits = decision.gpus == 0
    if strict:
        decision.reasons = np.multiply(waits, int(Reason.BEHIND), dtype=np.int8)
        if np.count_nonzero(waits):
            head = int(waits.argmax())
            decision.reasons[head] = int(Reason.NO_FREE_GPUS)
            decision.ahead = int(snapshot.jobs[head])
        return
    mixed = len(snapshot.capacity) > 1
    code = Reason.TYPE_FULL if mixed else Reason.OUTRANKED if preempt else Reason.NO_FREE_GPUS
    decision.reasons = np.multiply(waits, int(code), dtype=np.int8)
    if decision.wake_s < math.inf:
        decision.reasons[waits] = int(Reason.PROTECTED)
