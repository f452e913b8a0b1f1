"""A snapshot as the planner of tasks sees it, and its plan as queues.

A job's work is divided into equal rounds when it is first planned. Their number stays: it is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.queues import OpenRound, Queues, Task
from fairway.core.snapshot import Snapshot
from fairway.solvers.task_jobs import TaskGpus, TaskJobs
from fairway.solvers.task_plan import queues
from fairway.solvers.task_schedule import TaskSchedule

MOST_ROUNDS = 16
_SAME = 1e-9
"""Speeds that differ by rounding only are equal."""
OTHER_JOB = -2
"""Stands for a job that is not planned, in the eyes of the planner."""
PLANNED_ROUNDS = 2_000
"""How many rounds of all jobs together a plan should have at most."""


class Outline(NamedTuple):
    """Rows that are planned, the number of their rounds in all, and how many of these are over."""

    rows: Ints
    rounds: Ints
    over: Ints
    opened: list[OpenRound | None]


def outline(snapshot: Snapshot, rows: Ints, rounds: Ints) -> Outline:
    """The rows with their rounds, counted from what is done and from the round that is open."""
    opened = [snapshot.facts(row).round for row in rows.tolist()]
    ends = np.array([np.nan if one is None else one.until for one in opened])
    work = snapshot.floats[c.WORK, rows]
    done = np.where(np.isnan(ends), snapshot.progress[rows], ends)
    part = np.divide(done, work, out=np.ones(len(rows)), where=work > 0)
    begun = ~np.isnan(ends)
    over = np.rint(np.minimum(part, 1.0) * rounds).astype(np.int64) - begun
    # Work that is left after the open round needs one more; if none is left, the open round is the last.
    over = np.where(begun & (part >= 1.0), rounds - 1, np.clip(over, 0, rounds - 1 - (begun & (rounds > 1))))
    rounds = np.where(begun & (part < 1.0) & (rounds == 1), 2, rounds)
    return Outline(rows, rounds, over, opened)


def rounds_of(snapshot: Snapshot, known: Ints, rows: Ints, group_s: float) -> Ints:
    """The number of rounds of each row: as remembered (above 0), or rounds of about `group_s` on its best GPUs.

    Real rounds are single steps. They are grouped, but never divided.
    """
    most = max(min(MOST_ROUNDS, PLANNED_ROUNDS // max(len(rows), 1)), 1)
    fresh = np.clip(np.ceil(snapshot.oracle.left_s[rows] / group_s), 1, most).astype(np.int64)
    for at, row in enumerate(rows.tolist()):
        terms = snapshot.facts(row).tasks
        if terms is not None:
            fresh[at] = min(int(fresh[at]), max(int(terms.rounds), 1))
    return np.where(known[rows] > 0, known[rows], fresh)


def usable(snapshot: Snapshot) -> Bools:
    """The rows that some GPU can run which is up."""
    return np.asarray(((snapshot.speeds > 0) & (snapshot.capacity > 0)[:, None]).any(axis=0))


def task_jobs(snapshot: Snapshot, about: Outline) -> TaskJobs:
    """What is left of the rows, as rounds of tasks."""
    rows, now_s = about.rows, snapshot.now_s
    gangs = snapshot.gpus[rows]
    begun = np.array([0 if one is None else one.begun for one in about.opened], dtype=np.int64)
    synced_s = np.array([_synced_s(one) for one in about.opened])
    step_s, part = _round_times(snapshot, about)
    return TaskJobs(
        weight=snapshot.weight[rows],
        ready_s=np.zeros(len(rows)),
        rounds=about.rounds - about.over,
        tasks=gangs,
        first_tasks=gangs - begun,
        first_synced_s=np.where(begun > 0, np.maximum(synced_s - now_s, 0.0), 0.0),
        task_s=step_s * part,
        sync_s=np.where(np.isfinite(step_s), step_s, 0.0) * (1.0 - part),
    )


def single_rounds(snapshot: Snapshot, rows: Ints, begun: Ints, round_s: float) -> TaskJobs:
    """The present round of each row, of the same length for all, of whose tasks some have begun."""
    gangs, speeds = snapshot.gpus[rows], snapshot.speeds[:, rows].T
    step_s = per_speed(round_s * snapshot.best_speed[rows], speeds)
    part = _computing(snapshot, rows)
    return TaskJobs(
        weight=np.ones(len(rows)),
        ready_s=np.zeros(len(rows)),
        rounds=np.ones(len(rows), dtype=np.int64),
        tasks=gangs,
        first_tasks=gangs - begun,
        first_synced_s=np.zeros(len(rows)),
        task_s=step_s * part,
        sync_s=np.where(np.isfinite(step_s), step_s, 0.0) * (1.0 - part),
    )


def per_speed(work: Floats, speeds: Floats) -> Floats:
    """How long work takes at each speed; infinite where it cannot run."""
    return np.asarray(np.divide(work[:, None], speeds, out=np.full(speeds.shape, np.inf), where=speeds > 0))


def _computing(snapshot: Snapshot, rows: Ints) -> Floats:
    """What part of a step each row computes, by GPU type."""
    part = np.ones((len(rows), len(snapshot.capacity)))
    for at, row in enumerate(rows.tolist()):
        terms = snapshot.facts(row).tasks
        if terms is not None:
            part[at] = terms.computes
    return part


def _synced_s(opened: OpenRound | None) -> float:
    """When the tasks of a round that have begun will all be synchronised."""
    if opened is None:
        return 0.0
    return max([opened.synced_s, *(task.synced_s for task in opened.running)])


def _round_times(snapshot: Snapshot, about: Outline) -> tuple[Floats, Floats]:
    """How long a round takes on a gang of each type (infinite: it cannot run), and what part of that computes."""
    rows = about.rows
    speeds, work = snapshot.speeds[:, rows].T, snapshot.floats[c.WORK, rows]
    step_s = per_speed(work / about.rounds, speeds)
    # The regimes to come may be faster or slower than the present one; a plan counts with their mean.
    best_s = (work - snapshot.progress[rows]) / snapshot.best_speed[rows]
    mean = np.divide(snapshot.oracle.left_s[rows], best_s, out=np.ones(len(rows)), where=best_s > 0)
    mean = np.where(np.abs(mean - 1.0) < _SAME, 1.0, mean)
    return step_s * mean[:, None], _computing(snapshot, rows)


def task_gpus(snapshot: Snapshot) -> tuple[Ints, TaskGpus]:
    """The numbers of the GPUs that can be used, when each is free, and the row of the job that it runs."""
    cluster, gone = snapshot.cluster, set(snapshot.withheld_gpus)
    node_of_gpu = cluster.node_of_gpu
    numbers = [g for g in range(cluster.gpu_count) if node_of_gpu[g] not in snapshot.down_nodes and g not in gone]
    free_s, holder = np.zeros(cluster.gpu_count), np.full(cluster.gpu_count, OTHER_JOB)
    for row in snapshot.running_rows.tolist():
        opened = snapshot.facts(row).round
        for task in () if opened is None else opened.running:
            free_s[task.gpu], holder[task.gpu] = max(task.ends_s - snapshot.now_s, 0.0), row
    kinds = np.array([cluster.node_type[node_of_gpu[gpu]] for gpu in numbers], dtype=np.int64)
    return np.array(numbers, dtype=np.int64), TaskGpus(kinds, free_s[numbers], holder[numbers])


def queues_of(
    snapshot: Snapshot, rows: Ints, ends: Sequence[Sequence[float]], numbers: Ints, planned: TaskSchedule
) -> dict[int, tuple[Task, ...]]:
    """The plan as the tasks of each GPU in the order of their starts. `ends` are those of the rounds of each row."""
    jobs, found = snapshot.jobs[rows].tolist(), dict[int, tuple[Task, ...]]()
    order, begins = queues(planned, len(numbers))
    for at, gpu in enumerate(numbers.tolist()):
        mine = order[begins[at] : begins[at + 1]]
        placed = zip(planned.job[mine].tolist(), planned.round[mine].tolist(), strict=True)
        found[gpu] = tuple(Task(jobs[job], ends[job][number]) for job, number in placed)
    return found


def ends_of(snapshot: Snapshot, about: Outline) -> list[list[float]]:
    """The work that is done at the end of each round that is left, by job."""
    found = []
    for at, row in enumerate(about.rows.tolist()):
        work, opened = float(snapshot.floats[c.WORK, row]), about.opened[at]
        done = float(snapshot.progress[row]) if opened is None else opened.until
        left = int(about.rounds[at] - about.over[at]) - (opened is not None)
        ends = [done + (work - done) * (k / left) for k in range(1, left)]
        found.append([*([] if opened is None else [opened.until]), *ends, *([work] if left else [])])
    return found


def among(gpus: TaskGpus, rows: Ints) -> TaskGpus:
    """The GPUs as the planner of some rows sees them: jobs are known by their position."""
    held = np.full(len(gpus.kind), OTHER_JOB) if gpus.holder is None else gpus.holder
    at = np.minimum(np.searchsorted(rows, held), len(rows) - 1)
    return gpus._replace(holder=np.where(rows[at] == held, at, OTHER_JOB))


def appended(first: Queues, then: Queues) -> dict[int, tuple[Task, ...]]:
    """Queues in which the tasks of the second come after those of the first."""
    return {gpu: first.get(gpu, ()) + then.get(gpu, ()) for gpu in {**first, **then}}
