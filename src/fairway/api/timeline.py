"""Who computed on which GPU when, over the last hours, and who is expected to.

All of it is in the records of jobs, so a scheduler that starts again tells the same. What jobs that have settled held
is read from the journal once and kept.
"""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fairway.api.answers import Answer
from fairway.api.short_list import LEVEL
from fairway.core.cluster import Cluster
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.held_spans import HeldSpan, spans_of
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.journal.archive import Wanted
from fairway.simulator.roll_forward import Outlook

USUAL_S = 4 * 3600.0
"""How far back it goes unless it is asked for more."""
MOST_SPANS = 20_000
AHEAD_S, MOST_AHEAD = 86400.0, 5000
"""How far ahead it goes, and the most spans ahead."""
MOST_JOBS = 20_000
"""The most jobs that have left the memory, the latest."""
KEPT_S, MOST_KEPT = 2.0, 16
"""How long, and how many, answers are given again to others who ask the same."""
_ENDED = frozenset(state for state in JobState if state.ended)

Row = tuple[int, str, float, float | None, float, str | None]
"""GPU, job, from, to (None: until now), share of the GPU, and the job whose GPU it shares."""


class _Held(NamedTuple):
    """What a job held."""

    id: str
    name: str
    user: str
    share: float
    spans: Sequence[HeldSpan]


class Timeline:
    """The timeline of one scheduler. Any thread may ask."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._settled: dict[int, _Held] = {}
        self._answers: dict[tuple[float | None, float | None], tuple[float, bytes]] = {}

    def packed(self, since_s: float | None, until_s: float | None) -> bytes:
        """The answer for a window of dates by the time of day, packed by gzip."""
        now_s, asked = time.monotonic(), (since_s, until_s)
        known = self._answers.get(asked)
        if known is not None and known[0] > now_s - KEPT_S:
            return known[1]
        made = gzip.compress(bytes(Answer(self.told(since_s, until_s)).body), LEVEL, mtime=0)
        while len(self._answers) >= MOST_KEPT:
            self._answers.pop(next(iter(self._answers)), None)
        self._answers[asked] = now_s, made
        return made

    def told(self, since_s: float | None = None, until_s: float | None = None) -> dict[str, Any]:
        """Spans by GPU, the jobs in them, and the GPUs. Spans that are shorter than `least_s` are left out."""
        clock, cluster = self._scheduler.clock, self._scheduler.cluster
        shift_s = clock.shift_s
        now_s = clock.date_s(clock.now_s())
        to_s = now_s if until_s is None else min(until_s - shift_s, now_s)
        from_s = to_s - USUAL_S if since_s is None else since_s - shift_s
        held = [one for one in self._held(from_s) if one.spans]
        total = len(cluster.node_of_gpu)
        rows, least_s = condensed(_rows(held, from_s, to_s, total), to_s)
        shown = {row[1] for row in rows}
        spans = [
            (gpu, job, max(begin_s, from_s) + shift_s, None if end_s is None else end_s + shift_s, share, host)
            for gpu, job, begin_s, end_s, share, host in rows
        ]
        return {
            "from_s": from_s + shift_s,
            "to_s": to_s + shift_s,
            "least_s": least_s,
            "gpus": gpus_of(cluster),
            "jobs": {one.id: {"name": one.name, "user": one.user} for one in held if one.id in shown},
            "spans": spans,
        }

    def _held(self, since_s: float) -> Iterator[_Held]:
        """What jobs held since a date: those in memory, and those that are only on disk."""
        store, archive = self._scheduler.store, self._scheduler.archive
        here = {record.number: record for record in store}
        for record in here.values():
            if record.attempts and (record.ended_s is None or record.ended_s > since_s):
                yield _held_by(record, since_s)
        if not store.some_away:
            return
        wanted = Wanted(_ENDED, ended_since_s=since_s)
        away = [number for number, _ in archive.listed(wanted, MOST_JOBS, by_end=True) if number not in here]
        known = self._settled
        new = archive.records([number for number in away if number not in known], environments=False)
        # A new mapping: other threads may be reading the old one. What this window does not need stays for wider ones.
        found = known | {record.number: _held_by(record) for record in new}
        asked = {number: found[number] for number in away if number in found}
        self._settled = found if len(found) <= 2 * MOST_JOBS else asked
        yield from asked.values()


def _held_by(record: JobRecord, since_s: float = -math.inf) -> _Held:
    request = record.request
    return _Held(record.id, request.name, request.user, request.gpu_share, tuple(spans_of(record, since_s)))


def _rows(held: Iterable[_Held], from_s: float, to_s: float, gpus: int) -> list[Row]:
    """A row for each GPU of each span in a window. Jobs on GPUs that are not there any more are left out."""
    return [
        (gpu, one.id, span.from_s, span.to_s, one.share, span.host)
        for one in held
        for span in one.spans
        if span.from_s < to_s and (span.to_s is None or span.to_s > from_s)
        for gpu in span.gpus
        if gpu < gpus
    ]


def gpus_of(cluster: Cluster) -> list[dict[str, Any]]:
    """All GPUs with their nodes and types."""
    types = [cluster.types[kind].name for kind in cluster.node_type]
    return [
        {"gpu": gpu, "node": cluster.nodes[node].name, "type": types[node]}
        for gpu, node in enumerate(cluster.node_of_gpu)
    ]


def condensed(rows: list[Row], now_s: float, most: int = MOST_SPANS) -> tuple[list[Row], float]:
    """At most so many rows: spans that are too short to be seen are left out, and what is apart by less is joined.

    Returns them in the order of GPUs and time, and the length below which spans are too short. No span is joined over
    one that stays, so jobs still do not overlap.
    """
    rows = sorted(rows, key=lambda row: (row[0], row[2]))
    least_s, kept = 0.0, rows
    while len(kept) > most:
        first_s = min(row[2] for row in rows)
        least_s = 2 * least_s if least_s else max(now_s - first_s, 1.0) / 16384
        kept = _joined(rows, now_s, least_s)
    return kept, least_s


def _joined(rows: Sequence[Row], now_s: float, least_s: float) -> list[Row]:
    kept: list[Row] = []
    last: dict[tuple[int, str], int] = {}
    for row in rows:
        gpu, job, from_s, to_s, *_ = row
        if (now_s if to_s is None else to_s) - from_s < least_s:
            continue
        at = last.get((gpu, job))
        end_s = None if at is None else kept[at][3]
        if at is not None and end_s is not None and from_s - end_s < least_s:
            kept[at] = (gpu, job, kept[at][2], *row[3:])
        else:
            last[gpu, job] = len(kept)
            kept.append(row)
    return kept


def spans_ahead(scheduler: Scheduler, outlook: Outlook, now_s: float) -> list[tuple[int, str, int, int]]:
    """Who is expected on which GPU in a forecast that was asked for it: GPU, job, from and to, to the second.

    Dates are by the time of day. Spans that begin more than `AHEAD_S` after the instant `now_s` are left out.
    """
    clock, store, until_s = scheduler.clock, scheduler.store, min(outlook.until_s, now_s + AHEAD_S)
    rows: list[Row] = []
    for job, from_s, to_s, gpus in outlook.spans:
        if from_s < until_s:
            name, end_s = store[job].id, until_s if to_s is None else min(to_s, until_s)
            rows += [(gpu, name, from_s, end_s, 1.0, None) for gpu in gpus]
    kept, _ = condensed(rows, until_s, MOST_AHEAD)
    return [
        (gpu, job, round(clock.today_s(from_s)), round(clock.today_s(to_s or until_s)))
        for gpu, job, from_s, to_s, *_ in kept
    ]
