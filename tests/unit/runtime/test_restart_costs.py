"""What stops and starts of live jobs are expected to cost, learnt from those that were seen."""

from __future__ import annotations

import pytest

from fairway.core.event import RestartMeasured
from fairway.runtime.jobs.estimates import RESTART_S, SUSPENDED_S, RestartCosts
from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.entries import from_plain, to_plain


def _record(number: int = 0, **about: object) -> JobRecord:
    request = JobRequest(**{"command": ("train",), "user": "ana", "name": "big", "preempt": "checkpoint", **about})  # type: ignore[arg-type]
    return JobRecord(number, str(number + 1), request, 0.0)


def _runs(costs: RestartCosts, record: JobRecord, start_s: float, stop_s: float, cause: str = "request") -> None:
    """An attempt that reports after a while, is asked to stop, and is gone a while later."""
    attempt = Attempt(len(record.attempts) + 1, [0], "token", launched_s=1000.0)
    record.attempts.append(attempt)
    for said_s in (1000.0 + start_s, 1500.0):
        record.progress.reported_s = said_s
        costs.reported(record)
    attempt.ended_s, attempt.cause = 2000.0 + stop_s, cause
    costs.ended(record, stop_s if cause == "request" else None)


def test_without_experience_a_usual_cost_is_assumed_and_suspending_is_nearly_free() -> None:
    costs = RestartCosts()
    assert costs.expected_s(_record().request) == RESTART_S
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


def test_a_log_tells_how_long_a_start_took() -> None:
    costs, record = RestartCosts(), _record(name="", command=("python", "train.py"))
    for ran_s, trained_s, start_s in ((30.0, 24.0, 6.0), (30.0, 31.0, None), (9.0, 9.0, 0.0)):
        record.attempts.append(Attempt(len(record.attempts) + 1, [0], "token", launched_s=1000.0))
        costs.read_off(record, ran_s, trained_s)
        assert record.attempts[-1].start_s == start_s, "one that says more than can be began where it had stopped"
        costs.read_off(record, 100.0, 1.0)
        record.attempts[-1].start_s = start_s
    costs = RestartCosts()
    record.attempts = record.attempts[:1]
    costs.remember(record)
    _runs(costs, _record(1, name="", command=("sleep", "9")), 90.0, 1.0)
    assert costs.expected_s(_record(2, name="", command=("python", "train.py")).request) == pytest.approx(7.0)
    assert costs.expected_s(_record(2, name="", command=("python", "eval.py")).request) == pytest.approx(49.0)


def test_a_start_of_which_nothing_is_known_is_not_free() -> None:
    costs, record = RestartCosts(), _record(preempt="restart")
    record.attempts.append(Attempt(1, [0], "token", launched_s=1000.0, codes=[143], cause="request"))
    costs.ended(record, 0.5)
    assert costs.expected_s(record.request, record.attempts) == RESTART_S + 0.5


def test_an_end_that_nobody_asked_for_tells_nothing_about_stopping() -> None:
    costs = RestartCosts()
    _runs(costs, _record(), 3.0, 7.0, cause="")
    assert costs.expected_s(_record().request) == pytest.approx(3.0)


def test_reports_left_over_from_an_earlier_attempt_do_not_count() -> None:
    costs, record = RestartCosts(), _record()
    record.attempts.append(Attempt(1, [0], "token", launched_s=1000.0))
    record.progress.reported_s = 900.0
    costs.reported(record)
    assert costs.expected_s(record.request) == RESTART_S


def test_what_a_job_was_seen_to_need_counts_before_all_others() -> None:
    costs, mine = RestartCosts(), _record()
    for number in range(1, 5):
        _runs(costs, _record(number), 40.0, 20.0)
    assert costs.expected_s(mine.request, mine.attempts) == pytest.approx(60.0)
    _runs(costs, mine, 3.0, 1.0)
    assert costs.expected_s(mine.request, mine.attempts) == pytest.approx(4.0)
    assert costs.expected_s(_record(9).request) > 40.0


def test_what_was_not_seen_of_a_job_itself_is_taken_from_others() -> None:
    costs, mine = RestartCosts(), _record()
    _runs(costs, _record(1), 40.0, 20.0)
    mine.attempts.append(Attempt(1, [0], "token", launched_s=1000.0))
    mine.progress.reported_s = 1003.0
    costs.reported(mine)
    assert costs.expected_s(mine.request, mine.attempts) == pytest.approx(3.0 + 20.0)


def test_experience_is_kept_over_a_restart_of_the_scheduler() -> None:
    costs = RestartCosts()
    records = [_record(number) for number in range(3)]
    for record in records:
        _runs(costs, record, 5.0, 2.0)
    later = RestartCosts()
    for record in records:
        later.remember(JobRecord.from_plain(record.plain()))
    assert later.expected_s(_record(9).request) == pytest.approx(7.0)


def test_an_attempt_that_had_reported_before_is_not_taken_for_one_that_starts() -> None:
    # As a journal of an earlier version has it: nobody took note of how long the start took.
    record = _record()
    record.attempts.append(Attempt(1, [0], "token", launched_s=1000.0))
    record.progress.reported_s = 1400.0
    costs = RestartCosts()
    costs.remember(record)
    record.progress.reported_s = 5000.0
    costs.reported(record)
    assert costs.expected_s(record.request, record.attempts) == RESTART_S
    record.attempts.append(Attempt(2, [0], "token", launched_s=6000.0))
    record.progress.reported_s = 6002.0
    costs.reported(record)
    assert costs.expected_s(record.request, record.attempts) == pytest.approx(2.0)


def test_records_of_an_earlier_version_can_be_read() -> None:
    record = _record()
    record.attempts.append(Attempt(1, [0], "token", launched_s=1000.0))
    plain = record.plain()
    for name in ("start_s", "stop_s"):
        del plain["attempts"][0][name]
    read = JobRecord.from_plain(plain).attempts[0]
    assert (read.start_s, read.stop_s) == (None, None)


def test_a_measured_cost_goes_through_the_journal() -> None:
    event = RestartMeasured(3.0, 7, 1.25)
    assert from_plain(*to_plain(event)) == event


def test_a_job_that_is_stopped_before_it_can_save_tells_nothing_about_stopping() -> None:
    costs, record = RestartCosts(), _record()
    _runs(costs, record, 3.0, 2.0)
    for preempt, told_s in (("checkpoint", None), ("restart", 0.01)):
        other = _record(1, preempt=preempt)
        other.attempts.append(Attempt(1, [0], "token", launched_s=1000.0, codes=[143], cause="request"))
        costs.ended(other, 0.01)
        assert other.attempts[0].stop_s == told_s
    assert costs.expected_s(record.request, record.attempts) == pytest.approx(5.0)
