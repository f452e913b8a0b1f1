"""Forecasts: the live state rolled forward in the simulator, as it is or with one change.

The run time of a job comes from its owner, its own reports, or similar jobs. The policy decides as it would live, with
what it remembers. GPUs that cannot be used now (blocked GPUs) are assumed to stay so. A forecast changes nothing.
Limits: the first 10,000 jobs, 30 days, 10 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fairway.api.live_copy import ForecastGuard, LimitedArray, Present, conditions_of, copied_present, why_stranded
from fairway.api.schema import MOST_DAYS, WhatIf
from fairway.core.event import JobSubmitted
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.placement.at_home import Around
from fairway.policies import make_policy
from fairway.runtime.daemon.explain import explain, reason_outside
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.tenancy import rivals
from fairway.runtime.jobs.commands import UnknownJobError
from fairway.runtime.jobs.estimates import UNKNOWN_S, submitted
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest, checked
from fairway.simulator import roll_forward as onward
from fairway.simulator.roll_forward import Outlook, look_onward

AS_IS = WhatIf()
"""The question without conditions."""
MOST_WALL_S = 10.0
WHY_WALL_S = 0.4
_NOTHING_AHEAD = Outlook({}, {}, {}, 0.0, "")


def what_if(scheduler: Scheduler, question: WhatIf | Mapping[str, Any] = AS_IS) -> dict[str, Any]:
    """Estimate when jobs start and end.

    `policy` replaces the present one; `job` and `jobs` are new jobs; with `ids` the answer is about these jobs only.
    The id of an array means its tasks. Times are seconds since 1970, those with `in` seconds from now.
    """
    asked_for = question if isinstance(question, WhatIf) else checked(WhatIf, question)
    policy = make_policy(asked_for.policy) if asked_for.policy else None
    requests = [JobRequest(**vars(one)) for one in (*asked_for.jobs, asked_for.job) if one is not None]
    for request in requests:
        scheduler.commands.refuse_impossible([request])
    records = [record for name in asked_for.ids for record in _known_jobs(scheduler, name)]
    now = copied_present(scheduler, keep={record.number for record in records})
    present, newcomers = _with_newcomers(scheduler, now, requests)
    asked = {record.number for record in records if record.number in now.specs and not now.never(record.number)}
    new = {event.job for event in newcomers if not present.never(event.job)}
    horizon_s, looks = asked_for.horizon_s or MOST_DAYS * 86400.0, 2 if policy is not None or newcomers else 1
    limits = onward.AS_FAR._replace(horizon_s=horizon_s, wall_s=MOST_WALL_S / looks)
    matter = asked | new if records else new.union(job for job in now.snapshot.jobs.tolist() if not present.never(job))
    if not matter:
        # They have ended, or never start.
        limits = limits._replace(steps=0)
    # Jobs that never start are not waited for.
    wanted = matter if records or present.stranded else ()
    outlook, used = _rolled(scheduler, present, policy, newcomers=newcomers, wanted=wanted, limits=limits)
    told = _told(scheduler, present, outlook, records, requests)
    told["policy"] = asked_for.policy or scheduler.policy_text
    told["problem"] = used.problem
    if looks > 1:
        before, _ = _rolled(scheduler, now, None, wanted=asked if records else (), limits=limits)
        told["otherwise"] = {"policy": scheduler.policy_text, **_figures(scheduler, now, before, records)}
    return told


def why(scheduler: Scheduler, name: str) -> dict[str, Any]:
    """`explain` with an estimate of start and end."""
    return explain(scheduler, name, forecast=_forecast)


def _forecast(scheduler: Scheduler, record: JobRecord) -> dict[str, Any]:
    """When one job may start and end. The forecast takes a moment at most, however many jobs are ahead."""
    job, present = record.number, copied_present(scheduler, keep={record.number})
    now_s, basis = present.snapshot.now_s, {"basis": _basis(scheduler, record), "note": _note(present)}
    if job not in present.snapshot.frame.ids or present.never(job):
        return _estimate(scheduler, present, _NOTHING_AHEAD, job) | basis
    limits = onward.AS_FAR._replace(wall_s=WHY_WALL_S)
    outlook, _ = _rolled(scheduler, present, None, wanted={job}, limits=limits)
    told = _estimate(scheduler, present, outlook, job) | basis | {"looked_s": outlook.until_s - now_s}
    first = (outlook.started_s.get(job, math.inf), job)
    held = present.snapshot.frame.held_gpus
    others = _rivals(scheduler, present, job)
    started = ((begun_s, one) for one, begun_s in outlook.started_s.items() if one in others)
    earlier = sorted((begun_s, one) for begun_s, one in started if one not in held)
    before = [one for begun_s, one in earlier if (begun_s, one) < first]
    if job in outlook.started_s:
        told["before"] = [scheduler.store[one].id for one in before]
    if job not in present.outside:
        told["position"] = _position(present, job, before, others)
    return told | {"cut": outlook.cut}


def _rivals(scheduler: Scheduler, present: Present, job: int) -> set[int]:
    """The jobs whose GPUs a job could have had: those of its tenant, or all."""
    snapshot = present.snapshot
    rows = rivals(scheduler.guard.tenants(), snapshot, int(snapshot.rows_of(job)))
    return set(snapshot.jobs[rows].tolist())


def _position(present: Present, job: int, before: Sequence[int], others: Collection[int]) -> int:
    """The place of a job in the queue: behind all of higher priority, and those of its own that start before it.

    Jobs that come in only later may start before it, but they are not in the queue now.
    """
    snapshot, earlier = present.snapshot, set(before)
    waits = (snapshot.held == 0).tolist()
    rows = zip(snapshot.jobs.tolist(), snapshot.priority.tolist(), waits, strict=True)
    known = ((one, priority) for one, priority, waiting in rows if waiting and one in others)
    queue: dict[int, int] = {one: priority for one, priority in known if one not in present.outside}
    mine = queue.get(job, 0)
    return 1 + sum(priority > mine or (priority == mine and one in earlier) for one, priority in queue.items())


def _known_jobs(scheduler: Scheduler, name: Any) -> list[JobRecord]:
    """The job of this id, or the tasks of the array."""
    records = scheduler.store.tasks(str(name))
    if not records:
        raise UnknownJobError(f"there is no job {str(name)!r}")
    return records


def _with_newcomers(
    scheduler: Scheduler, present: Present, requests: Sequence[JobRequest]
) -> tuple[Present, list[JobSubmitted]]:
    """New jobs, as if they were submitted now. Those of a limited array form one array."""
    if not requests:
        return present, []
    now_s, events, records = present.snapshot.now_s, list[JobSubmitted](), list[JobRecord]()
    date_s = scheduler.clock.date_s(now_s)
    for at, request in enumerate(requests):
        record = JobRecord(present.next_number + at, f"new-{at + 1}", request, date_s, held=request.hold)
        expected_s = scheduler.observations.times.expected_s(request)
        restart_s = scheduler.observations.restarts.expected_s(request)
        events.append(submitted(record, scheduler.observations.relative(record), expected_s, now_s, restart_s))
        records.append(record)
    outside = [*(scheduler.store[job] for job in present.outside), *records]
    blocked, stranded = present.blocked, dict(present.stranded)
    for event in events:
        why_not = why_stranded(present.snapshot, blocked, event.spec.gpus_min, event.speeds) if blocked else ""
        stranded |= {event.job: why_not} if why_not else {}
    limited = {one.number: LimitedArray("", one.request.array_at_once) for one in records if one.request.array_at_once}
    then = present._replace(
        outside={**present.outside, **{one.number: _why_new(one) for one in records}},
        conditions=conditions_of(scheduler, outside, present.snapshot.frame.held_gpus),
        arrays={**present.arrays, **limited},
        restart_s={**present.restart_s, **{event.job: event.restart_s for event in events}},
        falls_back={**present.falls_back, **{one.number: 0.0 for one in records if one.request.preempt == "restart"}},
        stranded=stranded,
    )
    return then, events


def _why_new(record: JobRecord) -> str:
    return "it would be held" if record.held else "what it would wait for does not happen by itself"


def _rolled(
    scheduler: Scheduler, present: Present, policy: Policy | None, **about: Any
) -> tuple[Outlook, ForecastGuard]:
    """Roll the present forward under a policy; None keeps the present one, with what it remembers."""
    snapshot, live, loop = present.snapshot, scheduler.guard, scheduler.loop
    if policy is not None:
        snapshot = snapshot.part(memory={})
    guard = ForecastGuard(policy or live.policy, live, present)
    placer: Placer = getattr(loop.placer, "placer", loop.placer)
    outlook = look_onward(
        snapshot,
        present.specs,
        guard,
        Around(placer, tuple(present.blocked)) if present.blocked else placer,
        round_s=loop.round_s if policy is None else policy.round_s,
        min_run_s=scheduler.state.min_run_s,
        restart_s=present.restart_s,
        falls_back=present.falls_back,
        observer=guard,
        **about,
    )
    return outlook, guard


def _told(
    scheduler: Scheduler,
    present: Present,
    outlook: Outlook,
    records: Sequence[JobRecord],
    requests: Sequence[JobRequest],
) -> dict[str, Any]:
    clock, now_s, held = scheduler.clock, present.snapshot.now_s, present.snapshot.frame.held_gpus
    asked = records or [scheduler.store[job] for job in present.snapshot.jobs.tolist()]
    jobs = [
        {
            "id": record.id,
            "user": record.request.user,
            "state": str(record.state),
            "gpus": len(held.get(record.number, ())) or record.request.gpus,
            **_estimate(scheduler, present, outlook, record.number),
            "basis": _basis(scheduler, record),
        }
        for record in asked
    ]
    new = [
        _estimate(scheduler, present, outlook, present.next_number + at) | {"gpus": request.gpus}
        for at, request in enumerate(requests)
    ]
    return {
        "now_s": clock.today_s(now_s),
        "until_s": clock.today_s(outlook.until_s),
        "cut": outlook.cut,
        "left_out": present.left_out,
        "blocked_gpus": sorted(present.blocked),
        "note": _note(present),
        "jobs": jobs,
        "new": new,
        **_figures(scheduler, present, outlook, records),
    }


def _figures(scheduler: Scheduler, present: Present, outlook: Outlook, records: Sequence[JobRecord]) -> dict[str, Any]:
    """Totals over all present jobs, or those asked about. Jobs that never start are counted separately."""
    clock, now_s = scheduler.clock, present.snapshot.now_s
    there = set(present.snapshot.jobs.tolist())
    jobs = [record.number for record in records if record.number in there] if records else sorted(there)
    never = sum(map(present.never, jobs))
    ends = [outlook.finished_s[job] for job in jobs if job in outlook.finished_s]
    jct = [
        clock.date_s(outlook.finished_s[job]) - scheduler.store[job].submitted_s
        for job in jobs
        if job in outlook.finished_s
    ]
    return {
        "finished": len(ends),
        "not_finished": len(jobs) - len(ends),
        "never_start": never,
        "mean_jct_s": sum(jct) / len(jct) if jct else None,
        "all_done_in_s": max(ends) - now_s if len(ends) == len(jobs) and ends else None,
        "preemptions": sum(outlook.preemptions.get(job, 0) for job in jobs),
    }


def _estimate(scheduler: Scheduler, present: Present, outlook: Outlook, job: int) -> dict[str, Any]:
    """Start and end of one job; null if it does not get that far."""
    clock, now_s, rows = scheduler.clock, present.snapshot.now_s, present.snapshot.frame.held_gpus
    start_s, finish_s = outlook.started_s.get(job), outlook.finished_s.get(job)
    told: dict[str, Any] = {}
    if job in rows:
        start_s = None
    for name, time_s in (("start", start_s), ("finish", finish_s)):
        told[f"{name}_s"] = None if time_s is None else clock.today_s(time_s)
        told[f"{name}_in_s"] = None if time_s is None else max(time_s - now_s, 0.0)
    told["preemptions"] = outlook.preemptions.get(job, 0)
    if present.never(job) and not present.shut_out(job):
        told["why"] = present.stranded[job]
    elif present.never(job):
        known = job < present.next_number
        told["why"] = reason_outside(scheduler, scheduler.store[job]) if known else present.outside[job]
    return told


def _note(present: Present) -> str:
    """What the forecast assumes."""
    blocked = len(present.blocked)
    gpus = "1 GPU is" if blocked == 1 else f"{blocked} GPUs are"
    return f"{gpus} blocked (`fairway nodes` says why); the forecast assumes that this stays so" if blocked else ""


def _basis(scheduler: Scheduler, record: JobRecord) -> str:
    """What the expected run time of a job is based on."""
    progress, request = record.progress, record.request
    if progress.steps_per_s and (progress.steps or request.steps):
        return "its own reports"
    if request.expected_s is not None:
        return "its owner's estimate"
    expected_s = scheduler.observations.times.expected_s(request)
    if expected_s == request.limit_s:
        return "its time limit"
    return "nothing; an hour is assumed" if expected_s == UNKNOWN_S else "jobs like it that have ended"
