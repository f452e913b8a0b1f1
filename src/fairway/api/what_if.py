"""What will happen: the live state rolled forward in the simulator, as it is or with one thing changed.

Every job is taken to need what its owner, its own reports or others like it say, and the policy decides as it would
live, with what it remembers. GPUs that are left alone now, because of processes of others or of faults, are taken to
stay so: nobody knows for how long. Nothing is changed by asking. Limits: the first 10,000 jobs, 30 days, 10 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairway.api.live_copy import Array, Door, Present, conditions_of, copied_present, why_stranded
from fairway.core.errors import InputError
from fairway.core.event import JobSubmitted
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.placing import Around
from fairway.runtime.jobs.commands import UnknownJobError
from fairway.runtime.jobs.estimates import UNKNOWN_S, speeds_of, submitted, why_impossible
from fairway.runtime.jobs.explain import explain, reason_outside
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.simulator import roll_forward as onward
from fairway.simulator.roll_forward import Outlook, look_onward

MOST_NEW = 1_000
MOST_DAYS = 30.0
MOST_WALL_S = 10.0
WHY_WALL_S = 0.4
_NOTHING_AHEAD = Outlook({}, {}, {}, 0.0, "")
_FIELDS = {"policy", "job", "jobs", "ids", "horizon_s"}


def what_if(scheduler: Scheduler, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Estimate when jobs start and end.

    `body` may have `policy` (another one than now), `job` or `jobs` (not yet submitted; fields of a submission),
    `ids` (only these are told about; that of an array means its tasks) and `horizon_s`. Times are seconds since 1970,
    those with `in` seconds from now.
    """
    body = body or {}
    _refuse_nonsense(body)
    policy = make_policy(str(body["policy"])) if body.get("policy") else None
    requests = [_request(fields) for fields in [*body.get("jobs", ()), *([body["job"]] if body.get("job") else [])]]
    for request in requests:
        _refuse_impossible(scheduler, request)
    records = [record for name in body.get("ids", ()) for record in _known_jobs(scheduler, name)]
    now = copied_present(scheduler, keep={record.number for record in records})
    present, newcomers = _with_newcomers(scheduler, now, requests)
    asked = {record.number for record in records if record.number in now.specs and not now.never(record.number)}
    new = {event.job for event in newcomers if not present.never(event.job)}
    horizon_s, looks = float(body.get("horizon_s") or MOST_DAYS * 86400.0), 2 if policy is not None or newcomers else 1
    limits = onward.AS_FAR._replace(horizon_s=horizon_s, wall_s=MOST_WALL_S / looks)
    matter = asked | new if records else new.union(job for job in now.snapshot.jobs.tolist() if not present.never(job))
    if not matter:
        # They have ended, or never start.
        limits = limits._replace(steps=0)
    # Nobody waits to the end of time for those who never start.
    wanted = matter if records or present.stranded else ()
    outlook, used = _rolled(scheduler, present, policy, newcomers=newcomers, wanted=wanted, limits=limits)
    told = _told(scheduler, present, outlook, records, requests)
    told["policy"] = scheduler.policy_text if policy is None else str(body["policy"])
    told["problem"] = used.problem
    if looks > 1:
        before, _ = _rolled(scheduler, now, None, wanted=asked if records else (), limits=limits)
        told["otherwise"] = {"policy": scheduler.policy_text, **_figures(scheduler, now, before, records)}
    return told


def why(scheduler: Scheduler, name: str) -> dict[str, Any]:
    """`explain` with an estimate of start and end."""
    return explain(scheduler, name, forecast=_forecast)


