"""From what went wrong to an HTTP status and one clear line, `{"error": …}`."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairway.api.answers import Answer
from fairway.api.people import NotAllowedError, NoTokenError
from fairway.api.room import NoRoomError
from fairway.core.errors import FairwayError, InputError
from fairway.runtime.journal import DiskFullError
from fairway.runtime.live import StoppedError
from fairway.runtime.scheduler import UnknownJobError, WrongStateError

log = logging.getLogger("fairway.api")

STATUSES: dict[type[FairwayError], int] = {
    InputError: 422,
    UnknownJobError: 404,
    WrongStateError: 409,
    NotAllowedError: 403,
    NoTokenError: 401,
    NoRoomError: 507,
    DiskFullError: 507,
    StoppedError: 503,
}
_MOST_SHOWN = 300


def refusal(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that says no, and why."""
    return Answer({"error": _one_line(why)}, status, headers)


def add_handlers(app: FastAPI) -> None:
    """Make every error one line of JSON."""

    async def ours(request: Request, error: Exception) -> Response:
        status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 422)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return refusal(status, str(error), headers)

    async def malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refusal(422, told(error.errors()))

    async def by_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return refusal(405, f"{request.method} is not possible here", {"Allow": _allowed(app, request.url.path)})
        if error.status_code == 400:
            return refusal(422, "the body cannot be read as JSON")
        why = f"there is nothing at {request.url.path}" if error.status_code == 404 else str(error.detail)
        return refusal(error.status_code, why, dict(error.headers or {}))

    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal(500, f"an error inside the scheduler: {type(error).__name__}: {error}")

    app.add_exception_handler(FairwayError, ours)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, by_http)
    app.add_exception_handler(Exception, unexpected)


def told(problems: Sequence[Any]) -> str:
    """What a check of types found, the first problem of it, without repeating what was sent."""
    if not problems:
        return "the request is malformed"
    first = problems[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}"
    place = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"{place}: there is no such field"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{place}: {first['msg']}{more}"


def _allowed(app: FastAPI, path: str) -> str:
    """The methods that a path does have, by what is documented."""
    methods: set[str] = set()
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
            methods |= {method.upper() for method in operations}
    return ", ".join(sorted(methods))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MOST_SHOWN]
