"""All jobs of a scheduler: those that have not ended in memory, the others on disk, read when they are asked for.

A job is *settled* once it has ended, its processes are gone, and the journal has both. It never changes again. The
latest settled jobs stay in memory. Older ones are only in the archive, which is the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairway.runtime.jobs.arrivals import Arrival, awaited
from fairway.runtime.jobs.holdings import Holdings
from fairway.runtime.jobs.records import JobNote, JobRecord, JobState, family_of, is_array, key_of
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import SharedEnvironment, shared, with_environment

RECENT = 1000
"""How many settled jobs stay in memory."""
_MOST_TALLIES = 10_000
MOST_NOTE = 400
"""The most characters of a note."""


class Archive(Protocol):
    """The settled jobs on disk. Any thread may ask."""

    def job(self, number: int) -> JobRecord:
        """A job by its number; `KeyError` if it is not there."""
        ...

    def named(self, name: str) -> list[JobRecord]:
        """The job with this id, or all tasks of the array with this id, in order."""
        ...

    def states(self, name: str) -> dict[int, JobState]:
        """The states of the job with this id, or of all tasks of the array with this id, by number."""
        ...

    def with_keys(self, keys: Sequence[str]) -> dict[str, JobRecord]:
        """The jobs that were submitted under these keys."""
        ...


class NoArchive:
    """The archive of a store that keeps all jobs in memory."""

    def job(self, number: int) -> JobRecord:
        """No job."""
        raise KeyError(number)

    def named(self, name: str) -> list[JobRecord]:
        """No jobs."""
        return []

    def states(self, name: str) -> dict[int, JobState]:
        """No jobs."""
        return {}

    def with_keys(self, keys: Sequence[str]) -> dict[str, JobRecord]:
        """No jobs."""
        return {}


@dataclass
class SettledTotals:
    """What settled jobs add up to. GPU time and preemptions also count jobs that are gone from the archive."""

    states: Counter[JobState] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    gpu_s: dict[str, float] = field(default_factory=dict)
    preemptions: int = 0

    def add(self, record: JobRecord) -> None:
        """Count a job that is settled now."""
        user = record.request.user
        self.states[record.state] += 1
        self.ended[user] += 1
        self.gpu_s[user] = self.gpu_s.get(user, 0.0) + record.gpu_s
        self.preemptions += record.preemptions

    def drop(self, user: str, state: JobState) -> None:
        """A job is gone."""
        self.states[state] -= 1
        self.ended[user] -= 1

    def add_gone(self, gone: Mapping[str, Any] | None) -> None:
        """Count what jobs had that are gone, as `with_gone` gave it."""
        if gone:
            for user, gpu_s in gone["gpu_s"].items():
                self.gpu_s[user] = self.gpu_s.get(user, 0.0) + gpu_s
            self.preemptions += gone["preemptions"]


def with_gone(gone: Mapping[str, Any] | None, records: Sequence[JobRecord]) -> dict[str, Any]:
    """What is kept of all jobs that are gone, with some more: how many there were, what they add up to, and when the
    last of them ended."""
    used: dict[str, float] = dict(gone["gpu_s"]) if gone else {}
    for record in records:
        user = record.request.user
        used[user] = used.get(user, 0.0) + record.gpu_s
    preemptions = sum(record.preemptions for record in records)
    ended_s = max((record.ended_s or 0.0 for record in records), default=0.0)
    return {
        "until_s": max((gone or {}).get("until_s", 0.0), ended_s),
        "jobs": (gone["jobs"] if gone else 0) + len(records),
        "gpu_s": used,
        "preemptions": (gone["preemptions"] if gone else 0) + preemptions,
    }


class JobStore:
    """All jobs by number and id, and which records have changed since they were last stored.

    To iterate gives the jobs in memory: all that are not settled, and the latest `recent` others. `some_away` says
    whether there are more, only on disk. `changes` counts how often a record has changed.
    """

    def __init__(self, archive: Archive | None = None, *, recent: int = RECENT) -> None:
        self.past = SettledTotals()
        self.held = Holdings()
        self._arriving: list[Arrival] = []
        self.next_number = 0
        self.next_id = 1
        self.some_away = False
        self.changes = 0
        self._archive: Archive = archive or NoArchive()
        self._most_recent = recent if archive is not None else None
        self._by_number: dict[int, JobRecord] = {}
        self._by_id: dict[str, JobRecord] = {}
        self._by_family: dict[int, dict[int, JobRecord]] = {}
        self._by_key: dict[str, JobRecord] = {}
        self._changed: dict[int, JobRecord] = {}
        self._notes: list[JobNote] = []
        self._courses: dict[int, bytes] = {}
        self._recent: dict[int, JobRecord] = {}
        self._tallies: dict[str, Counter[JobState]] = {}

    def skip(self, number: int, least_id: int) -> None:
        """Give new jobs numbers and ids from these on."""
        self.next_number = max(self.next_number, number)
        self.next_id = max(self.next_id, least_id)

    def add(self, record: JobRecord) -> None:
        """Add a job."""
        if not isinstance(record.request.env, SharedEnvironment):
            record.request = with_environment(record.request, shared(record.request.env))
        self._by_number[record.number] = record
        self._by_id[record.id] = record
        self._by_family.setdefault(family_of(record.id), {})[record.number] = record
        key = key_of(record.request)
        if key is not None:
            self._by_key[key] = record
        self.skip(record.number + 1, family_of(record.id) + 1)
        if record.settled:
            self._recent[record.number] = record
        elif not record.state.ended:
            self.held.take(record)

    def touch(self, record: JobRecord) -> None:
        """Mark a record as changed: it has to be stored."""
        self._changed[record.number] = record
        self.changes += 1

    def take_changed(self) -> list[JobRecord]:
        """Return the records that have to be stored now, and unmark them. Call `settle` with them afterwards."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def note(self, record: JobRecord, date_s: float, what: str, text: str) -> None:
        """Tell what happened to a job, in a word and as a sentence without its subject. It is stored with the rest."""
        self._notes.append(JobNote(record.number, date_s, what, text[:MOST_NOTE]))

    def keep_course(self, number: int, points: bytes) -> None:
        """Store with the rest what a job has reported over time."""
        self._courses[number] = points

    def take_stories(self) -> tuple[list[JobNote], dict[int, bytes]]:
        """Return the notes and courses that have to be stored now, and forget them."""
        stories = self._notes, self._courses
        self._notes, self._courses = [], {}
        return stories

    def settle(self, stored: Iterable[JobRecord]) -> None:
        """These records are on disk now. Those that are settled may leave the memory."""
        for record in stored:
            if record.state.ended:
                self.held.release(record.number)
            if record.settled and record.number in self._by_number and record.number not in self._recent:
                self._recent[record.number] = record
                self.past.add(record)
        while self._most_recent is not None and len(self._recent) > self._most_recent:
            self.some_away = True
            self._leave_memory(next(iter(self._recent)))

    def drop(self, gone: Iterable[JobRecord]) -> None:
        """These jobs are gone from the archive."""
        for record in gone:
            self.past.drop(record.request.user, record.state)
            self._leave_memory(record.number)
            self._forget_tally(record.id)

    def _leave_memory(self, number: int) -> None:
        record = self._recent.pop(number, None)
        if record is None:
            return
        self._forget_tally(record.id)
        family = family_of(record.id)
        tasks = self._by_family[family]
        del self._by_number[number], self._by_id[record.id], tasks[number]
        if not tasks:
            del self._by_family[family]
        key = key_of(record.request)
        if key is not None and self._by_key.get(key) is record:
            del self._by_key[key]

    def _forget_tally(self, name: str) -> None:
        self._tallies.pop(name, None)
        self._tallies.pop(str(family_of(name)), None)

    def known(self, requests: Sequence[JobRequest]) -> list[JobRecord | None]:
        """For each request the job that the same user has submitted before under the same key."""
        keys = [key_of(request) for request in requests]
        away = [key for key in keys if key is not None and key not in self._by_key]
        archived = self._archive.with_keys(away) if away and self.some_away else {}
        return [None if key is None else self._by_key.get(key) or archived.get(key) for key in keys]

    def __getitem__(self, number: int) -> JobRecord:
        found = self._by_number.get(number)
        return self._archive.job(number) if found is None else found

    def get(self, name: str) -> JobRecord | None:
        """A job by its id."""
        found = self._by_id.get(name)
        if found is not None:
            return found
        return next((one for one in self._archive.named(name) if one.id == name), None)

    def tasks(self, name: str) -> list[JobRecord]:
        """The job with this id, or all tasks of the array with this id."""
        present = self.present(name)
        if present and present[0].id == name:
            return present
        found = {one.number: one for one in self._archive.named(name)} | {one.number: one for one in present}
        return [found[number] for number in sorted(found)]

    def present(self, name: str) -> list[JobRecord]:
        """The same as `tasks`, without jobs that are only on disk."""
        found = self._by_id.get(name)
        if found is not None:
            return [found]
        return list(self._by_family.get(int(name), {}).values()) if is_array(name) else []

    def has(self, name: str) -> bool:
        """Whether there is a job or an array with this id, or it is arriving."""
        return bool(self.present(name) or self.is_arriving(name) or self._archive.states(name))

    def begin_arrival(self, arrival: Arrival) -> None:
        """A submission is arriving, and others with the same keys wait."""
        if arrival not in self._arriving:
            self._arriving.append(arrival)

    def promise(self, arrival: Arrival) -> None:
        """A submission was accepted, and will come piece by piece."""
        self.begin_arrival(arrival)
        arrival.promised = True
        self.held.promise(arrival.load)
        self.skip(0, arrival.next_id)

    def end_arrival(self, arrival: Arrival) -> None:
        """All of a submission is here, or it was refused."""
        if arrival in self._arriving:
            self._arriving.remove(arrival)

    @property
    def arriving(self) -> Sequence[Arrival]:
        """The submissions of which not all is here yet."""
        return tuple(self._arriving)

    def is_to_wait(self, new: Arrival) -> bool:
        """Whether a submission has to wait for another one, which has the same keys or on which it depends."""
        if not self._arriving:
            return False
        names = awaited(new.requests)
        return any(one.shares_keys(new) or any(map(one.has_id, names)) for one in self._arriving)

    def is_arriving(self, name: str) -> bool:
        """Whether a submission is arriving to which the job or array with this id belongs."""
        return any(arrival.has_id(name) for arrival in self._arriving)

    def states(self, name: str) -> Counter[JobState]:
        """How many jobs are in each state: the job with this id, or the tasks of the array with this id.

        Only the scheduler's thread may call this.
        """
        present = self.present(name)
        found = Counter(one.state for one in present)
        if present and present[0].id == name:
            return found
        tally = self._tallies.get(name)
        if tally is None:
            here = {one.number for one in present}
            archived = self._archive.states(name)
            tally = Counter(state for number, state in archived.items() if number not in here)
            if len(self._tallies) >= _MOST_TALLIES:
                self._tallies.clear()
            self._tallies[name] = tally
        return found + tally

    def unsettled(self) -> list[JobRecord]:
        """The jobs that `past` does not count."""
        return [one for one in list(self._by_number.values()) if one.number not in self._recent]

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)
