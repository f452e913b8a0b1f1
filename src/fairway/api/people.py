"""Who sends a request and what they may do: all users see everything and control their own jobs.

On the Unix socket the kernel says who is at the other end; over TCP a token says it (`tokens`), or the cookie of a web
page (`web_sessions`). Root, the scheduler's own user and operators control every job. A scheduler of root runs each job
as the user who submits it. Any other scheduler can run jobs only as its own user, so other users may look but not
submit, unless it was opened to them.
"""

from __future__ import annotations

import hmac
import os
import pwd
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from fairway.api.request_origin import PEER, cookie_of, header_of, peer_of
from fairway.api.tokens import FIRST, NoTokenError, Role, Tokens, digest_of
from fairway.api.web_sessions import Bearer, WebSession, WebSessions, csrf_of
from fairway.core.errors import FairwayError

_names: dict[int, str] = {}
_ids: dict[str, tuple[float, int]] = {}
KEPT_S = 60.0
"""How long the number of an account is kept before it is looked up again."""
CSRF = b"x-fairway-csrf"
"""The header by which the page shows that a request is its own."""
_LOOKS = ("GET", "HEAD")


SIGNED_OUT = "you are not signed in, or no longer; run `fairway web` for a link"
_NO_TOKEN = (
    "over TCP a request needs a token: the header `Authorization: Bearer TOKEN`, for the command line $FAIRWAY_TOKEN. "
    "`fairway token create` makes one; the scheduler's user has one in the file `token` of the state directory. "
    "A web page is signed in by `fairway web`"
)


class NotAllowedError(FairwayError):
    """This user may not do this."""


@dataclass(frozen=True)
class Person:
    """The sender of a request: on the Unix socket a process `pid`, else the bearer of a `token`, or a web `session`."""

    uid: int
    name: str
    operator: bool
    role: Role = "operate"
    token: str = ""
    pid: int = 0
    session: str = ""

    @property
    def root(self) -> bool:
        return self.uid == 0


@dataclass(frozen=True)
class Access:
    """The rules of one scheduler. `token` and `tokens` are for TCP; `token` stands for the scheduler's own user.

    `sessions` are those of web pages.
    """

    own_uid: int = field(default_factory=os.geteuid)
    operators: Callable[[], Collection[str]] = tuple
    token: Callable[[], str | None] = lambda: None
    open_to_all: bool = False
    tokens: Tokens | None = None
    sessions: WebSessions | None = None

    def person(self, scope: dict[str, Any] | Any) -> Person:
        """Who sent a request, by its ASGI scope; `NoTokenError` if that is not known."""
        host, port = scope.get("client") or ("", 0)
        if host.startswith(PEER):
            uid = int(host[len(PEER) :])
            return Person(uid, user_name(uid), self._is_operator(uid), pid=port)
        given = header_of(scope, b"authorization")
        if given or self.sessions is None:
            return self._as(self.bearer(given))
        session = self.session(scope)
        if session is None:
            raise NoTokenError(SIGNED_OUT if cookie_of(scope) else _NO_TOKEN)
        secret = cookie_of(scope)
        if scope["method"] not in _LOOKS and not hmac.compare_digest(header_of(scope, CSRF), csrf_of(secret).encode()):
            raise NotAllowedError("this request does not come from the page itself; reload the page")
        return self.signed_in(session)

    def signed_in(self, session: WebSession) -> Person:
        """Who has signed in."""
        return self._as(session.bearer, session.name)

    def _as(self, bearer: Bearer, session: str = "") -> Person:
        operator = bearer.role == "operate" and self._is_operator(bearer.uid)
        return Person(bearer.uid, user_name(bearer.uid), operator, bearer.role, bearer.token, session=session)

    def session(self, scope: Any) -> WebSession | None:
        """The session of the page that sends a request. It ends with the token that it began with."""
        secret = cookie_of(scope)
        found = self.sessions.known(secret, peer_of(scope)) if self.sessions is not None and secret else None
        return found if found is not None and self.stands(found.bearer) else None

    def stands(self, bearer: Bearer) -> bool:
        """Whether the token still counts by which somebody has signed in; without one, nothing has changed."""
        return not bearer.digest or bearer.digest == self.digest(bearer.token)

    def digest(self, token: str) -> str:
        """The digest of the token with this name, as it is now; "" if there is none."""
        if token == FIRST:
            first = self.token()
            return "" if first is None else digest_of(first)
        found = None if self.tokens is None else self.tokens.named(token)
        return "" if found is None else found.digest

    def _is_operator(self, uid: int) -> bool:
        return uid in (0, self.own_uid) or user_name(uid) in self.operators()

    def may_control(self, person: Person, owner: str) -> bool:
        """Whether a person may change a job of `owner`."""
        return person.operator or person.name == owner

    def owner(self, person: Person, asked: str) -> tuple[str, str]:
        """For whom a submission is taken, and as whom its processes run; "" is the scheduler's own user.

        A name without an account is a label: such a job runs as the user who submits it.
        """
        if asked and asked != person.name and not person.operator:
            raise NotAllowedError(f"you are {person.name} and cannot submit for {asked}")
        if self.own_uid != 0:
            if not (person.operator or self.open_to_all):
                own = user_name(self.own_uid)
                raise NotAllowedError(f"this scheduler runs all jobs as {own}; {person.name} may look, but not submit")
            return asked or person.name, ""
        owner = asked or person.name
        account = owner if user_id(owner) is not None else person.name
        if user_id(account) is None:
            raise NotAllowedError(f"{account} has no account on this machine that a job could run as")
        if user_id(account) == 0 and not person.root:
            raise NotAllowedError(f"{person.name} cannot submit jobs that run as {account}")
        return owner, account

    def bearer(self, given: bytes) -> Bearer:
        """Whom the header `Authorization` stands for; `NoTokenError` if it carries no token that counts."""
        if not given:
            raise NoTokenError(_NO_TOKEN)
        first = self.token()
        if first is not None and hmac.compare_digest(given, f"Bearer {first}".encode()):
            return Bearer(self.own_uid, "operate", FIRST, digest_of(first))
        kind, _, secret = given.decode("latin-1").partition(" ")
        if kind != "Bearer" or self.tokens is None:
            raise NoTokenError(
                "the header `Authorization` does not carry a token of this scheduler, as in `Bearer TOKEN`. "
                "The scheduler's user has one in the file `token` of the state directory"
            )
        found = self.tokens.bearer(secret)
        return Bearer(found.uid, found.role, found.name, found.digest)


def user_name(uid: int) -> str:
    """The name of an account; its number where it has none."""
    # Kept, because every request asks this, and a directory service may be slow.
    if uid not in _names:
        try:
            _names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)
    return _names[uid]


def user_id(name: str) -> int | None:
    """The number of an account, if there is one of this name."""
    # Kept for a while, because every submission asks this. A missing account is looked up every time.
    now_s = time.monotonic()
    found_s, uid = _ids.get(name, (-KEPT_S, -1))
    if now_s < found_s + KEPT_S:
        return uid
    try:
        uid = pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError, UnicodeError):
        return None
    _ids[name] = now_s, uid
    return uid