def _forecast(scheduler: Scheduler, record: JobRecord) -> dict[str, Any]:
    """When one job may start and end. That is looked at for a moment only, however many others are before it."""
    job, present = record.number, copied_present(scheduler, keep={record.number})
    now_s, basis = present.snapshot.now_s, {"basis": _basis(scheduler, record), "note": _note(present)}
    if job not in present.snapshot.frame.ids or present.never(job):
        return _estimate(scheduler, present, _NOTHING_AHEAD, job) | basis
    limits = onward.AS_FAR._replace(wall_s=WHY_WALL_S)
    outlook, _ = _rolled(scheduler, present, None, wanted={job}, limits=limits)
    told = _estimate(scheduler, present, outlook, job) | basis | {"looked_s": outlook.until_s - now_s}
    first = (outlook.started_s.get(job, math.inf), job)
    held = present.snapshot.frame.held_gpus
    earlier = sorted((begun_s, one) for one, begun_s in outlook.started_s.items() if one not in held)
    before = [one for begun_s, one in earlier if (begun_s, one) < first]
    if job in outlook.started_s:
        told["before"] = [scheduler.store[one].id for one in before]
    if job not in present.outside:
        # Others that come in only later may start before it, but they are not in the queue now.
        told["position"] = 1 + sum(one not in present.outside for one in before)
    return told | {"cut": outlook.cut}


def _refuse_nonsense(body: Mapping[str, Any]) -> None:
    unknown = set(body) - _FIELDS
    if unknown:
        raise InputError(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(_FIELDS))}")
    for name, kind in (("jobs", list), ("ids", list), ("job", dict), ("policy", str)):
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise InputError(f"{name} is not a {'text' if kind is str else kind.__name__}")
    if len(body.get("jobs") or ()) > MOST_NEW:
        raise InputError(f"there are more than {MOST_NEW} new jobs")
    horizon_s = body.get("horizon_s")
    if horizon_s is not None and (isinstance(horizon_s, bool) or not isinstance(horizon_s, int | float)):
        raise InputError("horizon_s is not a number")
    if horizon_s is not None and not 0 < horizon_s <= MOST_DAYS * 86400.0:
        raise InputError(f"horizon_s is not from 0 to {MOST_DAYS * 86400.0:.0f} s ({MOST_DAYS:g} days)")


def _request(fields: Any) -> JobRequest:
    """A job that is not submitted; it needs no command."""
    if not isinstance(fields, Mapping):
        raise InputError("a job is an object with the fields of a submission")
    try:
        return JobRequest.from_plain({"command": ("true",), **fields})
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"this job cannot be taken: {error}") from None


def _refuse_impossible(scheduler: Scheduler, request: JobRequest) -> None:
    """Whether it could be submitted at all."""
    if not any(speeds_of(request, scheduler.cluster)):
        raise InputError(why_impossible(request, scheduler.cluster))
    for one in request.depends:
        if not scheduler.store.tasks(one.job):
            raise InputError(f"it is to wait for job {one.job!r}, which does not exist")


def _known_jobs(scheduler: Scheduler, name: Any) -> list[JobRecord]:
    """The job of this id, or the tasks of the array."""
    records = scheduler.store.tasks(str(name))
    if not records:
        raise UnknownJobError(f"there is no job {str(name)!r}")
    return records


def _with_newcomers(
    scheduler: Scheduler, present: Present, requests: Sequence[JobRequest]
) -> tuple[Present, list[JobSubmitted]]:
    """Jobs that are not submitted, as if they were now. Those of a limited array are taken to be of one."""
    if not requests:
        return present, []
    now_s, events, records = present.snapshot.now_s, list[JobSubmitted](), list[JobRecord]()
    date_s = scheduler.engine.clock.date_s(now_s)
    for at, request in enumerate(requests):
        record = JobRecord(present.next_number + at, f"new-{at + 1}", request, date_s, held=request.hold)
        expected_s = scheduler.engine.seen.times.expected_s(request)
        restart_s = scheduler.engine.seen.restarts.expected_s(request)
        events.append(submitted(record, scheduler.cluster, expected_s, now_s, restart_s))
        records.append(record)
    outside = [*(scheduler.store[job] for job in present.outside), *records]
    alone, stranded = present.left_alone, dict(present.stranded)
    for event in events:
        why_not = why_stranded(present.snapshot, alone, event.spec.gpus_min, event.speeds) if alone else ""
        stranded |= {event.job: why_not} if why_not else {}
    limited = {one.number: Array("", one.request.array_at_once) for one in records if one.request.array_at_once}
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
    return "it would be held" if record.held else "what it would wait for does not come by itself"


