"""A copy of the live state at one instant, and a guard that lets jobs in as simulated time passes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished, Woken
from fairway.core.job import JobSpec
from fairway.core.policy import Policy
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.placement.tenants import Tenants
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.policy_guard import PolicyGuard, widened
from fairway.runtime.jobs.estimates import SUSPENDED_S, speeds_of
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import Dependency
from fairway.runtime.jobs.waiting import begins_s

MOST_JOBS = 10_000
"""The most jobs in a forecast."""


class Remaining(NamedTuple):
    """A job or a whole array that others wait for: its tasks that have not ended, and whether one has failed."""

    exists: bool
    left: frozenset[int]
    failed: bool


class Condition(NamedTuple):
    """What a job waits for before it may start: an instant, and the ends of other jobs and arrays.

    `others` has what is left of each, by its id. Jobs that wait for the same array share that.
    """

    begins_s: float
    others: Mapping[str, frozenset[int]]


class LimitedArray(NamedTuple):
    """An array of which `most` tasks run at a time."""

    name: str
    most: int


class Present(NamedTuple):
    """The live state at one instant, as a copy.

    Jobs in `outside` are not eligible; those without a condition never become so by themselves. Jobs in `falls_back`
    fall back to the progress given there when they are stopped. Jobs in `limit_left_s` are ended by their time limits
    once they have computed for so long. GPUs in `blocked` stay blocked throughout a forecast. Jobs in `stranded` need
    more than the GPUs that are not blocked; the text says so. Of the blocked GPUs, those in `gone` are only imagined to
    be so. `tenants` are the virtual clusters, if there are tenants.
    """

    snapshot: Snapshot
    specs: Mapping[int, JobSpec]
    outside: Mapping[int, str]
    conditions: Mapping[int, Condition]
    arrays: Mapping[int, LimitedArray]
    restart_s: Mapping[int, float]
    falls_back: Mapping[int, float]
    next_number: int
    left_out: int
    blocked: Mapping[int, str] = MappingProxyType({})
    stranded: Mapping[int, str] = MappingProxyType({})
    gone: frozenset[int] = frozenset()
    tenants: Tenants | None = None
    limit_left_s: Mapping[int, float] = MappingProxyType({})

    def never(self, job: int) -> bool:
        """Whether a job will not start as things are now."""
        return (self.shut_out(job) or job in self.stranded) and job not in self.snapshot.frame.held_gpus

    def shut_out(self, job: int) -> bool:
        """Whether a job waits for something that does not happen by itself."""
        return job in self.outside and job not in self.conditions


class _Copied(NamedTuple):
    """What is copied in the scheduler's thread."""

    snapshot: Snapshot
    specs: dict[int, JobSpec]
    outside: dict[int, str]
    next_number: int
    blocked: dict[int, str]


