"""The batch of each job for the GPUs that it gets, and what that is worth in words."""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.batch import BatchLimits, Split
from fairway.models.goodput import best_splits, efficiency, within
from fairway.models.step_time import StepModel
from fairway.policies.pollux.jobs import LearnedJobs


def first_split(limits: BatchLimits, gpus: int) -> Split:
    """The split of a job that has not run yet: its first batch, or the smallest that feeds all GPUs."""
    return limits.split(max(limits.first, limits.smallest_local * gpus), gpus)


def chosen_splits(jobs: LearnedJobs, rows: Ints) -> dict[int, Split]:
    """The split of every row that gets GPUs (jobs by nodes) and may be adapted: the one of the largest goodput."""
    gpus, nodes = rows.sum(axis=1), (rows > 0).sum(axis=1)
    granted = [row for row in gpus.nonzero()[0].tolist() if jobs.limits[row] is not None]
    best = _best(jobs, [row for row in granted if jobs.models[row] is not None], gpus, nodes)
    found: dict[int, Split] = {}
    for row in granted:
        limits, count = jobs.limits[row], int(gpus[row])
        if limits is not None:
            split = best.get(row) or first_split(limits, count)
            if limits.problem(split, count) is None:
                found[row] = split
    return found


def _best(jobs: LearnedJobs, rows: list[int], gpus: Ints, nodes: Ints) -> dict[int, Split]:
    """The splits of the largest goodput, as far as there are any."""
    if not rows:
        return {}
    model = StepModel(*np.array([jobs.models[row] for row in rows], dtype=np.float64).T)
    limits = np.array([jobs.limits[row] for row in rows], dtype=np.int64).T
    found = best_splits(model, jobs.noise[rows], tuple(limits), nodes[rows], gpus[rows], clamped=False)
    local = within(limits[1], gpus[rows], found.local, found.accumulation)
    each = zip(rows, local.tolist(), found.accumulation.tolist(), found.goodput.tolist(), strict=True)
    return {row: Split(samples, accumulation) for row, samples, accumulation, goodput in each if goodput > 0}


def about_split(jobs: LearnedJobs, row: int, gpus: int, nodes: int, split: Split) -> str:
    """What a job does with its GPUs, and what its batch is worth."""
    limits, model, noise = jobs.limits[row], jobs.models[row], float(jobs.noise[row])
    batch = split.batch(gpus)
    text = f"trains with a batch of {batch:,} on {gpus} GPU{'s' if gpus > 1 else ''}"
    if limits is None or model is None:
        return f"{text}; its step times are not known yet"
    worth = float(efficiency(noise, limits.first, batch))
    here, alone = best_splits(model, noise, limits, np.array([nodes, 1]), np.array([gpus, 1]), clamped=False).goodput
    text += f": efficiency {worth:.2f}"
    return f"{text}, {here / alone:.1f} times the goodput of one GPU" if gpus > 1 and alone > 0 else text
