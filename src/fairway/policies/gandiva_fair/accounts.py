"""What the policy remembers: passes, homes, the GPUs that each job left, and what users are owed of each GPU type.

Memory is kept by job number and comes back aligned to the rows of the snapshot, with the time since the last decision
charged. A job or user that is new, or comes back, starts at the smallest pass: absence earns no credit, and does not
clear debts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.snapshot import Snapshot
from fairway.policies.gandiva_fair.stride import advanced, newcomers_start


@dataclass
class Accounts:
    """Columns with one entry per row: passes, the GPU type and node that each job belongs to (-1: none yet).

    `user_passes` has one entry per user. `kinds` are types, `homes` nodes. A job without a home is placed over several
    nodes. `blocked` counts for how many quanta it was a job's turn while jobs that had just started were in its way;
    `closed` are nodes that are kept clear for a row because of that. `left` are the GPUs on which a job ran last.
    `owed_gpu_s` is what users (columns) are owed of each type (rows). `due_s` is when the next quantum was to begin,
    `typed_s` when jobs were last assigned to types.
    """

    user_passes: Floats
    passes: Floats
    kinds: Ints
    homes: Ints
    blocked: Ints
    left: dict[int, tuple[int, ...]]
    owed_gpu_s: Floats
    closed: dict[int, int]
    due_s: float = math.inf
    typed_s: float = -math.inf


def recall(snapshot: Snapshot) -> Accounts:
    """The accounts as of now."""
    rows, users = len(snapshot), len(snapshot.names.users)
    accounts = Accounts(
        user_passes=np.zeros(users),
        passes=np.zeros(rows),
        kinds=snapshot.recall("kinds", -1),
        homes=snapshot.recall("homes", -1),
        blocked=snapshot.recall("blocked", 0),
        left={},
        owed_gpu_s=np.zeros((len(snapshot.capacity), users)),
        closed={},
    )
    if "owners" in snapshot.memory:
        _continue(snapshot, snapshot.memory, accounts)
    _see_homes(snapshot, accounts)
    return accounts


def _continue(snapshot: Snapshot, memory: Mapping[str, Any], accounts: Accounts) -> None:
    """Carry over what is known about the jobs that are still here, and charge what all have received."""
    owners, rows = np.asarray(memory["owners"], dtype=np.int64), snapshot.rows_of(memory["jobs"])
    here = rows >= 0
    # A job that has ended held its GPUs until now; otherwise it would have been seen in between.
    spent_gpu_s = np.asarray(memory["granted"], dtype=np.float64) * (snapshot.now_s - memory["now_s"])
    before_gpu_s = np.asarray(memory["attained_gpu_s"], dtype=np.float64)
    spent_gpu_s[here] = snapshot.attained_gpu_s[rows[here]] - before_gpu_s[here]
    spent_gpu_s = np.maximum(spent_gpu_s, 0.0)
    passes = advanced(np.asarray(memory["passes"], dtype=np.float64), spent_gpu_s, np.asarray(memory["tickets"]))
    accounts.passes[:] = -np.inf
    accounts.passes[rows[here]] = passes[here]
    known: Bools = np.zeros(len(snapshot), dtype=np.bool_)
    known[rows[here]] = True
    accounts.passes = newcomers_start(accounts.passes, known, snapshot.user, len(accounts.user_passes))
    accounts.passes[np.isneginf(accounts.passes)] = 0.0
    accounts.due_s = math.inf if memory["due_s"] is None else memory["due_s"]
    accounts.typed_s = -math.inf if memory["typed_s"] is None else memory["typed_s"]
    row_of = {str(job): row for row, job in enumerate(snapshot.jobs.tolist())}
    accounts.left = {row_of[job]: tuple(gpus) for job, gpus in memory["left"].items() if job in row_of}
    accounts.closed = {int(node): row_of[job] for node, job in memory["closed"].items() if job in row_of}
    _charge_users(memory, accounts, owners, spent_gpu_s)


def _charge_users(memory: Mapping[str, Any], accounts: Accounts, owners: Ints, spent_gpu_s: Floats) -> None:
    """Advance the passes of users. What they are owed of each type grows by their part of its use."""
    shares, owed = np.asarray(memory["shares"], dtype=np.float64), np.asarray(memory["owed_gpu_s"], dtype=np.float64)
    kinds, users = np.asarray(memory["kinds"], dtype=np.int64), owed.shape[1]
    used = np.zeros(owed.shape)
    np.add.at(used, (kinds, owners), spent_gpu_s)
    # A second on a slow GPU counts for what it is worth to the user.
    values, passes = np.asarray(memory["values"], dtype=np.float64), accounts.user_passes
    due, got = (shares * values).sum(axis=0), (used * values).sum(axis=0)
    passes[:users] = advanced(np.asarray(memory["user_passes"]), got, due)
    present = np.zeros(len(passes), dtype=np.bool_)
    present[owners] = True
    accounts.user_passes = newcomers_start(passes, present, np.zeros(len(passes), dtype=np.int64), 1)
    total = np.maximum(shares.sum(axis=1, keepdims=True), 1e-9)
    accounts.owed_gpu_s[:, :users] = owed + shares / total * used.sum(axis=1, keepdims=True) - used


def _see_homes(snapshot: Snapshot, accounts: Accounts) -> None:
    """A job belongs to the node on which it runs."""
    node_of_gpu = snapshot.cluster.node_of_gpu
    for row in snapshot.running_rows.tolist():
        gpus = snapshot.gpus_held(row)
        accounts.kinds[row] = snapshot.gpu_type[row]
        first, last = node_of_gpu[gpus[0]], node_of_gpu[gpus[-1]]
        accounts.homes[row] = first if first == last else -1
        accounts.left[row] = gpus


def remember(
    snapshot: Snapshot, accounts: Accounts, tickets: Floats, market: tuple[Floats, Floats], granted: Ints, kinds: Ints
) -> dict[str, Any]:
    """The accounts as memory for the next decision.

    `market` has the users' shares of each type and what those are worth to them, `kinds` the types on which the granted
    jobs run.
    """
    names = [str(job) for job in snapshot.jobs.tolist()]
    return {
        "now_s": snapshot.now_s,
        "due_s": accounts.due_s if math.isfinite(accounts.due_s) else None,
        "typed_s": accounts.typed_s if math.isfinite(accounts.typed_s) else None,
        "jobs": snapshot.jobs.copy(),
        "owners": snapshot.user.copy(),
        "user_passes": accounts.user_passes,
        "passes": accounts.passes,
        "tickets": tickets,
        "kinds": kinds,
        "homes": accounts.homes,
        "blocked": accounts.blocked,
        "granted": granted.copy(),
        "attained_gpu_s": snapshot.attained_gpu_s.copy(),
        "left": {names[row]: gpus for row, gpus in accounts.left.items()},
        "closed": {str(node): names[row] for node, row in accounts.closed.items()},
        "owed_gpu_s": accounts.owed_gpu_s,
        "shares": market[0],
        "values": market[1],
    }
