"""Requests that compute for long: one at a time, users take turns, and who asks for too many is told to come back."""

from __future__ import annotations

import asyncio
import threading

import pytest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairway.api.request_turns import RequestTurns
from fairway.runtime.jobs.commands import StoppedError
from fairway.testing.waiting import WAIT_S


class Work:
    """Requests that note when they run, and the first of which waits to be let go."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.most = 0
        self.go = threading.Event()
        self._now = 0

    async def begun(self) -> None:
        """Wait until a thread is at the first of it."""
        while not self._now:
            await asyncio.sleep(0.01)

    def __call__(self, name: str) -> Response:
        self._now += 1
        self.most = max(self.most, self._now)
        self.go.wait(WAIT_S)
        self.ran.append(name)
        self._now -= 1
        return Response(name)


def test_users_take_turns_and_one_runs_at_a_time() -> None:
    turns, work = RequestTurns("forecasts", each=4, most=32), Work()

    async def all_of_them() -> None:
        asked = [asyncio.create_task(turns.run("anna", lambda at=at: work(f"anna {at}"))) for at in range(3)]
        await work.begun()
        asked += [asyncio.create_task(turns.run("ben", lambda at=at: work(f"ben {at}"))) for at in range(2)]
        await asyncio.sleep(0)
        work.go.set()
        await asyncio.gather(*asked)

    asyncio.run(asyncio.wait_for(all_of_them(), WAIT_S))
    assert work.ran == ["anna 0", "anna 1", "ben 0", "anna 2", "ben 1"]
    assert work.most == 1
    turns.close()


def test_too_many_are_refused_and_others_are_not() -> None:
    turns, work = RequestTurns("forecasts", each=4, most=32), Work()

    async def too_many() -> None:
        asked = [asyncio.create_task(turns.run("anna", lambda: work("anna"))) for _ in range(4)]
        await work.begun()
        with pytest.raises(HTTPException) as caught:
            await turns.run("anna", lambda: work("anna"))
        assert caught.value.status_code == 429
        assert int((caught.value.headers or {})["Retry-After"]) >= 1
        asked.append(asyncio.create_task(turns.run("ben", lambda: work("ben"))))
        await asyncio.sleep(0)
        work.go.set()
        await asyncio.gather(*asked)

    asyncio.run(asyncio.wait_for(too_many(), WAIT_S))
    assert "ben" in work.ran


def test_those_that_wait_are_told_when_the_scheduler_stops() -> None:
    turns, work = RequestTurns("forecasts", each=4, most=32), Work()

    async def stopping() -> None:
        first = asyncio.create_task(turns.run("anna", lambda: work("first")))
        await work.begun()
        second = asyncio.create_task(turns.run("anna", lambda: work("second")))
        await asyncio.sleep(0)
        turns.close()
        with pytest.raises(StoppedError):
            await second
        with pytest.raises(StoppedError):
            await turns.run("ben", lambda: work("third"))
        work.go.set()
        await first

    asyncio.run(asyncio.wait_for(stopping(), WAIT_S))
    assert work.ran == ["first"]
