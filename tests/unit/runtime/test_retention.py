"""Which jobs leave: those that ended too long ago, and the oldest of too many."""

from __future__ import annotations

from fairway.runtime.daemon.config import Keep
from fairway.runtime.daemon.retention import due
from fairway.runtime.journal.archive import Family

FAMILIES = [Family(1, (0,), 10.0), Family(2, (1, 2, 3), 20.0), Family(3, (4,), 30.0), Family(4, (5,), 40.0)]


def _gone(keep_s: float | None, keep_jobs: int | None) -> list[int]:
    return [one.number for one in due(FAMILIES, Keep(keep_s, keep_jobs), 50.0)]


def test_jobs_leave_by_age() -> None:
    assert _gone(100.0, None) == []
    assert _gone(25.0, None) == [1, 2]
    assert _gone(0.0, None) == [1, 2, 3, 4]


def test_jobs_leave_by_number_and_arrays_as_a_whole() -> None:
    assert _gone(None, 6) == []
    assert _gone(None, 5) == [1]
    assert _gone(None, 4) == [1, 2]
    assert _gone(None, 2) == [1, 2]
    assert _gone(None, 0) == [1, 2, 3, 4]


def test_the_stricter_rule_counts() -> None:
    assert _gone(35.0, 2) == [1, 2]
    assert _gone(15.0, 5) == [1, 2, 3]
    assert _gone(None, None) == []