class ForecastGuard(PolicyGuard):
    """The policy guard of a forecast. It shows jobs to the policy as simulated time passes.

    A job is shown at its begin time, and once the jobs that it waits for have ended.
    """

    def __init__(self, policy: Policy, live: PolicyGuard, present: Present) -> None:
        super().__init__(
            policy,
            live.limits,
            outside=dict(present.outside),
            blocked=lambda: present.blocked,
            tenants=lambda: present.tenants,
            placer=live.placer,
        )
        self._times = [(condition.begins_s, job) for job, condition in present.conditions.items()]
        heapq.heapify(self._times)
        self._early = set(present.conditions)
        self._awaited = {job: set(condition.others) for job, condition in present.conditions.items()}
        self._left: dict[str, int] = {}
        self._parts: dict[int, list[str]] = {}
        self._dependants: dict[str, list[int]] = {}
        for job, condition in present.conditions.items():
            for name, left in condition.others.items():
                self._await(job, name, left)
        self._arrays = present.arrays
        self._free_slots = {array.name: array.most for array in present.arrays.values()}
        self._queues: dict[str, deque[int]] = {name: deque() for name in self._free_slots}
        for job, array in present.arrays.items():
            if job not in present.outside or job in present.snapshot.frame.held_gpus:
                self._free_slots[array.name] -= 1

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Let in jobs that waited for a job that has ended."""
        for event in events:
            if type(event) is JobFinished:
                self._note_end(event.job)

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: object) -> None:
        """Do nothing: rounds need no record here."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Let in jobs whose begin time has come, and ask to be woken for the next one."""
        while self._times and self._times[0][0] <= snapshot.now_s:
            job = heapq.heappop(self._times)[1]
            self._early.discard(job)
            self._let_in(job)
        decision = super().decide(snapshot)
        if self._times:
            decision = decision.waking(self._times[0][0])
        return decision

    def _inside(self, snapshot: Snapshot, shut: Mapping[int, str]) -> Ints:
        if not self.outside and not shut:
            return np.arange(len(snapshot))
        kept_out = np.isin(snapshot.jobs, np.fromiter(self.outside, dtype=np.int64))
        kept_out[list(shut)] = True
        inside: Ints = (snapshot.running | ~kept_out).nonzero()[0]
        return inside

    def _whole(self, snapshot: Snapshot, decision: Decision, rows: Ints) -> Decision:
        """Without the reasons of jobs that are not eligible; they are not needed here."""
        return widened(decision, rows, len(snapshot))

    def _note_end(self, job: int) -> None:
        array = self._arrays.get(job)
        if array is not None:
            self._free_slots[array.name] += 1
            if self._queues[array.name]:
                self._let_in(self._queues[array.name].popleft())
        for name in self._parts.pop(job, ()):
            self._left[name] -= 1
            for other in self._dependants.pop(name) if not self._left[name] else ():
                self._awaited[other].discard(name)
                self._let_in(other)

    def _await(self, job: int, name: str, left: frozenset[int]) -> None:
        """A job waits until all that is `left` of another job or an array has ended."""
        self._dependants.setdefault(name, []).append(job)
        if name not in self._left:
            self._left[name] = len(left)
            for part in left:
                self._parts.setdefault(part, []).append(name)

    def _let_in(self, job: int) -> None:
        """Let a job in, unless it still waits for something."""
        if job in self._early or self._awaited[job]:
            return
        array = self._arrays.get(job)
        if array is not None:
            if self._free_slots[array.name] <= 0:
                self._queues[array.name].append(job)
                return
            self._free_slots[array.name] -= 1
        self.outside.pop(job, None)


def copied_present(scheduler: Scheduler, keep: Collection[int]) -> Present:
    """Copy the live state, in the scheduler's thread; what depends on records alone is worked out in this one."""

    def command(now_s: float) -> tuple[list[Event], _Copied]:
        state = scheduler.state
        state.apply(Woken(max(state.now_s, now_s)))
        copied = state.snapshot(scheduler.guard.knows).copy()
        number, blocked = scheduler.store.next_number, dict(scheduler.blocked.why)
        return [], _Copied(copied, dict(state.specs), dict(scheduler.guard.outside), number, blocked)

    whole, specs, not_eligible, next_number, blocked = scheduler.ask(command)
    snapshot, left_out = _first_rows(whole, keep)
    jobs, store = snapshot.jobs.tolist(), scheduler.store
    outside = {job: not_eligible[job] for job in jobs if job in not_eligible}
    records = [store[job] for job in jobs]
    costs = zip(records, snapshot.restart_s.tolist(), strict=True)
    return Present(
        snapshot,
        specs,
        outside,
        conditions_of(scheduler, (store[job] for job in outside), snapshot.frame.held_gpus, snapshot.cluster),
        {one.number: array_of(one) for one in records if one.request.array_at_once},
        {one.number: min(cost_s, SUSPENDED_S) if one.request.preempt == "suspend" else cost_s for one, cost_s in costs},
        {one.number: scheduler.observations.saved(one) for one in records if one.request.preempt == "restart"},
        next_number,
        left_out,
        blocked,
        stranded_jobs(snapshot, blocked),
        tenants=scheduler.guard.tenants(),
        limit_left_s=limits_left(records, scheduler.clock.date_s(whole.now_s)),
    )


def limits_left(records: Iterable[JobRecord], date_s: float) -> dict[int, float]:
    """How long jobs with a time limit may still compute."""
    limits = ((record, record.request.limit_s) for record in records)
    return {one.number: max(limit_s - one.ran_until_s(date_s), 0.0) for one, limit_s in limits if limit_s}


