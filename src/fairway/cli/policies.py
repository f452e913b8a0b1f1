"""`fairway policies`: what there is to choose from, or one policy in full."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.completion import policy_names
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.core.policy import Policy


def policies(
    name: Annotated[
        str | None, typer.Argument(help="Show one policy in full", metavar="[NAME]", autocompletion=policy_names)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", help="Also the policies of this Python file", metavar="FILE")
    ] = None,
) -> None:
    """List the policies with what they may know and their knobs.

    \b
    fairway policies
    fairway policies tiresias
    A knob is set after a colon:
    fairway simulate jobs.csv --cluster v100:16x4 --policy las:levels=1800/7200
    """
    import json as writer

    from fairway.cli import output
    from fairway.cli.simulation_options import World
    from fairway.policies import policies as known

    World(cluster="", plugin=plugin).check_names()
    if name is not None and name not in known():
        raise InputError(_unknown(name, list(known())))
    listed = [_described(each, cls) for each, cls in known().items() if name in (None, each)]
    one = listed[0] | _in_full(known()[name]) if name is not None else None
    if json:
        typer.echo(writer.dumps(one or listed, indent=1, ensure_ascii=False))
    else:
        output.show(output.policy_table(one) if one else output.policies_table(listed))


def _unknown(name: str, known: list[str]) -> str:
    from fairway.cli.suggestions import alike

    close = alike(name, known)
    return f"unknown policy {name!r}{f'; did you mean {close}?' if close else ''} (`fairway policies` lists them)"


def _described(name: str, cls: type[Policy]) -> dict[str, Any]:
    from fairway.policies import knobs

    text = inspect.cleandoc(cls.__doc__ or "")
    told = _told(cls)
    paragraph = " ".join(text.partition("Knows:")[2].partition("\n\n")[0].split())
    says = ". ".join(paragraph.split(". ")[:2]).rstrip(".")
    says = f"{says}." if says else ""
    return {
        "name": name,
        "about": text.partition("\n")[0],
        "knows": says or ", ".join(told) or "nothing beyond the request",
        "oracle": told,
        "heeds": _heeded(cls),
        "knobs": knobs(cls),
    }


def _in_full(cls: type[Policy]) -> dict[str, Any]:
    """What the table of all policies has no room for: where a policy comes from, how it works, what its knobs mean."""
    from typing import get_args, get_type_hints

    from fairway.policies import knobs

    paragraphs = _paragraphs(inspect.cleandoc(cls.__doc__ or ""))
    source = _paragraphs(inspect.cleandoc(sys.modules[_home(cls.__module__)].__doc__ or ""))
    hints = get_type_hints(cls)
    choices = {knob: [one for one in get_args(hints[knob]) if isinstance(one, str)] for knob in knobs(cls)}
    return {
        "source": source[0] if source else "",
        "idea": source[1:],
        "details": [one for one in paragraphs[1:] if not one.startswith("Knows:")],
        "choices": {knob: words for knob, words in choices.items() if words},
    }


def _home(module: str) -> str:
    """The module that tells about a policy: of one in a file `policy`, its folder."""
    return module.removesuffix(".policy")


def _paragraphs(text: str) -> list[str]:
    return [" ".join(each.split()) for each in text.split("\n\n") if each.strip()]


def _heeded(cls: type[Policy]) -> list[str]:
    """What a policy takes notice of that jobs ask for; where that depends on a knob, that of its default."""
    heeds = getattr(cls, "heeds", ())
    return sorted(cls().heeds if isinstance(heeds, property) else heeds)  # type: ignore[attr-defined]


def _told(cls: type[Policy]) -> list[str]:
    """The oracles that a policy uses; where that depends on a knob, those of its default."""
    knows = getattr(cls, "knows", ())
    return sorted(cls().knows if isinstance(knows, property) else knows)
