"""The cost of stopping a job and starting it again: write a checkpoint, free the GPUs, load, warm up."""

from __future__ import annotations

from fairway.core.job import JobSpec


def restart_cost_s(job: JobSpec, default_s: float) -> float:
    """Seconds without progress at one restart: the job's own figure if it has one, else the default."""
    return default_s if job.checkpoint_s is None else job.checkpoint_s
