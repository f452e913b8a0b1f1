"""All jobs in short, as the web page needs them: by columns, with a table of texts, packed once for all pages.

A text that several jobs have is a number: its place in the table. Ids and dates of submission that are numbers are the
difference from the row before. So ten thousand jobs are less than 200 kB on the wire.

A list is made again when something has changed, but only for a small share of the time: an older one says by the id of
an event how old it is, and the events after that say which rows have changed since.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fairway.api import views
from fairway.api.events import Stream
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState

FIELDS = (
    *("id", "name", "user", "queue", "state", "reason", "gpus", "gpus_held", "priority", "submitted_s", "started_s"),
    *("ended_s", "ran_s", "step", "steps", "command"),
)
LEVEL = 6
"""How hard lists are packed: a tenth smaller than at 3, in twice the time."""
_SHARED, _MAYBE_SHARED = ("user", "queue", "state"), ("name", "reason", "command")
"""Fields that are texts: always in the table, or if several jobs have the same."""
LATEST = 1000
"""How many jobs that have ended are in a list."""
LEAST_S, OLDEST_S, SHARE = 1.0, 5.0, 0.05
"""A list counts for this long whatever happens, and at most; lists are made for at most this share of the time."""
MOST_KEPT = 20
_NO_ROWS: dict[str, list[Any]] = {name: [] for name in FIELDS}


class PackedAnswer(NamedTuple):
    """An answer as it is sent, and what it was made of. `made_s` is by a clock that is never set."""

    content: bytes
    version: tuple[Any, ...]
    made_s: float
    took_s: float


class ShortList:
    """Lists of the jobs of one scheduler. Any thread may call this. `who` sees all that a list has; "": everybody."""

    def __init__(self, scheduler: Scheduler, stream: Stream, now_s: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._stream, self._now_s = scheduler, stream, now_s
        self._kept: dict[str, PackedAnswer] = {}
        self._some: dict[tuple[str, ...], PackedAnswer] = {}
        self._counted: tuple[float, dict[str, int]] = (-math.inf, {})

    def kept(self, who: str) -> PackedAnswer | None:
        """The list that was made last, if it still counts."""
        found = self._kept.get(who)
        if found is None:
            return None
        age_s = self._now_s() - found.made_s
        unchanged = found.version == self._version() and age_s < OLDEST_S
        return found if unchanged or age_s < max(LEAST_S, found.took_s / SHARE) else None

    def made(self, who: str, sees: views.Sees) -> PackedAnswer:
        """A list of all active jobs and the latest that have ended, the newest first."""
        found = self.kept(who)
        if found is not None:
            # Somebody else has asked for it, too, and was first.
            return found
        began_s, version, event = self._now_s(), self._version(), self._stream.last
        records = list(self._scheduler.store)
        ended = sorted((one for one in records if one.state.ended), key=lambda one: -(one.ended_s or 0.0))
        dropped = {one.number for one in ended[LATEST:]}
        shown = [one for one in records if one.number not in dropped]
        counts = views.states(self._scheduler)
        shown.sort(key=lambda one: -one.number)
        left_out = max(sum(counts.values()) - len(shown), 0)
        content = self._content(shown, sees, event, counts, left_out)
        made = PackedAnswer(content, version, began_s, self._now_s() - began_s)
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[who] = made
        return made

    def some(self, names: Sequence[str], who: str, sees: views.Sees) -> bytes:
        """A list of these jobs. One that there is not is left out. Pages that show the same ask for the same."""
        version, asked = self._version(), (who, *names)
        found = self._some.get(asked)
        if found is None or found.version != version or self._now_s() > found.made_s + LEAST_S:
            if len(self._some) >= MOST_KEPT:
                self._some.clear()
            found = self._some[asked] = PackedAnswer(self._some_made(names, sees), version, self._now_s(), 0.0)
        return found.content

    def _some_made(self, names: Sequence[str], sees: views.Sees) -> bytes:
        event, store = self._stream.last, self._scheduler.store
        found = {one.number: one for one in map(store.get, dict.fromkeys(names)) if one is not None}
        if self._now_s() > self._counted[0] + LEAST_S:
            self._counted = self._now_s(), views.states(self._scheduler)
        rows = [found[one] for one in sorted(found, reverse=True)]
        return self._content(rows, sees, event, self._counted[1], 0)

    def _version(self) -> tuple[Any, ...]:
        scheduler = self._scheduler
        return scheduler.store.changes, scheduler.state.round, scheduler.clock.shift_s

    def _content(
        self, records: Sequence[JobRecord], sees: views.Sees, event: str, counts: dict[str, int], left_out: int
    ) -> bytes:
        clock = self._scheduler.clock
        now_s = clock.now_s()
        rows = [self._row(record, now_s, sees(record)) for record in records]
        columns = dict(zip(FIELDS, map(list, zip(*rows, strict=True)), strict=True)) if rows else dict(_NO_ROWS)
        texts = _Texts()
        for name in _SHARED:
            columns[name] = [texts[one] for one in columns[name]]
        for name in _MAYBE_SHARED:
            often = Counter(columns[name])
            columns[name] = [texts[one] if often[one] > 1 else one for one in columns[name]]
        columns["id"] = _ids(columns["id"])
        columns["submitted_s"] = _differences(columns["submitted_s"])
        told = {"now_s": round(clock.today_s(now_s), 3), "event": event, "fields": FIELDS, "texts": list(texts)}
        told |= {"columns": list(columns.values()), "counts": counts, "left_out": left_out}
        return gzip.compress(json.dumps(told, separators=(",", ":")).encode("ascii"), LEVEL, mtime=0)

    def _row(self, record: JobRecord, now_s: float, seen: bool) -> tuple[Any, ...]:
        request, state, shift_s = record.request, record.state, self._scheduler.clock.shift_s
        share, attempt, progress = request.gpu_share, record.attempt, record.progress
        held, ran_s = 0, record.ran_s
        if state is JobState.RUNNING and attempt is not None:
            held, ran_s = len(attempt.gpus), self._scheduler.engine.ran_s(record, now_s)
        return (
            record.id,
            request.name,
            request.user,
            request.queue,
            str(state),
            views.reason_of(self._scheduler, record, seen=seen),
            request.gpus if share == 1 else share,
            held if share == 1 else held * share,
            request.priority,
            round(record.submitted_s + shift_s),
            _date(record.started_s, shift_s),
            _date(record.ended_s, shift_s),
            round(ran_s, 1) if ran_s else 0,
            _finite(progress.step),
            _finite(progress.steps or request.steps),
            views.command_of(request) if seen else "",
        )


class _Texts(dict[str, int]):
    """Texts and their places. A new one gets the next place."""

    def __missing__(self, text: str) -> int:
        place = self[text] = len(self)
        return place


def _ids(names: Sequence[str]) -> list[Any]:
    """Ids that are numbers as differences; those of tasks as they are."""
    numbers = iter(_differences([int(one) for one in names if one.isdecimal()]))
    return [next(numbers) if one.isdecimal() else one for one in names]


def _differences(numbers: Sequence[int]) -> list[int]:
    return [one - before for one, before in zip(numbers, [0, *numbers], strict=False)]


def _date(date_s: float | None, shift_s: float) -> float | None:
    return None if date_s is None else round(date_s + shift_s, 1)


def _finite(value: float | None) -> float | None:
    """A number with at most three digits after the point; what is none is null."""
    if not value or not math.isfinite(value):
        return 0 if value == 0 else None
    return int(value) if value == int(value) else round(value, 3)
