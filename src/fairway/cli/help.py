"""`fairway help`: the help of a command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairway.cli.suggestions import unknown_command
from fairway.core.errors import InputError


def help_(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(help="A command", metavar="[COMMAND]")] = None,
) -> None:
    """Show the help of a command, or of all commands.

    \b
    fairway help submit
    fairway help trace generate
    """
    shown: Any = context.find_root()
    for word in words or ():
        commands = getattr(shown.command, "commands", None)
        if commands is None:
            raise InputError(f"`{shown.command_path}` has no commands of its own (see {shown.command_path} --help)")
        if word not in commands:
            raise unknown_command(word, commands, shown.command_path)
        shown = commands[word].make_context(word, [], parent=shown, resilient_parsing=True)
    typer.echo(shown.get_help())
