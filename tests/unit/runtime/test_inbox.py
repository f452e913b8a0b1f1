"""Commands from other threads: done in order, answered when they are on disk, refused when nobody is there any more."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from fairway.core.event import Event, JobCancelled
from fairway.runtime.daemon.inbox import Inbox, StoppedError
from fairway.runtime.daemon.timers import Timers


def test_each_command_finds_told_what_those_before_it_did() -> None:
    inbox, told = Inbox(), list[Event]()
    answers = [inbox.put(lambda now_s, job=job: ([JobCancelled(now_s, job)], len(told))) for job in range(3)]
    events = inbox.carry_out(5.0, told.append)
    assert events == told == [JobCancelled(5.0, job) for job in range(3)]
    assert not any(answer.done() for answer in answers)
    inbox.answer()
    assert [answer.result(0) for answer in answers] == [0, 1, 2]
    assert inbox.carry_out(6.0, told.append) is None


def test_one_that_fails_hears_of_it_at_once_and_the_others_go_on() -> None:
    inbox = Inbox()
    bad: Future[Any] = inbox.put(lambda now_s: ([], 1 / 0))
    assert inbox.carry_out(0.0, lambda event: None) is None
    with pytest.raises(ZeroDivisionError):
        bad.result(0)
    bad, good = inbox.put(lambda now_s: ([], 1 / 0)), inbox.put(lambda now_s: ([], "done"))
    assert inbox.carry_out(0.0, lambda event: None) == []
    inbox.answer()
    assert bad.exception(0) is not None
    assert good.result(0) == "done"


def test_whoever_asks_cannot_take_it_back() -> None:
    assert not Inbox().put(lambda now_s: ([], None)).cancel()


def test_nobody_waits_for_a_scheduler_that_has_ended() -> None:
    inbox = Inbox()
    done = inbox.put(lambda now_s: ([], None))
    inbox.carry_out(0.0, lambda event: None)
    waiting = inbox.put(lambda now_s: ([], None))
    inbox.refuse_all(OSError("the disk is gone"))
    for answer in (done, waiting):
        with pytest.raises(StoppedError, match="the disk is gone"):
            answer.result(0)
    with pytest.raises(StoppedError):
        inbox.put(lambda now_s: ([], None))


def test_an_alarm_rings_once_and_does_what_is_due() -> None:
    alarms, called = Timers(), list[float]()
    alarms.set(3.0)
    alarms.call_at(2.0, called.append)
    alarms.call_at(2.0, lambda now_s: called.append(-now_s))
    assert alarms.next_s == 2.0
    assert not alarms.rang(1.0)
    assert alarms.rang(2.5)
    # In the order in which they were asked for.
    assert called == [2.5, -2.5]
    assert not alarms.rang(2.5)
    assert alarms.rang(3.0)
    assert alarms.next_s == float("inf")
