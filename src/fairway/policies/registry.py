"""Policies by name, and their knobs.

A policy is a frozen dataclass; its fields are its knobs. `make_policy("las:levels=3600/36000")` finds the class by
name and turns each `key=value` into the type of the field. Other packages can add policies through the entry-point
group `fairway.policies`; a single file can be loaded with `load_plugin`.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from fairway.core.errors import InputError
from fairway.core.policy import Policy

P = TypeVar("P", bound=type)
_PARTS = {
    "name": 'a name, like `name: ClassVar[str] = "mine"`',
    "knows": "what it knows beyond what everybody sees, like `knows: ClassVar[frozenset[str]] = frozenset()`",
    "round_s": "the length of its rounds, like `round_s: ClassVar[float] = 0.0`",
    "decide": "the method `decide(self, snapshot)`",
}
"""What a policy must have, and the words for it."""
_POLICIES: dict[str, type[Policy]] = {}
_found_entry_points = False


def register(cls: P) -> P:
    """Class decorator: make a policy known by its `name`."""
    missing = [what for part, what in _PARTS.items() if not hasattr(cls, part)]
    if not is_dataclass(cls):
        missing.insert(0, "the decorator @dataclass(frozen=True), below @register")
    if missing:
        raise TypeError(f"the policy {cls.__name__} lacks {'; '.join(missing)}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of the policy {cls.__name__} must be a text, not {name!r}")
    known = _POLICIES.get(name)
    if known is not None and known.__qualname__ != cls.__qualname__:
        raise TypeError(f"two policies are called {name!r}: {known.__qualname__} and {cls.__qualname__}")
    _POLICIES[name] = cast(type[Policy], cls)
    return cls


def policies() -> dict[str, type[Policy]]:
    """All known policies by name."""
    global _found_entry_points
    if not _found_entry_points:
        _found_entry_points = True
        for point in entry_points(group="fairway.policies"):
            point.load()
    return dict(_POLICIES)


def load_plugin(path: str) -> None:
    """Run a Python file that registers policies of its own."""
    file = Path(path)
    if not file.is_file():
        raise InputError("no such file", path=path)
    name = _module_name(file)
    spec = importlib.util.spec_from_file_location(name, file.absolute())
    if spec is None or spec.loader is None:
        raise InputError("this is not a Python file", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit:
        raise InputError("cannot be loaded: it ends the program", path=path) from None
    except Exception as error:
        raise InputError(f"cannot be loaded: {type(error).__name__}: {error}", path=path) from error


def _module_name(file: Path) -> str:
    """A name that no other file uses: the type hints of a policy are looked up in the module of that name."""
    name, at = f"fairway_plugin_{file.stem}", 1
    path = str(file.absolute())
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != path:
        at += 1
        name = f"fairway_plugin_{file.stem}_{at}"
    return name


def make_policy(text: str, defaults: Mapping[str, str] | None = None) -> Policy:
    """A policy from `NAME` or `NAME:key=value,key=value`.

    `defaults` are knobs by policy name, in the same notation. They hold unless the text sets them.
    """
    name, _, rest = text.partition(":")
    known = policies()
    if name not in known:
        raise InputError(f"unknown policy {name!r}; known: {', '.join(sorted(known))}")
    cls = known[name]
    knobs = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    values = _values(name, rest, knobs, hints)
    if defaults and name in defaults:
        values = _values(name, defaults[name], knobs, hints) | values
    if asks_for_published(cls, values):
        cls = _published_form(name)
    try:
        return cls(**values)
    except ValueError as error:
        raise InputError(f"policy {name!r}: {error}") from None


def asks_for_published(cls: type, values: Mapping[str, Any]) -> bool:
    """Whether knobs ask for the form that a policy has in a published simulator.

    A policy with such a form says which knobs ask for it: `published_if` maps a knob to its choices.
    """
    wanted: Mapping[str, tuple[Any, ...]] = getattr(cls, "published_if", {})
    return any(values.get(knob) in choices for knob, choices in wanted.items())


def check_native(policy: Policy) -> None:
    """Refuse a policy made by its class whose knobs ask for a published form, which is a class of its own."""
    if asks_for_published(type(policy), vars(policy)):
        raise ValueError(f"the published form is made by name: make_policy({policy.name!r} and its knobs)")


def _published_form(name: str) -> type[Policy]:
    """The class of a policy's published form. Nothing else in this package loads `fairway.published`."""
    from fairway.published.policies import FORMS

    if name not in FORMS:
        raise InputError(f"policy {name!r} has no published form")
    return FORMS[name]


