"""What a job can be given on a cluster with several GPU types (Sia, SOSP 2023), and its goodput there.

A configuration is a number of GPUs of one type: a power of two on one node, or whole nodes. So few are enough to choose
from, and any choice that respects the number of GPUs of each type can be placed without cutting jobs apart.

A job has a model of its step times for each type on which it has run. Its goodput on other types is projected: it is
that of a known type, times how much faster the job is said to be there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.models.goodput import best_splits
from fairway.models.step_time import StepModel

EVERY_NUMBER = 16
"""Up to this many whole nodes a job can have any number of them."""


class Configurations(NamedTuple):
    """Columns: GPU type, nodes and GPUs. Those of `regular` are offered to every job, others to single gangs."""

    kind: Ints
    nodes: Ints
    gpus: Ints
    regular: Bools

    def find(self, kind: Ints, nodes: Ints, gpus: Ints) -> Ints:
        """Which configurations these are; -1 for none."""
        same = (self.kind == kind[:, None]) & (self.nodes == nodes[:, None]) & (self.gpus == gpus[:, None])
        return np.where(same.any(axis=1), same.argmax(axis=1), -1)


def configurations(node_kind: Ints, capacity: Ints, gangs: Iterable[int] = ()) -> Configurations:
    """The configurations of a cluster (GPU type and GPUs of each node), with some `gangs` of any size.

    >>> found = configurations(np.array([0, 0, 1]), np.array([4, 4, 8]))
    >>> [(int(kind), int(nodes), int(gpus)) for kind, nodes, gpus, _ in zip(*found)]
    [(0, 1, 1), (0, 1, 2), (0, 1, 4), (0, 2, 8), (1, 1, 1), (1, 1, 2), (1, 1, 4), (1, 1, 8)]
    """
    found: list[tuple[int, int, int, bool]] = []
    for kind in range(int(node_kind.max(initial=-1)) + 1):
        sizes = np.sort(capacity[node_kind == kind])[::-1]
        largest = int(sizes.max(initial=0))
        counts = {2**power: 1 for power in range(largest.bit_length())}
        counts[largest] = 1
        counts |= {many * largest: many for many in _whole_nodes(int((sizes == largest).sum()))}
        counts.pop(0, None)
        found += [(kind, nodes, gpus, True) for gpus, nodes in counts.items()]
        for gang in sorted(set(gangs) - counts.keys()):
            if gang <= sizes.sum():
                found.append((kind, int((np.cumsum(sizes) < gang).sum()) + 1, gang, False))
    columns = np.array(sorted(found, key=lambda each: (each[0], each[2])), dtype=np.int64).reshape(-1, 4).T
    return Configurations(columns[0], columns[1], columns[2], columns[3] > 0)


def _whole_nodes(nodes: int) -> list[int]:
    """On how many whole nodes a job can be: on any number up to `EVERY_NUMBER`, then on twice as many each time."""
    counts = list(range(2, min(nodes, EVERY_NUMBER) + 1))
    while counts and 2 * counts[-1] <= nodes and counts[-1] >= EVERY_NUMBER:
        counts.append(2 * counts[-1])
    return counts


def goodputs(
    models: Floats, limits: Floats, noise: Floats, speeds: Floats, seen: Ints, where: Configurations, asked: Bools
) -> Floats:
    """The best goodput of each job (rows) in each configuration that is asked for; 0 elsewhere.

    `models` are jobs by GPU types by the seven parameters of a `StepModel`, NaN where a job has not run yet. `limits`
    are jobs by types by those of `BatchLimits`. `speeds` are jobs by types: how fast a job is there, in any unit, and 0
    if it cannot run there. `seen` are the most GPUs on which it has run by type: the type with most is projected from.
    """
    known = ~np.isnan(models[:, :, 0]) & (speeds > 0)
    source = np.where(known, np.arange(known.shape[1]), np.where(known, seen, -1).argmax(axis=1)[:, None])
    usable = known.any(axis=1, keepdims=True) & (speeds > 0)
    found = np.zeros(asked.shape)
    job, column = (asked & usable[:, where.kind]).nonzero()
    kind = where.kind[column]
    base = source[job, kind]
    faster = speeds[job, kind] / speeds[job, base]
    model, bounds = StepModel(*models[job, base].T), tuple(limits[job, kind].T)
    best = best_splits(model, noise[job], bounds, where.nodes[column], where.gpus[column], clamped=False)
    found[job, column] = best.goodput * np.where(base == kind, 1.0, faster)
    return found
