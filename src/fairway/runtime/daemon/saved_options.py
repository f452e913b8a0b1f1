"""What `fairway up` was told, for the next time: one table of options, and what counts of what was given now and then.

Every option that is not given is as last time, and each has a word for what is usual. What counts is kept in the
journal, so that a scheduler that is started again after a crash, by whomever, has the limits that it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.errors import FairwayError, InputError
from fairway.policies import load_plugin

DEFAULT_POLICY, DEFAULT_GPUS, DEFAULT_PLACEMENT = "tiresias", "auto", "packed"
AUTO, NONE = "auto", "none"
"""What is given for an option so that it is as if it had never been given."""


@dataclass(frozen=True)
class Options:
    """How to run. None is as last time; what is usual is "none" for `config` and `listen`, "auto" for `round_s`.

    `plugins` are Python files with policies of the operator's own. Without a `config` the state directory's own file
    counts. `listen` is a loopback address, beside the socket; whoever serves the API opens it.
    """

    folder: Path
    policy: str | None = None
    round_s: float | str | None = None
    gpus: str | None = None
    placement: str | None = None
    config: Path | str | None = None
    plugins: tuple[str, ...] | None = None
    listen: str | None = None
    open_to_all: bool | None = None


class Remembered(NamedTuple):
    """An option that is kept: its name, the journal's name for it, and what is usual.

    `undo` is what to give for that, and `effect` what comes of it. The policy has none: it can be changed while the
    scheduler runs, so the scheduler keeps it itself.
    """

    option: str
    fact: str
    usual: Any
    undo: str = ""
    effect: str = ""

    def given(self, value: Any) -> str:
        """The option as one would give it."""
        if value is True:
            return self.option
        return f"{self.option} {f'{value:g}' if isinstance(value, float) else value}"


REMEMBERED = {
    "policy": Remembered("--policy", "policy", DEFAULT_POLICY),
    "gpus": Remembered("--gpus", "gpus", DEFAULT_GPUS, "--gpus auto", "takes what this machine has"),
    "plugins": Remembered("--plugin", "plugins", (), "--plugin none", "loads none"),
    # The journal's `config` is the text that was last in force, its `round` how many there have been.
    "config": Remembered("--config", "config_file", NONE, "--config none", "goes back to the state directory's own"),
    "round_s": Remembered("--round", "round_s", AUTO, "--round auto", "leaves it to the policy"),
    "placement": Remembered("--placement", "placement", DEFAULT_PLACEMENT, "--placement packed", "is the usual one"),
    "listen": Remembered("--listen", "listen", NONE, "--listen none", "does without"),
    "open_to_all": Remembered("--open-to-all", "open_to_all", False, "--no-open-to-all", "keeps others out"),
}
"""All that is kept, by the field of `Options` that it is given in."""


class Choice:
    """What counts: what was given, else what was last time, else what is usual. `last` are facts of the journal."""

    def __init__(self, options: Options, last: Mapping[str, Any]) -> None:
        self._given = {name: _kept(name, getattr(options, name)) for name in REMEMBERED}
        self._values = {name: self._value(name, one, last) for name, one in REMEMBERED.items()}

    def _value(self, name: str, one: Remembered, last: Mapping[str, Any]) -> Any:
        for value in (self._given[name], _kept(name, last.get(one.fact))):
            if value is not None:
                return value
        return one.usual

    @property
    def policy(self) -> str:
        """Who gets GPUs."""
        return str(self._values["policy"])

    @property
    def gpus(self) -> str:
        """Which GPUs there are."""
        return str(self._values["gpus"])

    @property
    def plugins(self) -> tuple[str, ...]:
        """Files with policies of the operator's own."""
        return tuple(self._values["plugins"])

    @property
    def config(self) -> Path | None:
        """The configuration; None for the state directory's own, if there is one."""
        found = self._unless_usual("config")
        return None if found is None else Path(found)

    @property
    def round_s(self) -> float | None:
        """Seconds between decisions; None for the policy's own."""
        found = self._unless_usual("round_s")
        return None if found is None else float(found)

    @property
    def placement(self) -> str:
        """Which GPUs a job gets."""
        return str(self._values["placement"])

    @property
    def listen(self) -> str | None:
        """A loopback address to listen on, beside the socket."""
        found = self._unless_usual("listen")
        return None if found is None else str(found)

    @property
    def open_to_all(self) -> bool:
        """Whether other users may submit."""
        return bool(self._values["open_to_all"])

    def _unless_usual(self, name: str) -> Any:
        value = self._values[name]
        return None if value == REMEMBERED[name].usual else value

    def facts(self) -> dict[str, Any]:
        """What the journal is to keep for the next time."""
        return {one.fact: self._values[name] for name, one in REMEMBERED.items() if one.undo}

    def remarks(self) -> list[str]:
        """What is as last time and not as usual, each with what to give for that."""
        lines = []
        for name, one in REMEMBERED.items():
            value = self._values[name]
            if one.undo and self._given[name] is None and value != one.usual:
                several = value if isinstance(value, tuple) else (value,)
                lines += [f"{one.given(each)}, as last time (`{one.undo}` {one.effect})" for each in several]
        return lines

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """Where what is as last time cannot be used, say where it is from and how to get rid of it."""
        try:
            yield
        except FairwayError as error:
            one = REMEMBERED[name]
            if self._given[name] is not None or self._values[name] == one.usual:
                raise
            undo = f", or `{one.undo}`" if one.undo else ""
            raise InputError(f"{error} ({one.option} is that of last time; give another{undo})") from None

    def load_plugins(self) -> None:
        """Load the operator's own policies."""
        for path in self.plugins:
            with self.blamed("plugins"):
                load_plugin(path)

    def check_config(self) -> None:
        """Complain about a configuration that is not there."""
        if self.config is not None and not self.config.is_file():
            with self.blamed("config"):
                raise InputError("there is no such file", path=str(self.config))


def _kept(name: str, value: Any) -> Any:
    """A value as it is kept: its paths mean the same wherever the next scheduler is started."""
    if name == "config" and value not in (None, NONE):
        return str(Path(value).absolute())
    return value if name != "plugins" or value is None else tuple(str(Path(path).absolute()) for path in value)