def _values(name: str, text: str, knobs: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs as values, from `key=value,key=value`."""
    values: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if key in knobs and not equals:
            raise InputError(f"policy {name!r}: the knob {key!r} needs a value, like {key}=…")
        if key not in knobs:
            has = ", ".join(knobs) or "none"
            raise InputError(f"policy {name!r} has no knob {key!r}; its knobs: {has}")
        if key in values:
            raise InputError(f"policy {name!r}: the knob {key!r} is given twice")
        values[key] = _convert(name, key, value, hints[key])
    return values


_KINDS = {int: "a whole number", float: "a number"}


def _convert(policy: str, key: str, value: str, kind: Any) -> Any:
    """A knob's text as its type: number, text, choice, yes/no, or a list (with slashes, or from a file after an @)."""
    if get_origin(kind) is tuple:
        if value.startswith("@"):
            return _from_file(policy, key, value[1:], get_args(kind)[0])
        return tuple(_convert(policy, key, part, get_args(kind)[0]) for part in value.split("/"))
    choices = get_args(kind)
    if choices and choices[0] in _KINDS:  # a number, or one of some words for what is no number
        return value if value in get_args(choices[1]) else _convert(policy, key, value, choices[0])
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise InputError(f"policy {policy!r}: {key} must be one of {', '.join(choices)}, not {value!r}")
        return value
    if kind is bool:
        if value not in ("on", "off", "true", "false", "1", "0"):
            raise InputError(f"policy {policy!r}: {key} must be on or off, not {value!r}")
        return value in ("on", "true", "1")
    convert: Callable[[str], Any] = kind
    try:
        result = convert(value)
    except ValueError:
        raise InputError(f"policy {policy!r}: {key} must be {_KINDS[kind]}, not {value!r}") from None
    if isinstance(result, float) and not math.isfinite(result):
        raise InputError(f"policy {policy!r}: {key} must be finite, not {value!r}")
    return result


def _from_file(policy: str, key: str, path: str, kind: Any) -> tuple[Any, ...]:
    if not path:
        raise InputError(f"policy {policy!r}: {key}=@ names no file")
    try:
        return tuple(_convert(policy, key, part, kind) for part in _listed(path))
    except InputError as error:
        raise InputError(error.message, path=path) from None


def files_of_knobs(text: str) -> list[str]:
    """The files that the knobs of a policy are read from."""
    values = [item.partition("=")[2] for item in text.partition(":")[2].split(",")]
    return [value[1:] for value in values if value.startswith("@") and len(value) > 1]


def _listed(path: str) -> list[str]:
    """The entries of a file with one column. A first line that is not a number is its heading."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", path=path) from None
    except UnicodeDecodeError:
        raise InputError("this is not a text file", path=path) from None
    try:
        float(lines[0]) if lines else None
    except ValueError:
        lines = lines[1:]
    if not lines:
        raise InputError("there are no values in this file", path=path)
    return lines


def knobs(cls: type[Policy]) -> dict[str, str]:
    """The knobs of a policy with their defaults, as text."""

    def default(f: Field[Any]) -> str:
        if f.default is MISSING:
            return ""
        if isinstance(f.default, tuple):
            return "/".join(f"{item:g}" if isinstance(item, float) else str(item) for item in f.default)
        if isinstance(f.default, bool):
            return "on" if f.default else "off"
        return f"{f.default:g}" if isinstance(f.default, float) else str(f.default)

    return {f.name: default(f) for f in fields(cls)}  # type: ignore[arg-type]
