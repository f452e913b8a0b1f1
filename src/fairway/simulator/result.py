"""The result of a simulated run: figures, arrays, and the versioned JSON document from which reports are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.cluster import Cluster
from fairway.core.job import JobSpec
from fairway.core.version import VERSION
from fairway.simulator import metrics
from fairway.simulator.ledger import Ledger
from fairway.simulator.suspending import Suspends
from fairway.simulator.switching import Switches

SCHEMA = "fairway.result/1"
SERIES_POINTS = 2000
GANTT_SEGMENTS = 20_000
GANTT_ROWS, GANTT_BINS = 128, 400


@dataclass(frozen=True)
class RunSettings:
    """How a run was made."""

    policy: str
    knows: tuple[str, ...]
    trace: str
    cluster: str
    rules: str
    placement: str
    profile: str
    round_s: float
    restart_cost_s: float
    replan_interval_s: float
    seed: int
    tenants: str = ""
    priorities: bool = False
    switching: str = ""
    min_run_s: float | None = None
    fractions: bool = False


@dataclass(frozen=True)
class RunCosts:
    """What the run itself cost."""

    rounds: int
    decide_cpu_s: float
    cpu_s: float
    wall_s: float
    peak_rss_bytes: int


class Result:
    """A finished simulation. Arrays have one entry per simulated job, in the order of submission."""

    def __init__(
        self,
        settings: RunSettings,
        costs: RunCosts,
        cluster: Cluster,
        jobs: Sequence[JobSpec],
        ledger: Ledger,
        skipped: Mapping[str, int],
        switches: Switches | Suspends | None = None,
        least_weighted_jct_s: float | None = None,
        promises: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.costs = costs
        self.cluster = cluster
        self.specs = tuple(jobs)
        self.ledger = ledger
        self.switches = switches
        self.least_weighted_jct_s = least_weighted_jct_s
        self.promises = promises
        self.skipped_by_reason = dict(skipped)
        self.submitted_s: Floats = np.array([job.submitted_s for job in jobs])
        self.started_s: Floats = ledger.started_s
        self.finished_s: Floats = ledger.finished_s
        self.done: Bools = ~np.isnan(ledger.finished_s)
        self.jct_s: Floats = ledger.finished_s - self.submitted_s
        self.queue_s: Floats = np.maximum(self.jct_s - ledger.held_s, 0.0)
        self.feedback_s: Floats = ledger.feedback_s - self.submitted_s
        self.rho = metrics.fairness(ledger, jobs, self.done, self.jobs)

    @property
    def skipped(self) -> int:
        """Rows of the trace that were not simulated, for any reason."""
        return sum(self.skipped_by_reason.values())

    @property
    def jobs(self) -> int:
        """Rows of the trace: simulated and skipped."""
        return len(self.specs) + self.skipped

    @property
    def finished(self) -> int:
        return int(self.done.sum())

    @property
    def makespan_s(self) -> float | None:
        """From the first submission to the last completion."""
        return float(self.finished_s[self.done].max() - self.submitted_s.min()) if self.finished else None

    @property
    def mean_jct_s(self) -> float | None:
        """The mean job completion time."""
        return metrics.spread_of(self.jct_s[self.done])["mean"]

    @property
    def utilisation(self) -> float | None:
        """The share of all GPU time between first submission and last completion in which jobs held GPUs.

        If the engine counts by rounds, the share in which jobs computed.
        """
        makespan, rows = self.makespan_s, self.ledger.series()
        if not makespan:
            return None
        if not math.isnan(self.ledger.computed_gpu_s):
            return self.ledger.computed_gpu_s / (self.cluster.gpu_count * makespan)
        first_s = float(self.submitted_s.min())
        times = np.clip(rows[:, 0], first_s, first_s + makespan)
        busy_gpu_s = float((rows[:-1, 1] * np.diff(times)).sum())
        return busy_gpu_s / (self.cluster.gpu_count * makespan)

    @property
    def throughput(self) -> float | None:
        """The GPU time that the finished jobs take alone, over all GPU time between first submission and last
        completion."""
        gangs = np.array([job.gpus for job in self.specs])
        alone_gpu_s = float((gangs * self.ledger.exclusive_s)[self.done].sum())
        return alone_gpu_s / (self.cluster.gpu_count * self.makespan_s) if self.makespan_s else None

    @property
    def jct_weighted_s(self) -> float | None:
        """The mean completion time of finished jobs, by their weights."""
        weights = np.array([job.weight for job in self.specs])[self.done]
        return float((weights * self.jct_s[self.done]).sum() / weights.sum()) if len(weights) else None

    @property
    def deadline_misses(self) -> int:
        limits = np.array([np.inf if job.deadline_s is None else job.deadline_s for job in self.specs])
        late = np.where(self.done, self.finished_s, np.inf) > limits + 1e-5
        return int(late.sum())

    def figures(self) -> dict[str, Any]:
        """All figures except the per-job ones, under the names of the JSON schema."""
        ledger, done = self.ledger, self.done
        gpu_h = ledger.held_gpu_s / 3600.0
        settings = self.settings
        return {
            "policy": settings.policy,
            "knows": list(settings.knows),
            "trace": settings.trace,
            "cluster": settings.cluster,
            "gpus": self.cluster.gpu_count,
            "rules": settings.rules,
            "placement": settings.placement,
            "profile": settings.profile,
            "round_s": settings.round_s,
            "restart_cost_s": settings.restart_cost_s,
            "replan_interval_s": settings.replan_interval_s,
            "seed": settings.seed,
            **({"tenants": settings.tenants} if settings.tenants else {}),
            **({"priorities": True} if settings.priorities else {}),
            **({"fractions": True} if settings.fractions else {}),
            **({} if settings.min_run_s is None else {"min_run_s": settings.min_run_s}),
            **self._switching(),
            "jobs": self.jobs,
            "finished": self.finished,
            "skipped": self.skipped,
            "skipped_by_reason": self.skipped_by_reason,
            "makespan_s": self.makespan_s,
            "jct_s": metrics.spread_of(self.jct_s[done]),
            "jct_weighted_s": self.jct_weighted_s,
            **({} if self.least_weighted_jct_s is None else {"jct_weighted_least_s": self.least_weighted_jct_s}),
            "queue_s": metrics.spread_of(self.queue_s[done]),
            "feedback_s": metrics.spread_of(self.feedback_s[~np.isnan(self.feedback_s)]),
            "utilisation": self.utilisation,
            "throughput": self.throughput,
            "preemptions": int(ledger.preemptions.sum()),
            "restarts": int(np.maximum(ledger.starts - 1, 0).sum()),
            "lost_gpu_h": float(ledger.lost_gpu_s.sum()) / 3600.0,
            "cost": float(ledger.cost.sum()),
            "deadline_misses": self.deadline_misses,
            **({} if self.promises is None else {"promises": self.promises}),
            "jain": metrics.jain_index(1.0 / self.rho["concurrent"][done & (self.rho["concurrent"] > 0)]),
            "ftf": {name: metrics.summary_of_rho(rho) for name, rho in self.rho.items()},
            "per_user": metrics.by_group([j.user for j in self.specs], self.jct_s, self.queue_s, gpu_h, done),
            "per_queue": metrics.by_group([j.queue for j in self.specs], self.jct_s, self.queue_s, gpu_h, done),
            "rounds": self.costs.rounds,
            "decide_cpu_s": self.costs.decide_cpu_s,
            "cpu_s": self.costs.cpu_s,
            "wall_s": self.costs.wall_s,
            "peak_rss_bytes": self.costs.peak_rss_bytes,
        }

    def _switching(self) -> dict[str, Any]:
        """What switching GPUs between jobs cost, if that was simulated."""
        if self.switches is None:
            return {}
        gpu_h = self.switches.gpu_s / 3600.0
        told = {"switching": self.settings.switching, "switches": self.switches.times, "switching_gpu_h": gpu_h}
        if not isinstance(self.switches, Suspends):
            return told
        used = {way: {"times": use.times, "gpu_h": use.gpu_s / 3600.0} for way, use in self.switches.ways.items()}
        room = self.switches.switching.host_bytes
        return {**told, "switching_ways": used, "host_memory_bytes": room if math.isfinite(room) else None}

    def to_dict(self, *, per_job: bool = True) -> dict[str, Any]:
        """The whole document of schema `fairway.result/1`."""
        document: dict[str, Any] = {"schema": SCHEMA, "fairway": VERSION, **self.figures()}
        if per_job:
            document["per_job"] = self.per_job()
        document["series"] = self.series()
        document["gantt"] = self.gantt()
        return document

    def per_job(self) -> list[dict[str, Any]]:
        """One record per simulated job."""
        ledger = self.ledger
        columns = {
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "finished_s": self.finished_s,
            "jct_s": self.jct_s,
            "queue_s": self.queue_s,
            "feedback_s": self.feedback_s,
            "exclusive_s": ledger.exclusive_s,
            "held_gpu_s": ledger.held_gpu_s,
            "lost_gpu_s": ledger.lost_gpu_s,
            "rho_static": self.rho["static"],
            "rho_concurrent": self.rho["concurrent"],
            "rho_isolated": self.rho["isolated"],
        }
        lists = {name: _plain(column) for name, column in columns.items()}
        preemptions, starts = ledger.preemptions.tolist(), ledger.starts.tolist()
        return [
            {
                "id": job.id,
                "user": job.user,
                "queue": job.queue,
                "model": job.model,
                "gpus": job.gpus,
                "deadline_s": job.deadline_s,
                **{name: column[row] for name, column in lists.items()},
                "preemptions": preemptions[row],
                "restarts": max(starts[row] - 1, 0),
            }
            for row, job in enumerate(self.specs)
        ]

    def series(self) -> dict[str, list[float]]:
        """Busy GPUs, running and waiting jobs over time. Long runs are averaged into bins."""
        rows = self.ledger.series()
        if len(rows) > SERIES_POINTS:
            rows = _binned(rows, SERIES_POINTS)
        return {
            "time_s": rows[:, 0].tolist(),
            "busy_gpus": rows[:, 1].tolist(),
            "running": rows[:, 2].tolist(),
            "waiting": (rows[:, 3] - rows[:, 2]).tolist(),
        }

    def gantt(self) -> dict[str, Any]:
        """Which job held which GPU when, and the batch sizes that the policy chose; for large runs, how busy each
        group of GPUs was."""
        segments = self.ledger.segments
        pieces = sum(len(segment[3]) for segment in segments)
        if pieces <= GANTT_SEGMENTS:
            batches = {"batches": [list(batch) for batch in self.ledger.batches]} if self.ledger.batches else {}
            return {
                "kind": "segments",
                "gpus": list(self.cluster.node_names_of_gpus),
                "jobs": [job.id for job in self.specs],
                "segments": [[gpu, start, end, job] for job, start, end, gpus in segments for gpu in gpus],
                **batches,
            }
        return _raster(self.cluster, self.ledger)


def _plain(column: Floats) -> list[float | None]:
    """Floats with None for NaN, which JSON does not have."""
    return [None if value != value else value for value in column.tolist()]


def _binned(rows: Floats, bins: int) -> Floats:
    """Time-averages of a step function in equal bins."""
    times = rows[:, 0]
    edges = np.linspace(times[0], times[-1], bins + 1)
    width = edges[1] - edges[0]
    out = np.empty((bins, rows.shape[1]))
    out[:, 0] = edges[:-1]
    for column in range(1, rows.shape[1]):
        area = np.concatenate([[0.0], np.cumsum(rows[:-1, column] * np.diff(times))])
        out[:, column] = np.diff(portable.interpolates(edges, times, area)) / width
    return np.asarray(np.round(out, 4))


def busy_intervals(gpus: Ints, starts: Floats, ends: Floats) -> tuple[Ints, Floats, Floats]:
    """When each GPU was busy: the union of its intervals, so that jobs that share it count once."""
    if len(gpus) == 0:
        return gpus, starts, ends
    order = np.lexsort((starts, gpus))
    gpus, starts, ends = gpus[order], starts[order], ends[order]
    # The timelines are laid one after the other, a second apart: the latest end so far is then of the same GPU.
    shift = (gpus - gpus[0]) * (float(ends.max() - starts.min()) + 1.0)
    furthest = np.maximum.accumulate(ends + shift)
    first = np.flatnonzero(np.concatenate([[True], (starts + shift)[1:] > furthest[:-1]]))
    return gpus[first], starts[first], np.maximum.reduceat(ends, first)


def _raster(cluster: Cluster, ledger: Ledger) -> dict[str, Any]:
    """The busy fraction of each node (or of equal groups of nodes) in equal bins of time."""
    nodes = len(cluster.nodes)
    group = -(-nodes // GANTT_ROWS)
    rows = -(-nodes // group)
    counts = [len(segment[3]) for segment in ledger.segments]
    starts = np.repeat(np.array([segment[1] for segment in ledger.segments]), counts)
    ends = np.repeat(np.array([segment[2] for segment in ledger.segments]), counts)
    gpus = np.fromiter((gpu for segment in ledger.segments for gpu in segment[3]), dtype=np.int64, count=sum(counts))
    gpus, starts, ends = busy_intervals(gpus, starts, ends)
    row_of_gpu = np.array(cluster.node_of_gpu) // group
    t0_s, t1_s = float(starts.min()), float(ends.max())
    bin_s = max((t1_s - t0_s) / GANTT_BINS, 1e-9)
    row = row_of_gpu[gpus]
    # Each interval adds 1 GPU at its start and removes it at its end. Integrate the difference exactly within bins.
    area = np.zeros((rows, GANTT_BINS + 2))
    for sign, times in ((1.0, starts), (-1.0, ends)):
        position = (times - t0_s) / bin_s
        index = np.minimum(position.astype(np.int64), GANTT_BINS)
        np.add.at(area, (row, index), sign * (index + 1 - position))
        np.add.at(area, (row, index + 1), sign * (position - index))
    size = np.bincount(row_of_gpu, minlength=rows)[:, None]
    busy = np.cumsum(area, axis=1)[:, :GANTT_BINS] / size
    labels = [cluster.nodes[index * group].name + (f" +{group - 1}" if group > 1 else "") for index in range(rows)]
    return {"kind": "raster", "rows": labels, "t0_s": t0_s, "bin_s": bin_s, "busy": np.round(busy, 3).tolist()}
