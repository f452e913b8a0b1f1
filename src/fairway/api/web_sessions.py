"""Signing in to the web page: one-time links, and the sessions that begin with a link or a token.

A link is used once, within ten minutes. A session is known by a cookie. Only digests of both are kept: links in memory,
sessions also in a file, so that an open page goes on after a restart of the scheduler. Both are bounded in number and
in time. A session stands for a user and gives no more than that user has.

On loopback the kernel also says whose process connects (`peer`). A session is good only for the user who has begun it,
and a link only for the user it was made for: a stolen cookie or link does not help another user of the machine.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairway.api.tokens import NoTokenError, Role, digest_of
from fairway.core.errors import FairwayError
from fairway.runtime.processes.keeper import read_own, write_over

FILE = "web_sessions.json"
LINK_S = 600.0
"""How long a link can be used."""
IDLE_S, LONGEST_S = 12 * 3600.0, 7 * 86400.0
"""When a session ends that is not used, and when it ends in any case."""
MOST_LINKS_EACH, MOST_LINKS = 10, 1000
MOST_SESSIONS_EACH, MOST_SESSIONS = 100, 1000
"""The most links and sessions of one user, and in all. The oldest of the user who has most make room."""
MOST_FAILURES, FAILURES_S = 10, 60.0
"""How often somebody may fail to sign in, and in what time."""
NOBODY = -1
"""Whoever connects, if the kernel does not say it."""
_BYTES = 32
_OVER = "this link has expired or was used; run `fairway web` for a new one"


class TooManyFailuresError(FairwayError):
    """Signing in has failed too often."""


@dataclass(frozen=True)
class Bearer:
    """For whom a token, a link or a session stands. `digest` is that of the token that it depends on, or ""."""

    uid: int
    role: Role
    token: str = ""
    digest: str = ""


@dataclass
class WebSession:
    """A session. `peer` is the user whose process has begun it. Dates are seconds since 1970."""

    name: str
    bearer: Bearer
    peer: int
    made_s: float
    used_s: float

    def is_over(self, now_s: float) -> bool:
        """Whether it counts no more."""
        return now_s >= self.used_s + IDLE_S or now_s >= self.made_s + LONGEST_S


@dataclass(frozen=True)
class _Link:
    bearer: Bearer
    ends_s: float


def csrf_of(secret: str) -> str:
    """What a page adds to requests that change something. Other pages cannot know it."""
    return hmac.new(secret.encode("utf-8", "surrogateescape"), b"fairway csrf", "sha256").hexdigest()


class WebSessions:
    """All links and sessions of a state directory. Any thread may call this."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path = folder / FILE
        self._now_s = now_s
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._sessions = _read(self._path, now_s())
        self._failures: dict[int, tuple[float, int]] = {}

    def link(self, bearer: Bearer) -> str:
        """Make a link that stands for somebody; its secret, which is kept nowhere."""
        secret, now_s = secrets.token_urlsafe(_BYTES), self._now_s()
        with self._lock:
            self._links = {one: link for one, link in self._links.items() if now_s < link.ends_s}
            _make_room(self._links, lambda link: link.bearer.uid, bearer.uid, MOST_LINKS_EACH, MOST_LINKS)
            self._links[digest_of(secret)] = _Link(bearer, now_s + LINK_S)
        return secret

    def use_link(self, secret: str, peer: int) -> Bearer:
        """Whom a link stands for. It counts no more, also if it is somebody else's."""
        with self._lock:
            link = self._links.pop(digest_of(secret), None)
        if link is None or self._now_s() >= link.ends_s:
            raise NoTokenError(_OVER)
        # Root's links may be opened by others: root rarely has a browser. And root may open all.
        if peer not in (link.bearer.uid, NOBODY, 0) and link.bearer.uid != 0:
            raise NoTokenError("this link is for another user of this machine; run `fairway web` yourself")
        return link.bearer

    def begin(self, bearer: Bearer, peer: int) -> tuple[WebSession, str]:
        """Begin a session; also returns its secret, which only the browser keeps."""
        secret, now_s = secrets.token_urlsafe(_BYTES), self._now_s()
        made = WebSession(f"web-{secrets.token_hex(4)}", bearer, peer, now_s, now_s)
        with self._lock:
            self._drop_over(now_s)
            _make_room(self._sessions, lambda one: one.bearer.uid, bearer.uid, MOST_SESSIONS_EACH, MOST_SESSIONS)
            self._sessions[digest_of(secret)] = made
            self._write()
        return made, secret

    def known(self, secret: str, peer: int) -> WebSession | None:
        """The session with this secret, which is used now; None if there is none for this peer."""
        digest, now_s = digest_of(secret), self._now_s()
        found = self._sessions.get(digest)
        if found is None or found.peer not in (peer, NOBODY) or found.is_over(now_s):
            return None
        found.used_s = now_s
        return found

    def end(self, secret: str) -> None:
        """End a session: its cookie counts no more."""
        with self._lock:
            if self._sessions.pop(digest_of(secret), None) is not None:
                self._write()

    def check_failures(self, peer: int) -> None:
        """Raise `TooManyFailuresError` if this user has failed to sign in too often."""
        since_s, count = self._failures.get(peer, (0.0, 0))
        left_s = since_s + FAILURES_S - self._now_s()
        if count >= MOST_FAILURES and left_s > 0:
            raise TooManyFailuresError(f"signing in has failed {count} times; try again in {left_s:.0f} s")

    def note_failure(self, peer: int) -> None:
        """Somebody has failed to sign in."""
        with self._lock:
            now_s = self._now_s()
            self._failures = {one: told for one, told in self._failures.items() if now_s < told[0] + FAILURES_S}
            since_s, count = self._failures.get(peer, (now_s, 0))
            self._failures[peer] = since_s, count + 1

    def _drop_over(self, now_s: float) -> None:
        self._sessions = {one: session for one, session in self._sessions.items() if not session.is_over(now_s)}

    def _write(self) -> None:
        # On a full disk the sessions of now count, but not after a restart.
        with suppress(OSError):
            write_over(self._path, {digest: asdict(session) for digest, session in self._sessions.items()})


def _make_room(things: dict[str, Any], uid_of: Callable[[Any], int], uid: int, each: int, most: int) -> None:
    """Drop the oldest of a user who has `each`, or of the user who has most if there are `most` in all."""
    counts = Counter(map(uid_of, things.values()))
    whose = uid if counts[uid] >= each else max(counts, key=lambda one: counts[one]) if len(things) >= most else None
    if whose is not None:
        del things[next(one for one, thing in things.items() if uid_of(thing) == whose)]


def _read(path: Path, now_s: float) -> dict[str, WebSession]:
    """The sessions of last time. If the file is damaged, everybody has to sign in again."""
    try:
        told: dict[str, dict[str, Any]] = json.loads(read_own(path))
        found = {
            digest: WebSession(**{**one, "bearer": Bearer(**one["bearer"]), "used_s": now_s})
            for digest, one in told.items()
        }
        return {digest: one for digest, one in found.items() if not one.is_over(now_s)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
