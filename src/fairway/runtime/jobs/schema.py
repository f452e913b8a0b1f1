"""What the fields of a job, of the REST API and of the configuration may hold, and the messages of errors.

Pydantic checks the types strictly: a number in quotes is an error. An error is one line that names each field and what
is allowed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fairway.core.errors import InputError
from fairway.core.units import MOST_PRIORITY, MOST_SECONDS

MOST_INT = 2**53
"""JSON numbers beyond this are not exact everywhere."""
MOST_TEXT = 131_072
MOST_WEIGHT = 1e6

NOTHING_ELSE = ConfigDict(extra="forbid")
"""The configuration of classes that allow no unknown fields."""
Whole = Annotated[int, Field(strict=True)]
Text = Annotated[str, Field(strict=True, max_length=MOST_TEXT, pattern=r"^[^\x00]*$")]
Name = Annotated[str, Field(strict=True, max_length=200, pattern=r"^[^\x00-\x1f\x7f/]*$")]
Seconds = Annotated[float, Field(strict=True, ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, le=MOST_SECONDS, allow_inf_nan=False)]
Weight = Annotated[float, Field(strict=True, gt=0, le=MOST_WEIGHT, allow_inf_nan=False)]
Priority = Annotated[Whole, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
Flag = Annotated[bool, Field(strict=True)]

_MOST_PROBLEMS, _MOST_SHOWN = 8, 60
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_RULES = {
    "missing": "is missing",
    "string_pattern_mismatch": "has characters that it may not have",
    "string_too_long": "is longer than {max_length} characters",
    "string_too_short": "is empty",
    "string_unicode": "must be UTF-8",
    "string_type": "must be text",
    "too_long": "has more than {max_length} entries",
    "too_short": "is empty",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "literal_error": "must be {expected}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must have named fields",
    "dataclass_type": "must have named fields",
    "model_type": "must have named fields",
    "model_attributes_type": "must have named fields",
    "value_error": "{error}",
}
"""Our message by the kind of a problem. Other kinds keep Pydantic's message."""

Made = TypeVar("Made")
Place = Sequence[str | int]
_adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""Adapters that check classes. Each is made when it is first needed, since that takes 20 ms for a job."""


def _unknown_field(place: Place) -> str:
    return "there is no such field"


def checked(
    kind: type[Made],
    values: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    unknown: Callable[[Place], str] = _unknown_field,
) -> Made:
    """A dataclass from values that a user gave; `InputError` if one of them is not allowed.

    `names` are the names that users know for fields, such as options. `unknown` makes the message for an unknown field.
    """
    adapter = _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))
    try:
        made: Made = adapter.validate_python(values)
    except ValidationError as error:
        raise InputError(told(error.errors(), lambda place: _dotted(place, names or {}), unknown=unknown)) from None
    return made


def told(
    problems: Iterable[Any],
    name: Callable[[Place], str],
    *,
    values: bool = True,
    unknown: Callable[[Place], str] = _unknown_field,
) -> str:
    """All problems in one line: the name of each field, what is allowed there, and with `values` what was given."""
    lines: dict[str, None] = {}
    for one in problems:
        what = unknown(one["loc"]) if one["type"] in _UNKNOWN else _rule(one, values=values)
        lines[": ".join(part for part in (name(one["loc"]), what) if part)] = None
    more = [f"and {len(lines) - _MOST_PROBLEMS} more"] if len(lines) > _MOST_PROBLEMS else []
    return "; ".join([*lines][:_MOST_PROBLEMS] + more)


def _rule(problem: Any, *, values: bool) -> str:
    about = {key: _number(value) for key, value in problem.get("ctx", {}).items()}
    known = _RULES.get(problem["type"])
    rule = str(problem["msg"]) if known is None else known.format(**about)
    given = problem["input"]
    if not values or problem["type"] in ("value_error", "missing") or not isinstance(given, str | int | float):
        return rule
    return f"{rule}{', not' if rule.startswith('must') else ':'} {_shown(given)}"


def _shown(value: object) -> str:
    text = repr(value) if str(value).isprintable() else ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _number(limit: Any) -> str:
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        return str(limit)
    return f"{limit:,.0f}" if limit == int(limit) else f"{limit:g}"


def _dotted(place: Place, names: Mapping[str, str]) -> str:
    parts = [str(part)[:_MOST_SHOWN] for part in place if part != "[key]"]
    return ".".join([names.get(part, part) for part in parts[:1]] + parts[1:])
