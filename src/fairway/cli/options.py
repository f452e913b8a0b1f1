"""Options that several commands share: the fields of a dataclass, which takes the place of one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import typer

Command = Callable[..., None]


def option(name: str, text: str, metavar: str | None = None) -> Any:
    """An option with a value."""
    return typer.Option(name, help=text, metavar=metavar)


def flag(name: str, text: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text)


def takes(**shared: Any) -> Callable[[Command], Command]:
    """Give a command all options of some dataclasses; each replaces the parameter of that name."""

    def with_options(command: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            if own.name in shared:
                parameters += parameters_of(shared[own.name])
            else:
                parameters.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def called(**given: Any) -> None:
            made = {
                name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in shared.items()
            }
            command(**made, **given)

        del called.__wrapped__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return with_options


@functools.cache
def parameters_of(kind: Any) -> list[inspect.Parameter]:
    """The options of a dataclass as parameters of a command."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(kind)
    ]
