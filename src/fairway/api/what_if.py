"""Forecasts: the live state rolled forward in the simulator, as it is or with one change.

The run time of a job comes from its owner, its own reports, or similar jobs. The policy decides as it would live, with
what it remembers. GPUs that cannot be used now (blocked GPUs) are assumed to stay so. A forecast changes nothing,
but what is told of things as they are is kept as a promise. Limits: the first 10,000 jobs, 30 days, 10 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fairway.api.live_copy import (
    ForecastGuard,
    LimitedArray,
    Present,
    conditions_of,
    copied_present,
    limits_left,
    why_stranded,
)
from fairway.api.other_cluster import gpus_by_name, moved_to, other_cluster, speeds_there
from fairway.api.promised import with_intervals
from fairway.api.schema import MOST_DAYS, WhatIf
from fairway.api.timeline import spans_ahead
from fairway.api.views import estimate_of
from fairway.core.event import JobSubmitted
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.placement.at_home import Around
from fairway.policies import make_policy
from fairway.runtime.daemon.explain import explain, reason_outside
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.tenancy import rivals
from fairway.runtime.jobs.commands import UnknownJobError
from fairway.runtime.jobs.estimates import submitted
from fairway.runtime.jobs.promises import Channel
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest, checked
from fairway.simulator import roll_forward as onward
from fairway.simulator.roll_forward import Outlook, look_onward

AS_IS = WhatIf()
"""The question without conditions."""
MOST_WALL_S = 10.0
WHY_WALL_S = 0.4
MOST_IN_FULL = 1000
"""Of how many jobs a page is told all that is expected."""
_TIMES = ("start_s", "start_in_s", "finish_s", "finish_in_s")
_NOTHING_AHEAD = Outlook({}, {}, {}, 0.0, "")


def what_if(scheduler: Scheduler, question: WhatIf | Mapping[str, Any] = AS_IS) -> dict[str, Any]:
    """Estimate when jobs start and end.

    `policy` replaces the present one; `cluster_gpus` are the GPUs that there would be; `job` and `jobs` are new jobs;
    with `ids` the answer is about these jobs only. The id of an array means its tasks. Times are seconds since 1970,
    those with `in` seconds from now. If something would be different, `otherwise` says what happens without that: in
    all, for each user and for each job.
    """
    asked_for = question if isinstance(question, WhatIf) else checked(WhatIf, question)
    policy = make_policy(asked_for.policy) if asked_for.policy else None
    requests = [JobRequest(**vars(one)) for one in (*asked_for.jobs, asked_for.job) if one is not None]
    records = [record for name in asked_for.ids for record in _known_jobs(scheduler, name)]
    now = copied_present(scheduler, keep={record.number for record in records})
    moved = now
    if asked_for.cluster_gpus is not None:
        moved = moved_to(scheduler, now, other_cluster(now.snapshot.cluster, asked_for.cluster_gpus))
    for request in requests:
        scheduler.commands.refuse_impossible([request], moved.snapshot.cluster)
    present, newcomers = _with_newcomers(scheduler, moved, requests)
    changed = policy is not None or moved is not now or bool(newcomers)
    horizon_s, wall_s = asked_for.horizon_s or MOST_DAYS * 86400.0, MOST_WALL_S / (2 if changed else 1)
    limits = onward.AS_FAR._replace(horizon_s=horizon_s, wall_s=wall_s)
    outlook, used = _looked(scheduler, present, policy, records, newcomers, limits)
    before = _looked(scheduler, now, None, records, (), limits)[0] if changed else None
    told = _told(scheduler, present, outlook, records, requests)
    told["policy"] = asked_for.policy or scheduler.policy_text
    told["cluster_gpus"] = gpus_by_name(present.snapshot.cluster, present.gone)
    told["problem"] = used.problem
    _add_intervals(scheduler, told, records, requests, asked_for.policy or "", as_is=not changed)
    told["users"] = _users(scheduler, present, records, outlook, before)
    if before is not None:
        about = {"policy": scheduler.policy_text, "cluster_gpus": gpus_by_name(now.snapshot.cluster)}
        told["otherwise"] = about | _figures(scheduler, now, before, records)
        for row, job in zip(told["jobs"], _numbers(present, records), strict=True):
            estimate = _estimate(scheduler, now, before, job)
            row["otherwise"] = {name: estimate[name] for name in _TIMES}
    return told


def _looked(
    scheduler: Scheduler,
    present: Present,
    policy: Policy | None,
    records: Sequence[JobRecord],
    newcomers: Sequence[JobSubmitted],
    limits: onward.Horizon,
) -> tuple[Outlook, ForecastGuard]:
    """Roll the present forward as far as needed for the jobs asked about, or all. Jobs that never start are not waited
    for."""
    asked = [record.number for record in records if record.number in present.specs]
    known = asked if records else present.snapshot.jobs.tolist()
    matter = {job for job in (*known, *(event.job for event in newcomers)) if not present.never(job)}
    if not matter:
        # They have ended, or never start.
        limits = limits._replace(steps=0)
    wanted = matter if records or present.stranded else ()
    return _rolled(scheduler, present, policy, newcomers=newcomers, wanted=wanted, limits=limits)


def _numbers(present: Present, records: Sequence[JobRecord]) -> list[int]:
    """The jobs that an answer is about: those asked about, or all that are there."""
    return [record.number for record in records] or present.snapshot.jobs.tolist()


def _users(
    scheduler: Scheduler, present: Present, records: Sequence[JobRecord], outlook: Outlook, before: Outlook | None
) -> list[dict[str, Any]]:
    """The mean completion times of each user, side by side: of the jobs that end within both forecasts."""
    by_user: dict[str, list[int]] = {}
    there = set(present.snapshot.jobs.tolist())
    for job in _numbers(present, records):
        if job in there:
            by_user.setdefault(scheduler.store[job].request.user, []).append(job)
    told = []
    for user, jobs in sorted(by_user.items()):
        ends = [job for job in jobs if job in outlook.finished_s and (before is None or job in before.finished_s)]
        told.append(
            {
                "user": user,
                "jobs": len(jobs),
                "compared": len(ends),
                "mean_jct_s": _mean(_jct_s(scheduler, outlook, job) for job in ends),
                "otherwise_mean_jct_s": before and _mean(_jct_s(scheduler, before, job) for job in ends),
            }
        )
    return told


def _jct_s(scheduler: Scheduler, outlook: Outlook, job: int) -> float:
    return scheduler.clock.date_s(outlook.finished_s[job]) - scheduler.store[job].submitted_s


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _add_intervals(
    scheduler: Scheduler,
    told: dict[str, Any],
    records: Sequence[JobRecord],
    requests: Sequence[JobRequest],
    policy: str,
    *,
    as_is: bool,
) -> None:
    """Say between when and when the jobs of an answer start and end. What is told of things `as_is` is a promise."""
    jobs = ((records[at] if records else scheduler.store.get(row["id"]), row) for at, row in enumerate(told["jobs"]))
    known = [(record, row) for record, row in jobs if record is not None]
    with_intervals(scheduler, known, told="what-if" if as_is else None, policy=policy)
    new = [JobRecord(-1, "", request, 0.0) for request in requests]
    with_intervals(scheduler, zip(new, told["new"], strict=True), policy=policy)


def why(scheduler: Scheduler, name: str, told: Channel = "why") -> dict[str, Any]:
    """`explain` with an estimate of start and end. `told` is the channel by which that is told."""

    def forecast(scheduler: Scheduler, record: JobRecord) -> dict[str, Any]:
        estimate = _forecast(scheduler, record)
        with_intervals(scheduler, [(record, estimate)], told=told)
        return estimate

    return explain(scheduler, name, forecast=forecast)


def _forecast(scheduler: Scheduler, record: JobRecord) -> dict[str, Any]:
    """When one job may start and end. The forecast takes a moment at most, however many jobs are ahead."""
    job, present = record.number, copied_present(scheduler, keep={record.number})
    now_s, basis = present.snapshot.now_s, {"basis": estimate_of(scheduler, record).source, "note": _note(present)}
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
        speeds = scheduler.observations.relative(record)
        if present.snapshot.cluster is not scheduler.cluster:
            speeds = speeds_there(speeds, request, present.snapshot.cluster)
        events.append(submitted(record, speeds, expected_s, now_s, restart_s))
        records.append(record)
    outside = [*(scheduler.store[job] for job in present.outside), *records]
    blocked, stranded = present.blocked, dict(present.stranded)
    for event in events:
        about = (present.snapshot, blocked, event.spec.gpus_min, event.speeds, present.gone)
        why_not = why_stranded(*about) if blocked else ""
        stranded |= {event.job: why_not} if why_not else {}
    limited = {one.number: LimitedArray("", one.request.array_at_once) for one in records if one.request.array_at_once}
    conditions = conditions_of(scheduler, outside, present.snapshot.frame.held_gpus, present.snapshot.cluster)
    if present.gone:
        conditions = {job: condition for job, condition in conditions.items() if job not in stranded}
    then = present._replace(
        outside={**present.outside, **{one.number: _why_new(one) for one in records}},
        conditions=conditions,
        arrays={**present.arrays, **limited},
        restart_s={**present.restart_s, **{event.job: event.restart_s for event in events}},
        falls_back={**present.falls_back, **{one.number: 0.0 for one in records if one.request.preempt == "restart"}},
        stranded=stranded,
        limit_left_s={**present.limit_left_s, **limits_left(records, date_s)},
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
        restarts_spared=scheduler.state.restarts_spared,
        restart_s=present.restart_s,
        falls_back=present.falls_back,
        limit_left_s=present.limit_left_s,
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
            "basis": estimate_of(scheduler, record).source,
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
        "blocked_gpus": sorted(present.blocked.keys() - present.gone),
        "note": _note(present),
        "jobs": jobs,
        "new": new,
        **_figures(scheduler, present, outlook, records),
    }


def _figures(scheduler: Scheduler, present: Present, outlook: Outlook, records: Sequence[JobRecord]) -> dict[str, Any]:
    """Totals over all present jobs, or those asked about. Jobs that never start are counted separately."""
    now_s = present.snapshot.now_s
    there = set(present.snapshot.jobs.tolist())
    jobs = [record.number for record in records if record.number in there] if records else sorted(there)
    never = sum(map(present.never, jobs))
    ends = [outlook.finished_s[job] for job in jobs if job in outlook.finished_s]
    jct_s = [_jct_s(scheduler, outlook, job) for job in jobs if job in outlook.finished_s]
    return {
        "finished": len(ends),
        "not_finished": len(jobs) - len(ends),
        "never_start": never,
        "mean_jct_s": _mean(jct_s),
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
    if present.never(job) and (not present.shut_out(job) or (present.gone and job in present.stranded)):
        told["why"] = present.stranded[job]
    elif present.never(job):
        known = job < present.next_number
        told["why"] = reason_outside(scheduler, scheduler.store[job]) if known else present.outside[job]
    return told


def all_ahead(scheduler: Scheduler, wall_s: float) -> dict[str, Any]:
    """When all jobs are expected to start and end, if nothing else comes; looks ahead for at most `wall_s`."""
    present, clock = copied_present(scheduler, keep=()), scheduler.clock
    jobs = present.snapshot.jobs.tolist()
    matter, limits = {job for job in jobs if not present.never(job)}, onward.AS_FAR._replace(wall_s=wall_s)
    if not matter:
        limits = limits._replace(steps=0)
    wanted = matter if present.stranded else ()
    outlook, used = _rolled(scheduler, present, None, wanted=wanted, limits=limits, spans=True)
    return {
        "made_s": clock.today_s(present.snapshot.now_s),
        "policy": scheduler.policy_text,
        "until_s": clock.today_s(outlook.until_s),
        "cut": outlook.cut,
        "note": _note(present),
        "problem": used.problem,
        "jobs": _all_told(scheduler, {job: _estimate(scheduler, present, outlook, job) for job in jobs}),
        "spans": spans_ahead(scheduler, outlook, present.snapshot.now_s),
    }


def _all_told(scheduler: Scheduler, estimates: Mapping[int, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What is expected of each job, by its id. Everybody who has a page open is told.

    The first `MOST_IN_FULL` have intervals. Of those that start later only the start is told: 10,000 jobs in full would
    be more than all else that a page loads.
    """
    soonest = sorted(estimates, key=lambda job: (_begins_s(estimates[job]), job))
    known = [(scheduler.store[job], estimates[job]) for job in soonest]
    with_intervals(scheduler, known[:MOST_IN_FULL], told="forecast")
    later = {
        record.id: {"start_s": round(told["start_s"]), "start_rough": True}
        for record, told in known[MOST_IN_FULL:]
        if told["start_s"]
    }
    return {record.id: _ahead(told) for record, told in known[:MOST_IN_FULL]} | later


def _begins_s(told: Mapping[str, Any]) -> float:
    """When a job is expected to start: long ago if it runs, never if it is not expected to."""
    return float(told["start_s"] or (0.0 if told["finish_s"] else math.inf))


def _ahead(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is expected of one job, in short: to the second."""
    ahead: dict[str, Any] = {"why": told.get("why", ""), "sure": told["sure"]}
    for kind in ("start", "finish"):
        point_s, between_s = told[f"{kind}_s"], told[f"{kind}_between_s"]
        ahead[f"{kind}_s"] = None if point_s is None else round(point_s)
        ahead[f"{kind}_between_s"] = between_s and [round(one) for one in between_s]
        ahead[f"{kind}_rough"] = told[f"{kind}_rough"]
    return ahead


def _note(present: Present) -> str:
    """What the forecast assumes."""
    blocked = len(present.blocked.keys() - present.gone)
    gpus = "1 GPU is" if blocked == 1 else f"{blocked} GPUs are"
    return f"{gpus} blocked (`fairway nodes` says why); the forecast assumes that this stays so" if blocked else ""
