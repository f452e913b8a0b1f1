"""The queue of forecasts: one runs at a time, users take turns, and no other request waits for them.

A forecast computes for up to ten seconds. It runs in a thread of its own, so that the threads of other requests stay
free. Meanwhile Python switches threads every `SWITCH_S`, so that the event loop and the scheduler get their turn soon.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairway.runtime.jobs.commands import StoppedError

MOST_EACH, MOST = 4, 32
"""The most forecasts of one user that wait or run, and in all."""
MOST_AWAY_S = 60
SWITCH_S = 0.001

Work = Callable[[], Response]


class Forecasts:
    """Forecasts that wait or run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[str, deque[tuple[Work, Future[Response]]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._running = ""
        self._took_s = 1.0

    async def run(self, user: str, work: Work) -> Response:
        """The answer with a forecast; 429 if too many wait."""
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
            if own >= MOST_EACH or waiting >= MOST:
                who = f"{own} forecasts of yours" if own >= MOST_EACH else f"{waiting} forecasts"
                away_s = min(math.ceil(waiting * self._took_s), MOST_AWAY_S)
                raise HTTPException(429, f"{who} are waiting already; try again later", {"Retry-After": f"{away_s}"})
            self._queues.setdefault(user, deque()).append((work, answer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="forecasts", daemon=True)
                self._thread.start()
            self._changed.notify()
        return answer

    def _work(self) -> None:
        while (next_one := self._next()) is not None:
            work, answer = next_one
            began_s, before_s = time.monotonic(), sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)
            finally:
                sys.setswitchinterval(before_s)
            self._took_s += 0.2 * (time.monotonic() - began_s - self._took_s)

    def _next(self) -> tuple[Work, Future[Response]] | None:
        """Wait for the next forecast: users take turns. None if it is time to end."""
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
