"""Promises: the starts and ends that were told to somebody, kept until it is known whether they were right.

A promise is in the record of its job, and goes with it. What became of the latest promises, and totals of all, are a
fact of the journal. The intervals of new promises are made of it (`models/calibration`).

Not every word is kept: of each kind, and by each channel, at most one in ten minutes, and ever fewer as time goes on. A
promise is *void* if a person has changed the job itself since (cancelled, held, suspended, released, put back or
updated it), and if the job's own program has failed. Everything else counts, whoever is to blame.

An interval is told only where enough intervals of earlier promises held (`Trust`). A promise always has one, told or
not, and is scored by it; otherwise there would never be enough.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from fairway.models.calibration import SURE, Calibration, LeadSpread, Subject
from fairway.models.promise_score import SCORED, DecidedPromise, Trust, figures
from fairway.runtime.jobs.records import JobRecord, JobState, Promise, later

FACT = "promises"
"""The fact of the journal that has the record."""
EVERY_S = 60.0
"""How often that is written at most. What was decided since is in the records of the jobs."""
GAP_S = 600.0
"""The least time between two promises of one kind and channel about a job. It doubles with each."""
MOST_PROMISES = 24
"""How many promises about a job are kept."""
LATEST = 2000
"""How many promises that were decided are kept one by one."""
MOST_TOTALS = 2000
_PROGRAM = (JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.CANCELLED)
"""The ends of a job that no forecast is about."""

Channel = Literal["submit", "why", "what-if", "forecast"]
"""Where a promise was told: with a submission, by `why`, by `what-if`, or in the forecast of the whole queue."""
Mine = tuple[str, str, str]


class Tally(NamedTuple):
    """How many promises were decided, how many of them were within their intervals, and how many were void."""

    decided: int = 0
    within: int = 0
    void: int = 0


class PromiseBook:
    """The record of promises. The scheduler's thread writes it; any thread may ask for an interval."""

    def __init__(self, facts: Mapping[str, Any] | None = None, records: Iterable[JobRecord] = ()) -> None:
        self.calibration = Calibration()
        self.latest: deque[DecidedPromise] = deque(maxlen=LATEST)
        self.totals: dict[Mine, Tally] = {}
        self._held: dict[str, deque[bool]] = {}
        self._trust: dict[str, Trust] = {}
        self._changed, self._written_s = False, -math.inf
        self._until_s = self._read((facts or {}).get(FACT))
        self._catch_up(records, self._until_s)

    def interval(self, subject: Subject, lead_s: float, guess_s: tuple[float, float] | None = None) -> LeadSpread:
        """From when to when something happens that is forecast in `lead_s` seconds."""
        return self.calibration.interval(subject, lead_s, guess_s)

    def trust(self, kind: str) -> Trust:
        """How far the intervals of starts, or of ends, can be trusted. This alone says whether they are told."""
        return self._trust.get(kind, Trust())

    def keep(self, record: JobRecord, promise: Promise) -> bool:
        """Keep a promise that was told, unless there is one that was told by the same channel not long before."""
        same = [one for one in record.promises if (one.kind, one.channel) == (promise.kind, promise.channel)]
        early = bool(same) and promise.told_s < same[-1].told_s + GAP_S * 2 ** (len(same) - 1)
        if early or len(record.promises) >= MOST_PROMISES or record.state.ended:
            return False
        runs = promise.kind == "start" and record.state is JobState.RUNNING
        if runs and (record.since_s is None or record.since_s < promise.told_s):
            return False
        record.promises.append(promise)
        if runs and record.since_s is not None:
            # It has started while this was told.
            self.started(record, record.since_s)
        return True

    def started(self, record: JobRecord, date_s: float) -> None:
        """A job computes: its start is known."""
        self._decide(record, date_s, ("start",))

    def ended(self, record: JobRecord, date_s: float) -> None:
        """A job has ended. One that failed by itself was not what the forecast was about."""
        if record.state not in _PROGRAM:
            self._decide(record, date_s, ("finish",))
        self.void(record, date_s)

    def void(self, record: JobRecord, date_s: float) -> None:
        """A job is not any more what its promises were about."""
        for promise in record.promises:
            if promise.decided_s is None:
                promise.decided_s = self._until_s = date_s
                self._count(_mine(record, promise), void=1)

    def facts(self, now_s: float) -> dict[str, Any]:
        """What the journal has to be told now, if anything."""
        if not self._changed or now_s < self._written_s + EVERY_S:
            return {}
        self._changed, self._written_s = False, now_s
        totals = [[*mine, *tally] for mine, tally in self.totals.items()]
        return {FACT: {"until_s": self._until_s, "totals": totals, "latest": [list(one) for one in self.latest]}}

    def _decide(self, record: JobRecord, date_s: float, kinds: tuple[str, ...]) -> None:
        for promise in record.promises:
            if promise.decided_s is None and promise.kind in kinds:
                promise.actual_s = promise.decided_s = self._until_s = date_s
                self._learn(_decided(record, promise))

    def _learn(self, one: DecidedPromise, *, count: bool = True) -> None:
        self.latest.append(one)
        held = self._held.setdefault(one.kind, deque(maxlen=SCORED))
        held.append(one.kept)
        self._trust[one.kind] = Trust(len(held), sum(held))
        spread = LeadSpread(one.low_s, one.high_s, one.scored_as)
        self.calibration.learn(Subject(one.policy, one.kind, one.basis), one.lead_s, spread, one.actual_s)
        if count:
            self._count((one.policy, one.user, one.kind), decided=1, within=int(one.kept))

    def _count(self, mine: Mine, decided: int = 0, within: int = 0, void: int = 0) -> None:
        known = self.totals.pop(mine, Tally())
        self.totals[mine] = Tally(known.decided + decided, known.within + within, known.void + void)
        self._changed = True
        if len(self.totals) > MOST_TOTALS:
            del self.totals[next(iter(self.totals))]

    def _read(self, fact: Any) -> float:
        """Take over what the journal has. Returns up to when. What cannot be read begins again."""
        try:
            known = [DecidedPromise(*row) for row in fact["latest"]] if fact else []
            totals = {(p, u, k): Tally(*map(int, rest)) for p, u, k, *rest in fact["totals"]} if fact else {}
            until_s = float(fact["until_s"]) if fact else -math.inf
            for one in known:
                self._learn(one, count=False)
        except (TypeError, ValueError, KeyError):
            self.calibration = Calibration()
            for known_so_far in (self.latest, self._held, self._trust):
                known_so_far.clear()
            return -math.inf
        self.totals.update(totals)
        return until_s

    def _catch_up(self, records: Iterable[JobRecord], until_s: float) -> None:
        """Take in what was decided after the fact was written."""
        found = [
            (promise.decided_s, record.number, record, promise)
            for record in records
            for promise in record.promises
            if promise.decided_s is not None and promise.decided_s > until_s
        ]
        for _, _, record, promise in sorted(found, key=lambda one: one[:2]):
            if promise.actual_s is None:
                self._count(_mine(record, promise), void=1)
            else:
                self._learn(_decided(record, promise))

    # --- the record, for people --------------------------------------------------------------------------------------

    def told(self, policy: str | None = None, user: str | None = None, since_s: float | None = None) -> dict[str, Any]:
        """How good promises were, by policy and by user; only those told since a date, if it is given."""
        chosen = [
            one
            for one in self.latest
            if policy in (None, one.policy) and user in (None, one.user) and one.told_s >= (since_s or -math.inf)
        ]
        totals = {
            mine: tally for mine, tally in self.totals.items() if policy in (None, mine[0]) and user in (None, mine[1])
        }
        return {
            "sure": SURE,
            "intervals": [self._told_of(kind) for kind in ("start", "finish")],
            "latest": len(chosen),
            "policies": _by(lambda one: one.policy, chosen, {mine: mine[0] for mine in totals}, totals, "policy"),
            "users": _by(lambda one: one.user, chosen, {mine: mine[1] for mine in totals}, totals, "user"),
        }

    def _told_of(self, kind: str) -> dict[str, Any]:
        trust = self.trust(kind)
        return {"kind": kind, **trust._asdict(), "shown": trust.tells_intervals, "why": trust.why}


