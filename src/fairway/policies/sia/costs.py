"""What each configuration costs each job: the fewer, the more goodput it has there (Sia, SOSP 2023).

A job's goodput is counted from that of its smallest configuration, so that jobs can be compared. A power of it, with a
negative exponent, is the cost; a little more is the cost of waiting. If a job that has run before would have to
restart, its goodput counts for less. Costs are rounded to hundredths: a gain below that is not worth a change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.snapshot import Snapshot
from fairway.models.configurations import Configurations, goodputs
from fairway.policies.sia.jobs import TypedJobs
from fairway.solvers.configuration_choice import UNIT, Choosing
from fairway.solvers.goodput_placement import restart_factor

WAITING = 2.0
"""The cost of waiting. The slowest GPU costs 1, so no job waits if others could do with fewer GPUs."""
UNTRIED_SCALING = 0.8
"""A job that has not run yet is thought to be this power of its GPUs faster."""
LEAST_AGE_S = 1.0
LEAST_FACTOR = 1e-3
_STEPS = 100
_KEEPS = UNIT // 1000
"""By how much the present configuration is preferred to others of the same cost."""


class Offers(NamedTuple):
    """What jobs may be given: rows by configurations, and the configuration that each has now (-1 for none)."""

    where: Configurations
    allowed: Bools
    present: Ints


def most_gpus(snapshot: Snapshot, jobs: TypedJobs, begin_gpus: int) -> Ints:
    """The most GPUs of each row: twice as many as it ever had, and at first `begin_gpus`."""
    grown = np.maximum(2 * jobs.seen.max(axis=1), np.maximum(begin_gpus, snapshot.gpus_min))
    return np.asarray(np.minimum(np.maximum(grown, snapshot.held), snapshot.gpus_max))


def offers(snapshot: Snapshot, jobs: TypedJobs, where: Configurations, present: Ints, begin_gpus: int) -> Offers:
    """Configurations that rows may have. A rigid job may have only its gang."""
    gpus = where.gpus
    inside = (gpus >= snapshot.gpus_min[:, None]) & (gpus <= snapshot.gpus_max[:, None]) & where.regular
    fixed = ~jobs.adapts | ~inside.any(axis=1)
    untried = np.isnan(jobs.models[:, :, 0]).all(axis=1, keepdims=True)
    inside &= gpus <= most_gpus(snapshot, jobs, begin_gpus)[:, None]
    inside &= (where.nodes == 1) | ~untried | (gpus == snapshot.gpus_min[:, None])
    allowed = np.where(fixed[:, None], gpus == snapshot.gpus[:, None], inside)
    return Offers(where, allowed & (snapshot.speeds[where.kind].T > 0), present)


def choosing(snapshot: Snapshot, jobs: TypedJobs, offered: Offers, p: float, capacity: Ints) -> Choosing:
    """The program over the rows and what they are offered."""
    where, allowed, present = offered
    values = _values(snapshot, jobs, where, allowed)
    values, allowed = _counted(values, where), allowed & (values > 0)
    age_s = np.maximum(snapshot.now_s - snapshot.submitted_s, LEAST_AGE_S)
    factor = restart_factor(age_s, np.maximum(snapshot.launches - 1.0, 0.0), snapshot.restart_s)
    factor = np.where(snapshot.launches > 0, np.maximum(factor, LEAST_FACTOR), 1.0)
    stays = np.arange(len(where.kind)) == present[:, None]
    values = np.where(stays, values, values * factor[:, None])
    with np.errstate(all="ignore"):
        costs = 1.0 / portable.raised(np.where(allowed, values, 1.0), -p)
    whole: Ints = np.rint(_STEPS * costs).astype(np.int64) * (UNIT // _STEPS)
    # The order of submission decides between jobs for which waiting costs the same.
    waiting = round(WAITING * _STEPS) * (UNIT // _STEPS) + np.arange(len(present))[::-1]
    return Choosing(np.where(stays, whole - _KEEPS, whole), allowed, waiting, where.kind, where.gpus, capacity)


def _values(snapshot: Snapshot, jobs: TypedJobs, where: Configurations, allowed: Bools) -> Floats:
    """The goodput of rows, or for rigid and untried ones what stands for it; 0 where they cannot be."""
    speeds = snapshot.speeds.T
    tried = jobs.adapts & ~np.isnan(jobs.models[:, :, 0]).all(axis=1)
    known = goodputs(
        jobs.models, jobs.limits.astype(np.float64), jobs.noise, speeds, jobs.seen, where, allowed & tried[:, None]
    )
    untried = portable.raised(where.gpus.astype(np.float64), UNTRIED_SCALING)
    rigid = speeds[:, where.kind] * where.gpus
    guessed = np.where(jobs.adapts[:, None], untried, rigid)
    return np.where(tried[:, None], known, np.where(allowed, guessed, 0.0))


def _counted(values: Floats, where: Configurations) -> Floats:
    """Values of each row in those of one GPU: the least one is worth as much as it has GPUs."""
    possible = np.where(values > 0, values, np.inf)
    least = possible.argmin(axis=1)
    unit = np.take_along_axis(possible, least[:, None], axis=1) / where.gpus[least][:, None]
    return np.where(np.isfinite(unit), values / unit, 0.0)
