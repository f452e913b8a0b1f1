"""Commands from other threads wait in order, and are refused when nobody is there any more."""

from __future__ import annotations

import pytest

from fairway.runtime.jobs.commands import Inbox, StoppedError
from fairway.runtime.jobs.waiting import Timers


def test_commands_are_taken_once_and_in_order() -> None:
    inbox = Inbox()
    answers = [inbox.put(lambda now_s, number=number: ([], number)) for number in range(3)]
    taken = inbox.take()
    assert [command(0.0)[1] for command, _ in taken] == [0, 1, 2]
    assert [answer for _, answer in taken] == answers
    assert inbox.take() == []


def test_a_command_cannot_be_taken_back() -> None:
    assert not Inbox().put(lambda now_s: ([], None)).cancel()


def test_nobody_waits_for_a_scheduler_that_has_ended() -> None:
    inbox = Inbox()
    waiting = inbox.put(lambda now_s: ([], None))
    inbox.refuse_all(StoppedError("the disk is gone"))
    with pytest.raises(StoppedError, match="the disk is gone"):
        waiting.result(0)
    with pytest.raises(StoppedError):
        inbox.put(lambda now_s: ([], None))


def test_a_timer_rings_once_and_does_what_is_due() -> None:
    timers, called = Timers(), list[float]()
    timers.set(3.0)
    timers.call_at(2.0, called.append)
    timers.call_at(2.0, lambda now_s: called.append(-now_s))
    assert timers.next_s == 2.0
    timers.ring(1.0)
    assert called == []
    timers.ring(2.5)
    # In the order in which they were asked for.
    assert called == [2.5, -2.5]
    assert timers.next_s == 3.0
    timers.ring(3.0)
    assert (called, timers.next_s) == ([2.5, -2.5], float("inf"))
