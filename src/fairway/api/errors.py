"""Errors as an HTTP status and one line, `{"error": …}`."""

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
from fairway.api.disk_space import DiskNearlyFullError
from fairway.api.people import NotAllowedError
from fairway.api.schema import MANY, ONE
from fairway.api.tokens import NoTokenError, TokenExistsError, UnknownTokenError
from fairway.core.errors import FairwayError, InputError
from fairway.runtime.daemon.bounds import TooOftenError
from fairway.runtime.jobs.commands import StoppedError, UnknownJobError, WrongStateError
from fairway.runtime.jobs.draining import UnknownNodeError
from fairway.runtime.jobs.request import problems_text
from fairway.runtime.journal.database import DiskFullError

log = logging.getLogger("fairway.api")

STATUSES: dict[type[FairwayError], int] = {
    InputError: 422,
    TooOftenError: 429,
    UnknownJobError: 404,
    WrongStateError: 409,
    NotAllowedError: 403,
    NoTokenError: 401,
    UnknownTokenError: 404,
    UnknownNodeError: 404,
    TokenExistsError: 409,
    DiskNearlyFullError: 507,
    DiskFullError: 507,
    StoppedError: 503,
}
_MOST_SHOWN = 1000
"""The most characters of an error; the names of all policies fit."""
_MOST_NAME = 60


def refusal(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that refuses a request, with the reason."""
    return Answer({"error": _one_line(why)}, status, headers)


def add_handlers(app: FastAPI) -> None:
    """Make every error one line of JSON."""

    async def ours(request: Request, error: Exception) -> Response:
        status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 422)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return refusal(status, str(error), headers)

    async def malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        of_body = any(one["loc"][:1] == ("body",) and one["type"] != "missing" for one in error.errors())
        if of_body and not _is_json(request.headers.get("content-type", "")):
            return refusal(422, "a JSON body needs the header Content-Type: application/json")
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
    """The problems that validation found, each with its place, without repeating what was sent."""
    if not problems:
        return "the request is malformed"
    unread = next((one for one in problems if one["type"] == "json_invalid"), None)
    if unread is not None:
        return f"the body is not JSON: {unread.get('ctx', {}).get('error', 'it cannot be read')}"
    return problems_text(problems, _name, values=False)


def _name(place: Sequence[Any]) -> str:
    parts = [str(part)[:_MOST_NAME] for part in place[1:] if part not in (ONE, MANY, "[key]")]
    return ".".join(parts) or str(place[0])


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _allowed(app: FastAPI, path: str) -> str:
    """The methods of a path, from the OpenAPI document."""
    methods: set[str] = set()
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
            methods |= {method.upper() for method in operations}
    return ", ".join(sorted(methods))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 1]}…"
