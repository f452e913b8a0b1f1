"""What happened in a simulated run, job by job. All metrics are made from it."""

from __future__ import annotations

import math
from array import array

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.cluster import Cluster

Segment = tuple[int, float, float, tuple[int, ...]]
"""A stretch of time in which a job held the same GPUs: (job, start, end, GPUs)."""


class Ledger:
    """Per-job accounts, the segments of GPU use, and the length of the queue over time.

    An engine that works in rounds counts two things by rounds: `present`, the mean number of active jobs in the rounds
    of each job, and `computed_gpu_s`, the GPU time in which a job computed. With other engines both are NaN.
    `batches` are the batch sizes that a policy has chosen: (job, since when, samples).
    """

    def __init__(self, cluster: Cluster, jobs: int) -> None:
        self.cluster = cluster
        self.started_s: Floats = np.full(jobs, np.nan)
        self.finished_s: Floats = np.full(jobs, np.nan)
        self.feedback_s: Floats = np.full(jobs, np.nan)
        self.exclusive_s: Floats = np.full(jobs, np.nan)
        self.present: Floats = np.full(jobs, np.nan)
        self.computed_gpu_s = math.nan
        self.held_s: Floats = np.zeros(jobs)
        self.held_gpu_s: Floats = np.zeros(jobs)
        self.lost_gpu_s: Floats = np.zeros(jobs)
        self.cost: Floats = np.zeros(jobs)
        self.starts: Ints = np.zeros(jobs, dtype=np.int64)
        self.preemptions: Ints = np.zeros(jobs, dtype=np.int64)
        self.evictions: Ints = np.zeros(jobs, dtype=np.int64)
        self.segments: list[Segment] = []
        self.batches: list[tuple[int, float, int]] = []
        self._series = array("d")

    def held(
        self,
        job: int,
        start_s: float,
        end_s: float,
        gpus: tuple[int, ...],
        kind: int,
        lost_s: float,
        paid_s: float | None = None,
        *,
        share: float = 1.0,
    ) -> None:
        """A job held GPUs, or a share of one, for some time.

        `lost_s` of it made no lasting progress; `paid_s` (else all) costs money.
        """
        count = len(gpus) * share
        paid_gpu_s = (end_s - start_s if paid_s is None else paid_s) * count
        self.held_s[job] += end_s - start_s
        self.held_gpu_s[job] += (end_s - start_s) * count
        self.lost_gpu_s[job] += lost_s * count
        self.cost[job] += paid_gpu_s / 3600.0 * self.cluster.types[kind].price_per_h
        self.segments.append((job, start_s, end_s, gpus))

    def begins_task(self, job: int, now_s: float) -> None:
        """A task of a job begins."""
        if math.isnan(self.started_s[job]):
            self.started_s[job] = now_s
            self.starts[job] = 1

    def ran_task(self, job: int, start_s: float, end_s: float, gpu: int, kind: int, lost_s: float) -> None:
        """A task held a GPU. Tasks of a job run at the same time, so `held_s` is counted apart."""
        counted_s = self.held_s[job]
        self.held(job, start_s, end_s, (gpu,), kind, lost_s)
        self.held_s[job] = counted_s

    def sample(self, time_s: float, busy_gpus: int, running: int, active: int) -> None:
        """Note how busy the cluster is from this instant on."""
        self._series.extend((time_s, busy_gpus, running, active))

    def series(self) -> Floats:
        """The samples as rows of (time, busy GPUs, running jobs, active jobs). Each is valid until the next."""
        return np.frombuffer(self._series, dtype=np.float64).reshape(-1, 4)
