"""From tickets to entitlements: water filling over users, GPU types and jobs.

A user's share of each GPU type is in proportion to its tickets. What it cannot use goes back to the others, again in
proportion to theirs. Inside a user, so does what a job cannot use because its gang is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints


def water_fill(amount: Floats, weight: Floats, cap: Floats, group: Ints) -> Floats:
    """Divide the amount of each group among its members by weight; no member gets more than its cap.

    >>> water_fill(np.array([8.0]), np.ones(3), np.array([np.inf, np.inf, 2.0]), np.zeros(3, dtype=np.int64)).tolist()
    [3.0, 3.0, 2.0]
    """
    groups = len(amount)
    full: Bools = cap <= 0
    while True:
        taken = np.bincount(group, np.where(full, cap, 0.0), minlength=groups)
        open_weight = np.bincount(group, np.where(full, 0.0, weight), minlength=groups)
        level = np.zeros(groups)
        np.divide(np.maximum(amount - taken, 0.0), open_weight, out=level, where=open_weight > 0)
        share = np.where(full, cap, weight * level[group])
        # A member above its cap stays so: what it leaves only raises the level of the others.
        over = ~full & (share > cap)
        if not over.any():
            return np.asarray(share)
        full = full | over


def entitlements(
    tickets: Floats, demand: Floats, demand_by_type: Floats, capacity: Ints, order: Sequence[int]
) -> Floats:
    """GPUs of each type (rows) that each user (columns) is entitled to.

    `demand` is all that a user could use at once, `demand_by_type` the part of it that could run on each type. Types
    are dealt out in `order`, the fastest first, so that a user that needs little has its share of the fast ones.
    """
    shares = np.zeros(demand_by_type.shape)
    left, one_group = demand.astype(np.float64), np.zeros(len(tickets), dtype=np.int64)
    for kind in order:
        cap = np.minimum(left, demand_by_type[kind])
        shares[kind] = water_fill(np.array([float(capacity[kind])]), tickets, cap, one_group)
        left = np.maximum(left - shares[kind], 0.0)
    return shares


def user_tickets(user: Ints, weight: Floats, users: int) -> Floats:
    """The tickets of each user: the mean weight of its jobs, so that more jobs do not make more tickets."""
    jobs = np.bincount(user, minlength=users)
    return np.asarray(np.bincount(user, weight, minlength=users) / np.maximum(jobs, 1))


def job_tickets(entitled_gpus: Floats, user: Ints, weight: Floats, gpus: Ints) -> Floats:
    """Each user's entitlement divided among its jobs by weight, no job above its gang; always more than 0."""
    share = water_fill(entitled_gpus, weight, gpus.astype(np.float64), user)
    return np.asarray(np.maximum(share, 1e-6))