def stranded_jobs(snapshot: Snapshot, blocked: Collection[int], gone: Collection[int] = ()) -> dict[int, str]:
    """Jobs that cannot start on the GPUs that can be used. `gone` are the blocked ones that would not be there."""
    if not blocked:
        return {}
    speeds, gpus_min, jobs = snapshot.speeds, snapshot.gpus_min.tolist(), snapshot.jobs.tolist()
    waiting = (~snapshot.running).nonzero()[0].tolist()
    told = {jobs[row]: why_stranded(snapshot, blocked, gpus_min[row], speeds[:, row].tolist(), gone) for row in waiting}
    return {job: why for job, why in told.items() if why}


def why_stranded(
    snapshot: Snapshot, blocked: Collection[int], gpus_min: int, speeds: Sequence[float], gone: Collection[int] = ()
) -> str:
    """Why a job cannot start while some GPUs are blocked; empty if it can."""
    cluster, there, lost = snapshot.cluster, snapshot.capacity.tolist(), 0
    for gpu in blocked:
        node = cluster.node_of_gpu[gpu]
        if node not in snapshot.down_nodes and speeds[cluster.node_type[node]] > 0:
            there[cluster.node_type[node]] -= 1
            lost += 1
    most = max((there[kind] for kind, speed in enumerate(speeds) if speed > 0), default=0)
    if not lost or gpus_min <= most:
        return ""
    need = "1 GPU" if gpus_min == 1 else f"{gpus_min} GPUs"
    if gone:
        return f"it needs {need}; {most} would be there"
    are = ["is" if count == 1 else "are" for count in (most, lost)]
    return f"it needs {need}; {most} {are[0]} there while {lost} {are[1]} blocked"


def array_of(record: JobRecord) -> LimitedArray:
    """The array that a task belongs to, of which only some run at a time."""
    return LimitedArray(record.id.partition("_")[0], record.request.array_at_once)


def conditions_of(
    scheduler: Scheduler, outside: Iterable[JobRecord], running: Collection[int], cluster: Cluster
) -> dict[int, Condition]:
    """What jobs that are not eligible wait for, in the order of submission; nothing for jobs that never come in."""
    known: dict[str, Remaining] = {}
    conditions, never = dict[int, Condition](), set[str]()
    for record in outside:
        found = _condition(scheduler, record, known, cluster)
        # Jobs can only wait for jobs that came before them, so all of those have been looked at.
        if found is not None and never.isdisjoint(found.others):
            conditions[record.number] = found
        elif record.number not in running:
            never |= {record.id, record.id.partition("_")[0]}
    return conditions


def _condition(
    scheduler: Scheduler, record: JobRecord, known: dict[str, Remaining], cluster: Cluster
) -> Condition | None:
    """When a job becomes eligible; None if its owner has to act, or if it never does."""
    request, others = record.request, dict[str, frozenset[int]]()
    if record.held or record.suspended or not any(speeds_of(request, cluster)):
        return None
    for one in request.depends:
        if one.job not in known:
            known[one.job] = _remaining(scheduler.store.tasks(one.job))
        awaited = known[one.job]
        if not _may_be_met(one, awaited):
            return None
        if awaited.left:
            others[one.job] = awaited.left
    clock = scheduler.clock
    return Condition(begins_s(record, clock.shift_s) - clock.origin_s, others)


def _remaining(tasks: Sequence[JobRecord]) -> Remaining:
    left = frozenset(task.number for task in tasks if not task.state.ended)
    failed = any(task.state.ended and task.state is not JobState.COMPLETED for task in tasks)
    return Remaining(bool(tasks), left, failed)


def _may_be_met(dependency: Dependency, awaited: Remaining) -> bool:
    """Whether a dependency is met, or will be if all jobs that have not ended complete."""
    met = {"afterok": not awaited.failed, "afternotok": awaited.failed, "afterany": True}
    return awaited.exists and met[dependency.kind]


def _first_rows(snapshot: Snapshot, keep: Collection[int]) -> tuple[Snapshot, int]:
    """At most `MOST_JOBS` rows: those that run or are asked about, and the oldest of the others."""
    extra = len(snapshot) - MOST_JOBS
    if extra <= 0:
        return snapshot, 0
    needed = snapshot.running | np.isin(snapshot.jobs, list(keep))
    others = (~needed).nonzero()[0][: max(MOST_JOBS - int(needed.sum()), 0)]
    rows = np.sort(np.concatenate([needed.nonzero()[0], others]))
    return snapshot.part(rows), len(snapshot) - len(rows)
