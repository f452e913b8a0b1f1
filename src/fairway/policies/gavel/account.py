"""What the rounds mechanism remembers from one decision to the next: the plan, and what each unit has received of it.

A *unit* is what shares are planned for: a job alone, or two jobs on the same GPUs. The account keeps job numbers, so it
stays valid while rows come and go. As a decision's memory it is a dictionary of plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.facts import NO_FACTS
from fairway.core.snapshot import Snapshot

NOBODY = -1


@dataclass
class ShareAccount:
    """The accounts of all units: first jobs alone, in the order of the snapshot's rows, then pairs.

    `units[u]` are one or two job numbers (the second is -1 for a job alone). `planned` says whether the last plan knew
    a unit. `x` is its share of time by GPU type, `received_s` what it has received since that plan (starting with half
    a round), `deficit_s` what earlier plans still owe it. `skipped` counts the consecutive rounds in which a gang's
    turn had come but too few GPUs were left. `ran` are the (unit, type) of the round that has ended; it began at
    `began_s`. `attained_s` is how long each job had held GPUs at the last decision.
    """

    units: Ints
    planned: Bools
    x: Floats
    received_s: Floats
    deficit_s: Floats
    skipped: Ints
    ran: Ints
    attained_s: Floats
    capacity: Ints
    planned_s: float = -1.0
    began_s: float = -1e18
    stale: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def empty(types: int) -> ShareAccount:
        """The account before the first decision."""
        none = np.zeros((0, types))
        whole = np.zeros(0, dtype=np.int64)
        two = np.zeros((0, 2), dtype=np.int64)
        planned = np.zeros(0, dtype=bool)
        return ShareAccount(two, planned, none, none, none, whole, two, np.zeros(0), np.zeros(types, dtype=np.int64))

    @staticmethod
    def from_memory(memory: Mapping[str, Any], types: int) -> ShareAccount:
        """Read what `memory` gave, perhaps after a trip through JSON. Anything else gives an empty account."""
        account = ShareAccount.empty(types)
        if any(each.name not in memory for each in fields(ShareAccount)) or np.shape(memory["capacity"]) != (types,):
            return account
        for each in fields(ShareAccount):
            old = getattr(account, each.name)
            if isinstance(old, np.ndarray):
                values = np.array(memory[each.name], dtype=old.dtype)
                setattr(account, each.name, values.reshape(-1, *old.shape[1:]))
            else:
                setattr(account, each.name, memory[each.name])
        return account

    def memory(self) -> dict[str, Any]:
        """The account as plain values."""
        return {each.name: getattr(self, each.name) for each in fields(ShareAccount)}

    @property
    def is_pair(self) -> Bools:
        """Which units are two jobs."""
        return np.asarray(self.units[:, 1] != NOBODY)

    def rows(self, snapshot: Snapshot) -> Ints:
        """The rows of the jobs of each unit; -1 where there is no second one."""
        return snapshot.rows_of(self.units)


def recall(snapshot: Snapshot, half_s: float) -> ShareAccount:
    """The account as of now: what ran is credited, units of jobs that have left are closed, new jobs are added."""
    account = ShareAccount.from_memory(snapshot.memory, len(snapshot.capacity))
    jobs = snapshot.jobs
    _credit(account, snapshot)
    here = (account.rows(snapshot) >= 0) | (account.units == NOBODY)
    stays = here.all(axis=1)
    singles = ~account.is_pair
    known = account.units[singles & stays, 0]
    new = np.setdiff1d(jobs, known, assume_unique=True)
    if len(new) or not stays.all():
        account.stale = True
        _rebuild(account, singles & stays, new, ~singles & stays, half_s)
    account.ran = np.zeros((0, 2), dtype=np.int64)
    account.attained_s = snapshot.attained_s.copy()
    if not np.array_equal(account.capacity, snapshot.capacity):
        account.capacity, account.stale = snapshot.capacity.copy(), True
    return account


def _rebuild(account: ShareAccount, singles: Bools, new: Ints, pairs: Bools, half_s: float) -> None:
    """Old jobs, then new jobs with a credit of half a round, then old pairs."""
    types, count = account.x.shape[1], len(new)

    def joined(old: Any, fresh: Any) -> Any:
        return np.concatenate([old[singles], fresh, old[pairs]])

    account.units = joined(account.units, np.column_stack([new, np.full(count, NOBODY)]))
    account.planned = joined(account.planned, np.zeros(count, dtype=bool))
    account.x = joined(account.x, np.zeros((count, types)))
    account.received_s = joined(account.received_s, np.full((count, types), half_s))
    account.deficit_s = joined(account.deficit_s, np.zeros((count, types)))
    account.skipped = joined(account.skipped, np.zeros(count, dtype=np.int64))


def _credit(account: ShareAccount, snapshot: Snapshot) -> None:
    """Book the time of each unit in the last round: as an engine of rounds reports it, else while it held GPUs."""
    if not len(account.ran):
        return
    known = {"jobs": account.units[~account.is_pair, 0], "attained_s": account.attained_s}
    ran_s = _as_told(snapshot, snapshot.attained_s - snapshot.recall("attained_s", snapshot.attained_s, known))
    units, kinds = account.ran[:, 0], account.ran[:, 1]
    rows = snapshot.rows_of(account.units[units])
    alone = account.units[units, 1] == NOBODY
    of_rows = ran_s[rows]
    time_s = np.where(alone, of_rows[:, 0], of_rows.max(axis=1))
    whole = (rows[:, 0] >= 0) & ((rows[:, 1] >= 0) | alone)
    account.received_s[units[whole], kinds[whole]] += time_s[whole]


def _as_told(snapshot: Snapshot, ran_s: Floats) -> Floats:
    """The times for which jobs ran in the last round, as reported by an engine that counts by rounds."""
    facts = snapshot.frame.facts
    if not facts:
        return ran_s
    told_s = np.array([facts.get(job, NO_FACTS).ran_s for job in snapshot.jobs.tolist()])
    return np.where(np.isnan(told_s), ran_s, told_s)
