"""Jobs of unknown length: least attained service on mixed GPUs.

A job has one round in the queues at a time. It gets the next one when that is over. Jobs that have done least, counted
in GPU-seconds on the GPU type that suits each best and divided by its weight, come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.queues import Queues
from fairway.core.snapshot import Snapshot
from fairway.policies.hare import outline as tasks
from fairway.solvers.task_schedule import schedule

_PRECISION = 1000.0
"""Service is compared in thousandths of a second."""


def service(snapshot: Snapshot) -> Floats:
    """What each job has done, in weighted GPU-seconds on its best GPU type."""
    done_s = snapshot.progress / snapshot.best_speed * snapshot.gpus / snapshot.weight
    return np.asarray(np.rint(done_s * _PRECISION))


def by_service(snapshot: Snapshot, rows: Ints) -> Ints:
    """The rows by priority, then by least service, then as they came."""
    return rows[np.lexsort((rows, service(snapshot)[rows], -snapshot.priority[rows]))]


def next_rounds(snapshot: Snapshot, usable: Bools, assign: str, round_s: float) -> tuple[Queues, Mapping[str, Any]]:
    """Queues with the present or next round of each job, and what to remember. They stay until a job needs a round."""
    numbers, gpus = tasks.task_gpus(snapshot)
    ends = snapshot.recall("ends", -1.0)
    opened = [snapshot.facts(row).round for row in range(len(snapshot))]
    idle = np.array([one is None for one in opened])
    fresh = usable & idle & (snapshot.progress >= ends)
    if snapshot.queues is not None and not fresh.any() and snapshot.memory.get("gpus") == numbers.tolist():
        return snapshot.queues, snapshot.memory
    ends[fresh] = (snapshot.progress + round_s * snapshot.best_speed)[fresh]
    ends = np.where(idle, ends, [-1.0 if one is None else one.until for one in opened])
    begun = np.array([0 if one is None else one.begun for one in opened], dtype=np.int64)
    rows = (usable & (begun < snapshot.gpus)).nonzero()[0]
    memory = {"jobs": snapshot.jobs.copy(), "ends": ends, "gpus": numbers.tolist()}
    if not len(rows):
        return dict.fromkeys(numbers.tolist(), ()), memory
    order = np.searchsorted(rows, by_service(snapshot, rows))
    where = tasks.among(gpus, rows)
    planned = schedule(tasks.single_rounds(snapshot, rows, begun[rows], round_s), where, order, assign)
    queues = tasks.queues_of(snapshot, rows, ends[rows][:, None].tolist(), numbers, planned)
    starts_s = np.full(len(snapshot), np.inf)
    np.minimum.at(starts_s, rows[planned.job], snapshot.now_s + planned.start_s)
    return queues, {**memory, "starts_s": starts_s}