def _rolled(scheduler: Scheduler, present: Present, policy: Policy | None, **about: Any) -> tuple[Outlook, Door]:
    """Roll the present forward under a policy; None goes on with that of now, and with what it remembers."""
    snapshot, gate, loop = present.snapshot, scheduler.guard, scheduler.loop
    if policy is not None:
        snapshot = snapshot.part(memory={})
    door = Door(policy or gate.policy, gate.limits, present)
    placer: Placer = getattr(loop.placer, "placer", loop.placer)
    outlook = look_onward(
        snapshot,
        present.specs,
        door,
        Around(placer, tuple(present.left_alone)) if present.left_alone else placer,
        round_s=loop.round_s if policy is None else policy.round_s,
        min_run_s=scheduler.state.min_run_s,
        restart_s=present.restart_s,
        falls_back=present.falls_back,
        observer=door,
        **about,
    )
    return outlook, door


def _told(
    scheduler: Scheduler,
    present: Present,
    outlook: Outlook,
    records: Sequence[JobRecord],
    requests: Sequence[JobRequest],
) -> dict[str, Any]:
    clock, now_s, held = scheduler.engine.clock, present.snapshot.now_s, present.snapshot.frame.held_gpus
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
        "now_s": clock.date_s(now_s),
        "until_s": clock.date_s(outlook.until_s),
        "cut": outlook.cut,
        "left_out": present.left_out,
        "left_alone": sorted(present.left_alone),
        "note": _note(present),
        "jobs": jobs,
        "new": new,
        **_figures(scheduler, present, outlook, records),
    }


def _figures(scheduler: Scheduler, present: Present, outlook: Outlook, records: Sequence[JobRecord]) -> dict[str, Any]:
    """How the jobs that are there now fare in all, or those asked about. Who never starts is counted apart."""
    clock, now_s = scheduler.engine.clock, present.snapshot.now_s
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
    """Start and end of one job; null where it does not come that far."""
    clock, now_s, rows = scheduler.engine.clock, present.snapshot.now_s, present.snapshot.frame.held_gpus
    start_s, finish_s = outlook.started_s.get(job), outlook.finished_s.get(job)
    told: dict[str, Any] = {}
    if job in rows:
        start_s = None
    for name, time_s in (("start", start_s), ("finish", finish_s)):
        told[f"{name}_s"] = None if time_s is None else clock.date_s(time_s)
        told[f"{name}_in_s"] = None if time_s is None else max(time_s - now_s, 0.0)
    told["preemptions"] = outlook.preemptions.get(job, 0)
    if present.never(job) and not present.shut_out(job):
        told["why"] = present.stranded[job]
    elif present.never(job):
        known = job < present.next_number
        told["why"] = reason_outside(scheduler, scheduler.store[job]) if known else present.outside[job]
    return told


def _note(present: Present) -> str:
    """What is taken to be so although nobody knows."""
    alone = len(present.left_alone)
    gpus, stay = ("1 GPU is", "it is") if alone == 1 else (f"{alone} GPUs are", "they are")
    return f"{gpus} left alone (processes of others, or faults); {stay} taken to stay so" if alone else ""


def _basis(scheduler: Scheduler, record: JobRecord) -> str:
    """Where the run time that is expected of a job comes from."""
    progress, request = record.progress, record.request
    if progress.steps_per_s and (progress.steps or request.steps):
        return "its own reports"
    if request.expected_s is not None:
        return "its owner's word"
    expected_s = scheduler.engine.seen.times.expected_s(request)
    if expected_s == request.limit_s:
        return "its time limit"
    return "nothing is known of it; an hour is assumed" if expected_s == UNKNOWN_S else "jobs like it that have ended"
