"""Why a job waits: what the policy says, which jobs are before it, and what would have to happen.

The policy is asked once more about the present instant, so the reason is never an old one. Nothing is done about its
answer. This happens in the scheduler's thread and costs as much as a decision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Bools
from fairway.core.decision import Decision
from fairway.core.event import Event, Woken
from fairway.core.holders import counted
from fairway.core.plan import plan
from fairway.core.snapshot import Snapshot
from fairway.placement.tenants import OPPORTUNISTIC, Tenants
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.tenancy import left_by_type, quota, rivals
from fairway.runtime.jobs.commands import UnknownJobError
from fairway.runtime.jobs.estimates import speeds_of
from fairway.runtime.jobs.job_story import gpus_text
from fairway.runtime.jobs.life import RECLAIMED
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.waiting import begins_s

MOST_LISTED = 20
"""How many jobs a list names. The rest is only counted."""

Forecast = Callable[[Scheduler, JobRecord], Mapping[str, Any]]
"""Estimates when a job starts and ends (`start_s`, `finish_s`), which jobs start before it (`before`), and its place in
the queue (`position`): behind all jobs of higher priority, and behind those of equal priority that start before it."""


def explain(scheduler: Scheduler, name: str, forecast: Forecast | None = None) -> dict[str, Any]:
    """All that can be said about the state of a job, as JSON values. Times `in_s` are seconds from now.

    For an array, it is about the task that comes next.
    """
    record, array = _meant(scheduler, name)
    told: dict[str, Any] = {
        "id": record.id,
        "user": record.request.user,
        "state": str(record.state),
        "gpus": len(scheduler.state.held_gpus.get(record.number, ())) or record.request.gpus,
        "policy": scheduler.policy_text,
        "reason": _plain_reason(record),
        "attempts": [attempt.shown(scheduler.clock.shift_s) for attempt in list(record.attempts)],
        **array,
    }
    if record.state.ended:
        return told
    told |= scheduler.ask(lambda now_s: _look(scheduler, record, now_s))
    told |= _where_its_memory_is(scheduler, record)
    if forecast is not None:
        told["estimate"] = estimate = dict(forecast(scheduler, record))
        before, position = estimate.pop("before", None), estimate.pop("position", 0)
        if before is not None and record.state.waits:
            holding = {one["id"] for one in told["ahead"]}
            told["ahead"] += [{"id": one, "why": "starts first"} for one in before if one not in holding]
        if told["position"] and position:
            # If the forecast does not reach its start, only a lower bound of the jobs before it is known.
            told["position"] = position if before is not None else max(position, told["position"])
            told["waiting"] = max(told["waiting"], told["position"])
    listed = told["ahead"]
    told["ahead"], told["more_ahead"] = listed[:MOST_LISTED], max(len(listed) - MOST_LISTED, 0)
    return told


def _where_its_memory_is(scheduler: Scheduler, record: JobRecord) -> dict[str, Any]:
    """For a job that is suspended on a real GPU: where its memory is, and why it could not leave the GPU."""
    live, engine = scheduler.engine.attempts.live.get(record.number), scheduler.engine
    if live is None or live.status != "paused" or engine.devices is None:
        return {}
    memory = live.handle.memory
    size = memory.bytes or engine.needs_bytes(record.number)
    return {"memory": {"place": memory.place, "bytes": size, "gpus": list(live.gpus), "problem": memory.problem}}


def reason_outside(scheduler: Scheduler, record: JobRecord) -> str:
    """Why a job is not eligible now; empty if it is eligible."""
    told = scheduler.guard.outside.get(record.number, "")
    if record.suspended and record.reason == RECLAIMED:
        return RECLAIMED
    clock, request = scheduler.clock, record.request
    left_s = begins_s(record, clock.shift_s) - clock.date_s(clock.now_s())
    if not told or record.suspended or record.held or left_s <= 0 or not any(speeds_of(request, scheduler.cluster)):
        return told
    failed, tried, _ = record.reason.partition("; tried again in ")
    return f"{failed}{tried}{left_s:.0f} s" if tried else f"not to start for another {left_s:.0f} s"


def _meant(scheduler: Scheduler, name: str) -> tuple[JobRecord, dict[str, Any]]:
    """The job with an id. For an array: the first task that is in the queue, else that waits, runs, or has ended."""
    records = scheduler.store.tasks(name)
    if not records:
        raise UnknownJobError(f"there is no job {name!r}")
    if records[0].id == name:
        return records[0], {}
    outside = scheduler.guard.outside
    first = min(records, key=lambda one: (one.state.ended, not one.state.waits, one.number in outside))
    states = Counter(str(record.state) for record in records)
    return first, {"array": {"id": name, "tasks": len(records), "states": dict(states)}}


def _plain_reason(record: JobRecord) -> str:
    if record.state is JobState.RUNNING:
        return "it runs"
    return record.reason or ("it has done its work" if record.state is JobState.COMPLETED else "")


def _look(scheduler: Scheduler, record: JobRecord, now_s: float) -> tuple[list[Event], dict[str, Any]]:
    """In the scheduler's thread: ask the policy again, and see which jobs hold which GPUs."""
    state, job = scheduler.state, record.number
    state.apply(Woken(max(state.now_s, now_s)))
    snapshot = state.snapshot(scheduler.guard.knows)
    row = _row(snapshot, job)
    if row is None:
        return [], {"ahead": [], "frees": []}
    decision = scheduler.guard.decide(snapshot)
    decision = plan(snapshot, decision, state.occupancy, scheduler.loop.placer).kept(decision)
    outside = scheduler.guard.outside.get(job, "")
    if record.state is JobState.RUNNING:
        told: dict[str, Any] = {"ahead": [], "frees": [], "expected_end_in_s": _left_s(snapshot, row)}
        if decision.gpus[row] and row in decision.texts:
            told["reason"] = decision.texts[row]
    elif job in state.held_gpus:
        told = _about_to_start(scheduler, job)
    elif outside:
        told = {"ahead": [], "frees": _would_let_in(scheduler, record, snapshot)}
        told["reason"] = reason_outside(scheduler, record)
    else:
        told = _waiting(scheduler, snapshot, decision, row)
    tenants = scheduler.guard.tenants()
    if tenants is not None:
        told["tenant"] = quota(tenants, snapshot, row)
    queued = _queued(scheduler, snapshot) & rivals(tenants, snapshot, row)
    told["position"] = _place_in_line(snapshot, queued, row) if queued[row] else 0
    told["waiting"] = int(queued.sum())
    return [], told


