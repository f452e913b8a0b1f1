"""The event stream without a server: nothing is lost between two looks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from fairway.api.events import Stream
from fairway.core.event import NodeLost
from fairway.runtime.daemon.scheduler import Scheduler


def _stream(**about: Any) -> Stream:
    clock = SimpleNamespace(date_s=lambda time_s: time_s)
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
