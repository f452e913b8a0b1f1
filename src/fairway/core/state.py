"""The one mutable object: it applies events and committed actions, and hands out snapshots.

Progress and attained service are anchored when a job starts (or is seen) and continued in closed form, never summed
step by step. A completion is an event; it is never inferred from "no work is left".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from fairway.core import columns as c
from fairway.core import kernels
from fairway.core.action import Action, Adjustment, Launch, SetBatch, SetQueues, Start, Suspend, Throttle
from fairway.core.arrays import Ints, frozen
from fairway.core.batch import Split
from fairway.core.cluster import Cluster
from fairway.core.columns import JobTable
from fairway.core.errors import EngineError
from fairway.core.event import (
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobMeasured,
    JobStarted,
    JobSubmitted,
    JobUpdated,
    NodeLost,
    NodeRestored,
    RateChanged,
    RegimeEntered,
    RestartMeasured,
    TasksChanged,
    Woken,
)
from fairway.core.facts import NO_FACTS, Facts, History
from fairway.core.job import JobSpec
from fairway.core.occupancy import Occupancy
from fairway.core.pairing import ALL_SEEN, NO_PAIRING, Measurements, Pairing
from fairway.core.prospect import entered
from fairway.core.queues import NO_QUEUES
from fairway.core.sharing import heirs
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_context import Frame, Names

_EARLY_S = 5e-7
"""Protection ends half a microsecond early, so that it is over at the instant to which its end is rounded."""
MOST_SPARED_S = 600.0
"""What a restart costs protects a job for this long at most, so that a wrong figure does not keep others out."""


class _Dictionary:
    """Strings to small codes, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]


