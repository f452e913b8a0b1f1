"""The options of `fairway up`, saved for the next time.

An option that is not given has the value of last time. Each option has a word for its default. The values in force are
kept in the journal, so that a scheduler that any user starts again after a crash has the same limits as before.
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
"""The words that set an option back to its default."""


@dataclass(frozen=True)
class Options:
    """How to run. None means as last time. The default is "none" for `config` and `listen`, "auto" for `round_s`.

    `plugins` are Python files with the operator's own policies. Without a `config`, the file in the state directory is
    used. `listen` is a loopback address, besides the socket; the API opens it.
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
    """A saved option: its name, the name of its fact in the journal, and its default.

    `undo` is what to type to get the default back, and `effect` what that does. The policy has neither. It can be
    changed while the scheduler runs, so the scheduler saves it.
    """

    option: str
    fact: str
    usual: Any
    undo: str = ""
    effect: str = ""

    def given(self, value: Any) -> str:
        """The option as it is typed."""
        if value is True:
            return self.option
        return f"{self.option} {f'{value:g}' if isinstance(value, float) else value}"


REMEMBERED = {
    "policy": Remembered("--policy", "policy", DEFAULT_POLICY),
    "gpus": Remembered("--gpus", "gpus", DEFAULT_GPUS, "--gpus auto", "takes what this machine has"),
    "plugins": Remembered("--plugin", "plugins", (), "--plugin none", "loads none"),
    # The facts `config` and `round` have other uses: the text that was last in force, and the number of rounds.
    "config": Remembered("--config", "config_file", NONE, "--config none", "goes back to the state directory's own"),
    "round_s": Remembered("--round", "round_s", AUTO, "--round auto", "leaves it to the policy"),
    "placement": Remembered("--placement", "placement", DEFAULT_PLACEMENT, "--placement packed", "is the default"),
    "listen": Remembered("--listen", "listen", NONE, "--listen none", "does not open a port"),
    "open_to_all": Remembered("--open-to-all", "open_to_all", False, "--no-open-to-all", "keeps others out"),
}
"""All saved options, by their field of `Options`."""


class Choice:
    """The values in force: as given, else as last time, else the default. `last` are the facts of the journal."""

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
        """The policy."""
        return str(self._values["policy"])

    @property
    def gpus(self) -> str:
        """The GPUs to use, as for `found_machine`."""
        return str(self._values["gpus"])

    @property
    def plugins(self) -> tuple[str, ...]:
        """Files with the operator's own policies."""
        return tuple(self._values["plugins"])

    @property
    def config(self) -> Path | None:
        """The configuration file; None for the one in the state directory, if there is one."""
        found = self._unless_usual("config")
        return None if found is None else Path(found)

    @property
    def round_s(self) -> float | None:
        """Seconds between decisions; None for the policy's own value."""
        found = self._unless_usual("round_s")
        return None if found is None else float(found)

    @property
    def placement(self) -> str:
        """The placement."""
        return str(self._values["placement"])

    @property
    def listen(self) -> str | None:
        """A loopback address to listen on, besides the socket."""
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
        """The facts to keep in the journal for the next time."""
        return {one.fact: self._values[name] for name, one in REMEMBERED.items() if one.undo}

    def remarks(self) -> list[str]:
        """One line for each option that is as last time but not the default, with how to get the default back."""
        lines = []
        for name, one in REMEMBERED.items():
            value = self._values[name]
            if one.undo and self._given[name] is None and value != one.usual:
                several = value if isinstance(value, tuple) else (value,)
                lines += [f"{one.given(each)}, as last time (`{one.undo}` {one.effect})" for each in several]
        return lines

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """If a value from last time cannot be used, add to the error where it is from and how to change it."""
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
        """Raise `InputError` if the configuration file does not exist."""
        if self.config is not None and not self.config.is_file():
            with self.blamed("config"):
                raise InputError("there is no such file", path=str(self.config))


def _kept(name: str, value: Any) -> Any:
    """A value as it is saved. Paths are absolute, so that they mean the same wherever the next scheduler is started."""
    if name == "config" and value not in (None, NONE):
        return str(Path(value).absolute())
    return value if name != "plugins" or value is None else tuple(str(Path(path).absolute()) for path in value)
