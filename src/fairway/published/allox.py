"""AlloX as in the public simulators of Gavel (OSDI'20) and Shockwave (NSDI'23): a plan of shares of time.

It differs from the paper's: only idle GPUs enter the matching, there are no users, and the first job on a GPU gets all
of its time until it ends. Of the jobs without a share the oldest take part: a part `alpha` of them, or as many as GPUs
are idle. (Gavel sets alpha to 1, Shockwave to 0.2.) A gang of g enters as one job on one GPU and gets 1/g of the time.
As that is not a whole share, the gang is matched again in every plan, and keeps its share meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies.allox import AlloX
from fairway.policies.allox.matched import jobs_behind, shortest
from fairway.policies.gavel.shares import Style, decide_by_shares
from fairway.policies.gavel.situation import Shares, Situation
from fairway.solvers.matching import least_completion

_IMPOSSIBLE_RATE = 1e-10
_MOST_COSTS = 400_000
"""Up to this many costs the matching is solved as published, so that ties between equal GPUs break in the same way."""
_WINDOW = 100


@dataclass(frozen=True)
class PublishedAlloX(AlloX):
    """AlloX by shares of time."""

    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    def decide(self, snapshot: Snapshot) -> Decision:
        """Plan shares if a plan is due, then choose the jobs that run in this round."""
        return decide_by_shares(snapshot, partial(published_plan, alpha=self.alpha), Style(published=True))


def published_plan(situation: Situation, alpha: float) -> Shares:
    """The shares of all rows. GPU types are taken in the order of their names, which decides among equals."""
    cluster = situation.snapshot.cluster
    by_name = np.argsort([kind.name for kind in cluster.types], kind="stable")
    x = np.zeros_like(situation.rates)
    x[:, by_name] = published_shares(
        situation.steps_left,
        situation.rates[:, by_name],
        situation.gangs,
        situation.waited_s,
        situation.snapshot.capacity[by_name],
        situation.previous[:, by_name],
        alpha,
    )
    return Shares(x)


def published_shares(
    steps_left: Floats,
    rates: Floats,
    gangs: Floats,
    waited_s: Floats,
    capacity: Ints,
    previous: Floats,
    alpha: float = 1.0,
) -> Floats:
    """Shares of time by job and type. A job that had all of a GPU's time keeps it; each free GPU goes to its first job.

    `rates` are steps per second by job and type. `previous` are the shares of the last plan (0 for new jobs).
    """
    usable = rates > 0
    x = np.where(usable, previous, 0.0)
    stays: Bools = x.sum(axis=1) == 1.0
    free = np.maximum(capacity - (x[stays] == 1.0).sum(axis=0), 0)
    others = (~stays & usable.any(axis=1)).nonzero()[0]
    order = others[np.argsort(-waited_s[others], kind="stable")]
    order = order[: max(int(alpha * len(order)), int(free.sum()))]
    if not len(order) or not free.any():
        return x
    times_s = (steps_left[:, None] / np.where(usable, rates, _IMPOSSIBLE_RATE))[order]
    for at, kind in _first_in_line(times_s, usable[order], waited_s[order], free):
        row = int(order[at])
        if usable[row, kind]:
            x[row, kind] = 1.0 / gangs[row]
    return x


def _first_in_line(times_s: Floats, usable: Bools, waited_s: Floats, free: Ints) -> list[tuple[int, int]]:
    """The job that starts on each free GPU, with the type of the GPU."""
    jobs, gpus = len(times_s), int(free.sum())
    if jobs * jobs * gpus > _MOST_COSTS:
        return _by_groups(np.where(usable & (free > 0), times_s, np.inf), free)
    from scipy.optimize import linear_sum_assignment

    kinds = np.repeat(np.arange(len(free)), free)
    positions = np.repeat(np.arange(1, jobs + 1), gpus)
    cost = positions * np.tile(times_s[:, kinds], (1, jobs)) + waited_s[:, None]
    first: dict[int, tuple[int, int]] = {}
    for job, column in zip(*(side.tolist() for side in linear_sum_assignment(cost)), strict=True):
        position, gpu = divmod(column, gpus)
        first[gpu] = max(first.get(gpu, (-1, -1)), (position, job))
    return [(job, int(kinds[gpu])) for gpu, (_, job) in sorted(first.items())]


def _by_groups(times_s: Floats, free: Ints) -> list[tuple[int, int]]:
    """The same if many jobs wait: the shortest on each type take part, and on each type the shortest of those start."""
    able = (times_s.min(axis=1) < np.inf).nonzero()[0]
    area = times_s[able].T
    inside = shortest(area, max(_WINDOW, int(free.sum())))
    looked_at, behind = area[:, inside], jobs_behind(area, inside, free)
    own = np.where(np.isfinite(looked_at), looked_at, 0.0) * behind[:, None]
    matched = least_completion(looked_at, [np.zeros(count) for count in free.tolist()], own)
    first = []
    for kind, count in enumerate(free.tolist()):
        here = able[inside[matched.types == kind]]
        soonest = here[np.argsort(times_s[here, kind], kind="stable")][:count]
        first += [(job, kind) for job in soonest.tolist()]
    return first
