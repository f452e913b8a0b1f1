"""Commands on their way to the scheduler's thread, and answers on their way back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fairway.core.errors import FairwayError
from fairway.core.event import Event


class StoppedError(FairwayError):
    """The scheduler takes no commands any more."""


Command = Callable[[float], tuple[list[Event], Any]]
"""What a user asks for: given the present instant, it changes records and returns events and the answer."""


class Inbox:
    """What is asked for by any thread is carried out in one, and answered once what it changed is on disk."""

    def __init__(self) -> None:
        self.closed = False
        self._asked: list[tuple[Command, Future[Any]]] = []
        self._done: list[tuple[Future[Any], Any]] = []
        self._lock = threading.Lock()

    def put(self, command: Command) -> Future[Any]:
        """Ask for something. May be called from any thread."""
        answer: Future[Any] = Future()
        # Whoever stops waiting for the answer does not take the command back.
        answer.set_running_or_notify_cancel()
        with self._lock:
            if self.closed:
                raise StoppedError("the scheduler has stopped")
            self._asked.append((command, answer))
        return answer

    def carry_out(self, now_s: float, tell: Callable[[Event], None]) -> list[Event] | None:
        """Do what was asked for since the last time, and tell of each event; None if nothing was done.

        Each command finds told what those before it did. Whoever is refused hears of it here.
        """
        with self._lock:
            asked, self._asked = self._asked, []
        events: list[Event] = []
        for command, answer in asked:
            try:
                told, result = command(now_s)
            except Exception as error:
                answer.set_exception(error)
                continue
            self._done.append((answer, result))
            for event in told:
                tell(event)
            events += told
        return events if self._done else None

    def answer(self) -> None:
        """What was done is on disk: whoever asked for it is told."""
        done, self._done = self._done, []
        for answer, result in done:
            answer.set_result(result)

    def refuse_all(self, error: BaseException | None) -> None:
        """The scheduler has ended: nobody is to wait for an answer."""
        self.closed = True
        with self._lock:
            waiting, self._asked = [answer for _, answer in self._asked], []
        for answer in [*waiting, *(answer for answer, _ in self._done)]:
            answer.set_exception(StoppedError(f"the scheduler has stopped{f': {error}' if error else ''}"))
        self._done = []
