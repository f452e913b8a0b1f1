"""Requests that compute for long, such as forecasts and long lists: one runs at a time, and users take turns.

They run in a thread of their own, so that the threads of other requests stay free. The server has Python switch threads
often, so that the event loop and the scheduler get their turn soon.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairway.runtime.jobs.commands import StoppedError

MOST_AWAY_S = 60

Work = Callable[[], Response]


class RequestTurns:
    """Requests of one kind (`what`) that wait or run: at most `each` of one user, and `most` in all."""

    def __init__(self, what: str, *, each: int, most: int) -> None:
        self._what = what
        self._each, self._most = each, most
        self._changed = threading.Condition()
        self._queues: dict[str, deque[tuple[Work, Future[Response]]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._running = ""
        self._took_s = 1.0

    async def run(self, user: str, work: Work) -> Response:
        """The answer to a request; 429 if too many wait."""
        return await asyncio.wrap_future(self._put(user, work))

    def close(self) -> None:
        """Refuse those that wait, and all that come."""
        with self._changed:
            self._closed = True
            waiting = [one for queue in self._queues.values() for one in queue]
            self._queues.clear()
            self._changed.notify()
        for _, answer in waiting:
            answer.set_exception(StoppedError("the scheduler is stopping"))

    def _put(self, user: str, work: Work) -> Future[Response]:
        answer: Future[Response] = Future()
        answer.set_running_or_notify_cancel()
        with self._changed:
            if self._closed:
                raise StoppedError("the scheduler is stopping")
            waiting = sum(map(len, self._queues.values())) + bool(self._running)
            own = len(self._queues.get(user, ())) + (self._running == user)
            if own >= self._each or waiting >= self._most:
                who = f"{own} {self._what} of yours" if own >= self._each else f"{waiting} {self._what}"
                away_s = min(math.ceil(waiting * self._took_s), MOST_AWAY_S)
                raise HTTPException(429, f"{who} are waiting already; try again later", {"Retry-After": f"{away_s}"})
            self._queues.setdefault(user, deque()).append((work, answer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._what, daemon=True)
                self._thread.start()
            self._changed.notify()
        return answer

    def _work(self) -> None:
        while (next_one := self._next()) is not None:
            work, answer = next_one
            began_s = time.monotonic()
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)
            self._took_s += 0.2 * (time.monotonic() - began_s - self._took_s)

    def _next(self) -> tuple[Work, Future[Response]] | None:
        """Wait for the next request: users take turns. None if it is time to end."""
        with self._changed:
            self._running = ""
            while not self._queues:
                if self._closed:
                    return None
                self._changed.wait()
            user = next(iter(self._queues))
            queue = self._queues.pop(user)
            found = queue.popleft()
            if queue:
                self._queues[user] = queue
            self._running = user
            return found
