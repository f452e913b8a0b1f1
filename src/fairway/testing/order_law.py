"""The law of order: a policy serves jobs in the order that it promises."""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Bools
from fairway.core.decision import Decision
from fairway.core.order import Order
from fairway.core.snapshot import Snapshot

CLOSE = 1e-4
"""Keys that differ by no more than this are equal: many are seconds, and two jobs may just have drawn level."""


def check_order(snapshot: Snapshot, decision: Decision, order: Order) -> None:
    """Raise `AssertionError` if a job waits while one behind it has GPUs that it could have had."""
    kinds = np.zeros(len(snapshot), dtype=np.int64) if len(snapshot.capacity) == 1 else decision.gpu_types
    if kinds is None or (kinds[decision.gpus > 0] < 0).any():
        # The placement chooses the types, so nobody knows yet who has taken what.
        return
    types, key = len(snapshot.capacity), np.asarray(order.key(snapshot), dtype=np.float64)
    alone = decision.gpus > 0
    alone[list(decision.partners)] = False
    free = snapshot.capacity - np.bincount(kinds[alone], decision.gpus[alone], minlength=types)
    yields = alone & _gives_way(snapshot, order)
    for row in (decision.gpus == 0).nonzero()[0].tolist():
        behind = yields & (key > key[row] + CLOSE)
        if not behind.any():
            continue
        room = free + np.bincount(kinds[behind], decision.gpus[behind], minlength=types)
        if order.strict or ((room >= snapshot.gpus[row]) & (snapshot.speeds[:, row] > 0)).any():
            waits, passes = (snapshot.job_id(int(snapshot.jobs[at])) for at in (row, int(behind.argmax())))
            raise AssertionError(
                f"it promises {order.text!r}, but at {snapshot.now_s:g} s job {waits!r} waits while job {passes!r}, "
                "which comes after it, has GPUs"
            )


def _gives_way(snapshot: Snapshot, order: Order) -> Bools:
    """The rows that a waiting job may have GPUs instead of: those that start, and running ones if it preempts.

    While jobs are protected, others may keep their GPUs because nothing would be gained by stopping them.
    """
    if order.preempts and not len(snapshot.protected_rows):
        return np.ones(len(snapshot), dtype=np.bool_)
    starts: Bools = snapshot.held == 0
    return starts
