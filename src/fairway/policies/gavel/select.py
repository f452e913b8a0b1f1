"""The units of the next round: in the order of how far each is behind its share, as long as GPUs are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.portable import rounded
from fairway.policies.gavel.account import ShareAccount

NEVER_RAN = 1e9
"""The priority per share of a unit that has received nothing since the plan."""

EQUAL_S = 1e-6
"""Deficits that differ by less than this are equal."""


class Chosen(NamedTuple):
    """Units and the type on which each runs, in the order of choice; and gangs that were passed over."""

    units: list[tuple[int, int]]
    passed: list[int]


def priorities(account: ShareAccount, can_run: Bools) -> Floats:
    """Share of time over share received, by unit and type; 0 where nothing is planned."""
    total_s = np.add.reduce(account.received_s)
    part = np.divide(account.received_s, total_s, out=np.zeros_like(account.received_s), where=total_s > 0)
    priority = np.divide(account.x, part, out=account.x * NEVER_RAN, where=part > 0)
    return np.where(can_run & account.planned[:, None], priority, 0.0)


def ranking(account: ShareAccount, priority: Floats, kind: int, running: Bools | None) -> Ints:
    """The units by priority on a type, then deficit, then share, then (if `running` is given) whether they run there.

    If it is given, units whose figures agree but for their last digits are equal. Published simulators, which do not
    know what runs, decided by these digits.
    """
    first, then, last = priority[:, kind], account.deficit_s[:, kind], account.x[:, kind]
    if running is None:
        return np.lexsort([-last, -then, -first])
    return np.lexsort([~running, -last, -np.rint(then / EQUAL_S), -rounded(first)])


def choose(
    account: ShareAccount,
    rows: Ints,
    sizes: Ints,
    can_run: Bools,
    free: Sequence[int],
    order: Sequence[int],
    *,
    taken: Sequence[int] = (),
    first: Sequence[int] = (),
    idle_fill: bool = True,
    unplanned: bool = False,
    running: Ints | None = None,
) -> Chosen:
    """Go through the types in `order` and through the units of each by rank; every job runs once.

    `sizes[u]` are the GPUs of a unit, `can_run[u, kind]` says where it can run, `free[kind]` is what is free. The jobs
    of the rows `taken` have their place already. The units of `first` are served before all others. Without `idle_fill`
    only units of positive priority run; `unplanned` also lets units run that came after the plan. `running[u]` is the
    type on which a unit runs now: it goes before its equals.
    """
    priority = priorities(account, can_run)
    left, busy = list(free), set(taken)
    chosen: list[tuple[int, int]] = []
    passed: list[int] = []
    for unit in first:
        kinds = [kind for kind in np.argsort(-priority[unit], kind="stable").tolist() if can_run[unit, kind]]
        kind = next((kind for kind in kinds if left[kind] >= sizes[unit]), None)
        if kind is not None and busy.isdisjoint(rows[unit].tolist()):
            _take(unit, kind, rows, sizes, left, busy, chosen)
    for kind in order:
        on_it = None if running is None else running == kind
        for unit in ranking(account, priority, kind, on_it).tolist():
            if left[kind] <= 0:
                break
            if not can_run[unit, kind] or not (account.planned[unit] or unplanned):
                continue
            if priority[unit, kind] <= 0 and (not idle_fill or rows[unit, 1] >= 0):
                continue
            if not busy.isdisjoint(rows[unit].tolist()):
                continue
            if left[kind] >= sizes[unit]:
                _take(unit, kind, rows, sizes, left, busy, chosen)
            elif priority[unit, kind] > 0:
                passed.append(unit)
    runs = {unit for unit, _ in chosen}
    return Chosen(chosen, [unit for unit in passed if unit not in runs])


def _take(
    unit: int, kind: int, rows: Ints, sizes: Ints, left: list[int], busy: set[int], chosen: list[tuple[int, int]]
) -> None:
    left[kind] -= int(sizes[unit])
    busy.update(row for row in rows[unit].tolist() if row >= 0)
    chosen.append((unit, kind))