def shown(record: JobRecord, shift_s: float) -> list[dict[str, Any]]:
    """What was told of a job, and what became of it, in the order in which it was told. Dates are `shift_s` later.

    The interval of a rough promise was not told, so it is not shown.
    """
    return [
        {
            "kind": one.kind,
            "channel": one.channel,
            "told_s": one.told_s + shift_s,
            "point_s": one.point_s + shift_s,
            "between_s": None if one.rough else [one.low_s + shift_s, one.high_s + shift_s],
            "sure": None if one.rough else one.sure,
            "verdict": _verdict(record, one),
            "actual_s": later(one.actual_s, shift_s),
        }
        for one in list(record.promises)
    ]


def _verdict(record: JobRecord, promise: Promise) -> Literal["open", "kept", "missed", "happened", "void"]:
    if promise.decided_s is None:
        return "open"
    if promise.actual_s is None:
        return "void"
    if promise.rough:
        return "happened"
    return "kept" if _decided(record, promise).kept else "missed"


def _by(
    key: Callable[[DecidedPromise], str],
    chosen: Iterable[DecidedPromise],
    keys: Mapping[Mine, str],
    totals: Mapping[Mine, Tally],
    label: str,
) -> list[dict[str, Any]]:
    """The figures of each policy, or of each user, by what was promised."""
    groups: dict[tuple[str, str], list[DecidedPromise]] = {}
    for one in chosen:
        groups.setdefault((key(one), one.kind), []).append(one)
    tallies: dict[tuple[str, str], Tally] = {}
    for mine, tally in totals.items():
        known = tallies.get((keys[mine], mine[2]), Tally())
        both = zip(known, tally, strict=True)
        tallies[keys[mine], mine[2]] = Tally(*(one + other for one, other in both))
    return [
        {label: name, "kind": kind, **figures(groups.get((name, kind), ())), **_in_all(tallies.get((name, kind)))}
        for name, kind in sorted({*groups, *tallies}, key=lambda one: (one[0], one[1] != "start"))
    ]


def _in_all(tally: Tally | None) -> dict[str, int]:
    tally = tally or Tally()
    return {"decided_in_all": tally.decided, "within_in_all": tally.within, "void_in_all": tally.void}


def _mine(record: JobRecord, promise: Promise) -> Mine:
    return promise.policy, record.request.user, promise.kind


def _decided(record: JobRecord, promise: Promise) -> DecidedPromise:
    told_s, actual_s = promise.told_s, promise.actual_s or 0.0
    dates_s = (promise.point_s, promise.low_s, promise.high_s, max(actual_s, told_s))
    lead_s, low_s, high_s, after_s = (round(date_s - told_s, 3) for date_s in dates_s)
    whole_s = round(promise.point_s - record.submitted_s, 3)
    when = (told_s, promise.decided_s or 0.0)
    return DecidedPromise(
        promise.policy,
        record.request.user,
        promise.kind,
        promise.basis,
        *when,
        lead_s,
        low_s,
        high_s,
        after_s,
        whole_s,
        promise.scored_as,
    )
