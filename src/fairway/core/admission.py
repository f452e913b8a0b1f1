"""From a priority order to grants: walk the order and give each gang what it needs while GPUs last.

Priority policies are "a key plus `admit`". The walk is vectorised for clusters of one GPU type: each pass accepts the
longest prefix that fits and drops every gang larger than what is left, so it needs at most one pass per gang size. The
cost of a round is the number of NumPy calls, hence the plain reductions such as `np.add.reduce`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fairway.core import kernels
from fairway.core.arrays import Codes, Floats, Ints, Ranks, frozen
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot

Key: TypeAlias = Floats | Ints | Ranks
"""What jobs are ordered by; whole numbers of 16 bits sort fastest."""


def admit(
    snapshot: Snapshot,
    key: Key | Callable[[], Key] | None = None,
    *,
    preempt: bool,
    strict: bool = False,
) -> Decision:
    """Grant gangs in rising order of `key` (ties and None: the order of submission).

    A key that is a function is called only if not every job fits: without contention there is nothing to rank.

    Every job gets the gang that it asks for, `snapshot.gpus`, even if it could use fewer or more GPUs: `admit` ignores
    `gpus_min` and `gpus_max`. A policy that shrinks or grows gangs grants GPUs itself (see `policies/optimus`).

    `preempt`: running jobs compete with waiting ones; otherwise they keep what they hold. `strict`: stop at the first
    gang that does not fit instead of skipping it. A running job that loses its place but was started too recently to
    be stopped keeps its GPUs. The lowest-ranked new jobs then wait instead, and the decision asks to be woken when the
    protection ends.
    """
    if len(snapshot.capacity) == 1 and snapshot.demand <= snapshot.capacity[0]:
        held = snapshot.held
        return Decision(np.where(held > 0, held, snapshot.gpus), np.zeros(len(held), dtype=np.int8))
    if callable(key):
        key = key()
    if len(snapshot.capacity) > 1:
        decision = _admit_typed(snapshot, key, preempt, strict)
    else:
        decision = _admit_single(snapshot, key, preempt, strict)
    return _naming_the_head(snapshot, decision, key) if strict else decision


def _admit_single(snapshot: Snapshot, key: Key | None, preempt: bool, strict: bool) -> Decision:
    held, gpus = snapshot.held, snapshot.gpus
    reasons = np.zeros(len(gpus), dtype=np.int8)
    if preempt:
        free, rows = int(snapshot.capacity[0]), _all_rows(len(gpus))
        grants = np.zeros(len(gpus), dtype=np.int64)
    else:
        free, rows = snapshot.free, (held == 0).nonzero()[0]
        grants = held.copy()
    if not free:
        reasons[rows] = int(Reason.NO_FREE_GPUS)
        return Decision(grants, reasons)
    mode = (preempt, strict, int(Reason.OUTRANKED if preempt else Reason.NO_FREE_GPUS))
    return Decision(grants, reasons, wake_s=_grant(snapshot, grants, reasons, rows, key, free, mode))


def _grant(
    snapshot: Snapshot,
    grants: Ints,
    reasons: Codes,
    rows: Ints,
    key: Key | None,
    free: int,
    mode: tuple[bool, bool, int],
) -> float:
    """Serve the rows in the order of the key and return when to wake. Fills in `grants` and `reasons`.

    Where many jobs wait, the head of the order usually fills the cluster.
    """
    preempt, strict, _ = mode
    state = (snapshot.floats, snapshot.ints, snapshot.now_s)
    if len(rows) > 2 * free and not strict:
        stood = grants.copy()
        order = _head(rows, key, snapshot.gpus, free)
        left, wake_s = kernels.in_order(order, *state, free, mode, grants, reasons)
        # A protected job takes the place of others: then there may be room for jobs behind the head.
        if left == 0 and not (preempt and snapshot.guarded and int(np.add.reduce(grants)) < free):
            return wake_s
        grants[:] = stood
    _, wake_s = kernels.in_order(_ordered(rows, key), *state, free, mode, grants, reasons)
    return wake_s


def _head(rows: Ints, key: Key | None, gpus: Ints, free: int) -> Ints:
    """The first rows of the order: as many rows as there are GPUs, and up to as many again that tie with the last."""
    if key is None:
        return rows[gpus[rows] <= free]
    values = key if len(rows) == len(key) else key[rows]
    limit = np.partition(values, free)[free]
    before, level = (values < limit).nonzero()[0], (values == limit).nonzero()[0][:free]
    return np.concatenate([_ordered(rows[before], key), rows[level]])


_LONGEST: list[Ints] = [frozen(np.arange(1024, dtype=np.int64))]


def _all_rows(count: int) -> Ints:
    """0, 1, 2 … as a slice of one array. A queue passes through many lengths; this keeps no array for each of them."""
    rows = _LONGEST[0]
    if len(rows) < count:
        rows = _LONGEST[0] = frozen(np.arange(2 * count, dtype=np.int64))
    return rows[:count]


def _ordered(rows: Ints, key: Key | None) -> Ints:
    if key is None:
        return rows
    return rows[key[rows].argsort(kind="stable")]


def _admit_typed(snapshot: Snapshot, key: Key | None, preempt: bool, strict: bool) -> Decision:
    """The same where GPUs differ: each gang goes to one type, its own if it runs, else the fastest with room."""
    none = np.zeros(len(snapshot), dtype=np.int64)
    decision = _fill_types(snapshot, none if preempt else snapshot.held.copy(), key, strict)
    if not (preempt and snapshot.guarded):
        return decision
    ideal = np.where(decision.gpu_types == snapshot.gpu_type, decision.gpus, 0)
    grants = np.zeros(len(snapshot), dtype=np.int64)
    spared, wake_s = kernels.keep_protected(ideal, snapshot.floats, snapshot.ints, snapshot.now_s, grants)
    if not spared:
        return decision
    return _fill_types(snapshot, grants, key, strict).waking(wake_s)


def _fill_types(snapshot: Snapshot, grants: Ints, key: Key | None, strict: bool) -> Decision:
    """Add grants for the other jobs to those that stand, in order, while GPUs last."""
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
    reasons = np.multiply(grants == 0, int(Reason.TYPE_FULL), dtype=np.int8)
    return Decision(grants, reasons, gpu_types=types)


def _naming_the_head(snapshot: Snapshot, decision: Decision, key: Key | None) -> Decision:
    """In a strict queue the first job that waits blocks all others. Name it."""
    waits = decision.reasons.nonzero()[0]
    if not len(waits):
        return decision
    head = int(_ordered(waits, key)[0])
    decision.reasons[waits] = int(Reason.BEHIND)
    decision.reasons[head] = int(Reason.NO_FREE_GPUS)
    return decision._replace(ahead=int(snapshot.jobs[head]))