def _row(snapshot: Snapshot, job: int) -> int | None:
    rows = (snapshot.jobs == job).nonzero()[0]
    return int(rows[0]) if len(rows) else None


def _about_to_start(scheduler: Scheduler, job: int) -> dict[str, Any]:
    """It was granted GPUs on which processes of other jobs still run."""
    gpus, busy = scheduler.state.held_gpus[job], scheduler.engine.attempts.busy()
    others = sorted({other for gpu in gpus for other in busy.get(gpu, ()) if other != job})
    names = [scheduler.store[other].id for other in others]
    leaving = f"; job {', '.join(names)} is still leaving them" if names else ""
    room, where = scheduler.engine.attempts.room.why.get(job, ""), gpus_text(scheduler.cluster, gpus)
    return {
        "reason": f"it is about to start on {where}{leaving}{room and f'; {room}'}",
        "ahead": [{"id": name, "why": "is leaving the GPUs that it gets"} for name in names],
        "frees": [
            {"what": "its processes stop, within their grace period at the latest", "id": name} for name in names
        ],
    }


def _waiting(scheduler: Scheduler, snapshot: Snapshot, decision: Decision, row: int) -> dict[str, Any]:
    if decision.gpus[row]:
        reason = "the policy gives it GPUs in its next round"
    else:
        reason = decision.reason(snapshot, row)
    reason += "".join(f"; {told}" for told in scheduler.blocked.words)
    store, jobs, tenants = scheduler.store, snapshot.jobs.tolist(), scheduler.guard.tenants()
    holders = _holders(snapshot, row, tenants)
    ahead = [{"id": store[jobs[other]].id, "why": _why_holds(snapshot, other)} for other in holders]
    mine = rivals(tenants, snapshot, row)
    granted = ((decision.gpus > 0) & (snapshot.held == 0) & mine).nonzero()[0].tolist()
    ahead += [{"id": store[jobs[other]].id, "why": "is next to start"} for other in granted if other != row]
    blocking = decision.ahead
    if blocking >= 0 and blocking != jobs[row] and mine[snapshot.rows_of(blocking)]:
        ahead.append({"id": store[blocking].id, "why": "is at the head of the queue and does not fit yet"})
    return {"reason": reason, "ahead": ahead, "frees": _would_make_room(scheduler, snapshot, row)}


def _holders(snapshot: Snapshot, row: int, tenants: Tenants | None) -> list[int]:
    """Running rows on GPUs that a row could have: of types that it can use, and of its tenant."""
    usable, mine = snapshot.speeds[:, row] > 0, rivals(tenants, snapshot, row)
    return [other for other in snapshot.running_rows.tolist() if usable[snapshot.gpu_type[other]] and mine[other]]


def _why_holds(snapshot: Snapshot, row: int) -> str:
    """What a running job holds, and whether it could be stopped."""
    held, until_s = counted(int(snapshot.held[row])), float(snapshot.protected_until_s[row])
    if until_s == math.inf:
        return f"holds {held} and is never preempted"
    left_s = until_s - snapshot.now_s
    return f"holds {held} and cannot be stopped for another {math.ceil(left_s)} s" if left_s > 0 else f"holds {held}"


def _left_s(snapshot: Snapshot, row: int) -> float | None:
    """How long a running job is expected to go on; None if it has run longer than expected, or makes no progress."""
    rate, work = float(snapshot.rate[row]), float(snapshot.floats[c.WORK, row])
    left = work - float(snapshot.progress[row])
    return left / rate if rate > 0 and left > 0 else None


