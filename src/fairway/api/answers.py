"""Answers in JSON that can always be sent, whatever jobs have reported of themselves."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse


class Answer(JSONResponse):
    """JSON in which what is not a finite number is null."""

    def render(self, content: Any) -> bytes:
        """The answer's bytes. Nearly always all numbers are finite, so that is tried first."""
        try:
            return _written(content)
        except ValueError:
            return _written(_finite(content))


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
