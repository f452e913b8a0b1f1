"""What it costs to stop a job and start it again: write a checkpoint, free the GPUs, load, warm up."""

from __future__ import annotations

from fairway.core.job import JobSpec


def restart_cost_s(job: JobSpec, default_s: float) -> float:
    """Seconds without progress at one restart: the job's own figure where it has one, the default otherwise."""
    return default_s if job.checkpoint_s is None else job.checkpoint_s