def _would_make_room(scheduler: Scheduler, snapshot: Snapshot, row: int) -> list[dict[str, Any]]:
    """The ends of running jobs, soonest first, until there is room for the gang on one type."""
    need, store, jobs = int(snapshot.gpus[row]), scheduler.store, snapshot.jobs.tolist()
    free, alone, tenants = _free_by_type(scheduler, snapshot, row), scheduler.blocked.why, scheduler.guard.tenants()
    ends = [(_left_s(snapshot, other), other) for other in _holders(snapshot, row, tenants) if snapshot.host[other] < 0]
    frees: list[dict[str, Any]] = []
    for left_s, other in sorted(ends, key=lambda one: (one[0] is None, one[0] or 0.0)):
        usable = (kind for kind in range(len(free)) if snapshot.speeds[kind, row] > 0)
        if len(frees) == MOST_LISTED or any(free[kind] >= need for kind in usable):
            break
        # Its blocked GPUs stay blocked.
        gpus = sum(gpu not in alone for gpu in snapshot.gpus_held(other))
        if not gpus:
            continue
        free[int(snapshot.gpu_type[other])] += gpus
        what = "ends" if left_s is not None else "ends; it has run longer than expected already"
        frees.append({"what": what, "id": store[jobs[other]].id, "in_s": left_s, "gpus": gpus})
    return frees


def _free_by_type(scheduler: Scheduler, snapshot: Snapshot, row: int) -> list[int]:
    """The number of GPUs by type on which a row could be started now."""
    tenants = scheduler.guard.tenants()
    if tenants is not None and tenants.owners(snapshot)[row] != OPPORTUNISTIC:
        return left_by_type(tenants, snapshot, row)
    occupancy, cluster = scheduler.state.occupancy, snapshot.cluster
    free = list(occupancy.free_by_type)
    for gpu in scheduler.blocked.why:
        node = cluster.node_of_gpu[gpu]
        free[cluster.node_type[node]] -= node not in occupancy.down and not occupancy.tenants(gpu)
    return free


def _would_let_in(scheduler: Scheduler, record: JobRecord, snapshot: Snapshot) -> list[dict[str, Any]]:
    """What has to happen before a job is eligible."""
    if record.suspended:
        return [{"what": "its owner resumes it", "command": f"fairway resume {record.id}"}]
    if record.held:
        return [{"what": "its owner releases it", "command": f"fairway release {record.id}"}]
    clock, frees = scheduler.clock, list[dict[str, Any]]()
    left_to_begin_s = begins_s(record, clock.shift_s) - clock.date_s(snapshot.now_s)
    if left_to_begin_s > 0:
        frees.append({"what": "its time comes", "in_s": left_to_begin_s})
    array = _tasks_inside(scheduler, record)
    if array:
        frees.append({"what": "a task of its array ends", "tasks": array[:MOST_LISTED]})
    return frees + _awaited_ends(scheduler, record, snapshot)


def _awaited_ends(scheduler: Scheduler, record: JobRecord, snapshot: Snapshot) -> list[dict[str, Any]]:
    """The ends of the jobs that a job waits for, and of whole arrays."""
    ends: list[dict[str, Any]] = []
    for one in dict.fromkeys(record.request.depends):
        other = scheduler.store.get(one.job)
        if other is None:
            left = sum(not task.state.ended for task in scheduler.store.tasks(one.job))
            if left:
                what = f"all tasks of the array that it waits for end ({one.kind}); {left:,} have not ended"
                ends.append({"what": what, "id": one.job, "in_s": None})
        elif not other.state.ended:
            row = _row(snapshot, other.number)
            left_s = _left_s(snapshot, row) if row is not None else None
            ends.append({"what": f"the job that it waits for ends ({one.kind})", "id": other.id, "in_s": left_s})
        if len(ends) == MOST_LISTED:
            break
    return ends


def _tasks_inside(scheduler: Scheduler, record: JobRecord) -> list[str]:
    """The other tasks of an array that may run now, if its limit is reached."""
    if not record.request.array_at_once:
        return []
    outside, held = scheduler.guard.outside, scheduler.state.held_gpus
    tasks = scheduler.store.tasks(record.id.partition("_")[0])
    inside = [one for one in tasks if not one.state.ended and (one.number not in outside or one.number in held)]
    return [one.id for one in inside] if len(inside) >= record.request.array_at_once else []


def _queued(scheduler: Scheduler, snapshot: Snapshot) -> Bools:
    """The rows that wait for the policy to give them GPUs, and for nothing else."""
    outside = np.fromiter(scheduler.guard.outside, dtype=np.int64)
    queued: Bools = (snapshot.held == 0) & ~np.isin(snapshot.jobs, outside)
    return queued


def _place_in_line(snapshot: Snapshot, queued: Bools, row: int) -> int:
    """Position by priority and submission, for use without a forecast."""
    mine = snapshot.priority[row]
    earlier = (snapshot.priority > mine) | ((snapshot.priority == mine) & (snapshot.jobs < snapshot.jobs[row]))
    return 1 + int((queued & earlier).sum())
