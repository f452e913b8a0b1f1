"""Start and end forecasts with their intervals, and the record of what was told.

`with_intervals` adds intervals to the entries of a forecast, where intervals of that kind can be trusted. With `told`,
the channel by which somebody is told, the promises are kept and scored (`runtime/jobs/promises`), with the interval
that was told or that would have been.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from fairway.api.views import estimate_of, steady
from fairway.core.event import Event
from fairway.models.calibration import SURE, WAITS, LeadSpread, Subject
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.commands import StoppedError
from fairway.runtime.jobs.promises import Channel
from fairway.runtime.jobs.records import JobRecord, Promise

MOST_TOLD = 1000
"""How many promises of one forecast are kept: those of the starts and ends that come first."""
What = Literal["start", "finish"]


class _Point(NamedTuple):
    """A forecast of one start or end: seconds from now, the interval, and what the run time is known from."""

    record: JobRecord
    kind: What
    lead_s: float
    spread: LeadSpread
    basis: str
    rough: bool


def with_intervals(
    scheduler: Scheduler,
    entries: Iterable[tuple[JobRecord, dict[str, Any]]],
    *,
    told: Channel | None = None,
    policy: str = "",
) -> None:
    """Add `start_between_s`, `finish_between_s` and `sure` to the entries of a forecast, made just now.

    An entry has `start_s` and `finish_s`, in seconds since 1970, or None. Where a time gets no interval because too few
    held before, `start_rough` or `finish_rough` is true. `policy` is the one that was forecast, if not the present one.
    `told`: somebody is told by this channel, so the promises are kept.
    """
    points = [point for record, entry in entries for point in _points(scheduler, record, entry, policy)]
    if told is not None and points:
        _keep(scheduler, points, told)


def _points(scheduler: Scheduler, record: JobRecord, entry: dict[str, Any], policy: str) -> list[_Point]:
    clock, book = scheduler.clock, scheduler.promises
    now_s, points = clock.today_s(clock.now_s()), list[_Point]()
    entry |= {"start_between_s": None, "finish_between_s": None, "sure": None}
    entry |= {"start_rough": False, "finish_rough": False}
    begin, begin_lead_s = _NOW, 0.0
    for kind in _KINDS:
        point_s = entry.get(f"{kind}_s")
        if point_s is None:
            continue
        lead_s, basis, guess_s, ran_s = max(point_s - now_s, 0.0), "", None, 0.0
        if kind == "finish":
            known, ran_s = estimate_of(scheduler, record), record.ran_until_s(clock.date_s(clock.now_s()))
            guess_s = begin.low_s + max(known.low_s - ran_s, 0.0), begin.high_s + max(known.high_s - ran_s, 0.0)
            basis = f"{known.basis} {WAITS}" if begin is not _NOW else known.basis
        spread = book.interval(Subject(policy or scheduler.policy_text, kind, basis), lead_s, guess_s)
        if kind == "start":
            begin, begin_lead_s = spread, lead_s
        elif record.request.limit_s:
            left_s = max(record.request.limit_s - ran_s, 0.0)
            spread = _limited(spread, begin.high_s + max(left_s, lead_s - begin_lead_s))
        rough = not book.trust(kind).tells_intervals
        entry[f"{kind}_rough"] = rough
        if not rough:
            entry[f"{kind}_between_s"] = [now_s + spread.low_s, now_s + spread.high_s]
            entry["sure"] = SURE
        points.append(_Point(record, kind, lead_s, spread, basis, rough))
    return points


def _limited(spread: LeadSpread, latest_s: float) -> LeadSpread:
    """An interval that ends at `latest_s` at the latest, because a time limit ends the job.

    The forecast itself keeps to the limit. What it has more between start and end is waiting, for preempted jobs.
    """
    return spread._replace(low_s=min(spread.low_s, latest_s), high_s=min(spread.high_s, latest_s))


_KINDS: tuple[What, What] = ("start", "finish")
_NOW = LeadSpread(0.0, 0.0, "")
"""The start of a job that runs."""


def _keep(scheduler: Scheduler, points: Sequence[_Point], channel: Channel) -> None:
    """Have the scheduler keep promises. Nobody waits for that, and a scheduler that stops has none to keep."""
    some = points if len(points) <= MOST_TOLD else sorted(points, key=lambda one: one.lead_s)[:MOST_TOLD]
    told_s, policy = scheduler.clock.date_s(scheduler.clock.now_s()), scheduler.policy_text

    def command(now_s: float) -> tuple[list[Event], None]:
        for record, kind, lead_s, spread, basis, rough in some:
            dates = (told_s + lead_s, told_s + spread.low_s, told_s + spread.high_s)
            promise = Promise(kind, channel, told_s, *dates, policy, basis, spread.scored_as, SURE, rough)
            if scheduler.promises.keep(record, promise):
                scheduler.store.touch(record)
        return [], None

    with suppress(StoppedError):
        scheduler.engine.ask(command)


def record_of_promises(
    scheduler: Scheduler, policy: str | None, user: str | None, since_s: float | None
) -> dict[str, Any]:
    """How good promises were, by policy and by user. `since_s` is in seconds since 1970."""
    told = steady(lambda: scheduler.promises.told(policy, user, since_s and since_s - scheduler.clock.shift_s))
    chosen = (record for record in scheduler.store.unsettled() if user in (None, record.request.user))
    promises = (promise for record in chosen for promise in list(record.promises))
    open_now = sum(promise.decided_s is None and policy in (None, promise.policy) for promise in promises)
    return {**told, "open": open_now}
