"""Commands on their way to the scheduler's thread, and answers on their way back."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from fairway.core.errors import FairwayError
from fairway.runtime.jobs.happenings import Command


class StoppedError(FairwayError):
    """The scheduler takes no commands any more."""


class Inbox:
    """What is asked for by any thread waits here for the scheduler's."""

    def __init__(self) -> None:
        self.closed = False
        self._asked: list[tuple[Command, Future[Any]]] = []
        self._lock = threading.Lock()

    def put(self, command: Command) -> Future[Any]:
        """Ask for something. May be called from any thread."""
        answer: Future[Any] = Future()
        # Someone who stops waiting for the answer does not take the command back.
        answer.set_running_or_notify_cancel()
        with self._lock:
            if self.closed:
                raise StoppedError("the scheduler has stopped")
            self._asked.append((command, answer))
        return answer

    def take(self) -> list[tuple[Command, Future[Any]]]:
        """What was asked for since the last time, in order."""
        with self._lock:
            asked, self._asked = self._asked, []
        return asked

    def close(self) -> None:
        """Take nothing more."""
        self.closed = True

    def refuse_all(self, error: Exception) -> None:
        """The scheduler has ended: nobody is to wait for an answer."""
        self.closed = True
        for _, answer in self.take():
            answer.set_exception(error)
