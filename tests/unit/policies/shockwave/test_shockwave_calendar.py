"""The calendar of a plan: when it is stale, what it remembers, and what it tells those who wait."""

from __future__ import annotations

import numpy as np
import pytest
from shockwave_samples import through_json

from fairway.core.snapshot import Snapshot
from fairway.policies.shockwave.calendar import Calendar
from fairway.testing import job, snapshot_of

PLAN = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]], dtype=bool)
"""Four rounds of three jobs; the third has none."""


def some(jobs: int = 3, batch_size: int = 32, now_s: float = 0.0) -> Snapshot:
    return snapshot_of([job(f"j{at}", 1, batch_size=batch_size) for at in range(jobs)], "v100:1x4", now_s=now_s)


def laid_down(snapshot: Snapshot | None = None) -> Calendar:
    calendar = Calendar()
    kinds = np.zeros(3, dtype=np.int64)
    calendar.write(snapshot or some(), PLAN, np.array([1.0, 1.0, 5.0]), kinds, 0.25)
    calendar.began_s, calendar.at = 0.0, 1
    return calendar


def test_an_empty_calendar_is_stale() -> None:
    assert Calendar().is_stale(some(), 8)


def test_a_plan_is_followed_while_nothing_happens() -> None:
    assert not laid_down().is_stale(some(now_s=120.0), 8)


def test_an_arrival_makes_it_stale() -> None:
    assert laid_down().is_stale(some(4), 8)


def test_a_completion_makes_it_stale() -> None:
    assert laid_down().is_stale(some(2), 8)


def test_a_completion_and_an_arrival_at_once_make_it_stale() -> None:
    other = some(4)
    other.ints, other.floats = other.ints[:, 1:], other.floats[:, 1:]
    assert laid_down().is_stale(other, 8)


def test_another_batch_size_makes_it_stale_but_the_jobs_are_the_same() -> None:
    calendar, grown = laid_down(), some(batch_size=64)
    assert calendar.is_stale(grown, 8)
    assert calendar.same_jobs(grown)


def test_a_node_that_goes_makes_it_stale_and_the_shares_too() -> None:
    calendar, fewer = laid_down(), some()
    fewer.capacity = np.array([3])
    assert calendar.is_stale(fewer, 8)
    assert not calendar.same_jobs(fewer)


@pytest.mark.parametrize(("at", "replan_rounds", "stale"), [(1, 2, False), (2, 2, True), (3, 8, False), (4, 8, True)])
def test_a_plan_is_stale_after_some_rounds_or_when_none_is_left(at: int, replan_rounds: int, stale: bool) -> None:
    calendar = laid_down()
    calendar.at = at
    assert calendar.is_stale(some(), replan_rounds) == stale


def test_a_plan_is_written_as_job_numbers_and_an_order_for_idle_gpus() -> None:
    """By the first round that a job has, then by urgency; who has none comes last."""
    calendar = laid_down()
    assert calendar.rounds == [[0], [1], [], [0]]
    assert calendar.order == [0, 1, 2]
    assert calendar.gap == 0.25
    nobody = Calendar()
    nobody.write(some(), np.zeros((4, 3), dtype=bool), np.array([1.0, 3.0, 2.0]), np.zeros(3, dtype=np.int64), 0.0)
    assert nobody.order == [1, 2, 0]


def test_it_comes_back_from_memory_also_through_json() -> None:
    calendar = laid_down()
    memory = calendar.memory()
    for kept in (memory, through_json(memory)):
        back = Calendar.recall(kept)
        assert back.rounds == calendar.rounds
        assert (back.at, back.began_s, back.order, back.gap) == (1, 0.0, [0, 1, 2], 0.25)
        assert not back.is_stale(some(), 8)
        assert back.kind_of(some(4)).tolist() == [0, 0, 0, -1]


@pytest.mark.parametrize(
    "memory", [{}, {"other": 1}, {"shockwave": 7}, {"shockwave": {"rounds": []}}, {"shockwave": {"unknown": 1}}]
)
def test_memory_that_is_not_its_own_is_ignored(memory: dict[str, object]) -> None:
    calendar = Calendar.recall(memory)
    assert calendar.rounds == []
    assert calendar.began_s == -np.inf


def test_what_is_remembered_is_a_copy() -> None:
    snapshot = some()
    calendar = laid_down(snapshot)
    for kept, live in ((calendar.jobs, snapshot.jobs), (calendar.batches, snapshot.batch_size)):
        assert not np.shares_memory(kept, live)


def test_those_who_wait_are_told_when_their_round_is() -> None:
    texts = laid_down().texts(some(4, now_s=30.0), np.array([0, 1, 2, 3]), 120.0)
    assert texts[1] == "planned to run in 90 s, if nobody comes or leaves before"
    assert texts[0] == "planned to run in 330 s, if nobody comes or leaves before"
    assert texts[2] == "has no round among the next 3: they are worth more to others"
    assert texts[3] == "came after the last plan; the next round, in 90 s, is planned with it"
    assert list(texts) == [0, 1, 2, 3]
    assert len(texts) == 4


def test_only_those_who_wait_have_a_text() -> None:
    texts = laid_down().texts(some(), np.array([1]), 120.0)
    assert dict(texts).keys() == {1}
    with pytest.raises(KeyError):
        texts[0]
