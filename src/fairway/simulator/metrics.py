"""From a ledger to figures: completion times, queueing, fairness, utilisation, cost.

Finish-time fairness rho compares a job's completion time with what it could expect of its share. There are three
definitions:

    static      JCT / (E · max(1, N/M)), with N jobs in the trace, M GPUs, and E the run time alone on its own gang
                (Shockwave's figure)
    concurrent  the same, with N the time-average of active jobs while the job was active (Themis' idea)
    isolated    JCT / the time that the job would take alone on its share s = M/N of the cluster, with that same N;
                a rigid gang of g GPUs is time-sliced when s < g, an elastic one shrinks to its share

rho > 1.05 counts as unfair. An engine that works in rounds gives the mean number of active jobs by rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats
from fairway.core.job import JobSpec
from fairway.simulator.ledger import Ledger
from fairway.simulator.rates import ELASTIC_EXPONENT

UNFAIR = 1.05


def spread_of(values: Floats) -> dict[str, float | None]:
    """Mean, median, p95, p99 (linear interpolation) and maximum; None if there are no values."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "max": float(values.max()),
    }


def jain_index(values: Floats) -> float | None:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything."""
    total, squares = float(values.sum()), portable.dot(values, values)
    return total * total / (len(values) * squares) if len(values) and squares else None


def mean_active(series: Floats, submitted_s: Floats, finished_s: Floats) -> Floats:
    """The time-average of active jobs between two instants, for each job."""
    if len(series) < 2:
        return np.ones(len(submitted_s))
    times, active = series[:, 0], series[:, 3]
    area = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(times))])
    span = finished_s - submitted_s
    between = portable.interpolates(finished_s, times, area) - portable.interpolates(submitted_s, times, area)
    return np.asarray(np.maximum(np.divide(between, span, out=np.ones_like(span), where=span > 0), 1.0))


def fairness(ledger: Ledger, jobs: Sequence[JobSpec], done: Bools, total_jobs: int) -> dict[str, Floats]:
    """rho of every finished job, in the three definitions; NaN for the others."""
    submitted = np.array([job.submitted_s for job in jobs])
    gpus = ledger.cluster.gpu_count
    jct = ledger.finished_s - submitted
    alone = np.where(ledger.exclusive_s > 0, ledger.exclusive_s, np.nan)
    present = np.ones(len(jobs))
    present[done] = mean_active(ledger.series(), submitted[done], ledger.finished_s[done])
    present = np.where(np.isnan(ledger.present), present, ledger.present)
    share = gpus / present
    return {
        "static": np.where(done, jct / (alone * max(1.0, total_jobs / gpus)), np.nan),
        "concurrent": np.where(done, jct / (alone * np.maximum(1.0, present / gpus)), np.nan),
        "isolated": np.where(done, jct / (alone * _stretch_on_share(jobs, share)), np.nan),
    }


def _stretch_on_share(jobs: Sequence[JobSpec], share: Floats) -> Floats:
    """How much longer each job takes alone on its share than on its own gang (never less than 1)."""
    gang = np.array([job.gpus for job in jobs], dtype=np.float64)
    least = np.array([job.gpus_min for job in jobs], dtype=np.float64)
    # An elastic job shrinks down to its minimum, with the efficiency of a smaller gang. Below that it is time-sliced.
    size = np.clip(share, least, gang)
    shrunk = portable.exp(ELASTIC_EXPONENT * portable.log(gang / size))
    return np.asarray(shrunk * np.maximum(1.0, size / share))


def summary_of_rho(rho: Floats) -> dict[str, float | None]:
    """Mean, worst, p99 and the fraction of unfair jobs."""
    known = rho[~np.isnan(rho)]
    if not len(known):
        return dict.fromkeys(("mean", "worst", "p99", "unfair_fraction"))
    return {
        "mean": float(known.mean()),
        "worst": float(known.max()),
        "p99": float(np.percentile(known, 99)),
        "unfair_fraction": float((known > UNFAIR).mean()),
    }


def by_group(names: Sequence[str], jct: Floats, queue: Floats, gpu_h: Floats, done: Bools) -> dict[str, dict[str, Any]]:
    """Figures per user or per queue."""
    codes: dict[str, int] = {}
    first = np.empty(len(names), dtype=np.int64)
    for row, name in enumerate(names):
        first[row] = codes.setdefault(name, len(codes))
    groups: dict[str, dict[str, Any]] = {}
    for name, code in codes.items():
        mine = first == code
        finished = mine & done
        any_done = bool(finished.any())
        groups[name] = {
            "jobs": int(mine.sum()),
            "finished": int(finished.sum()),
            "gpu_h": float(gpu_h[mine].sum()),
            "jct_mean_s": float(jct[finished].mean()) if any_done else None,
            "queue_mean_s": float(queue[finished].mean()) if any_done else None,
        }
    return groups
