"""How many cases tests try: some of them, so that they are quick, or all of them.

`FAIRWAY_SEEDS=all` asks for all cases, as `make soak` and continuous integration do. `FAIRWAY_SEEDS=rotating` tries
other cases every day. Otherwise the cases are the same every time.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
_SEEDS = os.environ.get("FAIRWAY_SEEDS", "")
ALL = _SEEDS == "all"


def some(cases: Iterable[Case], count: int) -> list[Case]:
    """`count` of the cases, from all over their range; or all of them."""
    known = list(cases)
    if ALL or count >= len(known):
        return known
    turn = first_seed() % len(known)
    return [known[(turn + at * len(known) // count) % len(known)] for at in range(count)]


def first_seed() -> int:
    """The first seed of a range: 0, or another one every day."""
    return datetime.date.today().toordinal() * 100_000 if _SEEDS == "rotating" else 0
