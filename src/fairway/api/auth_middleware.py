"""The first checks of every request: where it comes from, who sent it, what they may do, and how large it is.

What a request changes is noted in the audit log when it is answered. Every answer tells browsers to load nothing from
elsewhere, to run no script but the page's own files, and to show it inside no other page.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairway.api.audit_log import AuditLog
from fairway.api.errors import refusal
from fairway.api.people import Access, NotAllowedError, Person
from fairway.api.request_origin import why_foreign
from fairway.api.tokens import NoTokenError

MOST_BODY_BYTES = 1024 * 1024
PERSON = "fairway.person"
"""The key of a request's scope that says who sent it."""
ABOUT = "fairway.about"
"""The key of a request's scope with what the audit log says about it."""
MOST_PATH = 300
_LOOKS = ("GET", "HEAD", "OPTIONS")
_CHANGES_NOTHING = ("/v1/what-if", "/v1/submission", "/v1/history/replay")
_CLOSED = {"Connection": "close"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
_STORE_NOT = (b"cache-control", b"no-store")


def note(request: Request, **about: Any) -> None:
    """Have the audit log say more about a request."""
    request.scope[ABOUT].update(about)


class AuthMiddleware:
    """An ASGI application behind these checks.

    Unknown senders get 401, changes by a token that may only look 403, and bodies that are too large 413.
    """

    def __init__(self, app: ASGIApp, access: Access, audit: AuditLog) -> None:
        self._app = app
        self._access = access
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _safe(send)
        why = why_foreign(scope)
        if why:
            await refusal(403, why, _CLOSED)(scope, receive, send)
            return
        if _is_open(scope["path"]):
            await self._pass_on(scope, receive, send)
            return
        try:
            person = self._access.person(scope)
        except NoTokenError as error:
            await refusal(401, str(error), {"WWW-Authenticate": "Bearer", **_CLOSED})(scope, receive, send)
            return
        except NotAllowedError as error:
            await refusal(403, str(error), _CLOSED)(scope, receive, send)
            return
        about: dict[str, Any] = {}
        looks = scope["method"] in _LOOKS or scope["path"] in _CHANGES_NOTHING
        if not looks:
            send = self._noted(scope, person, about, send)
        if not looks and person.role == "read":
            why = "you have signed in to look only" if person.session else f"the token {person.token} may only look"
            await refusal(403, why, _CLOSED)(scope, receive, send)
            return
        await self._pass_on({**scope, PERSON: person, ABOUT: about}, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered, unless it is too large."""
        body = None if self._announced(scope) else await self._read(receive)
        if body is None:
            why = f"the body is larger than {MOST_BODY_BYTES} bytes"
            await refusal(413, why, _CLOSED)(scope, receive, send)
            return
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)

    def _noted(self, scope: Scope, person: Person, about: dict[str, Any], send: Send) -> Send:
        """A `send` that also notes the request and its answer."""
        entry: dict[str, Any] = {"time_s": time.time(), **sender(person)}
        entry |= {"method": scope["method"], "path": scope["path"][:MOST_PATH]}

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry["status"] = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                with suppress(ValueError, KeyError, TypeError):
                    if entry["status"] >= 400:
                        about["error"] = json.loads(message.get("body", b""))["error"]
                self._audit.note(entry | about)
            await send(message)

        return noted

    def _announced(self, scope: Scope) -> bool:
        """Whether the request itself says that it is too large."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        return length.isdigit() and (len(length) > 18 or int(length) > MOST_BODY_BYTES)

    async def _read(self, receive: Receive) -> bytes | None:
        parts, size = list[bytes](), 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(parts)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MOST_BODY_BYTES:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


def sender(person: Person) -> dict[str, Any]:
    """What the audit log says about who has sent a request."""
    origin: dict[str, Any] = {"token": person.token} if person.token else {}
    if person.session:
        origin |= {"session": person.session}
    return {"user": person.name, "uid": person.uid, **(origin or {"pid": person.pid})}


def _is_open(path: str) -> bool:
    """Whether a path is for everybody: the page's own files, which hold no data, and signing in."""
    return path == "/" or path.startswith("/web/")


def _safe(send: Send) -> Send:
    """A `send` that adds to every answer what browsers may do with it. Unless it says so itself, it is not stored."""

    async def safe(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            kept = any(name == _STORE_NOT[0] for name, _ in headers)
            message = {**message, "headers": [*headers, *_SAFE, *([] if kept else [_STORE_NOT])]}
        await send(message)

    return safe
