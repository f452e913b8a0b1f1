"""The scheduler's clock: it counts what passes, over restarts and reboots, whatever is done to the time of day."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.runtime.daemon.clock import FACT, JUMP_S, MOST_OFF_S, Clock, Jump, told
from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.site import Moment
from fairway.testing.simulated_site import SimulatedTime

YEARS_S = 10 * 365 * 86400.0


def facts_of(clock: Clock) -> dict[str, Any]:
    """What the journal keeps of a clock."""
    return {"origin_s": clock.origin_s, "last_s": clock.now_s(), FACT: clock.fact()}


@pytest.mark.parametrize("by_s", [5.0, -5.0, 3600.0, -3600.0, YEARS_S, -YEARS_S])
def test_setting_the_time_of_day_does_not_move_the_clock_and_is_noticed_once(by_s: float) -> None:
    time = SimulatedTime()
    clock = Clock({}, time)
    time.sleep(100.0)
    assert not clock.look()
    time.set_date(by_s)
    assert clock.look()
    assert not clock.look()
    assert clock.now_s() == pytest.approx(100.0)
    assert clock.jump == Jump(pytest.approx(100.0), pytest.approx(by_s))
    assert clock.date_s(50.0) == 1.7e9 + 50.0
    assert clock.today_s(clock.now_s()) == pytest.approx(time.time())


def test_small_corrections_are_no_jumps_until_they_add_up() -> None:
    time = SimulatedTime()
    clock = Clock({}, time)
    for _ in range(2):
        time.set_date(0.6 * JUMP_S / 2)
        assert not clock.look()
    time.set_date(JUMP_S)
    assert clock.look()
    assert clock.shift_s == pytest.approx(1.6 * JUMP_S)


@pytest.mark.parametrize("by_s", [0.0, 3600.0, -3600.0, YEARS_S, -YEARS_S])
def test_in_the_same_boot_a_restart_goes_on_exactly(by_s: float) -> None:
    time = SimulatedTime()
    facts = facts_of(Clock({}, time))
    time.sleep(100.0)
    time.set_date(by_s)
    clock = Clock(facts, time)
    assert clock.now_s() == pytest.approx(100.0)
    assert clock.today_s(clock.now_s()) == pytest.approx(time.time())
    assert (clock.jump is None) == (by_s == 0.0)


def test_a_jump_that_is_taken_back_leaves_nothing_behind() -> None:
    time = SimulatedTime()
    clock = Clock({}, time)
    time.set_date(YEARS_S)
    assert clock.look()
    clock = Clock(facts_of(clock), time)
    time.sleep(10.0)
    time.set_date(-YEARS_S)
    clock = Clock(facts_of(clock), time)
    assert clock.now_s() == pytest.approx(10.0)
    assert clock.shift_s == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    ("by_s", "off_s"),
    [
        pytest.param(0.0, 600.0, id="the time of day tells how long it was off"),
        pytest.param(-3600.0, 0.0, id="never backwards"),
        pytest.param(YEARS_S, MOST_OFF_S, id="not for years"),
    ],
)
def test_in_another_boot_the_time_of_day_is_believed_within_limits(by_s: float, off_s: float) -> None:
    time = SimulatedTime()
    clock = Clock({}, time)
    time.sleep(100.0)
    facts = facts_of(clock)
    time.reboot(600.0)
    time.set_date(by_s)
    clock = Clock(facts, time)
    assert clock.now_s() == pytest.approx(100.0 + off_s)
    assert clock.today_s(clock.now_s()) == pytest.approx(time.time())
    assert (clock.jump is None) == (by_s == 0.0)
    clock.at_least(clock.now_s() + 50.0)
    assert clock.now_s() == pytest.approx(150.0 + off_s)
    assert clock.today_s(clock.now_s()) == pytest.approx(time.time())


def test_a_shift_that_was_known_before_a_reboot_is_no_time_that_has_passed() -> None:
    time = SimulatedTime()
    clock = Clock({}, time)
    time.set_date(YEARS_S)
    assert clock.look()
    facts = facts_of(clock)
    time.reboot(600.0)
    assert Clock(facts, time).now_s() == pytest.approx(600.0)


def test_journals_of_earlier_versions_go_on_by_the_time_of_day_but_never_backwards() -> None:
    time = SimulatedTime()
    earlier = {"origin_s": time.time() - 1000.0, "last_s": 900.0}
    assert Clock(earlier, time).now_s() == pytest.approx(1000.0)
    stuck = Clock({**earlier, "last_s": YEARS_S}, time)
    assert stuck.now_s() == pytest.approx(YEARS_S)
    assert stuck.today_s(stuck.now_s()) == pytest.approx(time.time())


def test_moments_of_this_boot_and_the_one_before_are_known_exactly_and_others_by_their_date() -> None:
    time = SimulatedTime()
    clock = Clock({}, time)
    time.sleep(100.0)
    ended, facts = time.moment(), facts_of(clock)
    time.set_date(-3600.0)
    assert clock.instant_s(ended) == pytest.approx(100.0)
    time.reboot(600.0)
    clock = Clock(facts, time)
    assert clock.instant_s(ended) == pytest.approx(100.0)
    assert clock.instant_s(time.moment()) == pytest.approx(clock.now_s())
    clock = Clock(facts_of(clock), time)
    assert clock.instant_s(Moment(time.time() - 60.0)) == pytest.approx(clock.now_s() - 60.0)


def test_a_scheduler_that_stood_still_between_two_looks_at_its_clocks_knows_nothing() -> None:
    class Stopped(SimulatedTime):
        def time(self) -> float:
            self.sleep(stop_s)
            return super().time()

    stop_s = 0.0
    time = Stopped()
    clock = Clock({}, time)
    stop_s = 60.0
    assert not clock.look()
    stop_s = 0.0
    assert not clock.look()


@pytest.mark.parametrize(
    ("by_s", "words"), [(3.0, "ahead by 3.0 seconds"), (-300.0, "back by 5.0 minutes"), (YEARS_S, "3,650.0 days")]
)
def test_a_jump_is_told_in_words(by_s: float, words: str) -> None:
    assert words in told(Jump(0.0, by_s))


def running(ran_s: float | None = 0.0) -> JobRecord:
    """A job on two GPUs that has run since 100 s."""
    attempt = Attempt(1, [0, 1], "t", 100.0, started_s=100.0, ran_s=ran_s)
    return JobRecord(0, "1", JobRequest(command=("true",), gpus=2), 0.0, since_s=100.0, attempts=[attempt])


def test_what_the_keeper_counted_takes_the_place_of_what_was_counted_meanwhile() -> None:
    job = running()
    job.count_until(110.0)
    job.since_s = 200.0
    job.count_attempt(25.0)
    assert (job.ran_s, job.gpu_s, job.since_s) == (25.0, 50.0, None)


def test_the_time_that_an_attempt_takes_to_stop_is_not_counted() -> None:
    job = running()
    job.count_until(110.0)
    job.count_attempt(25.0)
    assert job.ran_s == 10.0


def test_the_time_for_which_the_machine_slept_is_not_counted() -> None:
    job = running()
    job.count_until(3700.0)
    job.count_attempt(25.0)
    assert (job.ran_s, job.gpu_s) == (25.0, 50.0)


def test_an_attempt_that_an_earlier_version_started_is_counted_by_its_dates() -> None:
    plain = running().plain()
    del plain["attempts"][0]["ran_s"]
    job = JobRecord.from_plain(plain)
    job.count_attempt(25.0)
    job.count_until(110.0)
    assert (job.ran_s, job.gpu_s) == (10.0, 20.0)


def test_an_attempt_whose_start_nobody_wrote_down_is_counted_by_its_keeper() -> None:
    job = running()
    job.since_s = job.attempts[0].started_s = None
    job.count_attempt(25.0)
    assert (job.ran_s, job.gpu_s) == (25.0, 50.0)
