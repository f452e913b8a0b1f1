"""The event stream: what the scheduler does, as server-sent events that many clients may follow.

The scheduler's thread hands events over and goes on at once. The last ones are kept, so a client that was cut off says
the id of the last event that it saw and misses nothing; if it was away for too long the stream says so with `Gap`.

Streams are woken together: at once after a quiet time, and then with pauses that grow with their number. They send the
same bytes.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.event import Event, Woken
from fairway.runtime.daemon.scheduler import Scheduler

KEPT = 10_000
QUIET_S = 15.0
"""After this time without an event a comment is sent, so that a broken connection is noticed."""
PAUSE_S, PAUSE_EACH_S = 0.1, 0.002
"""The time between two wakes, at least and for each stream."""
GROUP, GROUP_S = 20, 0.01
"""How many streams are woken at once, and the time until the next ones are."""
MOST_AT_ONCE = 1000
"""The most events in one piece."""
MOST_EACH, MOST = 100, 400
"""The most streams of one user, and in all."""
_TOLD = ("rate", "progress", "batch_size", "why", "gpus", "host", "node", "priority", "weight")


class Stream:
    """All events since this scheduler started; the last `kept` can be sent again."""

    def __init__(self, scheduler: Scheduler, *, kept: int = KEPT) -> None:
        self._scheduler = scheduler
        self._run = secrets.token_hex(4)
        self._most = kept
        self._kept: tuple[int, list[bytes]] = (1, [])
        self._piece: tuple[int, int, bytes] = (0, 0, b"")
        self._bells: dict[asyncio.AbstractEventLoop, _Bell] = {}
        self._of: Counter[str] = Counter()
        self.closing = False

    @property
    def _count(self) -> int:
        """The number of the last event."""
        first, kept = self._kept
        return first + len(kept) - 1

    @property
    def last(self) -> str:
        """The id of the last event."""
        return f"{self._run}-{self._count}"

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
        first, kept = self._kept
        for thing, date_s in things:
            kind = type(thing).__name__
            name = f"{self._run}-{first + len(kept)}"
            plain = {"id": name, "event": kind, "time_s": date_s, **self._plain(thing)}
            kept.append(_written(name, kind, plain))
        if len(kept) > 2 * self._most:
            # A new list: streams may be reading the old one.
            self._kept = first + len(kept) - self._most, kept[-self._most :]
        if things:
            self._wake()

    def refusal(self, user: str) -> str:
        """Why a user may not have one more stream now; "" if that is fine."""
        if self._of[user] >= MOST_EACH:
            return f"you follow {MOST_EACH} event streams already, which is the most for one user; close some"
        return "too many event streams are open; try again later" if self._of.total() >= MOST else ""

    def close(self) -> None:
        """End all streams; may be called from any thread."""
        self.closing = True
        self._wake()

    async def follow(
        self,
        last: str | None = None,
        *,
        user: str = "",
        quiet_s: float = QUIET_S,
        counts: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[bytes]:
        """Events as pieces of text, from now on or from the one after `last`, while whoever asks `counts`."""
        at, gap = self._place(last)
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        bell = self._bells.setdefault(loop, _Bell(loop))
        bell.news.add(news)
        self._of[user] += 1
        try:
            yield b": fairway events\n\n"
            if gap:
                yield self._gap()
            waited = False
            while not self.closing and counts():
                news.clear()
                # Others may come while these are sent: they are for the next time.
                at, piece = self._after(at)
                if piece or waited:
                    yield piece or b": quiet\n\n"
                waited = at >= self._count
                if waited:
                    timer = loop.call_later(quiet_s, news.set)
                    await news.wait()
                    timer.cancel()
        finally:
            self._of[user] -= 1
            bell.news.discard(news)
            if not bell.news:
                self._bells.pop(loop, None)

    def _after(self, at: int) -> tuple[int, bytes]:
        """The next events after a number as one piece, and the number of the last of them; some may be lost."""
        first, kept = self._kept
        begin = max(at + 1 - first, len(kept) - self._most, 0)
        texts = kept[begin : begin + MOST_AT_ONCE]
        if not texts:
            return at, b""
        since, until = first + begin, first + begin + len(texts) - 1
        if self._piece[:2] != (since, until):
            self._piece = since, until, b"".join(texts)
        piece = self._piece[2]
        return until, self._gap() + piece if since > at + 1 else piece

    def _place(self, last: str | None) -> tuple[int, bool]:
        """The number to continue from, and whether events in between are lost."""
        if last is None:
            return self._count, False
        run, _, number = last.partition("-")
        if run != self._run or not number.isdecimal() or int(number) > self._count:
            return self._count, True
        return int(number), False

    def _gap(self) -> bytes:
        return _written(self.last, "Gap", {"event": "Gap", "id": self.last})

    def _wake(self) -> None:
        for loop, bell in list(self._bells.items()):
            try:
                bell.ask()
            except RuntimeError:
                # Its loop is closed, so the clients are gone.
                self._bells.pop(loop, None)

    def _plain(self, thing: Event | Action) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        job = getattr(thing, "job", None)
        if job is not None:
            record = self._scheduler.store[job]
            plain |= {"job": record.id, "user": record.request.user, "name": record.request.name}
            plain["state"] = str(record.state)
        return plain | {name: getattr(thing, name) for name in thing._fields if name in _TOLD}


class _Bell:
    """Wakes all streams of one event loop. Other threads ask for that by one call, however many streams there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.news: set[asyncio.Event] = set()
        self._loop = loop
        self._asked = False
        self._rang_s = -PAUSE_S

    def ask(self) -> None:
        """There is something new. Any thread may call this."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self._soon)

    def _soon(self) -> None:
        pause_s = max(PAUSE_S, PAUSE_EACH_S * len(self.news))
        self._loop.call_at(max(self._rang_s + pause_s, self._loop.time()), self._ring)

    def _ring(self) -> None:
        # First of all, so that what comes from now on rings again.
        self._asked = False
        self._rang_s = self._loop.time()
        for at, one in enumerate(list(self.news)):
            if at < GROUP:
                one.set()
            else:
                self._loop.call_later(at // GROUP * GROUP_S, one.set)


def _written(name: str, kind: str, plain: dict[str, Any]) -> bytes:
    return f"id: {name}\nevent: {kind}\ndata: {json.dumps(plain, separators=(',', ':'))}\n\n".encode()
