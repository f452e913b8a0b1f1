"""The event stream without a server: nothing is lost between two looks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from fairway.api import events
from fairway.api.events import Stream
from fairway.core.event import NodeLost
from fairway.runtime.daemon.scheduler import Scheduler


def _stream(**about: Any) -> Stream:
    clock = SimpleNamespace(today_s=lambda time_s: time_s)
    return Stream(cast(Scheduler, SimpleNamespace(clock=clock)), **about)


def test_events_that_come_while_others_are_sent_are_sent_next() -> None:
    stream = _stream()

    async def told() -> list[bytes]:
        nodes: list[bytes] = []
        async for text in stream.follow(quiet_s=0.01):
            if text.startswith(b":") and len(nodes) < 4:
                stream._happened([NodeLost(0.0, 0)])
                continue
            nodes.append(text)
            if len(nodes) == 4:
                break
            # Another event, while this one is on its way to the client.
            stream._happened([NodeLost(0.0, len(nodes))])
        return nodes

    nodes = asyncio.run(asyncio.wait_for(told(), 10.0))
    assert [text.count(b'"node":') for text in nodes] == [1, 1, 1, 1]
    assert [f'"node":{node}'.encode() in text for node, text in enumerate(nodes)] == [True] * 4


def test_a_client_that_was_away_for_too_long_is_told_of_a_gap() -> None:
    stream = _stream(kept=2)
    for node in range(5):
        stream._happened([NodeLost(0.0, node)])

    async def first() -> bytes:
        async for text in stream.follow(f"{stream._run}-1", quiet_s=0.01):
            if not text.startswith(b":"):
                return text
        return b""

    assert b'"event":"Gap"' in asyncio.run(asyncio.wait_for(first(), 10.0))


def test_a_burst_wakes_the_loop_once_and_is_one_piece_for_all_streams() -> None:
    stream = _stream()
    woken: list[str] = []

    async def told() -> list[bytes]:
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def counted(*about: Any) -> Any:
            woken.append("")
            return call(*about)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        streams = [stream.follow(quiet_s=10.0) for _ in range(10)]
        for one in streams:
            assert (await anext(one)).startswith(b":")
        nexts = [asyncio.ensure_future(anext(one)) for one in streams]
        await asyncio.sleep(0)
        for node in range(100):
            stream._happened([NodeLost(0.0, node)])
        pieces = list(await asyncio.gather(*nexts))
        for one in streams:
            await one.aclose()  # type: ignore[attr-defined]
        return pieces

    pieces = asyncio.run(asyncio.wait_for(told(), 10.0))
    assert len(woken) == 1
    assert all(piece is pieces[0] for piece in pieces)
    assert pieces[0].count(b"event: NodeLost") == 100


def test_a_user_may_follow_some_streams_and_others_are_not_kept_out() -> None:
    stream = _stream()

    async def told() -> None:
        streams = [stream.follow(user="anna") for _ in range(events.MOST_EACH)]
        for one in streams:
            await anext(one)
        assert "the most for one user" in stream.refusal("anna")
        assert stream.refusal("ben") == ""
        await streams[0].aclose()  # type: ignore[attr-defined]
        assert stream.refusal("anna") == ""

    asyncio.run(asyncio.wait_for(told(), 10.0))
