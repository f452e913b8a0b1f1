"""Arrays that run only so many tasks at a time."""

from __future__ import annotations

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.waiting import Arrays


def task(number: int, array: str = "7", at_once: int = 2) -> JobRecord:
    return JobRecord(number, f"{array}_{number}", JobRequest(command=("true",), array_at_once=at_once), 0.0)


def test_so_many_are_let_in_and_the_next_when_one_has_left() -> None:
    arrays, tasks = Arrays(), [task(number) for number in range(4)]
    assert [bool(arrays.refused(one)) for one in tasks] == [False, False, True, True]
    assert arrays.left(tasks[3]) == []
    assert arrays.left(tasks[0]) == [tasks[2]]
    assert not arrays.refused(tasks[2])
    assert arrays.left(tasks[1]) == []


def test_who_is_in_stays_in() -> None:
    arrays, tasks = Arrays(), [task(number) for number in range(3)]
    for one in tasks:
        arrays.refused(one)
    assert not arrays.refused(tasks[0])
    assert arrays.refused(tasks[2])


def test_arrays_do_not_count_for_one_another_and_other_jobs_not_at_all() -> None:
    arrays = Arrays()
    assert not arrays.refused(task(1, "7", 1))
    assert not arrays.refused(task(2, "8", 1))
    assert arrays.refused(task(3, "7", 1))
    free = [task(number, "9", 0) for number in range(10, 20)]
    assert not any(arrays.refused(one) for one in free)
    assert arrays.left(free[0]) == []
