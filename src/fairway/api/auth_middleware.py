"""The first checks of every request: who sent it, and how large it is."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairway.api.errors import refusal
from fairway.api.people import Access, NoTokenError

MOST_BODY_BYTES = 1024 * 1024
PERSON = "fairway.person"
"""The key of a request's scope that says who sent it."""


class AuthMiddleware:
    """An ASGI application behind these checks. Unknown senders get 401, bodies that are too large 413."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

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

        await self._app({**scope, PERSON: person}, again, send)

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
