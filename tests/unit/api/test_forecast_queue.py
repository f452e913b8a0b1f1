"""Forecasts: one at a time, users take turns, and whoever asks for too many is told to come back."""

from __future__ import annotations

import asyncio
import threading

import pytest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairway.api.forecasts import MOST_EACH, Forecasts
from fairway.runtime.jobs.commands import StoppedError


class Work:
    """Forecasts that note when they run, and the first of which waits to be let go."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.most = 0
        self.go = threading.Event()
        self._now = 0

    def __call__(self, name: str) -> Response:
        self._now += 1
        self.most = max(self.most, self._now)
        self.go.wait(30)
        self.ran.append(name)
        self._now -= 1
        return Response(name)


def test_users_take_turns_and_one_runs_at_a_time() -> None:
    forecasts, work = Forecasts(), Work()

    async def all_of_them() -> None:
        asked = [asyncio.create_task(forecasts.run("anna", lambda at=at: work(f"anna {at}"))) for at in range(3)]
        await asyncio.sleep(0.05)
        asked += [asyncio.create_task(forecasts.run("ben", lambda at=at: work(f"ben {at}"))) for at in range(2)]
        await asyncio.sleep(0)
        work.go.set()
        await asyncio.gather(*asked)

    asyncio.run(asyncio.wait_for(all_of_them(), 30))
    assert work.ran == ["anna 0", "anna 1", "ben 0", "anna 2", "ben 1"]
    assert work.most == 1
    forecasts.close()


def test_too_many_are_refused_and_others_are_not() -> None:
    forecasts, work = Forecasts(), Work()

    async def too_many() -> None:
        asked = [asyncio.create_task(forecasts.run("anna", lambda: work("anna"))) for _ in range(MOST_EACH)]
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException) as caught:
            await forecasts.run("anna", lambda: work("anna"))
        assert caught.value.status_code == 429
        assert int((caught.value.headers or {})["Retry-After"]) >= 1
        asked.append(asyncio.create_task(forecasts.run("ben", lambda: work("ben"))))
        await asyncio.sleep(0)
        work.go.set()
        await asyncio.gather(*asked)

    asyncio.run(asyncio.wait_for(too_many(), 30))
    assert "ben" in work.ran


def test_those_that_wait_are_told_when_the_scheduler_stops() -> None:
    forecasts, work = Forecasts(), Work()

    async def stopping() -> None:
        first = asyncio.create_task(forecasts.run("anna", lambda: work("first")))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(forecasts.run("anna", lambda: work("second")))
        await asyncio.sleep(0)
        forecasts.close()
        with pytest.raises(StoppedError):
            await second
        with pytest.raises(StoppedError):
            await forecasts.run("ben", lambda: work("third"))
        work.go.set()
        await first

    asyncio.run(asyncio.wait_for(stopping(), 30))
    assert work.ran == ["first"]
