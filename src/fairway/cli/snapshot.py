"""`fairway snapshot` and `fairway replay`: an instant of a live scheduler as a file, and its decision once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.live import Where, json_lines
from fairway.cli.options import takes
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.runtime.guard.incident import Granted, Incident

snapshot = typer.Typer(rich_markup_mode=None)


@snapshot.callback(invoke_without_command=True)
def snapshots(context: typer.Context) -> None:
    """Save what the scheduler sees now, for `fairway replay`.

    \b
    fairway snapshot save monday.json
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@snapshot.command()
@takes(where=Where)
def save(where: Where, file: Annotated[str, typer.Argument(help="The file to write", metavar="FILE")]) -> None:
    """Save what the scheduler sees and decides now.

    The file has the jobs with their demands and progress, who may run, the policy and its memory, and the decision. It
    has no commands and no environments.

    \b
    fairway snapshot save monday.json
    fairway replay monday.json --policy srtf
    """
    from fairway.cli.files import check_outputs, write_chunks

    check_outputs({"FILE": file})
    write_chunks(file, [where.client().snapshot()])
    where.show({"file": file}, lambda: f"saved in {file}\n")


def replay(
    file: Annotated[str, typer.Argument(help="A file of `fairway snapshot save`", metavar="FILE")],
    policy: Annotated[str, typer.Option("--policy", help="Another policy", metavar="NAME")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Decide once more from a saved snapshot.

    Differences from the decision that was made then are listed. The exit code is 1 if the same policy decides
    differently now.

    \b
    fairway replay monday.json
    fairway replay monday.json --policy max_min_fairness
    """
    incident = _read(file)
    then, now = incident.decided, incident.decide(policy)
    differs = [(a, b) for a, b in zip(then, now, strict=True) if a != b]
    if json:
        rows = [{**b._asdict(), "then": a._asdict()} for a, b in zip(then, now, strict=True)]
        told = {"policy": policy or incident.policy, "same": not differs, "jobs": rows}
        typer.echo("".join(json_lines(told)), nl=False)
    else:
        _show(policy or incident.policy, now, differs)
    if differs and not policy:
        raise typer.Exit(1)


def _read(file: str) -> Incident:
    from fairway.runtime.guard.incident import Incident

    try:
        return Incident.of_text(Path(file).read_text(encoding="utf-8"))
    except InputError as error:
        raise InputError(error.message, path=file) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=file) from None


def _show(policy: str, now: tuple[Granted, ...], differs: list[tuple[Any, Any]]) -> None:
    from fairway.cli import output
    from fairway.cli.output import count, pairs_table

    output.show(pairs_table((f"job {one.id}", count(one.gpus, "GPU") if one.gpus else one.reason) for one in now))
    if not differs:
        output.say("note", f"{policy} makes the same decision as then")
    for then, one in differs:
        was = count(then.gpus, "GPU") if then.gpus else f"none ({then.reason})"
        output.say("note", f"job {one.id}: {count(one.gpus, 'GPU') if one.gpus else 'none'}; then {was}")
