"""How long a job is expected to run, how wide that is, and where it comes from."""

from __future__ import annotations

import random

import pytest

from fairway.runtime.jobs.records import JobRecord, Progress
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.run_times import LEAST_OF_ALL, UNKNOWN_S, RunTimes, between, kinds_of


def asked(user: str = "ann", command: str = "train", **about: object) -> JobRequest:
    return JobRequest(command=(command,), user=user, **about)  # type: ignore[arg-type]


def learnt(*runs: tuple[JobRequest, float]) -> RunTimes:
    times = RunTimes()
    for number, (request, ran_s) in enumerate(runs):
        times.learn(JobRecord(number, str(number), request, 0.0, ran_s=ran_s))
    return times


def test_nothing_is_known_at_first() -> None:
    told = RunTimes().estimate(asked())
    assert told.plain(rough=False) == {
        "expected_s": UNKNOWN_S,
        "low_s": 0.1 * UNKNOWN_S,
        "high_s": 4 * UNKNOWN_S,
        "sure": 0.8,
        "source": "nothing; an hour is assumed",
    }
    assert RunTimes().estimate(asked(limit_s=600.0)).source == "its time limit"
    assert RunTimes().estimate(asked(limit_s=7200.0)).high_s == 7200.0


def test_the_closest_kind_with_earlier_runs_counts() -> None:
    named = asked(command="other", name="big", model="resnet")
    assert [kind[1].partition(" ")[0] for kind in kinds_of(named)] == ["command", "name", "model", "", ""]
    runs = [(asked(), 100.0 + number) for number in range(14)] + [(named, 500.0)]
    times = learnt(*runs)
    told = times.estimate(asked())
    assert told.source == "14 earlier runs of this command"
    assert (told.low_s, told.expected_s, told.high_s) == (100.0, 107.0, 113.0)
    assert times.estimate(asked(command="new", name="big")).source == "1 earlier run of this name"
    assert times.estimate(asked(user="bob", command="new", model="resnet")).source == "1 earlier run of this model"
    assert times.estimate(asked(command="new")).source == "15 earlier runs of other jobs of its owner"
    assert len(runs) >= LEAST_OF_ALL
    assert times.estimate(asked(user="bob", command="new")).source == "15 earlier runs of all users' jobs"
    # Two runs of a user are too few, and less than an hour for sure is better than the jobs of others.
    assert learnt(*runs[:2]).estimate(asked(command="new")).expected_s == UNKNOWN_S
    assert times.estimate(asked(user="bob", command="new", limit_s=60.0)).source == "its time limit"


def test_few_runs_say_little() -> None:
    one = learnt((asked(), 300.0)).estimate(asked())
    assert (one.low_s, one.expected_s, one.high_s) == pytest.approx((100.0, 300.0, 900.0))
    four = learnt(*[(asked(), 300.0)] * 4).estimate(asked())
    assert (four.low_s, four.high_s) == pytest.approx((200.0, 450.0))


def test_a_job_that_has_passed_the_median_is_not_done_now() -> None:
    times = learnt(*[(asked(), 100.0 * number) for number in range(1, 11)])
    assert times.expected_s(asked()) == 600.0
    later = times.estimate(asked(), ran_s=650.0)
    assert (later.expected_s, later.low_s) == (900.0, 650.0)
    beyond = times.estimate(asked(), ran_s=1200.0)
    assert beyond.expected_s == 2400.0
    assert beyond.source == "10 earlier runs of this command; it has run longer than all of them"
    assert times.estimate(asked(limit_s=1500.0), ran_s=1200.0).expected_s == 1500.0
    assert RunTimes().expected_s(asked(), ran_s=5000.0) == 10000.0


def test_an_owner_is_believed_as_far_as_before() -> None:
    word = asked(expected_s=1000.0)
    new = RunTimes().estimate(word)
    assert (new.low_s, new.expected_s, new.high_s, new.source) == (500.0, 1000.0, 2000.0, "its owner's estimate")
    known = learnt(*[(word, 300.0 + 10.0 * number) for number in range(10)]).estimate(word)
    assert (known.low_s, known.expected_s, known.high_s) == (300.0, 1000.0, 1000.0)
    assert learnt().estimate(word, ran_s=1500.0).source == "its owner's estimate, which it has passed"


def test_what_a_job_reports_counts_first() -> None:
    progress = Progress(step=250.0, steps=1000.0, steps_per_s=2.0)
    record = JobRecord(1, "1", asked(expected_s=50.0), 0.0, progress=progress)
    told = RunTimes().of(record, 130.0)
    assert told.source == "its own reports, at step 250 of 1,000"
    assert (told.low_s, told.expected_s, told.high_s) == pytest.approx((130 + 375 / 1.1, 505.0, 130 + 375 * 1.1))
    progress.step = 0.0
    assert RunTimes().of(record, 5.0).high_s == pytest.approx(5 + 500 * 1.5)


def test_of_runs_that_come_alike_four_fifths_lie_within() -> None:
    draws = random.Random(1)
    for runs in (9, 14, 20):
        inside = 0
        for _ in range(2000):
            *known, last = (draws.paretovariate(1.0) for _ in range(runs + 1))
            low, high = between(sorted(known))
            inside += low <= last <= high
        place = (runs + 1) // 10
        assert inside / 2000 == pytest.approx(1 - 2 * place / (runs + 1), abs=0.03)
