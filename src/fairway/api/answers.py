"""Answers in JSON that can always be sent, whatever jobs have reported of themselves."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

_JSON = "application/json"


class Answer(JSONResponse):
    """JSON in which what is not a finite number is null."""

    def render(self, content: Any) -> bytes:
        """The answer's bytes. Nearly always all numbers are finite, so that is tried first."""
        try:
            return _written(content)
        except ValueError:
            return _written(_finite(content))


def sent_packed(request: Request, content: bytes, headers: dict[str, str] | None = None) -> Response:
    """JSON that was packed by gzip, as it is or, for clients that do not know that, unpacked."""
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(content), headers=headers, media_type=_JSON)
    return Response(content, headers={"Content-Encoding": "gzip", **(headers or {})}, media_type=_JSON)


def _written(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
