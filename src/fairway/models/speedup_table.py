"""Speedups of many jobs by replicas, on one node and across nodes: what a search for placements reads.

Only what can be asked for is worked out: on one node up to its size, across nodes from two replicas on, and never more
replicas than a job may have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.batch import BatchLimits
from fairway.models.goodput import best_splits
from fairway.models.step_time import StepModel


def speedup_table(
    models: Sequence[StepModel | None],
    noise: Floats,
    limits: Sequence[BatchLimits],
    most: Ints,
    node_gpus: int,
    share: int = 1,
) -> Floats:
    """Speedups by job, by kind (0 on one node, 1 on several) and by replicas from 0 on.

    They count from the best goodput of `share` replicas on one node, or of one replica if that number is not possible.
    A job that has never run has no model; it is thought to be as many times faster as it has replicas.
    """
    width = int(most.max(initial=0)) + 1
    found = np.zeros((len(models), 2, width))
    known = np.array([job for job, model in enumerate(models) if model is not None], dtype=np.int64)
    replicas = np.arange(width)
    within = replicas <= most[:, None]
    found[:, 0] = np.where(within, replicas, 0)
    found[:, 1] = np.where(within & (replicas > 1), replicas, 0)
    if not len(known):
        return found
    columns = np.array([(*(models[job] or ()), noise[job], *limits[job]) for job in known.tolist()], dtype=np.float64)
    asked = np.zeros((len(known), 2, width), dtype=bool)
    asked[:, 0, 1 : node_gpus + 1] = within[known, 1 : node_gpus + 1]
    asked[:, 1, 2:] = within[known, 2:]
    asked[:, 0, 1] = True
    job, kind, count = asked.nonzero()
    values = np.zeros(asked.shape)
    values[job, kind, count] = _goodputs(columns[job], kind + 1, count)
    fair = _goodputs(columns, np.ones(len(known)), np.full(len(known), share))
    fair = np.where(fair > 0, fair, values[:, 0, 1])
    with np.errstate(all="ignore"):
        ratios = np.where(fair[:, None, None] > 0, values / fair[:, None, None], 0.0)
    found[known] = np.where(within[known][:, None], ratios, 0.0)
    return found


def _goodputs(columns: Floats, nodes: Floats | Ints, replicas: Floats | Ints) -> Floats:
    model, noise, limits = StepModel(*columns[:, :7].T), columns[:, 7], tuple(columns[:, 8:].T)
    return best_splits(model, noise, limits, nodes, replicas).goodput
