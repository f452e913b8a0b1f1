"""Tokens: who sends a request over TCP. Each has a name, a user, a role and perhaps an end, and can be revoked alone.

Only a digest of a token is kept, in a file that only the scheduler's user can read. The token itself is shown once,
when it is made. A token never gives more than its user has.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from fairway.core.errors import FairwayError, InputError
from fairway.runtime.processes.keeper import read_own, write_over

FILE = "tokens.json"
FIRST = "token"
"""The name of the token in the file of that name. It stands for the scheduler's own user."""
MOST = 1000
KEPT_S = 30 * 86400.0
"""How long a token that has expired is still listed."""
_BYTES = 32

Role = Literal["read", "submit", "operate"]
"""What a token is good for: to look; also to submit and to control jobs of its user; all that its user may do."""
ROLES: tuple[Role, ...] = get_args(Role)


class NoTokenError(FairwayError):
    """The request came over TCP and does not carry a token that counts."""


class UnknownTokenError(FairwayError):
    """There is no token of this name."""


class TokenExistsError(FairwayError):
    """There is a token of this name already."""


@dataclass(frozen=True)
class Token:
    """One token, without its secret. Dates are seconds since 1970; `expires_s` is None if it does not expire."""

    name: str
    role: Role
    uid: int
    digest: str
    made_s: float
    made_by: str
    expires_s: float | None = None
    lasts_s: float | None = None

    def has_expired(self, now_s: float) -> bool:
        """Whether it counts no more."""
        return self.expires_s is not None and now_s >= self.expires_s


class Tokens:
    """All tokens of a state directory. Any thread may call this."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path = folder / FILE
        self._now_s = now_s
        self._lock = threading.Lock()
        self._by_name = {one.name: one for one in _read(self._path)}
        self._by_digest = {one.digest: one for one in self._by_name.values()}

    def all(self) -> list[Token]:
        """All tokens, by name."""
        return sorted(self._by_name.values(), key=lambda one: one.name)

    def bearer(self, secret: str) -> Token:
        """The token with this secret; `NoTokenError` if there is none, or if it has expired."""
        found = self._by_digest.get(digest_of(secret))
        if found is None:
            raise NoTokenError(
                "this scheduler knows no such token; it may have been revoked or replaced. Its own user finds one in "
                "the file `token` of the state directory, and `fairway token create` makes others"
            )
        if found.has_expired(self._now_s()):
            raise NoTokenError(f"the token {found.name} has expired; `fairway token rotate {found.name}` renews it")
        return found

    def create(self, name: str, role: Role, uid: int, *, by: str, lasts_s: float | None = None) -> tuple[Token, str]:
        """Make a token; also returns its secret, which is kept nowhere."""
        with self._lock:
            if name in self._by_name or name == FIRST:
                raise TokenExistsError(f"there is a token {name} already")
            if len(self._by_name) >= MOST:
                raise InputError(f"there are {MOST} tokens already; revoke some")
            return self._keep(Token(name, role, uid, "", 0.0, by, lasts_s=lasts_s))

    def rotate(self, name: str, *, by: str) -> tuple[Token, str]:
        """Give a token a new secret, and as much time again. The old secret counts no more."""
        with self._lock:
            return self._keep(replace(self.known(name), made_by=by))

    def revoke(self, name: str) -> Token:
        """Remove a token: it counts no more."""
        with self._lock:
            gone = self.known(name)
            self._write({one: token for one, token in self._by_name.items() if one != name})
            return gone

    def named(self, name: str) -> Token | None:
        """The token of this name, if there is one that counts."""
        found = self._by_name.get(name)
        return None if found is None or found.has_expired(self._now_s()) else found

    def known(self, name: str) -> Token:
        """The token of this name."""
        if name not in self._by_name:
            raise UnknownTokenError(f"there is no token {name!r}")
        return self._by_name[name]

    def _keep(self, token: Token) -> tuple[Token, str]:
        secret, now_s = secrets.token_urlsafe(_BYTES), self._now_s()
        ends_s = None if token.lasts_s is None else now_s + token.lasts_s
        made = replace(token, digest=digest_of(secret), made_s=now_s, expires_s=ends_s)
        self._write({**self._by_name, made.name: made})
        return made, secret

    def _write(self, tokens: dict[str, Token]) -> None:
        """Keep these tokens. They count once they are on disk."""
        now_s = self._now_s()
        kept = {name: one for name, one in tokens.items() if not one.has_expired(now_s - KEPT_S)}
        write_over(self._path, [asdict(one) for one in kept.values()])
        self._by_name, self._by_digest = kept, {one.digest: one for one in kept.values()}


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    # A token has 256 random bits, so it needs no slow or salted digest.
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _read(path: Path) -> list[Token]:
    try:
        return [Token(**one) for one in json.loads(read_own(path))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be used: {error}. Without it there are no tokens") from None
