"""The first checks of every request: who sent it, what their token allows, and how large it is.

What a request changes is noted in the audit log when it is answered.
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
from fairway.api.people import Access, Person
from fairway.api.tokens import NoTokenError

MOST_BODY_BYTES = 1024 * 1024
PERSON = "fairway.person"
"""The key of a request's scope that says who sent it."""
ABOUT = "fairway.about"
"""The key of a request's scope with what the audit log says about it."""
MOST_PATH = 300
_LOOKS = ("GET", "HEAD", "OPTIONS")
_CHANGES_NOTHING = ("/v1/what-if",)


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
        try:
            person = self._access.person(scope)
        except NoTokenError as error:
            headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            await refusal(401, str(error), headers)(scope, receive, send)
            return
        about: dict[str, Any] = {}
        looks = scope["method"] in _LOOKS or scope["path"] in _CHANGES_NOTHING
        if not looks:
            send = self._noted(scope, person, about, send)
        if not looks and person.role == "read":
            why = f"the token {person.token} may only look"
            await refusal(403, why, {"Connection": "close"})(scope, receive, send)
            return
        body = None if self._announced(scope) else await self._read(receive)
        if body is None:
            why = f"the body is larger than {MOST_BODY_BYTES} bytes"
            await refusal(413, why, {"Connection": "close"})(scope, receive, send)
            return
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app({**scope, PERSON: person, ABOUT: about}, again, send)

    def _noted(self, scope: Scope, person: Person, about: dict[str, Any], send: Send) -> Send:
        """A `send` that also notes the request and its answer."""
        origin = {"token": person.token} if person.token else {"pid": person.pid}
        entry: dict[str, Any] = {"time_s": time.time(), "user": person.name, "uid": person.uid, **origin}
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
