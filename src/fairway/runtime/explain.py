"""Why a job waits: what the policy says, who is before it, and what would have to happen.

The policy is asked once more about the present instant, without anything being done about its answer, so the reason is
never an old one. That happens in the scheduler's thread; it costs as much as a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from fairway.core import columns as c
from fairway.core.decision import Decision
from fairway.core.event import Event, Woken
from fairway.core.plan import plan
from fairway.core.snapshot import Snapshot
from fairway.runtime.records import JobRecord, JobState
from fairway.runtime.scheduler import Scheduler, UnknownJobError

MOST_LISTED = 20
"""How many jobs a list names; the rest is counted."""

Forecast = Callable[[Scheduler, JobRecord], Mapping[str, Any]]
"""Estimates when a job starts and ends, and which jobs start before it: `start_s`, `finish_s`, `before`."""


def explain(scheduler: Scheduler, name: str, forecast: Forecast | None = None) -> dict[str, Any]:
    """All that can be said about the state of a job, as JSON values. Times `in_s` are seconds from now."""
    record = scheduler.book.get(name)
    if record is None:
        raise UnknownJobError(f"there is no job {name!r}")
    told: dict[str, Any] = {
        "id": record.id,
        "user": record.request.user,
        "state": str(record.state),
        "gpus": record.request.gpus,
        "policy": scheduler.policy_text,
        "reason": _plain_reason(record),
        "attempts": [_without_token(asdict(attempt)) for attempt in list(record.attempts)],
    }
    if record.state.ended:
        return told
    told |= scheduler.ask(lambda now_s: _look(scheduler, record, now_s))
    if forecast is not None:
        told["estimate"] = estimate = dict(forecast(scheduler, record))
        before = estimate.pop("before", None)
        if before is not None and record.state.waits:
            told["position"] = len(before) + 1
            holding = {one["id"] for one in told["ahead"]}
            told["ahead"] += [{"id": one, "why": "starts first"} for one in before if one not in holding]
    listed = told["ahead"]
    told["ahead"], told["more_ahead"] = listed[:MOST_LISTED], max(len(listed) - MOST_LISTED, 0)
    return told


def _without_token(attempt: dict[str, Any]) -> dict[str, Any]:
    """An attempt as everybody may see it: the token marks its processes and is nobody's business."""
    return {name: value for name, value in attempt.items() if name != "token"}


def _plain_reason(record: JobRecord) -> str:
    if record.state is JobState.RUNNING:
        return "it runs"
    return record.reason or ("it has done its work" if record.state is JobState.COMPLETED else "")


def _look(scheduler: Scheduler, record: JobRecord, now_s: float) -> tuple[list[Event], dict[str, Any]]:
    """In the scheduler's thread: ask the policy again, and see who holds what."""
    state, job = scheduler.state, record.number
    state.apply(Woken(max(state.now_s, now_s)))
    snapshot = state.snapshot(scheduler.gate.knows)
    row = _row(snapshot, job)
    if row is None:
        return [], {"ahead": [], "frees": []}
    decision = scheduler.gate.decide(snapshot)
    plan(snapshot, decision, state.occupancy, scheduler.loop.placer)
    outside = scheduler.gate.outside.get(job, "")
    if record.state is JobState.RUNNING:
        told: dict[str, Any] = {"ahead": [], "frees": [], "expected_end_in_s": _left_s(snapshot, row)}
    elif job in state.held_gpus:
        told = _about_to_start(scheduler, job)
    elif outside:
        told = {"reason": outside, "ahead": [], "frees": _would_let_in(scheduler, record, snapshot)}
    else:
        told = _waiting(scheduler, snapshot, decision, row)
    told["position"] = _place_in_line(scheduler, snapshot, row) if record.state.waits else 0
    told["waiting"] = int((snapshot.held == 0).sum()) - len(scheduler.gate.outside)
    return [], told


def _row(snapshot: Snapshot, job: int) -> int | None:
    rows = (snapshot.jobs == job).nonzero()[0]
    return int(rows[0]) if len(rows) else None


