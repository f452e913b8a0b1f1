"""An engine that makes trouble on demand: starts late, refuses, evicts jobs, loses nodes, forgets or repeats reports.

Everything comes from one seed. Without troubles it is a perfect cluster, on which a job runs at its speed from the
instant of its launch. It shares no code with Fairway's simulator, so that tests can compare the two.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fairway.core.action import Action, Adjustment, Launch, Suspend
from fairway.core.cluster import Cluster
from fairway.core.errors import EngineError
from fairway.core.event import (
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobStarted,
    JobSubmitted,
    NodeLost,
    NodeRestored,
    Woken,
)
from fairway.core.job import JobSpec
from fairway.testing.builders import submitted

TICK_S = 1e-6


@dataclass(frozen=True)
class Troubles:
    """What goes wrong, and how often. By default, nothing.

    Probabilities are per start (`refuse`, `evict`, `fail`) or per job (`cancel`). A refused launch is reported at once
    and may be tried again after `retry_s`. A start takes up to `slow_start_s`. Each node is lost about every
    `node_loss_s` seconds, at most `losses` times in all, and is back `repair_s` later. An evicted job loses up to
    `rollback_s` of its progress. `forget` and `repeat` name kinds of events ("JobStarted") that are never reported, or
    always twice.
    """

    seed: int = 0
    slow_start_s: float = 0.0
    refuse: float = 0.0
    retry_s: float = 5.0
    evict: float = 0.0
    fail: float = 0.0
    cancel: float = 0.0
    node_loss_s: float = math.inf
    losses: int = 20
    repair_s: float = 60.0
    rollback_s: float = 0.0
    forget: frozenset[str] = field(default_factory=frozenset)
    repeat: frozenset[str] = field(default_factory=frozenset)

    @staticmethod
    def random(seed: int) -> Troubles:
        """A random mixture of all troubles; jobs fail and are cancelled too."""
        draw = np.random.default_rng([seed, 5])
        return Troubles(
            seed=seed,
            slow_start_s=float(draw.choice([0.0, 1 / 3, 45.0])),
            refuse=float(draw.choice([0.0, 0.1, 0.5])),
            evict=float(draw.choice([0.0, 0.2])),
            fail=float(draw.choice([0.0, 0.05])),
            cancel=float(draw.choice([0.0, 0.1])),
            node_loss_s=float(draw.choice([math.inf, 300.0, 3000.0])),
            repair_s=float(draw.choice([1 / 3, 60.0, 500.0])),
            rollback_s=float(draw.choice([0.0, 20.0])),
        )


class _Running(NamedTuple):
    """A job on its GPUs: it works at `rate` from `ready_s` on, from `progress`."""

    gpus: tuple[int, ...]
    rate: float
    ready_s: float
    progress: float
    version: int


class FakeEngine:
    """Runs jobs in virtual time, with troubles by seed."""

    def __init__(self, cluster: Cluster, jobs: Sequence[JobSpec], troubles: Troubles | None = None) -> None:
        self.cluster = cluster
        self.jobs = sorted(jobs, key=lambda spec: spec.submitted_s)
        self.troubles = troubles or Troubles()
        self.now_s = 0.0
        self.finished_s: dict[str, float] = {}
        self.gone: dict[str, str] = {}
        self.enacted: list[Action] = []
        self.down: set[int] = set()
        self._random = np.random.default_rng([self.troubles.seed, 4])
        self._queue: list[tuple[float, int, str, int, int]] = []
        self._order = 0
        self._version = 0
        self._losses_left = self.troubles.losses
        self._running: dict[int, _Running] = {}
        self._waiting: dict[int, float] = {}
        self._announced: dict[int, JobSubmitted] = {}
        for number, spec in enumerate(self.jobs):
            self._at(spec.submitted_s, "submit", number)
            if self._random.random() < self.troubles.cancel:
                self._at(spec.submitted_s + float(self._random.exponential(300.0)), "cancel", number)
        if math.isfinite(self.troubles.node_loss_s):
            for node in range(len(cluster.nodes)):
                self._at(float(self._random.exponential(self.troubles.node_loss_s)), "lose", node)

    @property
    def left(self) -> int:
        """How many jobs have neither finished nor failed nor been cancelled."""
        return len(self.jobs) - len(self.finished_s) - len(self.gone)

    def poll(self, until_s: float) -> Sequence[Event]:
        """The reports of the next instant; `Woken` at `until_s` if that comes first."""
        while self._queue and self._is_stale(self._queue[0]):
            heapq.heappop(self._queue)
        next_s = self._queue[0][0] if self._queue and self.left else math.inf
        if min(next_s, until_s) == math.inf:
            return ()
        if until_s < next_s:
            self.now_s = max(self.now_s, _on_grid(until_s))
            return (Woken(self.now_s),)
        self.now_s = next_s
        events: list[Event] = []
        while self._queue and self._queue[0][0] <= self.now_s:
            entry = heapq.heappop(self._queue)
            if not self._is_stale(entry):
                self._happen(entry[2], entry[3], events)
        return self._reported(events) or (Woken(self.now_s),)

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """All jobs that change let go first, then the others start, or are refused."""
        self.enacted.extend(actions)
        for action in actions:
            if not isinstance(action, Launch | Adjustment):
                self._release(action.job)
        events: list[Event] = []
        for action in actions:
            if not isinstance(action, Suspend | Adjustment):
                self._start(now_s, action.job, action.gpus, action.gpu_type, events)
        return self._reported(events)

    def _at(self, time_s: float, what: str, number: int, version: int = -1) -> None:
        self._order += 1
        heapq.heappush(self._queue, (_on_grid(max(time_s, self.now_s)), self._order, what, number, version))

    def _is_stale(self, entry: tuple[float, int, str, int, int]) -> bool:
        _, _, what, number, version = entry
        if version >= 0:
            job = self._running.get(number)
            return job is None or job.version != version
        return what == "cancel" and self.jobs[number].id in self.finished_s.keys() | self.gone.keys()

    def _happen(self, what: str, number: int, events: list[Event]) -> None:
        if what == "submit":
            self._waiting[number] = 0.0
            event = submitted(self.jobs[number], number, self.cluster, self.now_s)
            self._announced[number] = event
            events.append(event)
        elif what == "started":
            job = self._running[number]
            events.append(JobStarted(self.now_s, number, job.rate, job.ready_s))
        elif what == "finish":
            self._leave(number, events, JobFinished(self.now_s, number))
            self.finished_s[self.jobs[number].id] = self.now_s
        elif what == "fail":
            self._leave(number, events, JobFailed(self.now_s, number, "it crashed"))
            self.gone[self.jobs[number].id] = "failed"
        elif what == "cancel":
            self._cancel(number, events)
        elif what == "evict":
            self._evict(number, "it was thrown off", events)
        elif what == "lose":
            self._lose(number, events)
        elif what == "restore":
            self.down.discard(number)
            events.append(NodeRestored(self.now_s, number))
            if self._losses_left:
                self._at(self.now_s + float(self._random.exponential(self.troubles.node_loss_s)), "lose", number)

    def _cancel(self, number: int, events: list[Event]) -> None:
        if number in self._running or number in self._waiting:
            self._leave(number, events, JobCancelled(self.now_s, number))
            self.gone[self.jobs[number].id] = "cancelled"

    def _leave(self, number: int, events: list[Event], event: Event) -> None:
        self._running.pop(number, None)
        self._waiting.pop(number, None)
        events.append(event)

    def _lose(self, node: int, events: list[Event]) -> None:
        if node in self.down or not self._losses_left:
            return
        self._losses_left -= 1
        self.down.add(node)
        events.append(NodeLost(self.now_s, node))
        self._at(self.now_s + self.troubles.repair_s, "restore", node)
        for number, job in sorted(self._running.items()):
            if any(self.cluster.node_of_gpu[gpu] == node for gpu in job.gpus):
                self._evict(number, "its node was lost", events)

    def _evict(self, number: int, why: str, events: list[Event]) -> None:
        self._release(number)
        lost = float(self._random.random()) * self.troubles.rollback_s
        self._waiting[number] = max(self._waiting[number] - lost, 0.0)
        events.append(JobEvicted(self.now_s, number, self._waiting[number], why))

    def _release(self, number: int) -> None:
        if number not in self._running:
            raise EngineError(f"job number {number} does not run")
        job = self._running.pop(number)
        done = job.progress + job.rate * max(self.now_s - job.ready_s, 0.0)
        self._waiting[number] = min(done, self._announced[number].work)

    def _start(self, now_s: float, number: int, gpus: tuple[int, ...], kind: int, events: list[Event]) -> None:
        if number not in self._waiting:
            raise EngineError(f"job number {number} does not wait")
        draw = self._random.random(4)
        if draw[0] < self.troubles.refuse:
            events.append(JobEvicted(now_s, number, self._waiting[number], "the launch was refused"))
            self._at(now_s + self.troubles.retry_s, "retry", number)
            return
        announced, progress = self._announced[number], self._waiting.pop(number)
        rate = announced.speeds[kind] * len(gpus) / announced.spec.gpus
        ready_s = _on_grid(now_s + float(draw[1]) * self.troubles.slow_start_s)
        self._version += 1
        self._running[number] = _Running(gpus, rate, ready_s, progress, self._version)
        end_s = ready_s + (announced.work - progress) / rate
        self._at(end_s, "finish", number, self._version)
        if draw[2] < self.troubles.evict:
            self._at(ready_s + (end_s - ready_s) * float(draw[3]), "evict", number, self._version)
        elif draw[2] < self.troubles.evict + self.troubles.fail:
            self._at(ready_s + (end_s - ready_s) * float(draw[3]), "fail", number, self._version)
        if ready_s > now_s:
            self._at(ready_s, "started", number, self._version)
        else:
            events.append(JobStarted(now_s, number, rate, ready_s))

    def _reported(self, events: list[Event]) -> list[Event]:
        """The events that the engine reports about what happened."""
        told: list[Event] = []
        for event in events:
            name = type(event).__name__
            if name not in self.troubles.forget:
                told += [event] * (2 if name in self.troubles.repeat else 1)
        return told


def _on_grid(time_s: float) -> float:
    """Times are whole microseconds, rounded up."""
    return math.ceil(time_s / TICK_S - 1e-3) * TICK_S if math.isfinite(time_s) else time_s
