"""How many cases tests try: some of them, so that they are quick, or all of them.

`FAIRWAY_SEEDS=all` asks for all cases, as `make soak` does. `FAIRWAY_SEEDS=many` asks for all that do not take minutes,
as `make test-all` and continuous integration do. `FAIRWAY_SEEDS=rotating` tries other cases every day. Otherwise the
cases are the same every time.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
_SEEDS = os.environ.get("FAIRWAY_SEEDS", "")
ALL = _SEEDS in ("all", "many")
_SLOW = ("hare",)
LONG = _SEEDS == "all"
"""Whether tests that take minutes are run."""


def some(cases: Iterable[Case], count: int, *, long: bool = False) -> list[Case]:
    """`count` of the cases, from all over their range; or all of them. `long`: all of them would take minutes."""
    known = list(cases)
    if (LONG if long else ALL) or count >= len(known):
        return known
    turn = first_seed() % len(known)
    return [known[(turn + at * len(known) // count) % len(known)] for at in range(count)]


def quick(policies: Iterable[str]) -> list[str]:
    """Names of policies; without those whose runs take long, unless all cases are asked for."""
    return [name for name in sorted(policies) if ALL or name not in _SLOW]


def first_seed() -> int:
    """The first seed of a range: 0, or another one every day."""
    return datetime.date.today().toordinal() * 100_000 if _SEEDS == "rotating" else 0
