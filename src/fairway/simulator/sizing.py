"""How many nodes a set of jobs deserves, by the goodput that they would have on clusters of each size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.batch import BatchLimits, Split, Timing
from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.job import JobSpec
from fairway.models.regimes import regime_at
from fairway.models.speedup_table import speedup_table
from fairway.models.step_fit import averaged, fit
from fairway.models.step_time import StepModel
from fairway.simulator.rates import Rates
from fairway.solvers.goodput_placement import Placing
from fairway.solvers.goodput_search import search
from fairway.solvers.goodput_size import Sizes, sizes_in_band, utility

_RIGID = BatchLimits(1, 1)


class TriedSize(NamedTuple):
    """A number of nodes, its utility, the mean speedup over one GPU, and how many jobs run."""

    nodes: int
    utility: float
    speedup: float
    running: int


class _Known(NamedTuple):
    """What a job does on any number of GPUs. A rigid job has no model, and `least` is its gang."""

    model: StepModel | None
    noise: float
    limits: BatchLimits
    least: int
    most: int


def active_jobs(jobs: Sequence[JobSpec], rates: Rates, at_s: float | None) -> tuple[list[JobSpec], float]:
    """The jobs that would run at an instant if none ever had to wait; by default when they want most GPUs."""
    starts = np.array([job.submitted_s for job in jobs])
    ends = starts + np.array([rates.alone_s(job) for job in jobs])
    if at_s is None:
        gpus = np.array([job.gpus for job in jobs])
        wanted = [int(gpus[(starts <= start) & (ends > start)].sum()) for start in starts]
        at_s = float(starts[int(np.argmax(wanted))])
    active = [job for job, start, end in zip(jobs, starts, ends, strict=True) if start <= at_s < end]
    if not active:
        raise InputError(f"no job is there at {at_s:.0f} s")
    return active, at_s


def sizes_for(
    jobs: Sequence[JobSpec], rates: Rates, cluster: Cluster, band: tuple[float, float]
) -> tuple[Sizes, list[TriedSize]]:
    """The numbers of nodes whose utility is in a band, and the sizes that were tried, in their order."""
    known = [_known(job, rates, cluster) for job in jobs]
    each, tried = cluster.nodes[0].gpus, dict[int, TriedSize]()

    @cache
    def utility_of(nodes: int) -> float:
        placing = _placing(known, nodes, each)
        rows = search(placing).rows
        rows[rows.sum(axis=1) < [one.least for one in known]] = 0
        found = utility(placing, rows)
        tried[nodes] = TriedSize(nodes, found, found * nodes * each / len(known), int(rows.any(axis=1).sum()))
        return found

    sizes = sizes_in_band(utility_of, len(cluster.nodes), *band)
    for nodes in sizes:
        utility_of(nodes)
    return sizes, [tried[nodes] for nodes in sorted(tried)]


def _known(spec: JobSpec, rates: Rates, cluster: Cluster) -> _Known:
    """What a job would report in the middle of its work, fitted as a policy fits it."""
    limits = rates.limits(spec)
    if limits is None:
        return _Known(None, 0.0, _RIGID, spec.gpus, spec.gpus)
    regime, noise = regime_at(rates.regimes(spec), 0.5), 0.0
    most = min(limits.most_gpus, cluster.gpu_count)
    timings: list[Timing] = []
    for gpus in [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= most]:
        batch = max(limits.first, limits.smallest_local * gpus)
        while batch <= (limits.largest or limits.first):
            split = Split(limits.split(batch, gpus).local)
            timing, noise = rates.measured(spec, regime, 0, tuple(range(gpus)), True, split)
            timings.append(timing)
            batch *= 4
    return _Known(fit(averaged(timings)), noise, limits, 1, most)


def _placing(known: Sequence[_Known], nodes: int, each: int) -> Placing:
    """An empty cluster of some nodes for these jobs. Speedups count from one GPU."""
    total = nodes * each
    most: Ints = np.array([min(one.most, total) for one in known], dtype=np.int64)
    noise: Floats = np.array([one.noise for one in known])
    table = speedup_table([one.model for one in known], noise, [one.limits for one in known], most, each)
    for row, one in enumerate(known):
        table[row, :, : one.least] = 0.0
    held = np.zeros((len(known), nodes), dtype=np.int64)
    return Placing(table, np.full(nodes, each), most, held, np.ones(len(known)))
