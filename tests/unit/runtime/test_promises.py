"""Which promises are kept, when they are decided, and when they are void."""

from __future__ import annotations

import json

import pytest

from fairway.models.calibration import Subject
from fairway.models.promise_score import SCORED, Trust
from fairway.runtime.jobs.promises import GAP_S, MOST_PROMISES, PromiseBook, shown
from fairway.runtime.jobs.records import JobRecord, JobState, Promise
from fairway.runtime.jobs.request import JobRequest


def waiting(number: int = 1, user: str = "ann") -> JobRecord:
    return JobRecord(number, str(number), JobRequest(command=("true",), user=user), 1000.0)


def told(kind: str, told_s: float = 1000.0, lead_s: float = 100.0, channel: str = "why") -> Promise:
    dates = (told_s + lead_s, told_s + 0.5 * lead_s, told_s + 2.0 * lead_s)
    return Promise(kind, channel, told_s, *dates, policy="fifo", basis="told" if kind == "finish" else "")


def test_words_that_are_repeated_are_kept_ever_more_rarely() -> None:
    book, record = PromiseBook(), waiting()
    kept = [second for second in range(0, 40_000, 100) if book.keep(record, told("start", 1000.0 + second))]
    assert kept == [0, 600, 1800, 4200, 9000, 18600, 37800]
    # Another kind, or another channel, is another promise.
    assert book.keep(record, told("finish", 41_000.0))
    assert book.keep(record, told("start", 41_000.0, channel="submit"))
    for number in range(40):
        book.keep(record, told("start", 1e6 + number * 1e6 * GAP_S, channel=f"way {number}"))
    assert len(record.promises) == MOST_PROMISES
    ended = waiting()
    ended._state = JobState.COMPLETED
    assert not book.keep(ended, told("finish"))
    ended._state, ended.since_s = JobState.RUNNING, 990.0
    assert not book.keep(ended, told("start"))
    # It started while it was told when it would.
    ended.since_s = 1001.0
    assert book.keep(ended, told("start"))
    assert book.latest[-1].actual_s == 1.0


def test_a_promise_is_decided_by_what_happens() -> None:
    book, record = PromiseBook(), waiting()
    for kind, lead_s in (("start", 100.0), ("finish", 400.0)):
        book.keep(record, told(kind, 1060.0, lead_s))
    book.started(record, 1090.0)
    assert [promise.actual_s for promise in record.promises] == [1090.0, None]
    record._state = JobState.COMPLETED
    book.ended(record, 1360.0)
    start, finish = book.latest
    assert (start.lead_s, start.low_s, start.high_s, start.actual_s) == (100.0, 50.0, 200.0, 30.0)
    assert (start.error_s, start.kept, start.whole_s) == (70.0, False, 160.0)
    assert (finish.error_s, finish.kept, finish.whole_s) == (100.0, True, 460.0)
    kept = book.told()
    assert [(row["kind"], row["promises"], row["within"]) for row in kept["policies"]] == [
        ("start", 1, 0.0),
        ("finish", 1, 1.0),
    ]
    assert kept["users"][1]["median_relative_error"] == pytest.approx(100 / 460)
    assert book.told(user="bob")["policies"] == book.told(policy="srtf")["users"] == []
    assert book.told(since_s=2000.0)["latest"] == 0
    assert book.told(since_s=2000.0)["users"][0]["decided_in_all"] == 1


@pytest.mark.parametrize(
    ("state", "decided", "void"),
    [
        (JobState.COMPLETED, 1, 0),
        (JobState.TIMEOUT, 1, 0),
        (JobState.NODE_FAIL, 1, 0),
        (JobState.FAILED, 0, 1),
        (JobState.OUT_OF_MEMORY, 0, 1),
        (JobState.CANCELLED, 0, 1),
    ],
)
def test_the_end_of_a_job_that_broke_by_itself_is_no_error_of_the_forecast(
    state: JobState, decided: int, void: int
) -> None:
    book, record = PromiseBook(), waiting()
    book.keep(record, told("finish"))
    record._state = state
    book.ended(record, 1010.0)
    assert len(book.latest) == decided
    assert [(tally.decided, tally.void) for tally in book.totals.values()] == [(decided, void)]
    assert record.promises[0].decided_s == 1010.0


