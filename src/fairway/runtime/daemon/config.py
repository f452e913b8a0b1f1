"""The configuration of a live scheduler: queues, users, GPU types, defaults, what to do with idle jobs.

It is a TOML file that is read again when it changes. Every key is checked. An error names the file and the key, and a
file with an error changes nothing. `docs/operations.md` lists the keys.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from fairway.core.errors import InputError
from fairway.core.units import duration_s, size_bytes
from fairway.runtime.jobs.request import Retries
from fairway.runtime.jobs.schema import NOTHING_ELSE, Name, Place, Positive, Priority, Seconds, Whole, checked

EVERYBODY = "*"
"""The name for the limits of all users who are not named themselves."""
MOST_BYTES = 1 << 50


def _written(read: Callable[[str], float]) -> BeforeValidator:
    """A quantity that is a number, or a text with a unit."""

    def number(value: Any) -> Any:
        try:
            return read(value) if isinstance(value, str) else value
        except InputError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(number)


Duration = Annotated[Seconds, _written(duration_s)]
PositiveDuration = Annotated[Positive, _written(duration_s)]
LogBytes = Annotated[
    Whole, Field(ge=4096, le=MOST_BYTES), _written(lambda text: int(text) if text.isdecimal() else size_bytes(text))
]
Count = Annotated[Whole, Field(ge=0, le=1_000_000)]
Factor = Annotated[float, Field(strict=True, gt=0, le=1000, allow_inf_nan=False)]
ByType = Annotated[dict[str, Count], AfterValidator(lambda types: {name.lower(): types[name] for name in types})]


@dataclass(frozen=True)
class Terms:
    """What jobs of one queue or one user may have; None means no limit.

    `weight` multiplies the weight of each job, and `priority` is added to its priority. `max_gpus` and `max_running`
    count running jobs; `max_jobs` also counts waiting ones. `types` limits GPUs by type. `limit_s` is the time limit of
    jobs that ask for none, `max_limit_s` the longest that they may ask for.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    weight: Factor = 1.0
    priority: Priority = 0
    max_gpus: Count | None = None
    max_running: Count | None = None
    max_jobs: Count | None = None
    max_gpus_per_job: Count | None = None
    max_priority: Priority | None = None
    limit_s: PositiveDuration | None = None
    max_limit_s: PositiveDuration | None = None
    types: ByType = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limit_s is not None and self.max_limit_s is not None and self.limit_s > self.max_limit_s:
            raise ValueError("limit_s is longer than max_limit_s")


@dataclass(frozen=True)
class Queue(Terms):
    """A queue. Only `users` may submit to it; if empty, every user may. Its other own fields limit each user."""

    users: tuple[Name, ...] = ()
    max_gpus_per_user: Count | None = None
    max_running_per_user: Count | None = None


@dataclass(frozen=True)
class Defaults:
    """What jobs get if they do not ask for something else, and how large their logs may grow."""

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    queue: Name = ""
    retries: Retries = 0
    grace_s: Duration | None = None
    limit_s: PositiveDuration | None = None
    log_bytes: LogBytes = 100 << 20


@dataclass(frozen=True)
class Idle:
    """When the owner of an idle job is warned, and when the job loses its GPUs: after this many seconds.

    `action` says how: "hold" takes the job off its GPUs until its owner releases it, "cancel" ends it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    warn_s: PositiveDuration | None = None
    reclaim_s: PositiveDuration | None = None
    action: Literal["hold", "cancel"] = "hold"

    def __post_init__(self) -> None:
        if self.warn_s is not None and self.reclaim_s is not None and self.reclaim_s < self.warn_s:
            raise ValueError("reclaim_s is shorter than warn_s")


@dataclass(frozen=True)
class Config:
    """The whole configuration. Without a file there are no limits."""

    __pydantic_config__: ClassVar[ConfigDict] = NOTHING_ELSE

    operators: tuple[Name, ...] = ()
    queues: dict[Name, Queue] = field(default_factory=dict)
    users: dict[str, Terms] = field(default_factory=dict)
    defaults: Defaults = Defaults()
    idle: Idle = Idle()

    def __post_init__(self) -> None:
        if self.queues and self.defaults.queue and self.defaults.queue not in self.queues:
            raise ValueError(f"defaults.queue: there is no queue {self.defaults.queue!r}")

    def queue_of(self, name: str) -> Queue:
        """The terms of a queue; terms without limits if the configuration does not name it."""
        return self.queues.get(name, _NO_QUEUE)

    def user_of(self, name: str) -> Terms:
        """The terms of a user."""
        return self.users.get(name) or self.users.get(EVERYBODY) or _NO_TERMS


_NO_QUEUE, _NO_TERMS = Queue(), Terms()
NO_CONFIG = Config()
_TABLES = {"queues": Queue, "users": Terms, "defaults": Defaults, "idle": Idle}


class ConfigError(InputError):
    """The configuration cannot be used. The text names the file and the key."""


def read_config(path: Path) -> tuple[Config, str]:
    """The configuration in a file, and the text of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return parse_config(text, str(path)), text


def parse_config(text: str, name: str = "the configuration") -> Config:
    """The configuration that a text describes."""
    try:
        return checked(Config, tomllib.loads(text), unknown=_unknown)
    except (ValueError, InputError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _unknown(place: Place) -> str:
    """The message about an unknown key: it names the most similar key, or all keys."""
    known = [one.name for one in fields(_TABLES[str(place[0])] if len(place) > 1 else Config)]
    close = get_close_matches(str(place[-1]), known, n=1)
    return (
        f"there is no such key; did you mean {close[0]}?"
        if close
        else f"there is no such key; there are {', '.join(known)}"
    )
