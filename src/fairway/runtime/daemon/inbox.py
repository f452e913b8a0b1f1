"""Commands on their way to the scheduler's thread, and answers on their way back."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from fairway.core.errors import FairwayError
from fairway.runtime.jobs.happenings import Command


class StoppedError(FairwayError):
    """The scheduler has stopped and takes no commands."""


class Inbox:
    """Commands from any thread wait here for the scheduler's thread."""

    def __init__(self) -> None:
        self.closed = False
        self._asked: list[tuple[Command, Future[Any]]] = []
        self._lock = threading.Lock()

    def put(self, command: Command) -> Future[Any]:
        """Add a command. Any thread may call this."""
        answer: Future[Any] = Future()
        # If the caller stops waiting for the answer, the command still runs.
        answer.set_running_or_notify_cancel()
        with self._lock:
            if self.closed:
                raise StoppedError("the scheduler has stopped")
            self._asked.append((command, answer))
        return answer

    def take(self) -> list[tuple[Command, Future[Any]]]:
        """The commands since the last time, in order."""
        with self._lock:
            asked, self._asked = self._asked, []
        return asked

    def close(self) -> None:
        """Accept no more commands."""
        self.closed = True

    def refuse_all(self, error: Exception) -> None:
        """The scheduler has ended: answer all waiting commands with an error."""
        self.closed = True
        for _, answer in self.take():
            answer.set_exception(error)
