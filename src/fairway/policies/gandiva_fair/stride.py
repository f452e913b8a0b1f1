"""Gang-aware stride in two levels: the user with the smallest pass goes first, then its job with the smallest pass.

Stride scheduling (Waldspurger and Weihl, 1995) with one change: a job that runs on g GPUs for a second pays for g
seconds, per ticket. Tickets are counted in GPUs, so a user that gets exactly its due advances a second per second, and
passes can be compared between nodes and over time. There are two levels because tickets belong to users: with job
passes alone a user could submit ever new jobs, each of which begins with the smallest pass.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints

HORIZON_QUANTA = 20.0
"""Claims and debts of more than this many quanta are forgotten, so that no user pays for hours of idle GPUs."""
DIGITS = 6
"""Passes that differ by less than a microsecond are equal, and then the order of submission decides."""


def advanced(passes: Floats, gpu_s: Floats, tickets: Floats) -> Floats:
    """Passes after GPU time was received: gang times seconds, per ticket."""
    return np.asarray(passes + np.divide(gpu_s, tickets, out=np.zeros(len(passes)), where=tickets > 0))


def near_the_mean(passes: Floats, tickets: Floats, group: Ints, groups: int, lead: Floats) -> Floats:
    """Passes at most `lead` away from the mean of their group, which is weighted by tickets."""
    total = np.bincount(group, tickets, minlength=groups)
    mean = np.bincount(group, tickets * passes, minlength=groups) / np.maximum(total, 1e-12)
    return np.asarray(np.clip(passes, mean[group] - lead, mean[group] + lead))


def newcomers_start(passes: Floats, known: Bools, group: Ints, groups: int) -> Floats:
    """Passes in which unknown ones get the smallest of their group (or keep theirs, if it is larger)."""
    least = np.full(groups, np.inf)
    np.minimum.at(least, group[known], passes[known])
    floor = np.where(np.isfinite(least), least, -np.inf)[group]
    return np.asarray(np.where(known, passes, np.maximum(passes, floor)))


def turns(
    user_passes: Floats, job_passes: Floats, user: Ints, gpus: Ints, entitled: Floats, quantum_s: float, runs: Bools
) -> Ints:
    """Rows in the order in which they are served.

    A user's jobs follow each other by rising pass; those in `runs`, which cannot be stopped, come first. Each advances
    the user's pass as if it ran for a quantum, so that users take turns inside a quantum, too.
    """
    by_user = np.lexsort((np.round(job_passes, DIGITS), ~runs, user))
    sizes, owner = gpus[by_user], user[by_user]
    before = np.cumsum(sizes) - sizes
    first = np.searchsorted(owner, owner, side="left")
    charge = quantum_s * (before - before[first]) / np.maximum(entitled[owner], 1e-9)
    when = np.empty(len(user))
    when[by_user] = user_passes[owner] + charge
    # Equals in the order of submission, except that a user's own jobs stay in their order.
    rank = np.empty(len(user), dtype=np.int64)
    rank[by_user] = np.arange(len(user)) - first
    return np.lexsort((np.arange(len(user)), rank, np.round(when, DIGITS)))
