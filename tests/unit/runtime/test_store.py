"""All jobs of a scheduler: those that have ended leave the memory, and are found all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairway.runtime.jobs.records import Attempt, JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import shared, sharing
from fairway.runtime.jobs.store import JobStore
from fairway.runtime.journal.archive import JobArchive, Wanted
from fairway.runtime.journal.database import Journal


class Kept:
    """A store with its journal and archive."""

    def __init__(self, path: Path, recent: int) -> None:
        self.journal = Journal(path)
        self.archive = JobArchive(path)
        self.store = JobStore(self.archive, recent=recent)

    def add(self, name: str, state: JobState = JobState.PENDING, **about: object) -> JobRecord:
        request = JobRequest(command=("true",), **{"user": "ann", **about})  # type: ignore[arg-type]
        record = JobRecord(self.store.next_number, name, request, 1.0, state, ended_s=2.0, gpu_s=3.0)
        self.store.add(record)
        return record

    def save(self, *records: JobRecord) -> None:
        with self.journal.transaction():
            self.journal.save_jobs(record.stored() for record in records)
        self.store.settle(records)

    def end(self, record: JobRecord, state: JobState = JobState.COMPLETED) -> None:
        record._state = state
        self.save(record)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "journal.db", recent=1)
    yield made
    made.archive.close()
    made.journal.close()


def test_jobs_that_have_ended_leave_the_memory_and_are_found(kept: Kept) -> None:
    jobs = [kept.add(str(at + 1), client_key=f"k{at}", env={"A": "1"}) for at in range(4)]
    for job in jobs[:3]:
        kept.end(job)
    assert [one.id for one in kept.store] == ["3", "4"]
    assert kept.store[0].request == jobs[0].request
    assert kept.store[0].request.env is jobs[3].request.env
    assert [getattr(kept.store.get(str(at)), "id", None) for at in range(6)] == [None, "1", "2", "3", "4", None]
    assert [getattr(one, "id", None) for one in kept.store.known([job.request for job in jobs])] == list("1234")
    assert kept.store.known([replace(jobs[0].request, user="bob")]) == [None]
    assert kept.store.past.states == {JobState.COMPLETED: 3}
    assert kept.store.past.gpu_s == {"ann": 9.0}
    assert [one.id for one in kept.store.unsettled()] == ["4"]


def test_an_array_is_found_as_a_whole(kept: Kept) -> None:
    tasks = [kept.add(f"1_{at}", array_task=at) for at in range(4)]
    kept.end(tasks[0])
    assert kept.store.states("1") == {JobState.COMPLETED: 1, JobState.PENDING: 3}
    kept.end(tasks[1], JobState.FAILED)
    kept.end(tasks[2])
    assert kept.store.states("1") == {JobState.COMPLETED: 2, JobState.FAILED: 1, JobState.PENDING: 1}
    assert kept.store.states("1_1") == {JobState.FAILED: 1}
    assert [one.id for one in kept.store.tasks("1")] == ["1_0", "1_1", "1_2", "1_3"]
    assert [one.id for one in kept.store.present("1")] == ["1_2", "1_3"]
    assert kept.store.has("1_0")
    assert not kept.store.has("1_9")
    assert not kept.store.has("what")


def test_a_job_whose_processes_still_run_stays_in_memory(kept: Kept) -> None:
    job = kept.add("1")
    job.attempts.append(Attempt(1, [0], "t", 1.0))
    kept.end(job, JobState.CANCELLED)
    others = [kept.add(str(at)) for at in (2, 3)]
    for one in others:
        kept.end(one)
    assert [one.id for one in kept.store] == ["1", "3"]
    assert [stored.id for stored in kept.journal.unsettled()] == ["1"]
    assert len(kept.store.held) == 0
    job.attempts[-1].ended_s = 5.0
    kept.save(job)
    assert [one.id for one in kept.store] == ["1"]


def test_what_is_gone_is_not_found_and_its_gpu_time_stays(kept: Kept) -> None:
    jobs = [kept.add(str(at + 1), env={"A": str(at)}) for at in range(3)]
    for job in jobs:
        kept.end(job)
    gone = [kept.store[0], kept.store[2]]
    with kept.journal.transaction():
        kept.journal.forget([0, 2])
    kept.store.drop(gone)
    assert [bool(kept.store.get(str(at))) for at in (1, 2, 3)] == [False, True, False]
    with pytest.raises(KeyError):
        kept.store[0]
    assert kept.store.past.gpu_s == {"ann": 9.0}
    assert +kept.store.past.states == {JobState.COMPLETED: 1}
    assert (kept.store.next_number, kept.store.next_id) == (3, 4)


def test_the_archive_selects_jobs(kept: Kept) -> None:
    for at in range(5):
        job = kept.add(str(at + 1), user="ann" if at % 2 else "bob", queue="q" if at > 2 else "")
        job.ended_s, job.submitted_s = 10.0 - at, float(at)
        kept.end(job, JobState.FAILED if at == 4 else JobState.COMPLETED)

    def found(wanted: Wanted, most: int = 9, *, by_end: bool = False) -> list[int]:
        return [number for number, _ in kept.archive.listed(wanted, most, by_end=by_end)]

    assert found(Wanted()) == [4, 3, 2, 1, 0]
    assert found(Wanted(), 2, by_end=True) == [0, 1]
    assert found(Wanted(user="ann")) == [3, 1]
    assert found(Wanted({JobState.FAILED})) == [4]
    assert found(Wanted(queue="q", user="bob")) == [4]
    assert found(Wanted(submitted_since_s=3.0)) == [4, 3]
    assert found(Wanted(ended_since_s=9.0)) == [1, 0]
    assert [one.number for one in kept.archive.records([3, 0, 77])] == [3, 0]


def test_equal_environments_are_one_object_and_are_hashed_once() -> None:
    env = {"A": "1", "B": "2"}
    request = JobRequest(command=("true",), env=env)
    tasks = sharing([request.task(number) for number in range(3)])
    assert [task.array_task for task in tasks] == [0, 1, 2]
    assert len({id(task.env) for task in tasks}) == 1
    assert tasks[0].env is shared({"B": "2", "A": "1"})
    assert shared({"A": "1"}) is not tasks[0].env


def test_an_environment_counts_once_for_each_user() -> None:
    store = JobStore()
    env = {"A": "x" * 10_000}
    for at in range(6):
        request = JobRequest(command=("true",), user="ann" if at else "bob", env=dict(env))
        store.add(JobRecord(at, str(at + 1), request, 1.0))
    assert store.held.jobs == {"ann": 5, "bob": 1}
    assert 10_000 < store.held.bytes["bob"] < 12_000
    assert 10_000 < store.held.bytes["ann"] < 17_000
    for record in store:
        record._state = JobState.COMPLETED
        store.settle([record])
    assert (len(store.held), store.held.bytes) == (0, {})
