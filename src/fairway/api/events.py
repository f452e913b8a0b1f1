"""The event stream: what the scheduler does, as server-sent events that many clients may follow.

The scheduler's thread hands events over and goes on at once. The last ones are kept, so a client that was cut off says
the id of the last event that it saw and misses nothing; if it was away for too long the stream says so with `Gap`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event, Woken
from fairway.runtime.daemon.scheduler import Scheduler

KEPT = 10_000
QUIET_S = 15.0
"""After this time without an event a comment is sent, so that a broken connection is noticed."""
_TOLD = ("rate", "progress", "batch_size", "why", "gpus", "host", "node", "priority", "weight")


class Stream:
    """All events since this scheduler started; the last `kept` can be sent again."""

    def __init__(self, scheduler: Scheduler, *, kept: int = KEPT) -> None:
        self._scheduler = scheduler
        self._run = secrets.token_hex(4)
        self._kept: deque[tuple[int, str]] = deque(maxlen=kept)
        self._count = 0
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.closing = False

    def listen(self) -> None:
        """Listen to the scheduler."""
        self._scheduler.listeners.append(self._happened)
        self._scheduler.watchers.append(self._decided)

    def _happened(self, events: Sequence[Event]) -> None:
        """Called in the scheduler's thread."""
        clock = self._scheduler.clock
        self._add([(event, clock.today_s(event.time_s)) for event in events if type(event) is not Woken])

    def _decided(self, decision: Decision, actions: Sequence[Action]) -> None:
        """Called in the scheduler's thread."""
        date_s = self._scheduler.clock.today_s(self._scheduler.state.now_s)
        self._add([(action, date_s) for action in actions])

    def _add(self, things: Sequence[tuple[Event | Action, float]]) -> None:
        for thing, date_s in things:
            kind = type(thing).__name__
            name = f"{self._run}-{self._count + 1}"
            plain = {"id": name, "event": kind, "time_s": date_s, **self._plain(thing)}
            self._kept.append((self._count + 1, _written(name, kind, plain)))
            self._count += 1
        if things:
            self._wake()

    def close(self) -> None:
        """End all streams; may be called from any thread."""
        self.closing = True
        self._wake()

    async def follow(self, last: str | None = None, *, quiet_s: float = QUIET_S) -> AsyncIterator[str]:
        """Events as text, from now on or from the one after `last`."""
        at, gap = self._place(last)
        news = asyncio.Event()
        self._waiting[news] = asyncio.get_running_loop()
        try:
            yield ": fairway events\n\n"
            if gap:
                yield self._gap()
            while not self.closing:
                news.clear()
                # Others may come while these are sent: they are for the next time.
                at, texts = self._after(at)
                for text in texts:
                    yield text
                try:
                    await asyncio.wait_for(news.wait(), quiet_s)
                except TimeoutError:
                    yield ": quiet\n\n"
        finally:
            self._waiting.pop(news, None)

    def _after(self, at: int) -> tuple[int, list[str]]:
        """The number of the last event, and the texts of those after a number; some of them may be lost."""
        kept = [one for one in list(self._kept) if one[0] > at]
        if not kept:
            return at, []
        lost = [self._gap()] if kept[0][0] > at + 1 else []
        return kept[-1][0], [*lost, *(text for _, text in kept)]

    def _place(self, last: str | None) -> tuple[int, bool]:
        """The number to continue from, and whether events in between are lost."""
        if last is None:
            return self._count, False
        run, _, number = last.partition("-")
        if run != self._run or not number.isdecimal() or int(number) > self._count:
            return self._count, True
        return int(number), False

    def _gap(self) -> str:
        return _written(f"{self._run}-{self._count}", "Gap", {"event": "Gap", "id": f"{self._run}-{self._count}"})

    def _wake(self) -> None:
        for news, loop in list(self._waiting.items()):
            try:
                loop.call_soon_threadsafe(news.set)
            except RuntimeError:
                # Its loop is closed, so the client is gone.
                self._waiting.pop(news, None)

    def _plain(self, thing: Event | Action) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        job = getattr(thing, "job", None)
        if job is not None:
            record = self._scheduler.store[job]
            plain |= {"job": record.id, "user": record.request.user, "name": record.request.name}
            plain["state"] = str(record.state)
        return plain | {name: getattr(thing, name) for name in thing._fields if name in _TOLD}


def _written(name: str, kind: str, plain: dict[str, Any]) -> str:
    return f"id: {name}\nevent: {kind}\ndata: {json.dumps(plain, separators=(',', ':'))}\n\n"
