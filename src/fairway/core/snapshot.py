"""What a policy may read: the active jobs as read-only columns, in the order of submission.

A snapshot carries what has been observed, never the future. What only an oracle could know (how long a job will still
run) is behind `snapshot.oracle`, open only to policies that declare `knows = {"duration"}`, so that a report can say
so. The columns are slices of live arrays: valid during one decision. Keep `snapshot.copy()` if you need it for
longer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fairway.core import columns as c
from fairway.core import kernels
from fairway.core.arrays import Bools, Floats, Ints, frozen
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError, PolicyError
from fairway.core.facts import NO_FACTS, Facts, Finished, History
from fairway.core.pairing import NO_PAIRING, Pairing, PairTable
from fairway.core.prospect import Training, spells_of


class Names(NamedTuple):
    """What the codes in the columns `user`, `queue` and `model` stand for."""

    users: Sequence[str]
    queues: Sequence[str]
    models: Sequence[str]


class Frame(NamedTuple):
    """What stays the same from one snapshot of a state to the next, or is looked up in the state when it is asked
    for."""

    cluster: Cluster
    names: Names
    ids: Mapping[int, str]
    held_gpus: Mapping[int, tuple[int, ...]]
    seed: int = 0
    replan_interval_s: float = 0.0
    facts: Mapping[int, Facts] = MappingProxyType({})
    history: History = History()
    down: Collection[int] = frozenset()
    pairing: Pairing = NO_PAIRING
    round_s: float = 0.0
    withheld: Collection[int] = frozenset()


class JobView(NamedTuple):
    """One row as a readable object, for policies that prefer to look at a job at a time."""

    row: int
    id: str
    user: str
    queue: str
    model: str
    gpus: int
    gpus_min: int
    gpus_max: int
    held: int
    weight: float
    submitted_s: float
    deadline_s: float
    attained_s: float
    attained_gpu_s: float
    progress: float


class Oracle:
    """True run times of the jobs on their own gangs, on the GPU type that suits each best."""

    __slots__ = ("_floats", "_now_s", "_snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._floats = snapshot.floats
        self._now_s = snapshot.now_s

    @property
    def remaining_s(self) -> Floats:
        """How long each job takes if it runs from now on, with the restart that it must go through first."""
        return self._remaining_at(self._now_s)

    def before(self, moment_s: float, scale: Ints | None = None) -> Floats:
        """Remaining time (times `scale`) as of a moment ago, with jobs that have just come behind their equals.

        Ordering by it, jobs that have just drawn level keep the order that they had.
        """
        left = self._remaining_at(self._now_s - moment_s)
        behind = 2 * moment_s
        if scale is not None:
            left *= scale
            behind *= int(scale.max(initial=1))
        submitted_s, row = self._floats[c.SUBMITTED_S], len(left) - 1
        while row >= 0 and submitted_s[row] == self._now_s:
            left[row] += behind
            row -= 1
        return left

    def _remaining_at(self, time_s: float) -> Floats:
        return kernels.remaining(self._floats, time_s)

    @property
    def work_left(self) -> Floats:
        """What each job has still to do, in the units of its speeds."""
        left: Floats = self._floats[c.WORK] - self._snapshot.progress
        return left

    @property
    def steps_left(self) -> Floats:
        """The steps that each job has still to make, in the units of `scaling`."""
        told = np.array([self._snapshot._told(row).steps_left for row in range(len(self._snapshot))])
        return np.where(np.isnan(told), self._floats[c.WORK] - self._snapshot.progress, told)

    @property
    def total_s(self) -> Floats:
        """How long each job takes in all, without interruption, at the speed of its present regime for what is behind
        it."""
        f = self._floats
        total: Floats = f[c.REGIME_END] / f[c.BEST_SPEED] + f[c.TAIL_S]
        return total


def _float_column(number: int, doc: str) -> property:
    def get(self: Snapshot) -> Floats:
        column: Floats = self.floats[number]
        return column

    return property(get, doc=doc)


def _int_column(number: int, doc: str) -> property:
    def get(self: Snapshot) -> Ints:
        column: Ints = self.ints[number]
        return column

    return property(get, doc=doc)


class Snapshot:
    """The active jobs and the cluster at one instant. All columns have one entry per active job.

    `capacity` counts the GPUs that are up, by type; `free` how many of them nobody holds; `demand` how many would be
    held if every waiting job ran as well. `guarded` is False when certainly no job is protected.  `floats` and `ints`
    are the blocks that the columns are rows of (see `core.columns`).
    """

    __slots__ = (
        "_attained_gpu_s",
        "_attained_s",
        "_progress",
        "_protected_rows",
        "_running",
        "_running_rows",
        "capacity",
        "demand",
        "floats",
        "frame",
        "free",
        "guarded",
        "ints",
        "knows",
        "memory",
        "now_s",
        "round",
    )

    def __init__(
        self,
        frame: Frame,
        floats: Floats,
        ints: Ints,
        now_s: float,
        round: int,  # noqa: A002
        capacity: Ints,
        memory: Mapping[str, Any],
        knows: frozenset[str],
        free: int,
        demand: int,
        guarded: bool,
    ) -> None:
        self.frame = frame
        self.floats = floats
        self.ints = ints
        self.now_s = now_s
        self.round = round
        self.capacity = capacity
        self.memory = memory
        self.knows = knows
        self.free = free
        self.demand = demand
        self.guarded = guarded
        self._running: Bools | None = None
        self._running_rows: Ints | None = None
        self._protected_rows: Ints | None = None
        self._progress: Floats | None = None
        self._attained_s: Floats | None = None
        self._attained_gpu_s: Floats | None = None

    submitted_s = _float_column(c.SUBMITTED_S, "When each job was submitted.")
    weight = _float_column(c.WEIGHT, "Each job's weight in shares.")
    deadline_s = _float_column(c.DEADLINE_S, "Deadlines; infinite where there is none.")
    rate = _float_column(c.RATE, "Work per second that each job makes now; 0 while it waits.")
    since_s = _float_column(c.SINCE_S, "Since when each running job has held its present GPUs.")
    restart_s = _float_column(c.RESTART_S, "What a stop and restart of each job costs.")
    protected_until_s = _float_column(c.PROTECTED_UNTIL_S, "Until when a running job may not be stopped.")
    first_start_s = _float_column(c.FIRST_START_S, "When each job was first started; infinite before.")
    throttle = _float_column(c.THROTTLE, "What part of the time each running guest may compute; 1 for the others.")
    idle_since_s = _float_column(c.READY_S, "Of a waiting job: since when it has held no GPUs.")
    best_speed = _float_column(c.BEST_SPEED, "Each job's rate on its own gang on the GPU type that suits it best.")
    jobs = _int_column(c.JOB, "Job numbers, rising: the order of submission.")
    gpus = _int_column(c.GPUS, "The gang that each job asks for.")
    gpus_min = _int_column(c.GPUS_MIN, "The fewest GPUs that each job can use.")
    gpus_max = _int_column(c.GPUS_MAX, "The most GPUs that each job can use.")
    held = _int_column(c.HELD, "How many GPUs each job holds now; 0 while it waits.")
    gpu_type = _int_column(c.GPU_TYPE, "The type of the GPUs that each job holds, or held last; -1 before.")
    host = _int_column(c.HOST, "The number of the job whose GPUs a job shares as a guest, or -1.")
    user = _int_column(c.USER, "Code of the owner; see `names.users`.")
    queue = _int_column(c.QUEUE, "Code of the queue; see `names.queues`.")
    model = _int_column(c.MODEL, "Code of the model; see `names.models`.")
    priority = _int_column(c.PRIORITY, "The priority that the owner gave; larger is more urgent.")
    batch_size = _int_column(c.BATCH_SIZE, "The batch size seen last; 0 where unknown.")
    launches = _int_column(c.LAUNCHES, "How often each job has been started.")
    preemptions = _int_column(c.PREEMPTIONS, "How often each job's GPUs were taken away.")

    @property
    def cluster(self) -> Cluster:
        """The machines, as they are when every node is up."""
        return self.frame.cluster

    @property
    def names(self) -> Names:
        """What the codes of users, queues and models stand for."""
        return self.frame.names

    @property
    def down_nodes(self) -> Collection[int]:
        """The nodes that are down now, for policies that place by themselves."""
        return self.frame.down

    @property
    def withheld_gpus(self) -> Collection[int]:
        """GPUs of nodes that are up, but which no job of this snapshot can have, for policies that place by
        themselves."""
        return self.frame.withheld

    @property
    def node_sizes(self) -> list[int]:
        """The GPUs of each node that jobs of this snapshot can have."""
        down, sizes = self.frame.down, [node.gpus for node in self.cluster.nodes]
        for node in down:
            sizes[node] = 0
        for gpu in self.frame.withheld:
            node = self.cluster.node_of_gpu[gpu]
            sizes[node] -= node not in down
        return sizes

    @property
    def seed(self) -> int:
        """Where all randomness of a policy must come from."""
        return self.frame.seed

    @property
    def replan_interval_s(self) -> float:
        """A policy that plans shares should plan anew at most this often."""
        return self.frame.replan_interval_s

    @property
    def round_s(self) -> float:
        """The usual time from one round to the next; 0 where rounds are at events only."""
        return self.frame.round_s

    def __len__(self) -> int:
        return int(self.ints.shape[1])

    @property
    def speeds(self) -> Floats:
        """The rate of each job on its own gang, one row per GPU type; 0 where it cannot run."""
        return self.floats[c.SPEEDS :]

    @property
    def running(self) -> Bools:
        """Which jobs hold GPUs."""
        if self._running is None:
            self._running = self.ints[c.HELD] > 0
        return self._running

    @property
    def running_rows(self) -> Ints:
        """The rows that hold GPUs."""
        if self._running_rows is None:
            self._running_rows = self.running.nonzero()[0]
        return self._running_rows

    @property
    def attained_s(self) -> Floats:
        """How long each job has held GPUs so far."""
        if self._attained_s is None:
            self._attained_s = self.floats[c.ATTAINED0_S] + (self.now_s - self.floats[c.SINCE_S]) * self.running
        return self._attained_s

    @property
    def attained_gpu_s(self) -> Floats:
        """How many GPU-seconds each job has held so far: the service of Tiresias' 2D age."""
        if self._attained_gpu_s is None:
            self._attained_gpu_s = kernels.attained(self.floats, self.ints, self.now_s)
        return self._attained_gpu_s

    @property
    def progress(self) -> Floats:
        """Work done so far, in the units of the job (seconds on its gang, or steps)."""
        if self._progress is None:
            f = self.floats
            done = f[c.PROGRESS0] + f[c.RATE] * np.maximum(self.now_s - f[c.READY_S], 0.0)
            self._progress = np.minimum(done, f[c.REGIME_END])
        return self._progress

    @property
    def protected_rows(self) -> Ints:
        """Running jobs that were started so recently that the rules do not let anyone stop or resize them."""
        if self._protected_rows is None:
            rows = self.running_rows
            self._protected_rows = rows[self.floats[c.PROTECTED_UNTIL_S, rows] > self.now_s]
        return self._protected_rows

    @property
    def oracle(self) -> Oracle:
        """True run times, for policies that say in `knows` that they need "duration"."""
        if "duration" not in self.knows:
            raise PolicyError('the policy reads snapshot.oracle but does not declare knows = {"duration"}')
        return Oracle(self)

    def facts(self, row: int) -> Facts:
        """What everybody may know of a row beside its columns: memory, skew, noise scale, regimes that it entered."""
        return self._told(row)._replace(scaling=(), loss=None, steps_left=math.nan, prospect=None)

    def _told(self, row: int) -> Facts:
        return self.frame.facts.get(int(self.ints[c.JOB, row]), NO_FACTS)

    def scaling(self, row: int) -> tuple[float, ...]:
        """Steps per second on 1, 2, … GPUs, for policies that say in `knows` that they need "scaling"; may be ()."""
        if "scaling" not in self.knows:
            raise PolicyError('the policy reads snapshot.scaling but does not declare knows = {"scaling"}')
        return self._told(row).scaling

    def losses(self) -> tuple[Floats, Floats]:
        """Epochs done and the training loss as each job reports it now, for policies that declare knows = {"loss"}.

        NaN where a job reports none.
        """
        if "loss" not in self.knows:
            raise PolicyError('the policy reads snapshot.losses but does not declare knows = {"loss"}')
        epochs, loss = np.full(len(self), np.nan), np.full(len(self), np.nan)
        done = np.divide(self.progress, self.floats[c.WORK], out=np.ones(len(self)), where=self.floats[c.WORK] > 0)
        for row in range(len(self)):
            told = self._told(row)
            if not math.isnan(told.seen_loss):
                epochs[row], loss[row] = told.seen_epochs, told.seen_loss
            elif told.loss is not None:
                epochs[row], loss[row] = told.loss.epochs * done[row], told.loss.at(float(done[row]))
        return epochs, loss

    def training(self, row: int) -> Training | None:
        """A row's epochs and batch sizes, announced and seen, for policies that declare knows = {"regimes"}.

        None where its owner has told nothing of them.
        """
        if "regimes" not in self.knows:
            raise PolicyError('the policy reads snapshot.training but does not declare knows = {"regimes"}')
        told = self._told(row)
        if told.prospect is None:
            return None
        work = float(self.floats[c.WORK, row])
        done = min(float(self.progress[row]) / work, 1.0) if work > 0 else 1.0
        epochs, stages = told.prospect
        first = stages[0].batch_size if stages else int(self.batch_size[row])
        speed = float(self.floats[c.RATE, row]) * epochs / work if work > 0 else 0.0
        return Training(epochs, stages, spells_of(told.entries, first, done, epochs), speed)

    @property
    def pairing(self) -> Pairing:
        """How jobs run in pairs on the same GPUs, for policies that say in `knows` that they need "pairs"."""
        if "pairs" not in self.knows:
            raise PolicyError('the policy reads snapshot.pairing but does not declare knows = {"pairs"}')
        return self.frame.pairing

    @property
    def finished(self) -> Finished:
        """The jobs that ended most recently."""
        return self.frame.history.latest()

    @property
    def finished_count(self) -> int:
        """How many jobs have done their work so far."""
        return self.frame.history.count

    def job_id(self, job: int) -> str:
        """The id that the owner knows a job by."""
        return self.frame.ids.get(job, str(job))

    def gpus_held(self, row: int) -> tuple[int, ...]:
        """The concrete GPUs that a row holds."""
        return self.frame.held_gpus.get(int(self.ints[c.JOB, row]), ())

    def share_gpus(self, a: int, b: int) -> bool:
        """Whether two rows are guest and host, or guests of one host on the same GPUs."""
        host, jobs = self.host, self.jobs
        if host[a] == jobs[b] or host[b] == jobs[a]:
            return True
        return bool(host[a] >= 0 and host[a] == host[b]) and self.gpus_held(a) == self.gpus_held(b)

    def job(self, row: int) -> JobView:
        """A row as an object."""
        i, f, names = self.ints, self.floats, self.names
        return JobView(
            row=row,
            id=self.job_id(int(i[c.JOB, row])),
            user=names.users[i[c.USER, row]],
            queue=names.queues[i[c.QUEUE, row]],
            model=names.models[i[c.MODEL, row]],
            gpus=int(i[c.GPUS, row]),
            gpus_min=int(i[c.GPUS_MIN, row]),
            gpus_max=int(i[c.GPUS_MAX, row]),
            held=int(i[c.HELD, row]),
            weight=float(f[c.WEIGHT, row]),
            submitted_s=float(f[c.SUBMITTED_S, row]),
            deadline_s=float(f[c.DEADLINE_S, row]),
            attained_s=float(self.attained_s[row]),
            attained_gpu_s=float(self.attained_gpu_s[row]),
            progress=float(self.progress[row]),
        )

    def part(
        self,
        rows: Ints,
        *,
        capacity: Ints | None = None,
        withheld: Collection[int] | None = None,
        memory: Mapping[str, Any] | None = None,
        stopped: Sequence[int] = (),
        barred: Mapping[int, Collection[int]] = MappingProxyType({}),
    ) -> Snapshot:
        """Some rows as a snapshot of their own.

        `capacity` counts the GPUs that they can have, `withheld` names those that they cannot, `memory` is what is
        remembered of them; each as it is here where it is not given. Those `stopped` look as if they had been stopped
        this instant. `barred` are the GPU types that a row cannot use. Rows are given by their numbers here, rising.
        """
        floats, ints, frame = self.floats[:, rows], self.ints[:, rows], self.frame
        for at in np.isin(rows, list(barred)).nonzero()[0].tolist() if barred else ():
            for kind in barred[int(rows[at])]:
                floats[c.SPEEDS + kind, at] = 0.0
        if len(stopped):
            for at in np.searchsorted(rows, stopped).tolist():
                kernels.settle(floats, ints, at, self.now_s)
                kernels.anchor(floats, ints, at, self.now_s)
                floats[c.THROTTLE, at], ints[c.HOST, at] = 1.0, -1
            jobs = ints[c.JOB, ints[c.HELD] > 0].tolist()
            frame = frame._replace(held_gpus={job: frame.held_gpus[job] for job in jobs})
        if withheld is not None:
            frame = frame._replace(withheld=withheld)
        capacity = self.capacity if capacity is None else frozen(capacity)
        busy = int(ints[c.HELD][ints[c.HOST] < 0].sum())
        demand = int(np.where(ints[c.HELD] > 0, ints[c.HELD], ints[c.GPUS]).sum())
        return Snapshot(
            frame,
            frozen(floats),
            frozen(ints),
            self.now_s,
            self.round,
            capacity,
            self.memory if memory is None else memory,
            self.knows,
            max(int(capacity.sum()) - busy, 0),
            demand,
            self.guarded,
        )

    def recalling(self, memory: Mapping[str, Any]) -> Snapshot:
        """The same instant with another memory."""
        blocks = (self.frame, self.floats, self.ints, self.now_s, self.round, self.capacity)
        return Snapshot(*blocks, memory, self.knows, self.free, self.demand, self.guarded)

    def copy(self) -> Snapshot:
        """A snapshot of its own, which later events do not change."""
        jobs, held = [int(job) for job in self.jobs], self.frame.held_gpus
        frame = self.frame._replace(
            names=Names(*(tuple(column) for column in self.names)),
            ids={job: self.job_id(job) for job in jobs},
            held_gpus={job: held[job] for job in jobs if job in held},
            facts={job: self.frame.facts[job] for job in jobs if job in self.frame.facts},
            history=self.frame.history.copy(),
            down=frozenset(self.frame.down),
            pairing=self._pairs(),
            withheld=frozenset(self.frame.withheld),
        )
        return Snapshot(
            frame,
            frozen(self.floats.copy()),
            frozen(self.ints.copy()),
            self.now_s,
            self.round,
            frozen(self.capacity.copy()),
            dict(self.memory),
            self.knows,
            self.free,
            self.demand,
            self.guarded,
        )

    def _pairs(self) -> PairTable:
        """What is known of pairs of the active jobs, where the policy may know it."""
        return PairTable.of(self.frame.pairing, self.jobs.tolist()) if "pairs" in self.knows else NO_PAIRING

    def to_json(self) -> str:
        """Everything a decision depends on, as text; `Snapshot.from_json` gives an equal snapshot back."""
        cluster = self.cluster
        return json.dumps(
            {
                "fairway_snapshot": 1,
                "now_s": self.now_s,
                "round": self.round,
                "seed": self.seed,
                "knows": sorted(self.knows),
                "cluster": {
                    "text": cluster.text,
                    "nodes": [[n.name, n.gpu_type, n.gpus, n.rack] for n in cluster.nodes],
                    "types": [[t.name, t.memory_bytes, t.price_per_h, t.speed] for t in cluster.types],
                },
                "capacity": self.capacity.tolist(),
                "free": self.free,
                "demand": self.demand,
                "replan_interval_s": self.replan_interval_s,
                "round_s": self.round_s,
                "names": [list(column) for column in self.names],
                "floats": self.floats.tolist(),
                "ints": self.ints.tolist(),
                "ids": {int(job): self.job_id(int(job)) for job in self.jobs},
                "held_gpus": {int(job): self.frame.held_gpus.get(int(job), ()) for job in self.jobs[self.running]},
                "facts": {job: facts.plain() for job in self.jobs.tolist() if (facts := self.frame.facts.get(job))},
                "history": self.frame.history.plain(),
                "down": sorted(self.frame.down),
                "withheld": sorted(self.frame.withheld),
                "pairs": self._pairs().plain(),
                "memory": plain_memory(self.memory),
            }
        )

    @staticmethod
    def from_json(text: str) -> Snapshot:
        """Read what `to_json` wrote."""
        try:
            data = json.loads(text)
            if data["fairway_snapshot"] != 1:
                raise InputError(f"this snapshot has format {data['fairway_snapshot']}; this Fairway reads format 1")
            about = data["cluster"]
            cluster = Cluster.of(
                (Node(*n) for n in about["nodes"]), (GpuType(*t) for t in about["types"]), about["text"]
            )
            rows = len(data["ids"])
            frame = Frame(
                cluster,
                Names(*(tuple(column) for column in data["names"])),
                {int(job): name for job, name in data["ids"].items()},
                {int(job): tuple(gpus) for job, gpus in data["held_gpus"].items()},
                data["seed"],
                data["replan_interval_s"],
                {int(job): Facts.from_plain(facts) for job, facts in data["facts"].items()},
                History.from_plain(data["history"]),
                frozenset(data.get("down", ())),
                PairTable.from_plain(data.get("pairs", ((), ()))),
                data.get("round_s", 0.0),
                frozenset(data.get("withheld", ())),
            )
            return Snapshot(
                frame,
                frozen(np.array(data["floats"], dtype=np.float64).reshape(len(data["floats"]), rows)),
                frozen(np.array(data["ints"], dtype=np.int64).reshape(len(data["ints"]), rows)),
                data["now_s"],
                data["round"],
                frozen(np.array(data["capacity"], dtype=np.int64)),
                data["memory"],
                frozenset(data["knows"]),
                data["free"],
                data["demand"],
                True,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is not a Fairway snapshot ({type(error).__name__}: {error})") from None


def plain_memory(value: Any) -> Any:
    """What a policy remembers as JSON values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_memory(item) for item in value]
    return value
