"""Hare: tasks of jobs on mixed GPUs, for the least weighted completion time.

A job is rounds of parallel tasks. The tasks of a round may run at different times and on different GPU types, as long
as all are synchronised before the next round (HPDC 2022). A relaxed program orders the rounds of all jobs; then each
task goes to a GPU. Jobs of unknown length are served by least attained service instead (TCC 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.arrays import Bools, Ints
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.queues import Queues
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts
from fairway.policies.hare import outline as tasks
from fairway.policies.hare.attained import next_rounds
from fairway.policies.hare.gangs import as_gangs
from fairway.policies.registry import register
from fairway.solvers.task_plan import PlanHint, plan


@register
@dataclass(frozen=True)
class Hare:
    """Least weighted completion time on mixed GPUs, by the tasks of jobs.

    Knows: run times (an oracle) unless `clairvoyant=no`, speeds by GPU type. Does not interrupt tasks.

    `assign` says which GPU a task gets: the one that is free first, or the one on which it ends first. Rounds are
    grouped, so that they take about `group_s` on the GPUs that suit a job best.

    Live jobs run as whole gangs on one GPU type, which get and give up their GPUs in the same order; between steps they
    are suspended in place. Tasks of one round at different times or on different GPU types are simulated only.
    """

    assign: Literal["earliest_available", "earliest_finish"] = "earliest_finish"
    clairvoyant: Literal["yes", "no"] = "yes"
    group_s: float = 60.0

    name: ClassVar[str] = "hare"
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})
    round_s: ClassVar[float] = 0.0
    ranks_priorities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.group_s > 0:
            raise ValueError(f"group_s must be above 0, not {self.group_s:g}")

    @property
    def knows(self) -> frozenset[str]:
        """What the tasks of jobs are like; how long jobs run, unless that shall not be known."""
        return frozenset({"tasks"} if self.clairvoyant == "no" else {"duration", "tasks"})

    def decide(self, snapshot: Snapshot) -> Decision:
        """Plan if jobs have come or something else has changed; otherwise the queues stay as they are."""
        if not len(snapshot):
            return nothing_granted(0)
        if snapshot.queues is None:
            return as_gangs(snapshot, clairvoyant=self.clairvoyant == "yes", group_s=self.group_s)
        rows = tasks.usable(snapshot)
        if self.clairvoyant == "no":
            return _queued(snapshot, rows, *next_rounds(snapshot, rows, self.assign, self.group_s))
        known = snapshot.recall("rounds", 0)
        if _is_current(snapshot, rows, known):
            return _queued(snapshot, rows, snapshot.queues, snapshot.memory)
        queues, memory = self._planned(snapshot, rows, known)
        return _queued(snapshot, rows, queues, memory)

    def _planned(self, snapshot: Snapshot, usable: Bools, known: Ints) -> tuple[Queues, Mapping[str, Any]]:
        """The tasks of all jobs in queues, one priority after the other, and what to remember."""
        numbers, gpus = tasks.task_gpus(snapshot)
        queues: Queues = dict.fromkeys(numbers.tolist(), ())
        starts_s, rounds = np.full(len(snapshot), np.inf), known.copy()
        rounds[usable] = tasks.rounds_of(snapshot, known, usable.nonzero()[0], self.group_s)
        hint = _hint(snapshot.memory)
        for priority in sorted(set(snapshot.priority[usable].tolist()), reverse=True):
            rows = (usable & (snapshot.priority == priority)).nonzero()[0]
            about = tasks.outline(snapshot, rows, rounds[rows])
            switch_s = np.repeat(snapshot.restart_s[rows][:, None], len(snapshot.capacity), axis=1)
            planned = plan(tasks.task_jobs(snapshot, about), tasks.among(gpus, rows), self.assign, hint, switch_s)
            found, hint = planned.schedule, planned.hint
            ends = tasks.ends_of(snapshot, about)
            queues = tasks.appended(queues, tasks.queues_of(snapshot, rows, ends, numbers, found))
            np.minimum.at(starts_s, rows[found.job], snapshot.now_s + found.start_s)
            free_s = gpus.free_s.copy()
            np.maximum.at(free_s, found.gpu, found.end_s)
            gpus = gpus._replace(free_s=free_s, holder=None)
        return queues, {
            "jobs": snapshot.jobs.copy(),
            "rounds": rounds,
            "weights": snapshot.weight.copy(),
            "priorities": snapshot.priority.copy(),
            "starts_s": starts_s,
            "gpus": numbers.tolist(),
            "hint": None if hint is None else list(hint),
        }


def _hint(memory: Mapping[str, Any]) -> PlanHint | None:
    """What the last plan found out, for the next one."""
    known = memory.get("hint")
    return None if known is None else PlanHint(np.asarray(known[0], dtype=np.float64), int(known[1]), float(known[2]))


def _is_current(snapshot: Snapshot, usable: Bools, known: Ints) -> bool:
    """Whether the queues hold all jobs, with the weights and priorities that they have now, on the GPUs that are up."""
    if not (known[usable] > 0).all() or snapshot.memory.get("gpus") != _gpus_up(snapshot):
        return False
    same = snapshot.recall("weights", 0.0) == snapshot.weight
    return bool((same & (snapshot.recall("priorities", 0) == snapshot.priority))[usable].all())


def _gpus_up(snapshot: Snapshot) -> list[int]:
    if not snapshot.down_nodes and not snapshot.withheld_gpus:
        return list(range(snapshot.cluster.gpu_count))
    up: list[int] = tasks.task_gpus(snapshot)[0].tolist()
    return up


def _queued(snapshot: Snapshot, usable: Bools, queues: Queues, memory: Mapping[str, Any]) -> Decision:
    """A decision in which all jobs that can run have their tasks in queues."""
    reasons = np.where(usable, int(Reason.QUEUED), int(Reason.TYPE_FULL)).astype(np.int8)
    starts_s, now_s = snapshot.recall("starts_s", np.inf, memory), snapshot.now_s
    waits = (usable & ~snapshot.running & np.isfinite(starts_s)).nonzero()[0]

    def say(row: int) -> str:
        ahead_s = float(starts_s[row]) - now_s
        if ahead_s <= 0:
            return "waits for its next round: tasks of other jobs have its GPUs now"
        return f"its first task is planned in {ahead_s:,.0f} s"

    gpus = np.zeros(len(snapshot), dtype=np.int64)
    return Decision(gpus, reasons, memory=memory, queues=queues, texts=Texts(waits, say))
