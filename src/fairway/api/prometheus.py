"""Figures for Prometheus: the queue, the GPUs, the users' shares, and how the scheduler itself does.

Most figures are counted on request; decisions and finished jobs are counted as they come. rho is
finish-time fairness: a job's time from submission to its end, over the time that it ran times the mean number of jobs
per GPU while it was there (at least 1). Above 1 it got less than its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairway import __version__
from fairway.api import views
from fairway.api.disk_space import DiskSpace
from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished, JobSubmitted
from fairway.runtime.daemon.daemon import Daemon

DECISION_BUCKETS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
RHO_BUCKETS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.05, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


class Figures:
    """The metrics of one scheduler."""

    def __init__(self, daemon: Daemon, disk: DiskSpace) -> None:
        self._daemon = daemon
        self._disk = disk
        self._registry = CollectorRegistry(auto_describe=False)
        self._decision_s = Histogram(
            "fairway_decision_seconds",
            "Time that the policy took for a decision",
            buckets=DECISION_BUCKETS_S,
            registry=self._registry,
        )
        self._rho = Histogram(
            "fairway_rho",
            "Finish-time fairness of jobs that have completed; above 1 is less than the share",
            buckets=RHO_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Counted(daemon, disk))
        self._presence = _Presence(daemon)

    def listen(self) -> None:
        """Listen to the scheduler."""
        self._daemon.scheduler.listeners.append(self._happened)
        self._daemon.scheduler.watchers.append(self._decided)

    def text(self) -> bytes:
        """All figures in Prometheus' format."""
        return generate_latest(self._registry)

    def _decided(self, decision: Decision, actions: Sequence[Action]) -> None:
        self._decision_s.observe(self._daemon.scheduler.guard.took_s)

    def _happened(self, events: Sequence[Event]) -> None:
        scheduler = self._daemon.scheduler
        for event in events:
            self._presence.pass_time(event.time_s)
            if isinstance(event, JobSubmitted):
                self._presence.came(event.job)
            elif isinstance(event, JobFinished):
                record = scheduler.store[event.job]
                present = self._presence.mean(event.job, record.submitted_s - scheduler.clock.origin_s)
                if record.ran_s > 0 and record.ended_s is not None:
                    stretch = max(1.0, present / len(scheduler.cluster.node_of_gpu))
                    self._rho.observe((record.ended_s - record.submitted_s) / (record.ran_s * stretch))
        self._presence.now_are(scheduler.state.active)


class _Presence:
    """The mean number of jobs over the life of a job, or since this scheduler started."""

    def __init__(self, daemon: Daemon) -> None:
        self._began_s = self._now_s = daemon.scheduler.clock.now_s()
        self._area = 0.0
        self._since: dict[int, float] = {}
        self._active = daemon.scheduler.state.active

    def now_are(self, active: int) -> None:
        """There are this many jobs from now on."""
        self._active = active

    def pass_time(self, now_s: float) -> None:
        """Count the time since the last change, with the number of jobs since then."""
        self._area += self._active * max(now_s - self._now_s, 0.0)
        self._now_s = max(self._now_s, now_s)

    def came(self, job: int) -> None:
        """A job was submitted now."""
        self._since[job] = self._area

    def mean(self, job: int, submitted_s: float) -> float:
        """The mean number of jobs since a job was submitted, or since this start."""
        span_s = self._now_s - max(submitted_s, self._began_s)
        return max((self._area - self._since.pop(job, 0.0)) / span_s, 1.0) if span_s > 0 else 1.0


class _Counted:
    """Figures that are counted at the moment when they are asked for."""

    def __init__(self, daemon: Daemon, disk: DiskSpace) -> None:
        self._daemon = daemon
        self._disk = disk

    def collect(self) -> Iterable[Metric]:
        """All of them; called by the registry."""
        scheduler = self._daemon.scheduler
        yield _labelled("fairway_jobs", "Jobs by state", "state", views.states(scheduler))
        nodes = views.nodes(self._daemon)
        yield _labelled("fairway_gpus", "GPUs by use", "use", views.gpu_uses(nodes))
        busy = "Part of the last moments in which a GPU computed, 0 to 1"
        yield _of_gpus("fairway_gpu_utilisation", busy, nodes, "utilisation")
        yield _of_gpus("fairway_gpu_memory_used_bytes", "Memory of a GPU in use", nodes, "memory_used_bytes")
        yield _labelled("fairway_nodes", "Nodes by status", "status", views.node_statuses(scheduler))
        asleep = views.suspended_bytes(scheduler)
        yield _labelled("fairway_suspended_bytes", "GPU memory of suspended jobs by place", "memory", asleep)
        users = views.share(scheduler)
        had = {one["user"]: one["gpu_s"] for one in users}
        yield _labelled("fairway_user_gpu_seconds", "GPU seconds that users have had", "user", had, counter=True)
        held = {one["user"]: one["gpus_held"] for one in users}
        yield _labelled("fairway_user_gpus", "GPUs that users hold", "user", held)
        store = scheduler.store
        preemptions = store.past.preemptions + sum(record.preemptions for record in store.unsettled())
        counted = CounterMetricFamily("fairway_preemptions", "Times that a running job was preempted")
        counted.add_metric([], preemptions)
        yield counted
        yield from self._of_the_scheduler()

    def _of_the_scheduler(self) -> Iterable[Metric]:
        scheduler, path = self._daemon.scheduler, self._daemon.scheduler.journal.path
        sizes = [path.with_name(path.name + end) for end in ("", "-wal")]
        size = sum(one.stat().st_size for one in sizes if one.exists())
        yield GaugeMetricFamily("fairway_journal_bytes", "Size of the journal", value=size)
        yield GaugeMetricFamily(
            "fairway_disk_free_bytes", "Free disk space for the journal", value=self._disk.free_bytes()
        )
        yield CounterMetricFamily("fairway_rounds", "Decisions taken", value=scheduler.state.round)
        failing = bool(scheduler.guard.problem)
        yield GaugeMetricFamily("fairway_policy_failing", "1 while the policy fails", value=failing)
        about = GaugeMetricFamily("fairway_info", "What runs here", labels=("version", "policy"))
        about.add_metric([__version__, scheduler.policy_text], 1)
        yield about


def _of_gpus(name: str, what: str, nodes: Iterable[Mapping[str, Any]], key: str) -> Metric:
    """A figure of each GPU that is known."""
    family = GaugeMetricFamily(name, what, labels=("node", "gpu"))
    for node in nodes:
        for gpu in node["gpus"]:
            if gpu[key] is not None:
                family.add_metric([node["name"], str(gpu["index"])], gpu[key])
    return family


def _labelled(name: str, what: str, label: str, values: dict[str, Any], *, counter: bool = False) -> Metric:
    family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, what, labels=(label,))
    for value, number in values.items():
        family.add_metric([value], number)
    return family
