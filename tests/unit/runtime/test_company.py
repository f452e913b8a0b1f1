"""Who computes beside whom: when a speed counts, as which kind of job, and what is expected before it is measured."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fairway.core.action import Launch, Suspend, Throttle
from fairway.core.event import JobStarted
from fairway.core.state import State
from fairway.models.measured_profile import MeasuredProfile
from fairway.models.names import ProfileKey
from fairway.runtime.jobs.company import SETTLED, Company, LivePairing
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.store import JobStore
from fairway.testing import job, state_of

ANT, BEE = ProfileKey("ant", 32, 2), ProfileKey("bee", None, 2)


class Live:
    """Jobs of two GPUs each that run on the same two, one after the other."""

    def __init__(self, *models: str) -> None:
        self.state: State = state_of([job(f"j{n}", 2, 900.0) for n in range(len(models))], "v100:2")
        about: list[dict[str, Any]] = [{"model": model, "gpus": 2} for model in models]
        self.records = [JobRecord(n, str(n), JobRequest(("true",), **one), 0.0) for n, one in enumerate(about)]
        self.profile = MeasuredProfile()
        self.in_steps = set(range(len(models)))
        store = cast(JobStore, self.records)
        self.company = Company(store, self.state, self.profile, self.in_steps)

    def start(self, number: int, host: int = -1) -> list[int]:
        """A job starts. Returns whose company has changed."""
        self.state.commit([Launch(number, (0, 1), 0, host)])
        self.state.apply(JobStarted(self.state.now_s, number, 1.0, self.state.now_s))
        self.records[number]._state = JobState.RUNNING
        return self.company.changed()

    def stop(self, number: int) -> list[int]:
        self.state.commit([Suspend(number)])
        self.records[number]._state = JobState.SUSPENDED
        return self.company.changed()

    def report(self, number: int, speed: float, times: int = SETTLED) -> list[bool]:
        record = self.records[number]
        record.progress.steps_per_s = speed
        settled = []
        for _ in range(times):
            self.company.heard(number)
            settled.append(self.company.measured(record, speed, 0.0))
        return settled


def alone_then_together(*models: str) -> Live:
    live = Live(*models)
    live.records[0].progress.batch_size = 64
    live.start(0)
    live.report(0, 10.0)
    live.stop(0)
    live.start(1)
    live.report(1, 5.0)
    live.start(0, host=1)
    return live


def test_a_speed_counts_when_it_has_settled_and_over_all_gpus() -> None:
    live = Live("ant", "bee")
    live.records[0].progress.batch_size = 64
    live.start(0)
    assert live.report(0, 10.0, SETTLED + 1) == [False] * (SETTLED - 1) + [True, False]
    ((kind, speed),) = live.profile.speeds.items()
    assert kind.key == ANT, "64 samples on two GPUs"
    assert speed.rate == pytest.approx(20.0), "two GPUs make ten steps each"
    assert live.company.is_seen(0)


def test_a_change_of_company_begins_the_measurement_again() -> None:
    live = alone_then_together("ant", "bee")
    assert (live.company.of(0), live.company.of(1)) == ((1,), (0,))
    live.report(0, 8.0, SETTLED - 1)
    live.report(1, 2.5)
    assert not live.profile.pairs, "the first has not settled"
    live.report(0, 8.0, 1)
    live.report(1, 2.5, 1)
    assert live.profile.kept("v100", ANT, BEE) == pytest.approx((0.8, 0.5))
    assert live.stop(0) == [1]
    assert live.company.of(1) == ()


def test_throttled_guests_and_third_jobs_say_nothing_about_a_pair() -> None:
    live = alone_then_together("ant", "bee", "cat")
    live.state.commit([Throttle(0, 0.5)])
    for number in (0, 1):
        live.report(number, 2.0, SETTLED + 1)
    assert not live.profile.pairs
    live.state.commit([Throttle(0, 1.0)])
    assert live.start(2, host=1) == [0, 1, 2]
    for number in (0, 1, 2):
        live.report(number, 2.0, SETTLED + 1)
    assert not live.profile.pairs


def test_what_is_expected_before_a_pair_is_measured() -> None:
    live = alone_then_together("ant", "bee")
    for one in live.records:
        one.progress.steps_per_s = None
    assert [live.company.expected(one) for one in live.records] == [None, None], "as fast as alone"
    live.profile.note_pair("v100", ANT, BEE, (0.8, 0.5), 1.0, "mps")
    assert [live.company.expected(one) for one in live.records] == [0.8, 0.5]
    live.records[0].progress.steps_per_s = 7.0
    assert live.company.expected(live.records[0]) is None, "what it reports counts"
    assert live.company.slowed(live.records[0]) == pytest.approx(0.7)
    fresh = Live("ant", "bee")
    fresh.start(0)
    fresh.start(1, host=0)
    assert [fresh.company.expected(one) for one in fresh.records] == [0.5, 0.5], "as if they took turns"


def test_policies_see_what_was_measured_and_nothing_of_jobs_without_a_name() -> None:
    live = alone_then_together("ant", "", "bee")
    pairing = LivePairing(live.profile)
    assert pairing.factors(0, 2) == ()
    pairing.look_in(live.company)
    live.profile.note_pair("v100", ANT, BEE, (0.8, 0.5), 1.0, "mps")
    assert pairing.factors(0, 2) == ((0.8, 0.5),)
    assert pairing.factors(2, 0) == ((0.5, 0.8),)
    assert pairing.factors(0, 1) == ()
    live.report(0, 2.0)
    live.report(1, 2.0, SETTLED + 1)
    assert len(live.profile.pairs) == 1, "the pair without a name is not noted"
    assert {kind.key.model for kind in live.profile.speeds} == {"ant"}


def test_a_job_that_ran_without_reports_is_not_seen() -> None:
    live = Live("ant", "bee")
    assert live.company.is_seen(0), "it has not run yet"
    live.start(0)
    live.records[0].attempts.append(cast(Any, object()))
    assert not live.company.is_seen(0)
    live.profile.note_speed("v100", ProfileKey("ant", None, 2), 20.0, 0.0)
    assert live.company.is_seen(0), "others of its kind were measured"
    live.in_steps.clear()
    assert not live.company.is_seen(0)
