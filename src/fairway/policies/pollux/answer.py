"""The decision about jobs whose nodes were chosen: GPUs, types, batches, and a sentence for each job."""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts
from fairway.policies.pollux.floor import Floor
from fairway.policies.pollux.jobs import LearnedJobs
from fairway.policies.pollux.splits import about_split, chosen_splits


def decided(snapshot: Snapshot, jobs: LearnedJobs, floor: Floor, rows: Ints) -> Decision:
    """The decision that puts jobs where `rows` (jobs by nodes) says, with the best batch for each."""
    gpus = np.where(floor.pinned, snapshot.held, rows.sum(axis=1))
    decision = Decision(
        gpus,
        np.where(gpus > 0, Reason.RUNS, Reason.OUTRANKED).astype(np.int8),
        _types(snapshot, floor, rows),
        partners=floor.partners,
        placements=floor.concrete(rows),
        memory=jobs.memory,
        batches=chosen_splits(jobs, rows),
    )
    return decision._replace(texts=_texts(jobs, decision, rows, least_gpus(snapshot, jobs)))


def least_gpus(snapshot: Snapshot, jobs: LearnedJobs) -> Ints:
    """The fewest GPUs with which each row runs: a rigid job has all that it asks for."""
    rigid = np.array([limits is None for limits in jobs.limits])
    return np.asarray(np.where(rigid, snapshot.gpus, snapshot.gpus_min))


def _types(snapshot: Snapshot, floor: Floor, rows: Ints) -> Ints | None:
    """The GPU type of each row; None where there is only one type."""
    if len(snapshot.capacity) == 1:
        return None
    kinds = np.where(rows.any(axis=1), floor.node_kind[rows.argmax(axis=1)], -1)
    return np.where(floor.pinned, snapshot.gpu_type, kinds)


def _texts(jobs: LearnedJobs, decision: Decision, rows: Ints, least: Ints) -> Texts:
    """What adapted jobs do, and why the others wait or are not adapted."""
    nodes, gpus, batches = (rows > 0).sum(axis=1), decision.gpus, decision.batches

    def say(row: int) -> str:
        strange = f"it is not adapted: {jobs.strange[row]}" if row in jobs.strange else ""
        if row in batches:
            return about_split(jobs, row, int(gpus[row]), int(nodes[row]), batches[row])
        if gpus[row]:
            return f"it runs; {strange}"
        asked = f"needs {least[row]} GPU{'s' if least[row] > 1 else ''}; other jobs gain more from them now"
        return f"{asked}; {strange}" if strange else asked

    told = [row for row in range(len(gpus)) if not gpus[row] or row in batches or row in jobs.strange]
    return Texts(np.array(told, dtype=np.int64), say)