def test_the_journal_has_what_is_needed_to_go_on() -> None:
    book, records = PromiseBook(), [waiting(number, "ann" if number % 2 else "bob") for number in range(40)]
    for number, record in enumerate(records):
        book.keep(record, told("start"))
        book.started(record, 1050.0 + number)
        if number == 30:
            facts = json.loads(json.dumps(book.facts(0.0)))
            assert not book.facts(30.0)
    assert book.facts(61.0)
    assert not book.facts(200.0)
    stored = [JobRecord.from_plain(json.loads(json.dumps(record.plain()))) for record in records]
    assert stored == records
    again = PromiseBook(facts, stored)
    assert list(again.latest) == list(book.latest)
    assert again.totals == book.totals
    assert again.interval(Subject("fifo", "start"), 100.0) == book.interval(Subject("fifo", "start"), 100.0)
    # The record stays when jobs are deleted; what cannot be read begins again.
    assert PromiseBook(facts).told()["latest"] == 31
    assert PromiseBook({"promises": {"latest": [[1]], "totals": 3}}, stored).told()["latest"] == 40


def test_what_was_told_of_a_job_is_shown_with_what_became_of_it() -> None:
    book, record = PromiseBook(), waiting()
    for told_s, channel in ((1000.0, "submit"), (1060.0, "why")):
        for kind, lead_s in (("start", 100.0), ("finish", 400.0)):
            book.keep(record, told(kind, told_s, lead_s, channel))
    assert {one["verdict"] for one in shown(record, 0.0)} == {"open"}
    book.started(record, 1090.0)
    first, _, second, _ = shown(record, 5.0)
    dates = {"told_s": 1005.0, "point_s": 1105.0, "between_s": [1055.0, 1205.0], "actual_s": 1095.0}
    assert first == {"kind": "start", "channel": "submit", "sure": 0.8, "verdict": "kept", **dates}
    assert second["verdict"] == "missed", "it began before it should"
    book.void(record, 1100.0)
    assert [one["verdict"] for one in shown(record, 0.0)] == ["kept", "void", "missed", "void"]


def test_a_rough_promise_is_scored_and_its_interval_is_not_shown() -> None:
    book, record = PromiseBook(), waiting()
    rough = told("start")
    rough.rough = True
    book.keep(record, rough)
    book.started(record, 1150.0)
    assert book.trust("start") == Trust(1, 1)
    (entry,) = shown(record, 0.0)
    assert (entry["point_s"], entry["actual_s"], entry["verdict"]) == (1100.0, 1150.0, "happened")
    assert (entry["between_s"], entry["sure"]) == (None, None)
    assert JobRecord.from_plain(json.loads(json.dumps(record.plain()))).promises[0].rough


def test_only_the_latest_of_a_kind_count_towards_its_trust() -> None:
    book = PromiseBook()

    def decide(kind: str, actual_s: float, promises: int) -> None:
        for _ in range(promises):
            record = waiting()
            book.keep(record, told(kind))
            record._state = JobState.COMPLETED
            (book.started if kind == "start" else book.ended)(record, actual_s)

    decide("start", 1500.0, 50)
    assert (book.trust("start"), book.trust("finish")) == (Trust(50, 0), Trust(0, 0))
    decide("start", 1100.0, SCORED)
    assert book.trust("start") == Trust(SCORED, SCORED)
    decide("finish", 1100.0, 29)
    assert not book.trust("finish").tells_intervals
    decide("finish", 1500.0, 1)
    assert (book.trust("finish"), book.trust("finish").tells_intervals) == (Trust(30, 29), True)
    shown_of = {row["kind"]: row["shown"] for row in book.told()["intervals"]}
    assert shown_of == {"start": True, "finish": True}
    again = PromiseBook(json.loads(json.dumps(book.facts(0.0))))
    assert (again.trust("start"), again.trust("finish")) == (book.trust("start"), book.trust("finish"))


@pytest.mark.parametrize(
    ("trust", "told_with_intervals", "why"),
    [
        (Trust(0, 0), False, "intervals are shown after 30 scored forecasts, now 0"),
        (Trust(29, 29), False, "intervals are shown after 30 scored forecasts, now 29"),
        (Trust(30, 21), True, "intervals are shown, because 21 of the last 30 held (70 %)"),
        (Trust(30, 20), False, "intervals are shown from 70 % that hold; 20 of the last 30 held (66 %)"),
        (Trust(200, 139), False, "intervals are shown from 70 % that hold; 139 of the last 200 held (69 %)"),
        (Trust(200, 140), True, "intervals are shown, because 140 of the last 200 held (70 %)"),
    ],
)
def test_intervals_are_told_where_enough_of_them_held(trust: Trust, told_with_intervals: bool, why: str) -> None:
    assert (trust.tells_intervals, trust.why) == (told_with_intervals, why)
