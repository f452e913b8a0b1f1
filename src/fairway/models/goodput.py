"""Goodput: the samples per second of a training job, times what a sample is worth at its batch size.

Pollux (Qiao et al., OSDI 2021) chooses GPUs and batch size together by this product. A larger batch uses GPUs better
but teaches less per sample; how much less follows from the gradient noise scale. `best_splits` finds the batch size for
an allocation, as AdaptDL does: it tries batch sizes in geometric steps. All functions work on arrays that broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats, Ints
from fairway.models.step_time import Numbers, StepModel, throughput

TRIED = 50
"""How many batch sizes are tried for an allocation."""
_NEARLY = 1e-8
"""A quotient that is this little above a whole number is meant to be the whole number."""
_BLOCK = 1024
"""Allocations that are worked out together, so that their arrays stay in the cache of a CPU."""


class Splits(NamedTuple):
    """Batch sizes for allocations: samples per replica and pass, passes before the last, and the goodput."""

    local: Ints
    accumulation: Ints
    goodput: Floats


def noise_scale(squared_gradient: Numbers, variance: Numbers, first: Numbers) -> Floats:
    """The gradient noise scale in samples, if `variance` is that of a gradient of the batch size `first`.

    It is infinite for a gradient that is all noise. Where both are zero it is zero: a larger batch would teach nothing.
    """
    sqr, var = np.asarray(squared_gradient, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    with np.errstate(all="ignore"):
        return np.where(sqr > 0, first * var / sqr, np.where(var > 0, np.inf, 0.0))


def efficiency(noise: Numbers, first: Numbers, batch: Numbers) -> Floats:
    """What a sample is worth at a batch size, relative to one at the first batch size.

    A noise scale that is negative or no number counts as zero, so that such a job never gets a larger batch.

    >>> float(efficiency(128, 32, 128))
    0.625
    """
    with np.errstate(invalid="ignore"):
        usable = np.where(np.asarray(noise) > 0, noise, 0.0)
        return np.where(usable == np.inf, 1.0, (usable + first) / (usable + batch))


def goodput(
    model: StepModel,
    noise: Numbers,
    first: Numbers,
    nodes: Numbers,
    replicas: Numbers,
    local: Numbers,
    accumulation: Numbers = 0,
) -> Floats:
    """Samples per second, counted by what they are worth."""
    batch = np.asarray(replicas * (local * (np.asarray(accumulation) + 1.0)))
    return throughput(model, nodes, replicas, local, accumulation) * efficiency(noise, first, batch)


def best_splits(
    model: StepModel,
    noise: Numbers,
    limits: Sequence[Numbers],
    nodes: Numbers,
    replicas: Numbers,
    *,
    clamped: bool = True,
) -> Splits:
    """The batch size of the largest goodput for each allocation. `limits` are a `BatchLimits`, or columns of that.

    An allocation that cannot keep the limits has the goodput 0: if even the smallest local batches make a batch
    above the largest one, or if the largest make one below the first. A pass outside of the limits of a replica is
    brought to the nearest limit, as in AdaptDL; if not `clamped` it is left out, as in the simulator of the paper.
    """
    given = (*model, noise, *limits, nodes, replicas)
    columns = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in given))
    shape, flat = columns[0].shape, np.stack([column.ravel() for column in columns])
    found = np.empty((3, flat.shape[1]))
    for start in range(0, flat.shape[1], _BLOCK):
        found[:, start : start + _BLOCK] = _best_of_block(flat[:, start : start + _BLOCK], clamped)
    local, accumulation, value = found.reshape(3, *shape)
    return Splits(local.astype(np.int64), accumulation.astype(np.int64), value)


def _best_of_block(columns: Floats, clamped: bool) -> Floats:
    """Local batch, accumulation and goodput of the best of all tried batch sizes, for each column."""
    model, noise = StepModel(*columns[:7]), columns[7]
    first, largest, least, most, accumulates, nodes, replicas = columns[8:]
    possible = (largest == 0) | (least * replicas <= largest)
    end = np.where(largest > 0, largest, first)
    most = np.where(most > 0, most, end)
    share = _geometric(np.maximum(first, least * replicas), end) / replicas
    alone = replicas == 1
    accumulation = np.ceil(share / most - _NEARLY) - 1.0
    # One replica measures the noise of gradients by comparing passes, so a larger batch has at least two.
    accumulation = np.where(alone & (share > first + _NEARLY), np.maximum(accumulation, 1.0), accumulation)
    accumulation = np.where(accumulates > 0, np.maximum(accumulation, 0.0), 0.0)
    local = np.ceil(share / (accumulation + 1.0) - _NEARLY)
    if clamped:
        local = np.where(alone & (accumulates == 0), first, local)
        local = np.minimum(np.maximum(local, least), most)
    value = goodput(model, noise, first, nodes, replicas, local, accumulation)
    fits = possible & (local >= least) & (local <= most) & (replicas * local * (accumulation + 1.0) >= first)
    value = np.where(fits, value, 0.0)
    at = value.argmax(axis=0)[None]
    return np.concatenate([np.take_along_axis(table, at, axis=0) for table in (local, accumulation, value)])


def _geometric(start: Floats, end: Floats) -> Floats:
    """Rows of numbers in geometric steps from the start to the end, which are exact."""
    low, high = portable.log(start), portable.log(end)
    inner = np.arange(1, TRIED - 1)[:, None] / (TRIED - 1)
    return np.concatenate([start[None], portable.exp(low + inner * (high - low)), end[None]])


def within(largest: Numbers, replicas: Numbers, local: Numbers, accumulation: Numbers) -> Ints:
    """The local batch, made smaller where rounding has brought the global batch above the largest one."""
    most = np.asarray(largest) // (replicas * (np.asarray(accumulation) + 1))
    return np.asarray(np.where(np.asarray(largest) > 0, np.minimum(local, np.maximum(most, 1)), local))


def speedups(
    model: StepModel, noise: Numbers, limits: Sequence[Numbers], nodes: Numbers, replicas: Numbers, share: Numbers = 1
) -> Floats:
    """How many times the best goodput of `share` replicas on one node an allocation has; 0 without GPUs."""
    some = np.asarray(replicas) > 0
    found = best_splits(model, noise, limits, np.maximum(nodes, 1), np.maximum(replicas, 1)).goodput
    fair = best_splits(model, noise, limits, 1, share).goodput
    with np.errstate(all="ignore"):
        return np.where(some & (fair > 0), found / fair, 0.0)
