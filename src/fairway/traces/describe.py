"""A workload in numbers, as plain JSON values: what `fairway trace describe` prints."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from fairway.core.job import JobSpec, Workload


def describe(workload: Workload) -> dict[str, Any]:
    """Counts, shares and percentiles of a workload.

    Figures that need run times (GPU-hours, durations, offered GPUs) come from the jobs whose work is a duration, and
    are None if there are none. The span runs from the first submission to the last. A job on a part of a GPU counts
    with that part.
    """
    jobs = workload.jobs
    span_s = jobs[-1].submitted_s - jobs[0].submitted_s if jobs else 0.0
    gpu_s = [_gpu_s(job) for job in jobs if job.duration_s is not None]
    total_gpu_s = math.fsum(gpu_s) if gpu_s else None
    return {
        "source": workload.source,
        "format": workload.format,
        "jobs": len(jobs),
        "skipped": dict(workload.skipped),
        "notes": list(workload.notes),
        "span_s": span_s,
        "arrivals_per_hour": len(jobs) / span_s * 3600 if span_s > 0 else None,
        "jobs_with_duration": len(gpu_s),
        "jobs_with_steps": sum(job.steps is not None for job in jobs),
        "gpu_hours": None if total_gpu_s is None else total_gpu_s / 3600,
        "average_offered_gpus": None if total_gpu_s is None or span_s <= 0 else total_gpu_s / span_s,
        "gpus": {str(size): count for size, count in sorted(Counter(job.gpus for job in jobs).items())},
        "duration_s": _percentiles([job.duration_s for job in jobs if job.duration_s is not None]),
        "users": _counts(job.user for job in jobs),
        "queues": _counts(job.queue for job in jobs),
        "models": _counts(job.model for job in jobs),
        "share": {
            "elastic": _share(jobs, [job.elastic for job in jobs]),
            "deadline": _share(jobs, [job.deadline_s is not None for job in jobs]),
            "adaptation": _share(jobs, [job.adaptation != "none" for job in jobs]),
            "part_of_gpu": _share(jobs, [job.gpu_share < 1 for job in jobs]),
        },
    }


def _gpu_s(job: JobSpec) -> float:
    return job.gpus * job.gpu_share * (job.duration_s or 0.0)


def _percentiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    data = np.array(values)
    p50, p95, p99 = (float(value) for value in np.percentile(data, (50, 95, 99)))
    return {"mean": float(data.mean()), "p50": p50, "p95": p95, "p99": p99, "max": float(data.max())}


def _counts(names: Any) -> dict[str, int]:
    """How many jobs each name has, most first; jobs without a name are left out."""
    counted = Counter(name for name in names if name)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _share(jobs: tuple[JobSpec, ...], flags: list[bool]) -> float:
    return sum(flags) / len(jobs) if jobs else 0.0
