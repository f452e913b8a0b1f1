"""`fairway salvage`: what can be read of a damaged journal, in a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairway.core.errors import InputError


def salvage(
    damaged: Annotated[str, typer.Argument(help="The journal, DIR/journal.db", metavar="DAMAGED")],
    fresh: Annotated[str, typer.Argument(help="The file to make", metavar="NEW")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Save what can be read of a damaged journal. The damaged file is left as it is.

    \b
    fairway down
    fairway salvage ~/.local/state/fairway/journal.db rescued.db
    mv rescued.db ~/.local/state/fairway/journal.db
    """
    from fairway.cli.live import json_lines
    from fairway.runtime.salvage import salvage as saved

    if not Path(damaged).is_file():
        raise InputError("there is no such file", path=damaged)
    told = saved(Path(damaged), Path(fresh))
    if json:
        typer.echo("".join(json_lines({**told._asdict(), "file": fresh})), nl=False)
    else:
        lost = f"; {told.unreadable:,} could not be read" if told.unreadable else ""
        typer.echo(f"{told.jobs:,} jobs saved in {fresh}, {told.unfinished:,} of them had not ended{lost}")
