"""Submissions on their way in. One of many jobs is taken in piece by piece, so that nobody else waits long.

All of it is checked before anything is changed, some requests at a time. Once it is accepted, a fact of the journal has
everything that is to come. So all of its jobs come, even if the scheduler is killed in between: the next one goes on
from the fact. Commands that name one of its jobs or keys wait until all of it is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairway.runtime.jobs.holdings import Load
from fairway.runtime.jobs.records import JobRecord, family_of, is_array, key_of
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import sharing

_TO_COME, _HAVE_COME = "arriving", "arrived"
_OWN = ("array_task", "client_key")
"""What differs between the tasks of an array."""


class Arrival:
    """One submission.

    `known` are the jobs that were submitted before under the same keys, as far as that was checked, and `load` is what
    the others add up to. These are `new`. Once it is accepted, their ids begin with `first_id`, and `come` of them are
    there. `promised`: not all of it comes at once.
    """

    def __init__(self, requests: Sequence[JobRequest], *, array: bool) -> None:
        self.requests = requests
        self.known: list[JobRecord | None] = []
        self.load = Load()
        self.first_id: int | None = None
        self.new: list[JobRequest] = []
        self.come = 0
        self.promised = False
        self._array = array
        # The same key twice in one submission is one job.
        self._marks: list[str | int] = [key_of(request) or at for at, request in enumerate(requests)]
        self._keys = {mark for mark in self._marks if isinstance(mark, str)}
        self._places: dict[str | int, int] = {}
        self._records: list[JobRecord] = []
        self._rows: list[Any] = []

    def shares_keys(self, other: Arrival) -> bool:
        """Whether one key is in both submissions."""
        return not self._keys.isdisjoint(other._keys)

    def prepare(self) -> None:
        """Make what `facts` needs. Any thread may call this: it takes a while."""
        self._rows = _rows(self.requests)

    def unchecked(self, most: int) -> Sequence[JobRequest]:
        """The requests that are to be checked next, at most this many."""
        return self.requests[len(self.known) : len(self.known) + most]

    def note_known(self, known: Sequence[JobRecord | None]) -> list[JobRequest]:
        """Note which of the next requests have jobs. Returns those that are new."""
        new: list[JobRequest] = []
        for at, record in enumerate(known, len(self.known)):
            if record is None and self._marks[at] not in self._places:
                self._places[self._marks[at]] = at
                new.append(self.requests[at])
        self.known += known
        self.new += new
        self.load.add(new)
        return new

    @property
    def next_id(self) -> int:
        """The first id after its own."""
        assert self.first_id is not None
        return self.first_id + (1 if self._array else len(self.new))

    def has_id(self, name: str) -> bool:
        """Whether this is the id of one of its jobs, or of the array."""
        if self.first_id is None or not is_array(name.partition("_")[0]):
            return False
        return self.first_id <= family_of(name) < self.next_id

    @property
    def left(self) -> int:
        """How many of its jobs are still to come."""
        return len(self.new) - self.come

    def next_requests(self, most: int) -> Sequence[JobRequest]:
        """The requests that come next, at most this many."""
        return self.new[self.come : self.come + most]

    def next_name(self) -> str:
        """The id of the next job."""
        assert self.first_id is not None
        return f"{self.first_id}_{self.new[self.come].array_task}" if self._array else str(self.first_id + self.come)

    def note(self, record: JobRecord) -> None:
        """The next job is there."""
        self._records.append(record)
        self.come += 1

    def answer(self) -> list[JobRecord]:
        """The jobs of all requests."""
        made = dict(zip(self._places, self._records, strict=True))
        return [made[mark] if record is None else record for mark, record in zip(self._marks, self.known, strict=True)]

    def facts(self) -> dict[str, Any]:
        """What the journal has to know after a step. A fact that is None is deleted."""
        to_come, have_come = f"{_TO_COME} {self.first_id}", f"{_HAVE_COME} {self.first_id}"
        if not self.left:
            return {to_come: None, have_come: None}
        if self.come:
            return {have_come: self.come}
        rows = [self._rows[at] for at in self._places.values()]
        return {to_come: {"array": self._array, "first": self.requests[0].plain(), "rows": rows}}


def awaited(requests: Iterable[JobRequest]) -> dict[str, None]:
    """The ids of the jobs and arrays that requests depend on."""
    # The tasks of an array have one object.
    lists = {id(request.depends): request.depends for request in requests if request.depends}
    return dict.fromkeys(one.job for depends in lists.values() for one in depends)


def _rows(requests: Sequence[JobRequest]) -> list[Any]:
    """Requests as JSON values. For those that are like the first one, only what is their own."""
    first = {name: value for name, value in vars(requests[0]).items() if name not in _OWN}

    def row(request: JobRequest) -> Any:
        own = vars(request)
        alike = all(own[name] is value or own[name] == value for name, value in first.items())
        return [own[name] for name in _OWN] if alike else request.plain()

    return [row(request) for request in requests]


def unfinished(facts: Mapping[str, Any]) -> Iterable[Arrival]:
    """The arrivals that an earlier scheduler had accepted and not finished, by the facts in its journal."""
    for name, value in facts.items():
        kind, _, number = name.partition(" ")
        if kind != _TO_COME:
            continue
        first = JobRequest.from_plain(value["first"])
        made = [_request(first, row) for row in value["rows"]]
        arrival = Arrival(sharing(made), array=value["array"])
        arrival.note_known([None] * len(made))
        arrival.first_id, arrival.come = int(number), facts.get(f"{_HAVE_COME} {number}", 0)
        arrival.load = Load()
        arrival.load.add(arrival.next_requests(len(made)))
        yield arrival


def _request(first: JobRequest, row: Collection[Any]) -> JobRequest:
    """Read a row."""
    if isinstance(row, dict):
        return JobRequest.from_plain(row)
    return replace(first, **dict(zip(_OWN, row, strict=True)))
