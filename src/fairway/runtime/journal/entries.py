"""Events and actions as the journal keeps them: JSON with every field. An entry of unknown form is an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

from fairway.core.action import Action
from fairway.core.batch import BatchLimits, Split, Timing, Tuning
from fairway.core.errors import InputError
from fairway.core.event import Event
from fairway.core.job import JobSpec, LossCurve, Regime, job_to_dict
from fairway.core.prospect import Prospect

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Action))}
_TUPLES = ("gpus", "speeds", "scaling")
_PLAIN: dict[type[Any], Callable[[Any], Any]] = {
    JobSpec: job_to_dict,
    LossCurve: list,
    Split: list,
    BatchLimits: list,
    Prospect: Prospect.plain,
    Timing: Timing.plain,
    float: lambda value: value if math.isfinite(value) else repr(value),
}
"""For each type that JSON does not know, or does not know well, what it becomes."""
_VALUES: dict[str, type[Any]] = {"batch": Split, "limits": BatchLimits}


def to_plain(thing: Event | Action) -> tuple[str, dict[str, Any]]:
    """The kind of an event or action, and its fields as JSON values."""
    fields: dict[str, Any] = thing._asdict()
    for name, value in fields.items():
        plain = _PLAIN.get(type(value))
        if plain is not None:
            fields[name] = plain(value)
    return type(thing).__name__, fields


def from_plain(kind: str, fields: Mapping[str, Any]) -> Any:
    """Read what `to_plain` gave."""
    made = _KINDS.get(kind)
    if made is None:
        raise InputError(f"the journal has an entry of unknown kind {kind!r}")
    values = dict(fields)
    for name, value in values.items():
        if name == "spec":
            values[name] = spec_from_plain(value)
        elif name == "loss" and isinstance(value, list):
            values[name] = LossCurve(*value)
        elif name in _VALUES and value is not None:
            values[name] = _VALUES[name](*value)
        elif name == "timing" and value is not None:
            values[name] = Timing.from_plain(value)
        elif name == "prospect" and value is not None:
            values[name] = Prospect.from_plain(value)
        elif name == "local_limits":
            values[name] = tuple((kind, least, most) for kind, least, most in value)
        elif name in _TUPLES:
            values[name] = tuple(value)
        elif value in ("nan", "inf", "-inf"):
            values[name] = float(value)
    try:
        return made(**values)
    except TypeError as error:
        raise InputError(f"the journal's entry of the kind {kind!r} cannot be read ({error})") from None


def spec_from_plain(fields: Mapping[str, Any]) -> JobSpec:
    """A job from what `job_to_dict` gave."""
    values = dict(fields)
    if "regimes" in values:
        values["regimes"] = tuple(Regime(**regime) for regime in values["regimes"])
    if "gpu_types" in values:
        values["gpu_types"] = tuple(values["gpu_types"])
    if values.get("loss") is not None:
        values["loss"] = LossCurve(**values["loss"])
    if values.get("tuning") is not None:
        values["tuning"] = Tuning.from_plain(values["tuning"])
    return JobSpec(**values)
