"""All jobs of a scheduler: those that have not ended in memory, the others on disk, read when they are asked for.

A job is *settled* once it has ended, its processes are gone, and the journal has both. It never changes again. The
latest settled jobs stay in memory. Older ones are only in the archive, which is the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairway.runtime.jobs.records import JobRecord, JobState, family_of, key_of
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import SharedEnvironment, shared, with_environment

RECENT = 1000
"""How many settled jobs stay in memory."""
JOB_BYTES = 1024
"""What a job counts for besides its texts."""
DEPENDENCY_BYTES = 64
_MOST_TALLIES = 10_000


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
    """What is kept of all jobs that are gone, with some more: how many there were, and what they add up to."""
    used: dict[str, float] = dict(gone["gpu_s"]) if gone else {}
    for record in records:
        user = record.request.user
        used[user] = used.get(user, 0.0) + record.gpu_s
    preemptions = sum(record.preemptions for record in records)
    return {
        "jobs": (gone["jobs"] if gone else 0) + len(records),
        "gpu_s": used,
        "preemptions": (gone["preemptions"] if gone else 0) + preemptions,
    }


class Holdings:
    """What jobs that have not ended hold: how many there are, and the bytes of their requests, by user.

    An environment counts once for each user.
    """

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._held: dict[int, tuple[str, int, SharedEnvironment]] = {}
        self._sharers: Counter[tuple[str, str]] = Counter()
        self._measured: tuple[tuple[str, ...], int] = ((), 0)

    def __len__(self) -> int:
        return len(self._held)

    def take(self, record: JobRecord) -> None:
        """Count a job."""
        user, env = record.request.user, shared(record.request.env)
        own = self._own_bytes(record.request)
        self._held[record.number] = user, own, env
        self.jobs[user] += 1
        self.bytes[user] += own + (0 if self._sharers[user, env.hash] else env.size)
        self._sharers[user, env.hash] += 1

    def release(self, number: int) -> None:
        """A job has ended."""
        held = self._held.pop(number, None)
        if held is None:
            return
        user, own, env = held
        self._sharers[user, env.hash] -= 1
        self.jobs[user] -= 1
        self.bytes[user] -= own
        if not self._sharers[user, env.hash]:
            del self._sharers[user, env.hash]
            self.bytes[user] -= env.size
        if not self.jobs[user]:
            del self.jobs[user], self.bytes[user]

    def added_bytes(self, requests: Iterable[JobRequest]) -> Counter[str]:
        """How many bytes requests would add, by user."""
        added: Counter[str] = Counter()
        seen: set[tuple[str, str]] = set()
        for request in requests:
            user, env = request.user, shared(request.env)
            added[user] += self._own_bytes(request)
            if (user, env.hash) not in seen and not self._sharers[user, env.hash]:
                seen.add((user, env.hash))
                added[user] += env.size
        return added

    def _own_bytes(self, request: JobRequest) -> int:
        """How much a request holds besides its environment."""
        command, size = self._measured
        if command is not request.command:
            # The tasks of an array have one command, and come one after the other.
            size = sum(map(len, request.command))
            self._measured = request.command, size
        texts = (*request.gpu_types, request.cwd, request.shown, request.name, request.model)
        return JOB_BYTES + size + sum(map(len, texts)) + DEPENDENCY_BYTES * len(request.depends)


class JobStore:
    """All jobs by number and id, and which records have changed since they were last stored.

    To iterate gives the jobs in memory: all that are not settled, and the latest `recent` others. `some_away` says
    whether there are more, only on disk.
    """

    def __init__(self, archive: Archive | None = None, *, recent: int = RECENT) -> None:
        self.past = SettledTotals()
        self.held = Holdings()
        self.next_number = 0
        self.next_id = 1
        self.some_away = False
        self._archive: Archive = archive or NoArchive()
        self._most_recent = recent if archive is not None else None
        self._by_number: dict[int, JobRecord] = {}
        self._by_id: dict[str, JobRecord] = {}
        self._by_family: dict[int, dict[int, JobRecord]] = {}
        self._by_key: dict[str, JobRecord] = {}
        self._changed: dict[int, JobRecord] = {}
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

    def take_changed(self) -> list[JobRecord]:
        """Return the records that have to be stored now, and unmark them. Call `settle` with them afterwards."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

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
        return list(self._by_family.get(int(name), {}).values()) if _is_array(name) else []

    def has(self, name: str) -> bool:
        """Whether there is a job or an array with this id."""
        return bool(self.present(name) or self._archive.states(name))

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


def _is_array(name: str) -> bool:
    return name.isascii() and name.isdecimal()
