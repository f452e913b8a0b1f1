"""Lists of jobs: those in memory and those that are only on disk, as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.store import JobStore
from fairway.runtime.journal.archive import AT_ONCE, JobArchive, Wanted


class JobLists:
    """The lists of one scheduler. Any thread may ask. The jobs that come from disk have no environments."""

    def __init__(self, store: JobStore, archive: JobArchive) -> None:
        self._store = store
        self._archive = archive

    def submitted(self, wanted: Wanted, most: int) -> Iterator[JobRecord]:
        """Jobs in order of submission, the latest `most` of those that are wanted."""
        # First those in memory: a job that leaves the memory in between is on disk then.
        here = {record.number: record for record in self._store}
        numbers = {number for number, record in here.items() if wanted.has(record)}
        if self._store.some_away and (wanted.states is None or any(state.ended for state in wanted.states)):
            numbers.update(number for number, _ in self._archive.listed(wanted, most))
        return self._read(sorted(numbers)[-most:], here)

    def ended(self, wanted: Wanted, most: int) -> Iterator[JobRecord]:
        """Jobs that have ended, the latest `most` of those that are wanted; the latest first."""
        here = {record.number: record for record in self._store}
        ends = dict(self._archive.listed(wanted, most, by_end=True)) if self._store.some_away else {}
        ends.update((number, record.ended_s or 0.0) for number, record in here.items() if wanted.has(record))
        latest = sorted(ends, key=lambda number: (-ends[number], -number))
        return self._read(latest[:most], here)

    def _read(self, numbers: Sequence[int], here: Mapping[int, JobRecord]) -> Iterator[JobRecord]:
        for first in range(0, len(numbers), AT_ONCE):
            some = numbers[first : first + AT_ONCE]
            away = self._archive.records([number for number in some if number not in here], environments=False)
            found = {record.number: record for record in away}
            for number in some:
                record = here.get(number) or found.get(number)
                if record is not None:
                    yield record
