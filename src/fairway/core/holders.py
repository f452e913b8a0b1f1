"""Which GPUs of those that a waiting job needs are free, and which jobs have the others, in words: jobs that a decision
serves, and jobs that cannot be stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairway.core.arrays import Bools, Ints

if TYPE_CHECKING:
    from fairway.core.snapshot import Snapshot

MOST_NAMED = 3
"""How many jobs a text names; the others are counted."""
_JUST_STARTED = "just started and cannot be stopped yet"


def usable_types(snapshot: Snapshot) -> Ints:
    """The GPU types that each row can use, as a number with a bit for each type."""
    if len(snapshot.capacity) == 1:
        return np.ones(len(snapshot), dtype=np.int64)
    bits = np.left_shift(1, np.arange(len(snapshot.capacity), dtype=np.int64))
    usable: Ints = ((snapshot.speeds > 0) * bits[:, None]).sum(axis=0)
    return usable


def holders_text(snapshot: Snapshot, gpus: Ints, gpu_types: Ints | None, usable: int = -1) -> str:
    """Which jobs are granted the GPUs of some types (the bits of `usable`, else all), and why they keep them."""
    rows = gpus.nonzero()[0]
    kinds = snapshot.gpu_type if gpu_types is None else gpu_types
    if len(snapshot.capacity) > 1:
        rows = rows[(kinds[rows] < 0) | (np.right_shift(usable, np.maximum(kinds[rows], 0)) & 1 > 0)]
    keeps = (snapshot.held[rows] > 0) & (snapshot.protected_until_s[rows] > snapshot.now_s)
    always: Bools = keeps & (snapshot.protected_until_s[rows] == np.inf)
    parts = (
        (rows[~keeps], "is served first", "are served first"),
        (rows[keeps & ~always], f"has {_JUST_STARTED}", f"have {_JUST_STARTED}"),
        (rows[always], "is never preempted", "are never preempted"),
    )
    texts = []
    for some, one, more in parts:
        if len(some):
            texts.append(f"{named(snapshot, some, gpus)} {one if len(some) == 1 else more}")
    return "; ".join(texts)


def free_text(snapshot: Snapshot, gpus: Ints, gpu_types: Ints | None, usable: int, free: int) -> str:
    """How many GPUs of some types (the bits of `usable`) a decision leaves: `1 free on a100, 0 on v100`.

    `gpus` are those that rows are granted for themselves. On all types together `free` are left.
    """
    if len(snapshot.capacity) == 1:
        return f"{free:,} free"
    kinds = snapshot.gpu_type if gpu_types is None else np.where(gpu_types < 0, snapshot.gpu_type, gpu_types)
    left = snapshot.capacity.copy()
    np.subtract.at(left, kinds[kinds >= 0], gpus[kinds >= 0])
    counts = [
        (min(max(int(left[kind]), 0), free), gpu_type.name)
        for kind, gpu_type in enumerate(snapshot.cluster.types)
        if usable >> kind & 1
    ]
    if not counts:
        return "none here that it can use"
    counts.sort(key=lambda count: -count[0])
    parts = [f"{number:,} on {name}" for number, name in counts[:MOST_NAMED]]
    parts[0] = parts[0].replace(" on ", " free on ", 1)
    return ", ".join(parts) + (f" and {len(counts) - MOST_NAMED} other types" if len(counts) > MOST_NAMED else "")


def named(snapshot: Snapshot, rows: Ints, gpus: Ints) -> str:
    """Rows by the ids of their jobs, with their numbers of GPUs, the largest first: `jobs 1 (4 GPUs) and 2 (1 GPU)`."""
    first = rows[np.argsort(-gpus[rows], kind="stable")][:MOST_NAMED].tolist()
    names = [f"{snapshot.job_id(int(snapshot.jobs[row]))} ({counted(int(gpus[row]))})" for row in first]
    if len(rows) > len(first):
        names.append(f"{len(rows) - len(first):,} more")
    return f"{'job' if len(rows) == 1 else 'jobs'} {_listed(names)}"


def counted(gpus: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return "1 GPU" if gpus == 1 else f"{gpus:,} GPUs"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