def _about_to_start(scheduler: Scheduler, job: int) -> dict[str, Any]:
    """It has been given GPUs on which processes of others still sit."""
    gpus, busy = scheduler.state.held_gpus[job], scheduler.engine.processes.busy()
    others = sorted({other for gpu in gpus for other in busy.get(gpu, ()) if other != job})
    names = [scheduler.book[other].id for other in others]
    leaving = f"; job {', '.join(names)} is still leaving them" if names else ""
    return {
        "reason": f"it is about to start on GPUs {', '.join(map(str, gpus))}{leaving}",
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
    blocked = scheduler.engine.processes.blocked
    if blocked:
        reason += "; " + "; ".join(f"GPU {gpu} is left alone: {why}" for gpu, why in sorted(blocked.items()))
    book, jobs = scheduler.book, snapshot.jobs.tolist()
    ahead = [{"id": book[jobs[other]].id, "why": "holds GPUs"} for other in _holders(snapshot, row)]
    granted = ((decision.gpus > 0) & (snapshot.held == 0)).nonzero()[0].tolist()
    ahead += [{"id": book[jobs[other]].id, "why": "is next to start"} for other in granted if other != row]
    blocking = decision.ahead
    if blocking >= 0 and blocking != jobs[row]:
        ahead.append({"id": book[blocking].id, "why": "is at the head of the queue and does not fit yet"})
    return {"reason": reason, "ahead": ahead, "frees": _would_make_room(scheduler, snapshot, row)}


def _holders(snapshot: Snapshot, row: int) -> list[int]:
    """Running rows on GPUs of types that a row can use."""
    usable = snapshot.speeds[:, row] > 0
    return [other for other in snapshot.running_rows.tolist() if usable[snapshot.gpu_type[other]]]


def _left_s(snapshot: Snapshot, row: int) -> float | None:
    """How long a running job is expected to go on; None where it has outrun what was expected, or stands still."""
    rate, work = float(snapshot.rate[row]), float(snapshot.floats[c.WORK, row])
    left = work - float(snapshot.progress[row])
    return left / rate if rate > 0 and left > 0 else None


def _would_make_room(scheduler: Scheduler, snapshot: Snapshot, row: int) -> list[dict[str, Any]]:
    """The ends of running jobs, soonest first, until there is room for the gang on one type."""
    need, book, jobs = int(snapshot.gpus[row]), scheduler.book, snapshot.jobs.tolist()
    free = list(scheduler.state.occupancy.free_by_type)
    ends = [(_left_s(snapshot, other), other) for other in _holders(snapshot, row) if snapshot.host[other] < 0]
    frees: list[dict[str, Any]] = []
    for left_s, other in sorted(ends, key=lambda one: (one[0] is None, one[0] or 0.0)):
        usable = (kind for kind in range(len(free)) if snapshot.speeds[kind, row] > 0)
        if len(frees) == MOST_LISTED or any(free[kind] >= need for kind in usable):
            break
        gpus = int(snapshot.held[other])
        free[int(snapshot.gpu_type[other])] += gpus
        what = "ends" if left_s is not None else "ends; it has run longer than expected already"
        frees.append({"what": what, "id": book[jobs[other]].id, "in_s": left_s, "gpus": gpus})
    return frees


def _would_let_in(scheduler: Scheduler, record: JobRecord, snapshot: Snapshot) -> list[dict[str, Any]]:
    """What has to happen before the policy is shown a job at all."""
    if record.suspended:
        return [{"what": "its owner resumes it", "command": f"fairway resume {record.id}"}]
    if record.held:
        return [{"what": "its owner releases it", "command": f"fairway release {record.id}"}]
    clock, frees = scheduler.engine.clock, list[dict[str, Any]]()
    begins_s = max(record.request.begin_s or 0.0, record.not_before_s or 0.0)
    now_s = clock.date_s(snapshot.now_s)
    if begins_s > now_s:
        frees.append({"what": "its time comes", "in_s": begins_s - now_s})
    for one in record.request.depends:
        for other in scheduler.book.tasks(one.job):
            if not other.state.ended:
                row = _row(snapshot, other.number)
                left_s = _left_s(snapshot, row) if row is not None else None
                frees.append({"what": f"the job that it waits for ends ({one.kind})", "id": other.id, "in_s": left_s})
    return frees


def _place_in_line(scheduler: Scheduler, snapshot: Snapshot, row: int) -> int:
    """Position by priority and submission, for want of a forecast."""
    waits, mine = snapshot.held == 0, snapshot.priority[row]
    earlier = waits & (
        (snapshot.priority > mine) | ((snapshot.priority == mine) & (snapshot.jobs < snapshot.jobs[row]))
    )
    outside = scheduler.gate.outside
    return 1 + sum(job not in outside for job in snapshot.jobs[earlier].tolist())
