"""Who may come in: every reason to wait outside goes when what is waited for has happened, and not before."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from fairway.core.state import State
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.jobs import life
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import Dependency, DependencyKind, JobRequest
from fairway.runtime.jobs.store import JobStore
from fairway.runtime.jobs.waiting import Eligibility, Timers


class Site:
    """Eligibility with a store of jobs, and what the state is taken to hold."""

    def __init__(self) -> None:
        self.store = JobStore()
        self.held: dict[int, tuple[int, ...]] = {}
        self.clock = Clock({"origin_s": 0.0})
        self.timers = Timers()
        self.eligibility = Eligibility(self.store, cast(State, SimpleNamespace(held_gpus=self.held)), self.timers, 0.0)

    def job(self, name: str = "", *, depends: tuple[Dependency, ...] = (), at_once: int = 0) -> JobRecord:
        """Take a job in, now."""
        number = self.store.next_number
        request = JobRequest(command=("true",), depends=depends, array_at_once=at_once)
        record = JobRecord(number, name or str(number + 1), request, 0.0)
        self.store.add(record)
        self.look_at(record)
        return record

    def look_at(self, record: JobRecord) -> str:
        """Look at a job again; why it is outside."""
        self.eligibility.look_at(record, self.clock.now_s())
        return self.eligibility.outside.get(record.number, "")

    def end(self, record: JobRecord, state: JobState = JobState.COMPLETED) -> None:
        """A job ends."""
        life.move(record, state, self.clock.date_s(self.clock.now_s()))
        self.held.pop(record.number, None)
        self.eligibility.note_off(record, self.clock.now_s())


def test_whoever_is_held_or_suspended_waits_until_it_is_not() -> None:
    site = Site()
    job = site.job()
    assert not site.eligibility.outside
    job.held = True
    assert "fairway release" in site.look_at(job)
    job.suspended = True
    assert "fairway resume" in site.look_at(job)
    job.held = job.suspended = False
    assert site.look_at(job) == ""


@pytest.mark.parametrize(
    ("kind", "state", "why"),
    [
        ("afterok", JobState.COMPLETED, ""),
        ("afterok", JobState.FAILED, "waits for job 1: it did not complete, so this one never starts"),
        ("afternotok", JobState.COMPLETED, "waits for job 1: it completed, so this one never starts"),
        ("afternotok", JobState.CANCELLED, ""),
        ("afterany", JobState.FAILED, ""),
    ],
)
def test_whoever_waits_for_another_job_is_looked_at_when_that_ends(
    kind: DependencyKind, state: JobState, why: str
) -> None:
    site = Site()
    first = site.job()
    second = site.job(depends=(Dependency(kind, first.id),))
    assert site.eligibility.outside == {second.number: "waits for job 1: it has not ended"}
    site.end(first, state)
    assert site.eligibility.outside.get(second.number, "") == why


def test_whoever_waits_for_an_array_waits_for_all_of_its_tasks() -> None:
    site = Site()
    tasks = [site.job(f"1_{at}") for at in range(2)]
    last = site.job(depends=(Dependency("afterok", "1"),))
    site.end(tasks[0])
    assert last.number in site.eligibility.outside
    site.end(tasks[1])
    assert not site.eligibility.outside


def test_a_task_that_leaves_lets_the_next_one_of_its_array_in() -> None:
    site = Site()
    first, second, third = (site.job(f"1_{at}", at_once=1) for at in range(3))
    assert site.eligibility.outside.keys() == {second.number, third.number}
    site.held[first.number] = (0,)
    first.held = True
    # It runs on although it is held, so there is no room for another one.
    site.look_at(first)
    assert site.eligibility.outside.keys() == {0, 1, 2}
    del site.held[first.number]
    site.eligibility.note_off(first, site.clock.now_s())
    assert site.eligibility.outside.keys() == {first.number, third.number}
    site.end(second)
    assert site.eligibility.outside.keys() == {first.number}


def test_whoever_is_to_begin_later_is_let_in_then() -> None:
    site = Site()
    job = site.job()
    begins_s = site.clock.now_s() + 1000.0
    job.not_before_s = site.clock.date_s(begins_s)
    assert site.look_at(job).startswith("not before ")
    job.reason = "failed; tried again in 1000 s"
    assert site.look_at(job) == job.reason
    assert site.timers.next_s == begins_s
    site.timers.ring(begins_s - 1.0)
    assert job.number in site.eligibility.outside
    site.timers.ring(begins_s)
    assert not site.eligibility.outside


def test_whoever_no_gpu_can_run_stays_outside() -> None:
    site = Site()
    job = site.job()
    site.eligibility.rule_out({job.number})
    assert site.look_at(job) == "no GPUs that are here now can run it"


class Counting(JobStore):
    """A store that counts how often the tasks of an array are counted."""

    listed = 0

    def states(self, name: str) -> Counter[JobState]:
        """The states, and one more time."""
        self.listed += 1
        return super().states(name)


def test_an_array_that_many_jobs_wait_for_is_one_thing() -> None:
    site = Site()
    site.store = store = Counting()
    site.eligibility = Eligibility(store, cast(State, SimpleNamespace(held_gpus=site.held)), site.timers, 0.0)
    tasks = [site.job(f"1_{at}") for at in range(100)]
    last = [site.job(depends=(Dependency("afterok", "1"),) * 50) for _ in range(20)]
    looked: list[int] = []
    look_at = site.eligibility.look_at

    def counted(record: JobRecord, now_s: float, *, leaves: bool = False) -> None:
        looked.append(record.number)
        look_at(record, now_s, leaves=leaves)

    site.eligibility.look_at = counted  # type: ignore[method-assign]
    for one in tasks[:-1]:
        site.end(one)
    assert site.eligibility.outside.keys() == {one.number for one in last}
    assert len(looked) == 99
    site.end(tasks[-1])
    assert not site.eligibility.outside
    assert len(looked) == 100 + 20
    assert store.listed == 1


def test_of_many_jobs_that_are_waited_for_the_first_that_is_left_counts() -> None:
    site = Site()
    firsts = [site.job() for _ in range(4)]
    last = site.job(depends=tuple(Dependency("afterany", one.id) for one in firsts))
    for one in (firsts[2], firsts[0]):
        site.end(one)
    assert site.eligibility.outside[last.number] == "waits for job 2: it has not ended"
    site.end(firsts[1])
    assert site.eligibility.outside[last.number] == "waits for job 4: it has not ended"
    site.end(firsts[3])
    assert not site.eligibility.outside


def test_who_was_cancelled_while_it_waited_is_not_looked_at_again() -> None:
    site = Site()
    first = site.job()
    second = site.job(depends=(Dependency("afterok", first.id),))
    site.end(second, JobState.CANCELLED)
    site.end(first)
    assert not site.eligibility.outside
