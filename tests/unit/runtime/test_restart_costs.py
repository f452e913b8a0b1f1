"""What stops and starts of live jobs are expected to cost, learnt from those that were seen."""

from __future__ import annotations

import pytest

from fairway.runtime.records import Attempt, JobRecord
from fairway.runtime.request import JobRequest
from fairway.runtime.restarts import SUSPENDED_S, UNKNOWN_S, RestartCosts


def _record(number: int = 0, **about: object) -> JobRecord:
    request = JobRequest(command=("train",), **{"user": "ana", "name": "big", "preempt": "checkpoint", **about})  # type: ignore[arg-type]
    return JobRecord(number, str(number + 1), request, 0.0)


def _runs(costs: RestartCosts, record: JobRecord, start_s: float, stop_s: float, cause: str = "request") -> None:
    """An attempt that reports after a while, is asked to stop, and is gone a while later."""
    attempt = Attempt(len(record.attempts) + 1, [0], "token", launched_s=1000.0)
    record.attempts.append(attempt)
    for said_s in (1000.0 + start_s, 1500.0):
        record.progress.reported_s = said_s
        costs.reported(record)
    costs.asked(record, 2000.0)
    attempt.ended_s, attempt.cause = 2000.0 + stop_s, cause
    costs.ended(record)


def test_without_experience_a_usual_cost_is_assumed_and_suspending_is_nearly_free() -> None:
    costs = RestartCosts()
    assert costs.expected_s(_record().request) == UNKNOWN_S
    assert costs.expected_s(_record(preempt="suspend").request) == SUSPENDED_S


def test_the_median_of_jobs_alike_counts_before_that_of_all() -> None:
    costs = RestartCosts()
    for number, (start_s, stop_s) in enumerate(((4.0, 1.0), (6.0, 2.0), (50.0, 30.0))):
        _runs(costs, _record(number), start_s, stop_s)
    for number in range(3, 7):
        _runs(costs, _record(number, name="small"), 0.5, 0.5)
    assert costs.expected_s(_record().request) == pytest.approx(6.0 + 2.0)
    assert costs.expected_s(_record(name="small").request) == pytest.approx(1.0)
    assert costs.expected_s(_record(user="ben", name="new").request) == pytest.approx(1.0, abs=4.0)


def test_an_end_that_nobody_asked_for_tells_nothing_about_stopping() -> None:
    costs = RestartCosts()
    _runs(costs, _record(), 3.0, 7.0, cause="")
    assert costs.expected_s(_record().request) == pytest.approx(3.0)


def test_reports_left_over_from_an_earlier_attempt_do_not_count() -> None:
    costs, record = RestartCosts(), _record()
    record.attempts.append(Attempt(1, [0], "token", launched_s=1000.0))
    record.progress.reported_s = 900.0
    costs.reported(record)
    assert costs.expected_s(record.request) == UNKNOWN_S
