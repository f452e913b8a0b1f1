"""What an inner policy sees: a snapshot of some of the rows, on a cluster of their own.

A tenant's jobs see the tenant's virtual cluster, with GPUs numbered there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Floats, Ints, frozen
from fairway.core.facts import Facts
from fairway.core.snapshot import Snapshot
from fairway.placement.tenants import VirtualCluster

Held = Mapping[int, tuple[int, ...]]
"""The GPUs that jobs hold, by job number."""


def tenant_view(
    snapshot: Snapshot,
    part: VirtualCluster,
    rows: Ints,
    *,
    held: Held,
    lost: Collection[int],
    bad: Collection[int] = (),
    memory: Mapping[str, Any],
    round_number: int,
) -> Snapshot:
    """A tenant's rows on its virtual cluster. `lost` are its cells without sound hardware, `bad` single GPUs of others
    that no job can have."""
    floats, ints = snapshot.floats[:, rows], snapshot.ints[:, rows]
    totals = part.cluster.gpus_by_type
    if len(snapshot.capacity) > 1:
        floats = _on_types(floats, ints, part.kinds, totals)
        ints[c.GPU_TYPE] = _renumbered(part.kinds, len(snapshot.capacity))[ints[c.GPU_TYPE]]
    facts = snapshot.frame.facts
    if "regimes" in snapshot.knows and len(snapshot.capacity) > 1:
        facts = _facts_on_types(facts, ints[c.JOB].tolist(), part.kinds)
    down, withheld = part.nodes_of(lost), frozenset(bad)
    frame = snapshot.frame._replace(cluster=part.cluster, held_gpus=held, down=down, facts=facts, withheld=withheld)
    return Snapshot.of(
        frame=frame,
        floats=frozen(floats),
        ints=frozen(ints),
        now_s=snapshot.now_s,
        round=round_number,
        capacity=frozen(part.counted(lost, bad)),
        memory=memory,
        knows=snapshot.knows,
        guarded=snapshot.guarded,
    )


def _facts_on_types(facts: Mapping[int, Facts], jobs: Sequence[int], kinds: Sequence[int]) -> dict[int, Facts]:
    """The facts of some jobs, with the speeds of their prospects on some of the GPU types only."""
    told = {job: facts[job] for job in jobs if job in facts}
    return {
        job: fact._replace(prospect=fact.prospect.on(kinds)) if fact.prospect is not None else fact
        for job, fact in told.items()
    }


def _renumbered(kinds: Sequence[int], types: int) -> Ints:
    """The virtual number of each real GPU type; -1, also as the last entry, stands for none."""
    numbers = np.full(types + 1, -1, dtype=np.int64)
    numbers[list(kinds)] = range(len(kinds))
    return numbers


def _on_types(floats: Floats, ints: Ints, kinds: Sequence[int], totals: Ints) -> Floats:
    """The columns if only some of the GPU types, and only some of their GPUs, exist: the best type may be another."""
    floats = np.concatenate([floats[: c.SPEEDS], floats[[c.SPEEDS + kind for kind in kinds]]])
    speeds = floats[c.SPEEDS :]
    speeds[totals[:, None] < ints[c.GPUS]] = 0.0
    best = speeds.max(axis=0)
    changed = ((best != floats[c.BEST_SPEED]) & (best > 0)).nonzero()[0]
    if len(changed):
        f = floats[:, changed]
        slower = f[c.BEST_SPEED] / best[changed]
        f[c.BEST_SPEED] = best[changed]
        f[c.TAIL_S] *= slower
        f[c.LEFT_RATE] *= slower
        again = (ints[c.HELD, changed] == 0) & (ints[c.LAUNCHES, changed] > 0)
        f[c.LEFT_S] = (f[c.REGIME_END] - f[c.PROGRESS0]) / best[changed] + f[c.TAIL_S] + f[c.RESTART_S] * again
        floats[:, changed] = f
    return floats
