"""Connections of clients: how many there may be, how long they may be silent, and who is at the other end.

A connection costs a file descriptor, and the scheduler needs descriptors for its jobs. So every user may have some, all
users together may have some more, and root and the scheduler's own user always find a place. If all places are taken,
a user who has few gets one from a user who has many and does not use it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from fairway.api.request_origin import PEER, TCP, tcp_uid

HEADER_S, BODY_S, STUCK_S = 10.0, 30.0, 600.0
"""How long a client may take to send the head and the body of a request, and how long it may not read an answer."""
MOST_EACH, MOST_OTHERS, MOST = 200, 800, 1000
"""The most connections of one user, of all users but root and the scheduler's own, and in all."""
SPARE_FILES = 256
"""Descriptors that are kept for jobs and the journal."""
_SWEEP_S = 1.0
_CREDENTIALS = struct.Struct("3i")
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)


def raise_file_limit() -> int:
    """Allow as many open files as the system lets us. Returns what was allowed before: that is what jobs get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


class Connections:
    """All connections of one server."""

    def __init__(self) -> None:
        self._of: Counter[int] = Counter()
        self._all: set[Connection] = set()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = MOST if files == resource.RLIM_INFINITY else max(min(MOST, files - SPARE_FILES), 16)
        self._most_others = self._most * MOST_OTHERS // MOST
        self._sweeper: asyncio.TimerHandle | None = None

    def refusal(self, uid: int) -> str:
        """Why a user may not have one more connection now; "" if that is fine."""
        if self._of[uid] >= MOST_EACH and uid != 0:
            return f"you have {MOST_EACH} connections already, which is the most for one user; close some"
        return (
            ""
            if self._has_room(uid) or self._made_room(uid)
            else "too many connections are open; try again in a moment"
        )

    def _has_room(self, uid: int) -> bool:
        ours = (0, os.geteuid())
        others = len(self._all) - sum(self._of[one] for one in set(ours))
        return len(self._all) < self._most and (uid in ours or others < self._most_others)

    def _made_room(self, uid: int) -> bool:
        """Close an idle connection of the user who has most of them, if that is more than this user has."""
        idle = (one for one in self._all if one.uid not in (0, os.geteuid()) and not one.answers())
        found = max(idle, key=lambda one: self._of[one.uid], default=None)
        if found is None or self._of[found.uid] <= self._of[uid] + 1:
            return False
        self.discard(found)
        found.transport.abort()
        return self._has_room(uid)

    def add(self, connection: Connection) -> None:
        """Count a connection."""
        self._all.add(connection)
        self._of[connection.uid] += 1
        if self._sweeper is None:
            self._sweep(connection.loop)

    def discard(self, connection: Connection) -> None:
        """Count it no more."""
        if connection in self._all:
            self._all.discard(connection)
            self._of[connection.uid] -= 1

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections whose clients are silent in the middle of something. Repeats itself while there are any."""
        now_s = loop.time()
        for connection in [one for one in self._all if one.is_overdue(now_s)]:
            connection.transport.abort()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep, loop) if self._all else None


class Connection(H11Protocol):
    """HTTP in which the address of a peer on this machine is its user id."""

    def __init__(self, *about: Any, known: Connections, **more: Any) -> None:
        super().__init__(*about, **more)
        self.uid = -1
        self._known = known
        self._head_s: float | None = self.loop.time()
        self._began_s = 0.0
        self._stuck_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take note of who has connected, and refuse one connection too many."""
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.family == socket.AF_UNIX:
            told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, self.uid, _ = _CREDENTIALS.unpack(told)
            self.client = (f"{PEER}{self.uid}", pid)
        else:
            self.uid = tcp_uid(peer)
            if self.uid >= 0 and self.client is not None:
                self.client = (f"{TCP}{self.uid}", self.client[1])
        why = self._known.refusal(self.uid)
        if why:
            text = f'{{"error":"{why}"}}'.encode()
            transport.write(_TOO_MANY % (len(text), text))
            transport.close()
            return
        self._known.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._known.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        if self.transport.is_closing():
            return
        busy = self.answers()
        if not busy and self._head_s is None:
            self._head_s = self.loop.time()
        super().data_received(data)
        if not busy and self.answers():
            self._head_s, self._began_s = None, self.loop.time()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._stuck_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stuck_s = None
        super().resume_writing()

    def is_overdue(self, now_s: float) -> bool:
        """Whether its client has been silent for too long, in the middle of something."""
        if self._head_s is not None and now_s > self._head_s + HEADER_S:
            return True
        if self._stuck_s is not None and now_s > self._stuck_s + STUCK_S:
            return True
        return self.answers() and self.cycle.more_body and now_s > self._began_s + BODY_S

    def answers(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete


class FewLines(logging.Filter):
    """Lets at most `most` lines pass in every `seconds`: a log must not fill the disk."""

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
        self._since_s, self._passed = -seconds, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line may pass."""
        now_s = time.monotonic()
        if now_s >= self._since_s + self._seconds:
            self._since_s, self._passed = now_s, 0
        self._passed += 1
        return self._passed <= self._most
