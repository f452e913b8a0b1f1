"""The configuration of a live scheduler: queues, users, GPU types, defaults, what to do with idle GPUs.

A TOML file, read again when it changes. Every key is checked; an error names the file and the key, and a file with an
error changes nothing. `docs/operations.md` lists the keys.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from fairway.core.errors import InputError
from fairway.core.job import MOST_PRIORITY, MOST_SECONDS

EVERYBODY = "*"
"""The name under which limits are given for all users who are not named themselves."""
MOST_BYTES = 1 << 50
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNITS_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Terms:
    """What jobs of one queue or one user may have; None where there is no limit.

    `weight` multiplies the weight of their jobs and `priority` is added to theirs. `max_gpus` and `max_running` count
    what runs at the same time, `max_jobs` also what waits. `types` limits GPUs by type. `limit_s` is the time limit of
    jobs that ask for none, `max_limit_s` the longest that they may ask for.
    """

    weight: float = 1.0
    priority: int = 0
    max_gpus: int | None = None
    max_running: int | None = None
    max_jobs: int | None = None
    max_gpus_per_job: int | None = None
    max_priority: int | None = None
    limit_s: float | None = None
    max_limit_s: float | None = None
    types: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue(Terms):
    """A queue. `users` may submit to it (nobody named: everybody); the others limit each of its users."""

    users: tuple[str, ...] = ()
    max_gpus_per_user: int | None = None
    max_running_per_user: int | None = None


@dataclass(frozen=True)
class Defaults:
    """What jobs get that do not ask for something else, and how long their logs may become."""

    queue: str = ""
    retries: int = 0
    grace_s: float | None = None
    limit_s: float | None = None
    log_bytes: int = 100 << 20


@dataclass(frozen=True)
class Idle:
    """Jobs that hold GPUs and do nothing: for how long before their owner is warned, and before they lose them.

    `action` says how: "hold" takes the job off its GPUs until its owner releases it, "cancel" ends it.
    """

    warn_s: float | None = None
    reclaim_s: float | None = None
    action: Literal["hold", "cancel"] = "hold"


@dataclass(frozen=True)
class Config:
    """All of it. Without a file there are no limits."""

    operators: tuple[str, ...] = ()
    queues: Mapping[str, Queue] = field(default_factory=dict)
    users: Mapping[str, Terms] = field(default_factory=dict)
    defaults: Defaults = Defaults()
    idle: Idle = Idle()

    def queue_of(self, name: str) -> Queue:
        """The terms of a queue; those of no queue at all where it is not named."""
        return self.queues.get(name, _NO_QUEUE)

    def user_of(self, name: str) -> Terms:
        """The terms of a user."""
        return self.users.get(name) or self.users.get(EVERYBODY) or _NO_TERMS


_NO_QUEUE, _NO_TERMS = Queue(), Terms()
NO_CONFIG = Config()


class ConfigError(InputError):
    """The configuration cannot be used; the text names the file and the key."""


def read_config(path: Path) -> tuple[Config, str]:
    """Read a file: what it means, and its text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return parse_config(text, str(path)), text


