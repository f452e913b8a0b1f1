"""Gangs in a weighted order, as if all GPUs were alike: the baseline of Hare's evaluation.

A gang takes GPUs of any types and trains at the speed of the slowest. With `types=aware` it takes the GPUs on which it
is fastest, still all at once: what knowing the types brings without parallelism inside jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.queues import Task
from fairway.core.snapshot import Snapshot
from fairway.policies.hare import outline as tasks
from fairway.policies.hare.gangs import as_gangs
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class SchedHomo:
    """Gangs by weight over work, as if all GPUs were alike (Hare's baseline).

    Knows: run times (an oracle). Does not preempt.

    A gang may have GPUs of several types; the slowest sets its speed. Gangs that do not fit are skipped.
    `order=arrival` serves jobs as they come. `types=aware` gives a gang the GPUs that suit it best. Live jobs run as
    under `hare`.
    """

    order: Literal["weighted", "arrival"] = "weighted"
    types: Literal["oblivious", "aware"] = "oblivious"
    group_s: float = 60.0

    name: ClassVar[str] = "sched_homo"
    knows: ClassVar[frozenset[str]] = frozenset({"duration", "tasks"})
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})
    round_s: ClassVar[float] = 0.0
    ranks_priorities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.group_s > 0:
            raise ValueError(f"group_s must be above 0, not {self.group_s:g}")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start gangs on GPUs that no other job has, in order."""
        if not len(snapshot):
            return nothing_granted(0)
        if snapshot.queues is None:
            return as_gangs(snapshot, clairvoyant=True, group_s=self.group_s)
        rows, held = tasks.usable(snapshot).nonzero()[0], self._held(snapshot)
        numbers, gpus = tasks.task_gpus(snapshot)
        taken = {gpu for row in held.values() for gpu in row}
        idle = [at for at, gpu in enumerate(numbers.tolist()) if gpu not in taken]
        rounds = tasks.rounds_of(snapshot, snapshot.recall("rounds", 0), rows, self.group_s)
        about = tasks.outline(snapshot, rows, rounds)
        started = False
        fits = (snapshot.gpus[rows] <= len(idle)) & ~np.isin(rows, list(held))
        seconds = _gpu_seconds(snapshot, about, gpus.kind) if fits.any() else np.zeros((0, 0))
        for at in self._order(snapshot, about, seconds).tolist() if fits.any() else ():
            row = int(rows[at])
            chosen = None if row in held else self._choose(seconds[at], idle, int(snapshot.gpus[row]))
            if chosen is not None:
                held[row] = numbers[chosen].tolist()
                idle = [gpu for gpu in idle if gpu not in chosen]
                started = True
        return self._decision(snapshot, about, held, started)

    def _held(self, snapshot: Snapshot) -> dict[int, list[int]]:
        """The GPUs of jobs that have begun, by row. A gang that has lost a GPU begins again elsewhere."""
        known, up = snapshot.memory.get("held", {}), set(tasks.task_gpus(snapshot)[0].tolist())
        rows = {int(job): row for row, job in enumerate(snapshot.jobs)}
        by_number = {int(job): gpus for job, gpus in known.items()}
        return {rows[job]: gpus for job, gpus in by_number.items() if job in rows and up.issuperset(gpus)}

    def _order(self, snapshot: Snapshot, about: tasks.Outline, seconds: Floats) -> Ints:
        rows = about.rows
        if self.order == "arrival":
            return np.lexsort((rows, -snapshot.priority[rows]))
        usable = np.isfinite(seconds)
        total = np.where(usable, seconds, 0.0).sum(axis=1)
        mean_s = total / np.maximum(usable.sum(axis=1), 1) * (about.rounds - about.over) * snapshot.gpus[rows]
        return np.lexsort((rows, np.rint(mean_s / snapshot.weight[rows] * 1000.0), -snapshot.priority[rows]))

    def _choose(self, seconds: Floats, idle: list[int], gang: int) -> list[int] | None:
        """The GPUs that a gang takes among idle ones, or None."""
        can = [gpu for gpu in idle if np.isfinite(seconds[gpu])]
        if self.types == "aware":
            can.sort(key=lambda gpu: (float(seconds[gpu]), gpu))
        return can[:gang] if len(can) >= gang else None

    def _decision(
        self, snapshot: Snapshot, about: tasks.Outline, held: dict[int, list[int]], started: bool
    ) -> Decision:
        reasons = np.full(len(snapshot), int(Reason.NO_FREE_GPUS), dtype=np.int8)
        reasons[list(held)] = int(Reason.QUEUED)
        memory = {
            "jobs": snapshot.jobs[about.rows],
            "rounds": about.rounds,
            "held": {int(snapshot.jobs[row]): gpus for row, gpus in held.items()},
        }
        queues = snapshot.queues
        if queues is None or started or len(snapshot.memory.get("held", {})) > len(held):
            queues = _gang_queues(snapshot, about, held)
        gpus = np.zeros(len(snapshot), dtype=np.int64)
        busy = sum(len(some) for some in held.values())
        return Decision(gpus, reasons, memory=memory, queues=queues, blocked=busy)


def _gpu_seconds(snapshot: Snapshot, about: tasks.Outline, kinds: Ints) -> Floats:
    """How long a task of each row takes on each GPU, with its synchronisation."""
    jobs = tasks.task_jobs(snapshot, about)
    return np.asarray((jobs.task_s + jobs.sync_s)[:, kinds])


def _gang_queues(snapshot: Snapshot, about: tasks.Outline, held: dict[int, list[int]]) -> dict[int, tuple[Task, ...]]:
    """All rounds that are left of each gang, one task of each round on each of its GPUs."""
    ends, queues = tasks.ends_of(snapshot, about), dict[int, tuple[Task, ...]]()
    for at, row in enumerate(about.rows.tolist()):
        opened, job = about.opened[at], int(snapshot.jobs[row])
        later = ends[at] if opened is None else ends[at][1:]
        for gpu in held.get(row, ()):
            queues[gpu] = tuple(Task(job, until) for until in later)
        # After the failure of a node, tasks of the open round are missing; the gang's first GPUs do them again.
        missing = 0 if opened is None or row not in held else int(snapshot.gpus[row]) - opened.begun
        for gpu in held.get(row, ())[:missing]:
            queues[gpu] = (Task(job, ends[at][0]), *queues[gpu])
    return queues