class State:
    """Active jobs, the GPUs that each holds, the nodes that are down, the policy's memory.

    A job that has just started is protected for `min_run_s`, and for as long as `restarts_spared` restarts of it cost.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        min_run_s: float = 0.0,
        restarts_spared: float = 0.0,
        replan_interval_s: float = 0.0,
        seed: int = 0,
        pairing: Pairing = NO_PAIRING,
        round_s: float = 0.0,
        runs_queues: bool = False,
        measured: Measurements = ALL_SEEN,
        resume_s: Callable[[int], float] | None = None,
    ) -> None:
        self.cluster = cluster
        self.min_run_s = min_run_s
        self.restarts_spared = restarts_spared
        self.now_s = 0.0
        self.round = 0
        self.table = JobTable(len(cluster.types))
        self.occupancy = Occupancy(cluster)
        self.capacity: Ints = cluster.gpus_by_type
        self.held_gpus: dict[int, tuple[int, ...]] = {}
        self.specs: dict[int, JobSpec] = {}
        self.ids: dict[int, str] = {}
        self.facts: dict[int, Facts] = {}
        self.history = History()
        self.memory: Mapping[str, Any] = {}
        self._guard_until_s = 0.0
        # An engine may start a job later than its GPUs are booked, because others have to leave them first. Such jobs
        # are unstarted. Those that lost their GPUs to others before they could start are unserved.
        self._unstarted: set[int] = set()
        self._unserved: set[int] = set()
        self._adaptive: set[int] = set()
        self._last_job = -1
        self._demand = 0
        self._guests = 0
        self._down: set[int] = set()
        self._gpus_up = cluster.gpu_count
        self._users, self._queues, self._models = _Dictionary(), _Dictionary(), _Dictionary()
        names = Names(self._users.names, self._queues.names, self._models.names)
        self._frame = Frame(
            *(cluster, names, self.ids, self.held_gpus, seed, replan_interval_s, self.facts, self.history, self._down),
            pairing=pairing,
            round_s=round_s,
            queues=NO_QUEUES if runs_queues else None,
            measured=measured,
            resume_s=resume_s,
        )
        self._apply: dict[type[Any], Callable[[Any], None]] = {
            JobSubmitted: self._job_submitted,
            JobStarted: self._job_started,
            RateChanged: self._rate_changed,
            TasksChanged: self._tasks_changed,
            RegimeEntered: self._regime_entered,
            JobMeasured: self._job_measured,
            JobUpdated: self._job_updated,
            RestartMeasured: self._restart_measured,
            JobEvicted: self._job_evicted,
            JobFinished: self._job_left,
            JobFailed: self._job_left,
            JobCancelled: self._job_left,
            NodeLost: self._node_lost,
            NodeRestored: self._node_restored,
            Woken: lambda event: None,
        }

    @property
    def seed(self) -> int:
        """Where a policy's randomness comes from."""
        return self._frame.seed

    @property
    def active(self) -> int:
        """How many jobs are waiting or running."""
        return self.table.n

    @property
    def busy_gpus(self) -> int:
        """GPUs that jobs hold (on nodes that are up)."""
        return self._gpus_up - sum(self.occupancy.free_by_type)

    @property
    def guests(self) -> int:
        """How many jobs run on the GPUs of others."""
        return self._guests

    @property
    def adaptive(self) -> Set[int]:
        """The jobs whose batch size may be chosen."""
        return self._adaptive

    def names(self) -> list[list[str]]:
        """Users, queues and models, in the order of their numbers."""
        return [list(kind.names) for kind in (self._users, self._queues, self._models)]

    def know_names(self, names: Sequence[Sequence[str]]) -> None:
        """Number users, queues and models as in `names`: a policy may have the numbers in its memory."""
        for kind, known in zip((self._users, self._queues, self._models), names, strict=True):
            for name in known:
                kind.code(name)

    def remember(self, gpu_s: float, seconds: float, gpus: int, model: str, user: str) -> None:
        """Add a job to the history that ended before this state was made."""
        self.history.add(gpu_s, seconds, gpus, self._models.code(model), self._users.code(user))

    def snapshot(self, knows: frozenset[str] = frozenset()) -> Snapshot:
        """A read-only view of this instant."""
        floats, ints = self.table.window()
        return Snapshot.of(
            frame=self._frame,
            floats=floats,
            ints=ints,
            now_s=self.now_s,
            round=self.round,
            capacity=self.capacity,
            memory=self.memory,
            knows=knows,
            guarded=self._guard_until_s > self.now_s,
            free=sum(self.occupancy.free_by_type),
            demand=self._demand,
        )

    def grow(self, cluster: Cluster, speeds: Mapping[int, tuple[float, ...]]) -> None:
        """The cluster has more nodes; those that were known come first. `speeds` are those of all active jobs now."""
        if not cluster.goes_on_from(self.cluster):
            raise EngineError("a cluster that grows has other nodes at its beginning")
        occupancy = Occupancy(cluster)
        for gpus in self.held_gpus.values():
            occupancy.take(gpus)
        for node in self.occupancy.down:
            occupancy.lose(node)
        self.table.add_types(len(cluster.types) - len(self.cluster.types))
        self.cluster, self.occupancy = cluster, occupancy
        self._frame = self._frame._replace(cluster=cluster)
        self._count_capacity()
        for job, there in speeds.items():
            self._set_speeds(job, there)

    def speeds(self) -> dict[int, list[float]]:
        """The speeds of all active jobs, by GPU type."""
        floats, ints = self.table.window()
        return dict(zip(ints[c.JOB].tolist(), floats[c.SPEEDS :].T.tolist(), strict=True))

    def _set_speeds(self, job: int, speeds: tuple[float, ...]) -> None:
        row, f = self._row(job), self.table.f
        known, facts = f[c.SPEEDS :, row].tolist(), self.facts.get(job)
        if facts is not None and facts.prospect is not None:
            self.facts[job] = facts._replace(prospect=facts.prospect.at(speeds, known))
        f[c.SPEEDS :, row] = speeds
        f[c.BEST_SPEED, row] = max(speeds)
        self._anchor(row)

    def apply(self, event: Event) -> None:
        """Apply something that has happened."""
        if event.time_s < self.now_s:
            raise EngineError(f"{type(event).__name__} at {event.time_s} s comes after {self.now_s} s")
        self.now_s = event.time_s
        self._apply[type(event)](event)

    def commit(self, actions: Sequence[Action], occupancy: Occupancy | None = None) -> None:
        """Book what the engine is about to be told: GPUs are held, or given up, from this instant on.

        `occupancy` is the state of the GPUs afterwards, if the planner has worked it out already.
        """
        for action in actions:
            if isinstance(action, Launch):
                continue
            if isinstance(action, SetQueues):
                self._frame = self._frame._replace(queues=action.queues)
            elif isinstance(action, Throttle):
                self._throttle(self._row(action.job), action)
            elif isinstance(action, SetBatch):
                self._set_batch(self._row(action.job), action.job, action.batch)
            else:
                row = self._row(action.job)
                if type(action) is Suspend:
                    self.table.i[c.PREEMPTIONS, row] += 1
                    if action.job in self._unstarted:
                        self._unserved.add(action.job)
                gpus = self._stop(row, action.job)
                if occupancy is None:
                    self.occupancy.give(gpus)
        for action in actions:
            if not isinstance(action, Suspend | Adjustment):
                if occupancy is None:
                    self.occupancy.take(action.gpus)
                self._start(self._row(action.job), action)
        if occupancy is not None:
            self.occupancy = occupancy

    def _row(self, job: int) -> int:
        row = self.table.position(job)
        if row < 0:
            raise EngineError(f"job number {job} is not active")
        return row

    def _start(self, row: int, start: Start) -> None:
        f, i, gpus = self.table.f, self.table.i, start.gpus
        if start.host >= 0:
            self._be_host(start.host)
        self.held_gpus[start.job] = gpus
        until_s = self._protected_until_s(row, start.job)
        self._guard_until_s = max(self._guard_until_s, until_s)
        gang = kernels.begin(f, i, row, self.now_s, until_s, (len(gpus), start.gpu_type, start.host))
        f[c.THROTTLE, row] = start.throttle
        self._unstarted.add(start.job)
        self._guests += start.host >= 0
        self._demand += len(gpus) - gang
        if start.batch is not None or start.job in self._adaptive:
            self._set_batch(row, start.job, start.batch)

    def _be_host(self, job: int) -> None:
        """A job gets a guest. In a replayed log, which leaves out jobs that have ended, its own host may be gone."""
        at = self.table.position(job)
        if at >= 0 and self.table.i[c.HOST, at] >= 0:
            self._settle({int(self.table.i[c.HOST, at])})

    def _throttle(self, row: int, action: Throttle) -> None:
        """Note a throttle. In a replayed log, which leaves out jobs that have ended, it tells who the host is now."""
        i, host = self.table.i, int(self.table.i[c.HOST, row])
        if host != action.host and (host < 0 or self.table.position(host) < 0):
            if host >= 0:
                self._settle({host})
            self._guests += int(action.host >= 0) - int(i[c.HOST, row] >= 0)
            i[c.HOST, row] = action.host
        self.table.f[c.THROTTLE, row] = action.throttle

    def _set_batch(self, row: int, job: int, split: Split | None) -> None:
        """Note how a job works through its batch from now on; None: with the batch size that its owner chose."""
        self.facts[job] = self.facts.get(job, NO_FACTS).given(split)
        self.table.i[c.BATCH_SIZE, row] = split.local if split is not None else self.specs[job].batch_size or 0

    def _protected_until_s(self, row: int, job: int) -> float:
        """Until when a job that gets GPUs or starts now may not be stopped. An unserved one will get to its start."""
        if not self.specs[job].preemptible:
            return math.inf
        if self.table.i[c.PRIORITY, row] < 0:
            return self.now_s
        cost_s = self.restarts_spared * float(self.table.f[c.RESTART_S, row])
        spared_s = max(self.min_run_s, min(cost_s, MOST_SPARED_S))
        return math.inf if job in self._unserved else self.now_s + spared_s - _EARLY_S

    def _anchor(self, row: int) -> None:
        kernels.anchor(self.table.f, self.table.i, row, self.now_s)

    def _stop(self, row: int, job: int) -> tuple[int, ...]:
        """Settle the accounts of a job that gives up its GPUs now. Returns its GPUs."""
        f, i = self.table.f, self.table.i
        self._unstarted.discard(job)
        held = kernels.settle(f, i, row, self.now_s)
        self._demand += int(i[c.GPUS, row]) - held
        self._anchor(row)
        if self._guests:
            self._part(row, job)
        return self.held_gpus.pop(job)

    def _part(self, row: int, job: int) -> None:
        """A job that may be a guest or a host leaves its GPUs. Its guests get another host, or become hosts."""
        i = self.table.i
        self._guests -= int(i[c.HOST, row] >= 0)
        i[c.HOST, row] = -1
        self._orphan([job])

    def _orphan(self, gone: Sequence[int]) -> None:
        """Guests of jobs that leave get another host among themselves, or become hosts."""
        i = self.table.i
        window = slice(self.table.start, self.table.start + self.table.n)
        left = [int(at) + self.table.start for job in gone for at in (i[c.HOST, window] == job).nonzero()[0]]
        hosts = heirs({int(i[c.JOB, guest]): self.held_gpus[int(i[c.JOB, guest])] for guest in left})
        for guest in left:
            host = i[c.HOST, guest] = hosts[int(i[c.JOB, guest])]
            if host < 0:
                self._guests -= 1
                self.table.f[c.THROTTLE, guest] = 1.0

    def settle_guests(self) -> None:
        """Free guests from hosts that are not there. The replayed log leaves out jobs that have ended.

        Guests of different hosts that are gone may share GPUs: one may have come when another had become a host.
        """
        snapshot = self.snapshot()
        gone = {int(host) for host in snapshot.host if host >= 0 and self.table.position(int(host)) < 0}
        if gone:
            self._settle(gone)

    def _settle(self, gone: set[int]) -> None:
        """Free the guests of jobs that are gone, and of which the log does not say when they left.

        There is one host on a GPU. So a job beside such a guest was a guest of that job as well.
        """
        i, rows = self.table.i, {job: self._row(job) for job in self.held_gpus}
        host_on = {
            gpu: int(i[c.HOST, row])
            for job, row in rows.items()
            if int(i[c.HOST, row]) in gone
            for gpu in self.held_gpus[job]
        }
        for job, row in rows.items():
            host = next((host_on[gpu] for gpu in self.held_gpus[job] if gpu in host_on), -1)
            if host >= 0 and int(i[c.HOST, row]) not in gone:
                self._guests += int(i[c.HOST, row] < 0)
                i[c.HOST, row] = host
        self._orphan(sorted(gone))

    def _job_submitted(self, event: JobSubmitted) -> None:
        job, spec = event.job, event.spec
        if job <= self._last_job:
            raise EngineError(f"job number {job} is not above those of the jobs submitted before")
        self._last_job = job
        deadline = math.inf if spec.deadline_s is None else spec.deadline_s
        asked_s = event.time_s if math.isnan(event.since_s) else event.since_s
        floats = [
            *(asked_s, spec.weight, deadline, event.work),
            *(0.0, 0.0, event.time_s, event.time_s, 0.0, 0.0, 0.0),
            *(event.restart_s, event.regime_end, event.tail_s, max(event.speeds)),
            *(event.regime_end / max(event.speeds) + event.tail_s, 0.0, math.inf, 1.0, spec.gpu_share),
            *event.speeds,
        ]
        codes = (self._users.code(spec.user), self._queues.code(spec.queue), self._models.code(spec.model))
        ints = [
            *(job, spec.gpus, spec.gpus_min, spec.gpus_max, 0, -1, -1),
            *codes,
            *(spec.priority, spec.batch_size or 0, 0, 0),
        ]
        self.table.append(floats, ints)
        self._demand += spec.gpus
        self.specs[job] = spec
        self.ids[job] = spec.id
        facts = Facts.of(spec, event.scaling, event.loss, event.steps_left, event.prospect, event.tasks)
        if facts != NO_FACTS:
            self.facts[job] = facts

    def _job_started(self, event: JobStarted) -> None:
        row, f = self._row(event.job), self.table.f
        if f[c.RATE, row] > 0:
            # It runs already, and an engine that was away has found it again: what it did so far stays done.
            done = f[c.PROGRESS0, row] + f[c.RATE, row] * max(event.time_s - f[c.READY_S, row], 0.0)
            f[c.PROGRESS0, row] = min(done, f[c.REGIME_END, row])
        f[c.RATE, row] = event.rate
        f[c.READY_S, row] = event.ready_s
        self._anchor(row)
        if event.job in self._unstarted:
            self._unstarted.discard(event.job)
            if event.job in self._unserved or event.time_s > f[c.SINCE_S, row]:
                self._unserved.discard(event.job)
                self._begin_turn(row, event.job)

    def _begin_turn(self, row: int, job: int) -> None:
        """A job starts, maybe later than its GPUs were booked. Its turn and its protection count from now."""
        f, held = self.table.f, int(self.table.i[c.HELD, row])
        waited_s = self.now_s - float(f[c.SINCE_S, row])
        f[c.ATTAINED0_S, row] += waited_s
        f[c.ATTAINED0_GPU_S, row] += waited_s * held * float(f[c.SHARE, row])
        f[c.SINCE_S, row] = self.now_s
        f[c.PROTECTED_UNTIL_S, row] = until_s = self._protected_until_s(row, job)
        self._guard_until_s = max(self._guard_until_s, until_s)

    def _rate_changed(self, event: RateChanged) -> None:
        row, f = self._row(event.job), self.table.f
        f[c.PROGRESS0, row] = event.progress
        f[c.RATE, row] = event.rate if self.table.i[c.HELD, row] else 0.0
        f[c.READY_S, row] = max(event.time_s, f[c.READY_S, row])
        self._anchor(row)
        if not math.isnan(event.ran_s):
            self.facts[event.job] = self.facts.get(event.job, NO_FACTS)._replace(ran_s=event.ran_s)
        if not (math.isnan(event.loss) and math.isnan(event.noise_scale)):
            self.facts[event.job] = self.facts.get(event.job, NO_FACTS)._replace(
                seen_epochs=event.epochs, seen_loss=event.loss, noise_scale=event.noise_scale
            )

    def _tasks_changed(self, event: TasksChanged) -> None:
        """Tasks hold a GPU while they run. A job that is scheduled as tasks is not protected."""
        row, job, f, i = self._row(event.job), event.job, self.table.f, self.table.i
        if i[c.HELD, row]:
            self.occupancy.give(self._stop(row, job))
        if event.gpus:
            self.occupancy.take(event.gpus)
            self.held_gpus[job] = event.gpus
            kind = self.cluster.node_type[self.cluster.node_of_gpu[event.gpus[0]]]
            gang = kernels.begin(f, i, row, self.now_s, self.now_s, (len(event.gpus), kind, -1))
            i[c.LAUNCHES, row] = 1
            self._demand += len(event.gpus) - gang
        f[c.PROGRESS0, row], f[c.RATE, row] = event.progress, event.rate
        self.facts[job] = self.facts.get(job, NO_FACTS)._replace(round=event.round)
        self._anchor(row)

    def _regime_entered(self, event: RegimeEntered) -> None:
        row, f = self._row(event.job), self.table.f
        f[c.PROGRESS0, row] = event.progress
        f[c.RATE, row] = event.rate
        f[c.READY_S, row] = event.time_s
        f[c.REGIME_END, row] = event.regime_end
        if not math.isnan(event.work):
            f[c.WORK, row] = event.work
        f[c.TAIL_S, row] = event.tail_s
        f[c.BEST_SPEED, row] = max(event.speeds)
        f[c.SPEEDS :, row] = event.speeds
        self.table.i[c.BATCH_SIZE, row] = event.batch_size
        facts, work = self.facts.get(event.job, NO_FACTS), float(f[c.WORK, row])
        entries = entered(facts.entries, event.batch_size, event.progress / work if work > 0 else 0.0)
        steps_left = facts.steps_left if math.isnan(event.steps_left) else event.steps_left
        scaling = event.scaling or facts.scaling
        prospect = event.prospect or facts.prospect
        self.facts[event.job] = facts._replace(
            entries=entries, steps_left=steps_left, scaling=scaling, prospect=prospect
        )
        self._anchor(row)

    def _job_measured(self, event: JobMeasured) -> None:
        row, timing = self._row(event.job), event.timing
        if timing is not None and not timing.gpu_type:
            timing = timing._replace(gpu_type=self._type_held(row))
        known = self.facts.get(event.job, NO_FACTS)
        self.facts[event.job] = known.measured(event.limits, timing, event.noise_scale, event.local_limits)
        if event.limits is not None:
            self._adaptive.add(event.job)

    def _type_held(self, row: int) -> str:
        """The GPU type of a row; empty for one that holds no GPUs, unless there is only one type."""
        types, kind = self.cluster.types, int(self.table.i[c.GPU_TYPE, row])
        return types[kind].name if kind >= 0 else types[0].name if len(types) == 1 else ""

    def _job_updated(self, event: JobUpdated) -> None:
        row, f = self._row(event.job), self.table.f
        f[c.WEIGHT, row], f[c.DEADLINE_S, row] = event.weight, event.deadline_s
        self.table.i[c.PRIORITY, row] = event.priority
        if event.priority < 0 and self.specs[event.job].preemptible:
            # A job that becomes opportunistic is no longer protected, however it started.
            f[c.PROTECTED_UNTIL_S, row] = min(f[c.PROTECTED_UNTIL_S, row], self.now_s)

    def _restart_measured(self, event: RestartMeasured) -> None:
        self.table.f[c.RESTART_S, self._row(event.job)] = event.restart_s

    def _job_evicted(self, event: JobEvicted) -> None:
        row = self._row(event.job)
        if self.table.i[c.HELD, row]:
            self.occupancy.give(self._stop(row, event.job))
        self.table.f[c.PROGRESS0, row] = event.progress
        known = self.facts.get(event.job)
        if known is not None and known.round is not None:
            self.facts[event.job] = known._replace(round=None)
        self._anchor(row)

    def _job_left(self, event: JobFinished | JobFailed | JobCancelled) -> None:
        job = event.job
        row = self._row(job)
        if self.table.i[c.HELD, row]:
            self.occupancy.give(self._stop(row, job))
        f, i = self.table.f, self.table.i
        gang = int(i[c.GPUS, row])
        self._demand -= gang
        if type(event) is JobFinished:
            service = float(f[c.ATTAINED0_GPU_S, row]), float(f[c.ATTAINED0_S, row])
            self.history.add(*service, gang, int(i[c.MODEL, row]), int(i[c.USER, row]))
        self.table.remove(row)
        self._adaptive.discard(job)
        self._unserved.discard(job)
        del self.specs[job], self.ids[job]
        self.facts.pop(job, None)

    def _node_lost(self, event: NodeLost) -> None:
        if event.node not in self.occupancy.down:
            self.occupancy.lose(event.node)
            self._down.add(event.node)
            self._count_capacity()

    def _node_restored(self, event: NodeRestored) -> None:
        if event.node in self.occupancy.down:
            self.occupancy.restore(event.node)
            self._down.discard(event.node)
            self._count_capacity()

    def _count_capacity(self) -> None:
        capacity = self.cluster.gpus_by_type.copy()
        for node in self.occupancy.down:
            capacity[self.cluster.node_type[node]] -= self.cluster.nodes[node].gpus
        self.capacity = frozen(capacity)
        self._gpus_up = int(capacity.sum())
