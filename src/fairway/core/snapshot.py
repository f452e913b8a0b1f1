"""What a policy may read: the active jobs as read-only columns, in the order of submission.

A snapshot shows what has been observed, never the future. What only an oracle could know (how long a job will still
run) is behind `snapshot.oracle`. Only policies that declare `knows = {"duration"}` may read it, and reports say so. The
columns are slices of live arrays and are valid during one decision. Keep `snapshot.copy()` if you need it for longer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairway.core import columns as c
from fairway.core import kernels
from fairway.core.arrays import Floats, Ints, frozen
from fairway.core.cluster import Cluster
from fairway.core.errors import PolicyError
from fairway.core.facts import NO_FACTS, Facts, Finished
from fairway.core.oracle import Oracle
from fairway.core.pairing import NO_PAIRING, MeasuredTable, Measurements, Pairing, PairTable
from fairway.core.prospect import Training, spells_of
from fairway.core.queues import Queues
from fairway.core.snapshot_context import Frame, Names
from fairway.core.view import JobView, TableView


class Snapshot(TableView):
    """The active jobs and the cluster at one instant. All columns have one entry per active job.

    `capacity` counts the GPUs that are up, by type. `free` is how many of them are free, `demand` how many would be
    held if every waiting job ran as well; both are counted from the columns if they are not given. `guarded` is False
    if certainly no job is protected. The columns are those of `core.view`.
    """

    __slots__ = ("capacity", "demand", "frame", "free", "guarded", "knows", "memory", "round")

    frame: Frame
    round: int
    capacity: Ints
    memory: Mapping[str, Any]
    knows: frozenset[str]
    guarded: bool
    free: int
    demand: int

    @staticmethod
    def of(
        *,
        frame: Frame,
        floats: Floats,
        ints: Ints,
        now_s: float,
        round: int,  # noqa: A002
        capacity: Ints,
        memory: Mapping[str, Any],
        knows: frozenset[str],
        guarded: bool,
        free: int | None = None,
        demand: int | None = None,
    ) -> Snapshot:
        """A snapshot of these blocks of columns.

        A function, because a snapshot is made at every decision: calling a class by keywords takes twice as long.
        """
        self = Snapshot(floats, ints, now_s)
        self.frame = frame
        self.round = round
        self.capacity = capacity
        self.memory = memory
        self.knows = knows
        self.guarded = guarded
        self.free = self._free() if free is None else free
        self.demand = self._demand() if demand is None else demand
        return self

    def _free(self) -> int:
        return max(int(self.capacity.sum()) - int(self.ints[c.HELD][self.ints[c.HOST] < 0].sum()), 0)

    def _demand(self) -> int:
        return int(np.where(self.ints[c.HELD] > 0, self.ints[c.HELD], self.ints[c.GPUS]).sum())

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
        """The nodes that are down now, for policies that place jobs themselves."""
        return self.frame.down

    @property
    def withheld_gpus(self) -> Collection[int]:
        """GPUs of nodes that are up, but which no job of this snapshot can have, for policies that place jobs
        themselves."""
        return self.frame.withheld

    @property
    def queues(self) -> Queues | None:
        """The tasks that GPUs run in order, as they were decided last; None where an engine runs whole gangs only."""
        return self.frame.queues

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
        """A policy that plans shares should make a new plan at most this often."""
        return self.frame.replan_interval_s

    @property
    def round_s(self) -> float:
        """The usual time from one round to the next; 0 where rounds are at events only."""
        return self.frame.round_s

    @property
    def oracle(self) -> Oracle:
        """True run times, for policies that declare knows = {"duration"}."""
        if "duration" not in self.knows:
            raise PolicyError('the policy reads snapshot.oracle but does not declare knows = {"duration"}')
        return Oracle(self, self.frame.facts)

    def facts(self, row: int) -> Facts:
        """What is known about a row besides its columns: memory, skew, noise scale, regimes that it entered."""
        return self._told(row)._replace(scaling=(), loss=None, steps_left=math.nan, prospect=None)

    def _told(self, row: int) -> Facts:
        return self.frame.facts.get(int(self.ints[c.JOB, row]), NO_FACTS)

    def scaling(self, row: int) -> tuple[float, ...]:
        """Steps per second on 1, 2, … GPUs, for policies that declare knows = {"scaling"}; may be ()."""
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

        None where its owner has announced nothing.
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
        """How jobs run in pairs on the same GPUs, for policies that declare knows = {"pairs"}."""
        if "pairs" not in self.knows:
            raise PolicyError('the policy reads snapshot.pairing but does not declare knows = {"pairs"}')
        return self.frame.pairing

    @property
    def measured(self) -> Measurements:
        """What a live scheduler has measured of its jobs, and of pairs like theirs. Every policy may know it.

        In a simulation all speeds are known, and no pairs were measured before.
        """
        return self.frame.measured

    def switch_cost_s(self, row: int) -> float:
        """What it costs to take a job off its GPUs and bring it back; for a suspended job, to bring it back.

        The second depends on where the memory of the job is, if the engine says so.
        """
        resume_s = self.frame.resume_s
        waits = resume_s is not None and not self.held[row] and self.launches[row] > 0
        return resume_s(int(self.jobs[row])) if resume_s is not None and waits else float(self.restart_s[row])

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

    def rows_of(self, jobs: ArrayLike) -> Ints:
        """The rows of jobs, by their numbers; -1 for those that are not here."""
        numbers = np.asarray(jobs, dtype=np.int64)
        if not len(self):
            return np.full(numbers.shape, -1, dtype=np.int64)
        here = self.ints[c.JOB]
        at = np.minimum(here.searchsorted(numbers), len(self) - 1)
        return np.where(here[at] == numbers, at, -1)

    def recall(self, name: str, default: Any, memory: Mapping[str, Any] | None = None) -> NDArray[Any]:
        """What the policy remembered about each job, as a column of this snapshot.

        Memory has columns: `memory["jobs"]` are the numbers of jobs, `memory[name]` has an entry for each of them.
        Jobs that are not among them get `default`: a number, or a column with an entry for each row. `memory` is where
        to look, if not in the memory of the snapshot.
        """
        known = self.memory if memory is None else memory
        column = np.full(len(self), default) if np.ndim(default) == 0 else np.array(default)
        if name in known and "jobs" in known:
            rows = self.rows_of(known["jobs"])
            here = rows >= 0
            column[rows[here]] = np.asarray(known[name], dtype=column.dtype)[here]
        return column

    def part(
        self,
        rows: Ints | None = None,
        *,
        capacity: Ints | None = None,
        withheld: Collection[int] | None = None,
        down: Collection[int] | None = None,
        memory: Mapping[str, Any] | None = None,
        stopped: Sequence[int] = (),
        barred: Mapping[int, Collection[int]] = MappingProxyType({}),
    ) -> Snapshot:
        """Some rows (or all) as a snapshot of their own.

        `capacity` counts the GPUs that they can have, `withheld` names those that they cannot have, `down` names the
        nodes that are down, and `memory` is what is remembered about them. What is not given is as in this snapshot.
        Rows in `stopped` look as if they had been stopped at this instant. `barred` has the GPU types that a row cannot
        use. Rows are given by their numbers here, in rising order.
        """
        frame, floats, ints = self.frame, self.floats, self.ints
        if rows is None and (len(stopped) or barred):
            rows = np.arange(len(self))
        if rows is not None:
            floats, ints = floats[:, rows], ints[:, rows]
            _bar(floats, rows, barred)
        if rows is not None and len(stopped):
            for at in np.searchsorted(rows, stopped).tolist():
                kernels.settle(floats, ints, at, self.now_s)
                kernels.anchor(floats, ints, at, self.now_s)
                floats[c.THROTTLE, at], ints[c.HOST, at] = 1.0, -1
            jobs = ints[c.JOB, ints[c.HELD] > 0].tolist()
            frame = frame._replace(held_gpus={job: frame.held_gpus[job] for job in jobs})
        if withheld is not None or down is not None:
            withheld = frame.withheld if withheld is None else withheld
            frame = frame._replace(withheld=withheld, down=frame.down if down is None else down)
        same = rows is None and capacity is None
        return Snapshot.of(
            frame=frame,
            floats=frozen(floats),
            ints=frozen(ints),
            now_s=self.now_s,
            round=self.round,
            capacity=self.capacity if capacity is None else frozen(capacity),
            memory=self.memory if memory is None else memory,
            knows=self.knows,
            guarded=self.guarded,
            free=self.free if same else None,
            demand=self.demand if same else None,
        )

    def copy(self) -> Snapshot:
        """An independent copy, which later events do not change."""
        jobs, held = [int(job) for job in self.jobs], self.frame.held_gpus
        frame = self.frame._replace(
            names=Names(*(tuple(column) for column in self.names)),
            ids={job: self.job_id(job) for job in jobs},
            held_gpus={job: held[job] for job in jobs if job in held},
            facts={job: self.frame.facts[job] for job in jobs if job in self.frame.facts},
            history=self.frame.history.copy(),
            down=frozenset(self.frame.down),
            pairing=self.pair_table(),
            measured=self.measured_table(),
            resume_s=None if self.frame.resume_s is None else self.resume_costs().__getitem__,
            withheld=frozenset(self.frame.withheld),
        )
        return Snapshot.of(
            frame=frame,
            floats=frozen(self.floats.copy()),
            ints=frozen(self.ints.copy()),
            now_s=self.now_s,
            round=self.round,
            capacity=frozen(self.capacity.copy()),
            memory=dict(self.memory),
            knows=self.knows,
            guarded=self.guarded,
            free=self.free,
            demand=self.demand,
        )

    def pair_table(self) -> PairTable:
        """What is known about pairs of the active jobs, on its own; empty where the policy may not know it."""
        return PairTable.of(self.frame.pairing, self.jobs.tolist()) if "pairs" in self.knows else NO_PAIRING

    def resume_costs(self) -> dict[int, float]:
        """What it costs suspended jobs to go on, by job, as far as the engine says that."""
        resume_s = self.frame.resume_s
        rows = () if resume_s is None else ((self.held == 0) & (self.launches > 0)).nonzero()[0].tolist()
        return {int(self.jobs[row]): self.switch_cost_s(row) for row in rows}

    def measured_table(self) -> MeasuredTable:
        """What was measured of the active jobs, on its own."""
        measured = self.frame.measured
        return measured if isinstance(measured, MeasuredTable) else MeasuredTable.of(measured, self.jobs.tolist())


def _bar(floats: Floats, rows: Ints, barred: Mapping[int, Collection[int]]) -> None:
    """Take from rows the GPU types that they cannot use."""
    for at in np.isin(rows, list(barred)).nonzero()[0].tolist() if barred else ():
        for kind in barred[int(rows[at])]:
            floats[c.SPEEDS + kind, at] = 0.0
