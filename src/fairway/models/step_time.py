"""How long a training step takes on a number of nodes and replicas: the model of Pollux (Qiao et al., OSDI 2021).

A step has gradient passes and one synchronisation. A pass takes a fixed time and a time per sample. Synchronisation
takes another pair of times inside a node than across nodes, and grows with each replica beyond two. The last pass
overlaps with the synchronisation: with the overlap 1 their times add up, with a large one only the longer counts. All
functions work on arrays that broadcast, so one call answers for many jobs and allocations.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats, Ints

Numbers: TypeAlias = float | Floats | Ints

TINY_S = 1e-8
"""The least time that a model knows: of the synchronisation of a single replica, and of whatever was never seen."""
MOST_OVERLAP = 10.0


class StepModel(NamedTuple):
    """The seven parameters of a job, or columns of them: one entry for each job."""

    pass_s: Numbers
    sample_s: Numbers
    across_s: Numbers
    across_replica_s: Numbers
    inside_s: Numbers
    inside_replica_s: Numbers
    overlap: Numbers


def stacked(models: list[StepModel]) -> StepModel:
    """The models of many jobs as one, whose parameters are columns: they broadcast against rows of allocations."""
    return StepModel(*np.array(models, dtype=np.float64).reshape(-1, 7).T[:, :, None])


def gradient_s(model: StepModel, local: Numbers) -> Floats:
    """Seconds of a gradient pass over `local` samples."""
    return np.asarray(model.pass_s + model.sample_s * np.asarray(local, dtype=np.float64))


def sync_s(model: StepModel, nodes: Numbers, replicas: Numbers) -> Floats:
    """Seconds of the synchronisation of gradients."""
    more = np.maximum(np.asarray(replicas, dtype=np.float64) - 2.0, TINY_S)
    across = model.across_s + model.across_replica_s * more
    inside = model.inside_s + model.inside_replica_s * more
    alone = TINY_S + TINY_S * TINY_S
    return np.where(np.asarray(nodes) > 1, across, np.where(np.asarray(replicas) > 1, inside, alone))


def overlapped(a_s: Numbers, b_s: Numbers, overlap: Numbers) -> Floats:
    """Seconds of two activities that overlap: the norm of both times, whose order is `overlap`.

    >>> [round(float(overlapped(0.3, 0.4, overlap)), 4) for overlap in (1.0, 2.0, 10.0)]
    [0.7, 0.5, 0.4022]
    """
    longer, shorter = np.maximum(a_s, b_s), np.minimum(a_s, b_s)
    ratio = portable.exp(np.asarray(overlap * portable.log(np.asarray(shorter / longer))))
    return np.asarray(longer * portable.exp(np.asarray(portable.log(np.asarray(1.0 + ratio)) / overlap)))


def step_s(model: StepModel, nodes: Numbers, replicas: Numbers, local: Numbers, accumulation: Numbers = 0) -> Floats:
    """Seconds of a step: `accumulation` passes, and one more that overlaps with the synchronisation."""
    gradient = gradient_s(model, local)
    last = overlapped(gradient, sync_s(model, nodes, replicas), model.overlap)
    return np.asarray(accumulation * gradient + last)


def throughput(
    model: StepModel, nodes: Numbers, replicas: Numbers, local: Numbers, accumulation: Numbers = 0
) -> Floats:
    """Samples per second of all replicas."""
    batch = np.asarray(replicas * (local * (np.asarray(accumulation) + 1.0)))
    return np.asarray(batch / step_s(model, nodes, replicas, local, accumulation))
