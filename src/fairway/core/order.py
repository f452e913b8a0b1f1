"""The order in which a policy promises to serve jobs. `fairway.testing.check_policy` holds it to that.

Nothing else reads it: what a policy decides is up to `decide`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.snapshot import Snapshot


@dataclass(frozen=True)
class Order:
    """Which jobs go first, in words for messages and as a key: the smaller one goes first.

    No waiting job is passed: a job behind it starts only if the waiting one would not fit in its place. Jobs whose keys
    are equal may be served in any order.

    `strict`: nothing starts behind a job that waits, even if that one does not fit. `preempts`: running jobs, too, give
    way to waiting ones that come before them.
    """

    text: str
    key: Callable[[Snapshot], Floats | Ints]
    strict: bool = False
    preempts: bool = False


def submission(snapshot: Snapshot) -> Ints:
    """The key of the order of submission, which is that of the rows."""
    return np.arange(len(snapshot))