def parse_config(text: str, name: str = "the configuration") -> Config:
    """Make sense of the text of a file."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
    try:
        return _config(found)
    except _KeyError as problem:
        raise ConfigError(f"{name}: {problem.key}: {problem}") from None


class _KeyError(Exception):
    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def _config(found: Mapping[str, Any]) -> Config:
    _refuse_others("", found, [one.name for one in fields(Config)])
    queues = {name: _made(Queue, _KINDS, f"queues.{name}", table) for name, table in _tables("queues", found)}
    users = {name: _made(Terms, _KINDS, f"users.{name}", table) for name, table in _tables("users", found)}
    defaults = _made(Defaults, _KINDS | {"queue": _text}, "defaults", _table("defaults", found))
    idle = _made(Idle, _KINDS | {"action": _action}, "idle", _table("idle", found))
    if queues and defaults.queue and defaults.queue not in queues:
        raise _KeyError("defaults.queue", f"there is no queue {defaults.queue!r}")
    if idle.warn_s is not None and idle.reclaim_s is not None and idle.reclaim_s < idle.warn_s:
        raise _KeyError("idle.reclaim_s", "is shorter than idle.warn_s")
    operators = _names("operators", found.get("operators", []))
    return Config(operators, queues, users, defaults, idle)


def _tables(key: str, found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    tables = _table(key, found)
    return [(name, _table(name, tables, f"{key}.{name}")) for name in tables]


def _table(name: str, found: Mapping[str, Any], key: str = "") -> Mapping[str, Any]:
    table = found.get(name, {})
    if not isinstance(table, dict):
        raise _KeyError(key or name, "has to be a table")
    return table


def _refuse_others(key: str, table: Mapping[str, Any], known: list[str]) -> None:
    for name in table:
        if name not in known:
            at = f"{key}.{name}" if key else name
            raise _KeyError(at, f"is not known here; known are {', '.join(known)}")


def _made(kind: type[Any], kinds: Mapping[str, Callable[[str, Any], Any]], key: str, table: Mapping[str, Any]) -> Any:
    """One of the classes above from a table of the file."""
    _refuse_others(key, table, [one.name for one in fields(kind)])
    made = kind(**{name: kinds[name](f"{key}.{name}", value) for name, value in table.items()})
    if getattr(made, "limit_s", None) and getattr(made, "max_limit_s", None) and made.limit_s > made.max_limit_s:
        raise _KeyError(f"{key}.limit_s", "is longer than max_limit_s")
    return made


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def whole(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _KeyError(key, f"{value!r} is not a whole number from {least} to {most}")
        return value

    return whole


def _weight(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and 0 < value <= 1e3):
        raise _KeyError(key, f"{value!r} is not a number above 0 and at most 1000")
    return float(value)


def _seconds(key: str, value: Any) -> float:
    """A number of seconds, or text with a unit: "90s", "30m", "2h", "1.5d", "2w"."""
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (parts := re.fullmatch(r"([0-9]+\.?[0-9]*)\s*([smhdw]?)", value.strip())):
        seconds = float(parts[1]) * _UNITS_S[parts[2]]
    if not 0 <= seconds <= MOST_SECONDS:
        raise _KeyError(key, f'{value!r} is no duration; write seconds, or "30m", "2h", "1d"')
    return seconds


def _positive_seconds(key: str, value: Any) -> float:
    seconds = _seconds(key, value)
    if seconds <= 0:
        raise _KeyError(key, "must be more than 0")
    return seconds


def _bytes(key: str, value: Any) -> int:
    """A number of bytes, or text with a unit of 1024: "100M", "2G"."""
    size = -1
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (parts := re.fullmatch(r"([0-9]+)\s*([KMGT]?)(?:i?B)?", value.strip())):
        size = int(parts[1]) * _UNITS_BYTES[parts[2]]
    if not 4096 <= size <= MOST_BYTES:
        raise _KeyError(key, f'{value!r} is no size of at least 4096 bytes; write bytes, or "100M", "2G"')
    return size


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise _KeyError(key, f"{value!r} is no name")
    return value


def _action(key: str, value: Any) -> str:
    if value not in ("hold", "cancel"):
        raise _KeyError(key, f"{value!r} is neither 'hold' nor 'cancel'")
    return str(value)


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _KeyError(key, "has to be a list of names")
    return tuple(_text(key, name) for name in value)


def _by_type(key: str, value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise _KeyError(key, "has to be a table of GPU types and numbers")
    return {name.lower(): _whole(0, 10**6)(f"{key}.{name}", count) for name, count in value.items()}


_COUNT = _whole(0, 10**6)
_KINDS: dict[str, Callable[[str, Any], Any]] = {
    "weight": _weight,
    "priority": _whole(-MOST_PRIORITY, MOST_PRIORITY),
    "max_priority": _whole(-MOST_PRIORITY, MOST_PRIORITY),
    "max_gpus": _COUNT,
    "max_running": _COUNT,
    "max_jobs": _COUNT,
    "max_gpus_per_job": _COUNT,
    "max_gpus_per_user": _COUNT,
    "max_running_per_user": _COUNT,
    "limit_s": _positive_seconds,
    "max_limit_s": _positive_seconds,
    "types": _by_type,
    "users": _names,
    "retries": _whole(0, 1000),
    "grace_s": _seconds,
    "log_bytes": _bytes,
    "warn_s": _positive_seconds,
    "reclaim_s": _positive_seconds,
}
