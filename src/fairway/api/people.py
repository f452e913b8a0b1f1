"""Who sends a request and what they may do: all users see everything and control their own jobs.

On the Unix socket the kernel says who is at the other end; over TCP a token says it (`tokens`). Root, the scheduler's
own user and operators control every job. A scheduler of root runs each job as the user who submits it. Any other
scheduler can run jobs only as its own user, so other users may look but not submit, unless it was opened to them.
"""

from __future__ import annotations

import hmac
import os
import pwd
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairway.api.tokens import FIRST, NoTokenError, Role, Tokens
from fairway.core.errors import FairwayError

_names: dict[int, str] = {}
_ids: dict[str, tuple[float, int]] = {}
KEPT_S = 60.0
"""How long the number of an account is kept before it is looked up again."""
PEER = "uid:"
"""How the address of a peer on the Unix socket begins; its user id follows."""


class NotAllowedError(FairwayError):
    """This user may not do this."""


@dataclass(frozen=True)
class Person:
    """The sender of a request: on the Unix socket a process `pid`, else the bearer of a `token`."""

    uid: int
    name: str
    operator: bool
    role: Role = "operate"
    token: str = ""
    pid: int = 0

    @property
    def root(self) -> bool:
        return self.uid == 0


class _Bearer(NamedTuple):
    """Whom a token stands for."""

    uid: int
    role: Role
    token: str


@dataclass(frozen=True)
class Access:
    """The rules of one scheduler. `token` and `tokens` are for TCP; `token` stands for the scheduler's own user."""

    own_uid: int = field(default_factory=os.geteuid)
    operators: Callable[[], Collection[str]] = tuple
    token: str | None = None
    open_to_all: bool = False
    tokens: Tokens | None = None

    def person(self, scope: dict[str, Any] | Any) -> Person:
        """Who sent a request, by its ASGI scope; `NoTokenError` if that is not known."""
        host, port = scope.get("client") or ("", 0)
        if host.startswith(PEER):
            uid = int(host[len(PEER) :])
            return Person(uid, user_name(uid), self._is_operator(uid), pid=port)
        uid, role, token = self._by_token(scope)
        return Person(uid, user_name(uid), role == "operate" and self._is_operator(uid), role, token)

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

    def _by_token(self, scope: Any) -> _Bearer:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if not given:
            raise NoTokenError(
                "over TCP a request needs a token: the header `Authorization: Bearer TOKEN`, for the command line "
                "$FAIRWAY_TOKEN. `fairway token create` makes one; the scheduler's user has one in the file `token` of "
                "the state directory"
            )
        if self.token is not None and hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            return _Bearer(self.own_uid, "operate", FIRST)
        kind, _, secret = given.decode("latin-1").partition(" ")
        if kind != "Bearer" or self.tokens is None:
            raise NoTokenError(
                "the header `Authorization` does not carry a token of this scheduler, as in `Bearer TOKEN`. "
                "The scheduler's user has one in the file `token` of the state directory"
            )
        found = self.tokens.bearer(secret)
        return _Bearer(found.uid, found.role, found.name)


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
