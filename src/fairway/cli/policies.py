"""`fairway policies`: what there is to choose from."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fairway.core.policy import Policy


def policies(
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table")] = False,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", help="Also the policies of this Python file", metavar="FILE")
    ] = None,
) -> None:
    """List the policies, what each may know about a job, and its knobs with their defaults.

    \b
    A knob is set after a colon:
    fairway simulate jobs.csv --cluster v100:16x4 --policy las:levels=1800/7200
    """
    import json as writer

    from fairway.cli import output
    from fairway.cli.simulation_options import World
    from fairway.policies import policies as known

    World(cluster="", plugin=plugin).check_names()
    listed = [_described(name, cls) for name, cls in known().items()]
    if json:
        typer.echo(writer.dumps(listed, indent=1, ensure_ascii=False))
    else:
        output.show(output.policies_table(listed))


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
        "knobs": knobs(cls),
    }


def _told(cls: type[Policy]) -> list[str]:
    """The oracles that a policy uses; where that depends on a knob, those of its default."""
    knows = getattr(cls, "knows", ())
    return sorted(cls().knows if isinstance(knows, property) else knows)
