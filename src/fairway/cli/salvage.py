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

    Its write-ahead log must not stay beside the new file: SQLite would take it for that file's.

    \b
    cd ~/.local/state/fairway
    fairway salvage journal.db rescued.db
    mkdir damaged && mv journal.db* damaged/ && mv rescued.db journal.db
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
        jobs = f"{told.jobs:,} job{'s' * (told.jobs != 1)} saved in {fresh}"
        typer.echo(f"{jobs}, {told.unfinished:,} of them had not ended{lost}")
        log = Path(f"{damaged}-wal")
        also = f" and {log.name}" if log.exists() else ""
        typer.echo(f"to go on with it, move {Path(damaged).name}{also} away and {fresh} to {damaged}")
