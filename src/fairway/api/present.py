"""The live state at one instant, copied out of the scheduler's thread, and the gate of what comes after it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints, frozen
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished
from fairway.core.job import JobSpec
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.runtime.gate import Gate, Limits
from fairway.runtime.records import JobRecord
from fairway.runtime.restarts import SUSPENDED_S
from fairway.runtime.scheduler import Scheduler

MOST_JOBS = 10_000
"""How many jobs can be looked at."""


class Condition(NamedTuple):
    """What lets a job in: an instant that has come, and other jobs that have ended."""

    begins_s: float
    others: frozenset[int]


class Present(NamedTuple):
    """The live state at one instant, as a copy."""

    snapshot: Snapshot
    specs: Mapping[int, JobSpec]
    outside: Mapping[int, str]
    conditions: Mapping[int, Condition]
    restart_s: Mapping[int, float]
    next_number: int
    left_out: int


class Door(Gate):
    """A gate that opens as time goes by: at set times, and when the jobs that others wait for have ended."""

    def __init__(
        self, policy: Policy, limits: Limits | None, outside: Mapping[int, str], conditions: Mapping[int, Condition]
    ) -> None:
        super().__init__(policy, limits)
        self.outside = dict(outside)
        self._conditions = dict(conditions)
        self._ended: set[int] = set()

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Note which jobs have ended."""
        self._ended.update(event.job for event in events if type(event) is JobFinished)

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: object) -> None:
        """Nothing is kept of rounds."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Let in who may come in by now, and ask again when the next may."""
        next_s = math.inf
        for job, (begins_s, others) in list(self._conditions.items()):
            if begins_s <= snapshot.now_s and others <= self._ended:
                self.outside.pop(job, None)
                del self._conditions[job]
            elif begins_s > snapshot.now_s:
                next_s = min(next_s, begins_s)
        decision = super().decide(snapshot)
        decision.wake_s = min(decision.wake_s, next_s)
        return decision


def copied_present(scheduler: Scheduler, keep: Collection[int]) -> Present:
    """Copy the live state, in the scheduler's thread."""

    def command(now_s: float) -> tuple[list[Event], Present]:
        state = scheduler.state
        snapshot = state.snapshot(scheduler.gate.knows)
        copied, left_out = _first_rows(snapshot.copy(), keep)
        jobs = copied.jobs.tolist()
        outside = {job: why for job, why in scheduler.gate.outside.items() if job in state.specs}
        conditions = {job: found for job in outside if (found := _condition(scheduler, scheduler.book[job]))}
        costs = dict(zip(jobs, copied.restart_s.tolist(), strict=True))
        restart_s = {
            job: min(cost_s, SUSPENDED_S) if scheduler.book[job].request.preempt == "suspend" else cost_s
            for job, cost_s in costs.items()
        }
        specs = {job: state.specs[job] for job in jobs}
        about = (copied, specs, outside, conditions, restart_s, scheduler.book.next_number, left_out)
        return [], Present(*about)

    present: Present = scheduler.ask(command)
    return present


def _condition(scheduler: Scheduler, record: JobRecord) -> Condition | None:
    """When a job that waits outside may come in; None if that is for its owner to say, or never."""
    if record.held or record.suspended:
        return None
    request, clock, others = record.request, scheduler.engine.clock, set[int]()
    for one in request.depends:
        tasks = scheduler.book.tasks(one.job)
        if one.kind == "afternotok" or not tasks:
            return None
        others.update(task.number for task in tasks if not task.state.ended)
    begins_s = max(request.begin_s or 0.0, record.not_before_s or 0.0) - clock.origin_s
    return Condition(begins_s, frozenset(others))


def _first_rows(snapshot: Snapshot, keep: Collection[int]) -> tuple[Snapshot, int]:
    """No more rows than can be looked at: those that run or are asked about, and the oldest of the others."""
    extra = len(snapshot) - MOST_JOBS
    if extra <= 0:
        return snapshot, 0
    needed = snapshot.running | np.isin(snapshot.jobs, list(keep))
    others = (~needed).nonzero()[0][: max(MOST_JOBS - int(needed.sum()), 0)]
    rows = np.sort(np.concatenate([needed.nonzero()[0], others]))
    kept = with_columns(snapshot, frozen(snapshot.floats[:, rows]), frozen(snapshot.ints[:, rows]), snapshot.memory)
    return kept, len(snapshot) - len(kept)


def with_columns(snapshot: Snapshot, floats: Floats, ints: Ints, memory: Mapping[str, Any]) -> Snapshot:
    """A snapshot of the same instant with other columns, or another memory."""
    return Snapshot(
        snapshot.frame,
        floats,
        ints,
        snapshot.now_s,
        snapshot.round,
        snapshot.capacity,
        memory,
        snapshot.knows,
        snapshot.free,
        snapshot.demand,
        snapshot.guarded,
    )
