"""`fairway salvage`: what can be read of a damaged journal, or is known to the folders of jobs, in a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairway.runtime.journal.salvage import Salvaged


def salvage(
    damaged: Annotated[str, typer.Argument(help="The journal, DIR/journal.db", metavar="DAMAGED")],
    fresh: Annotated[str, typer.Argument(help="The file to make", metavar="NEW")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Save what can be read of a damaged journal or is in the folders of jobs beside it. All of that is left as it is.

    Its write-ahead log must not stay beside the new file: SQLite would take it for that file's. Of a journal that is
    empty or gone, jobs that were started once are brought back by their folders.

    \b
    cd ~/.local/state/fairway
    fairway salvage journal.db rescued.db
    mkdir damaged && mv journal.db* damaged/ && mv rescued.db journal.db
    """
    from fairway.cli.live import json_lines
    from fairway.runtime.journal.salvage import salvage as saved

    told = saved(Path(damaged), Path(fresh))
    if json:
        typer.echo("".join(json_lines({**told._asdict(), "strays": dict(told.strays), "file": fresh})), nl=False)
        return
    for line in (*_lines(told, fresh), _next_step(Path(damaged), fresh)):
        typer.echo(line)


def _lines(told: Salvaged, fresh: str) -> Iterator[str]:
    """What was saved, what is different from what it was, and what was not."""
    lost = f"; {told.unreadable:,} could not be read" if told.unreadable else ""
    jobs = f"{told.jobs:,} job{'s' * (told.jobs != 1)} saved in {fresh}"
    yield f"{jobs}, {told.unfinished:,} of them had not ended{lost}"
    if told.from_folders:
        runs = f" (still running: {told.running:,})" if told.running else ""
        yield f"by their folders alone, as they were when they were last started: {told.from_folders:,}{runs}"
        yield "jobs that have never been started have no folder: those that the journal has lost are lost"
    if told.held:
        yield f"held, as they may have been cancelled since; `fairway release` lets them run: {told.held:,}"
    if told.untold:
        yield f"not saved, because their folders say too little: {', '.join(told.untold)}"
    for job, pid in told.strays.items():
        yield f"job {job} among these still runs: `kill {pid}` ends it; the scheduler does not start before that"


def _next_step(damaged: Path, fresh: str) -> str:
    there = [name for name in (damaged.name, f"{damaged.name}-wal") if damaged.with_name(name).exists()]
    away = f"move {' and '.join(there)} away and {fresh}" if there else f"move {fresh}"
    return f"to go on with it, {away} to {damaged}"
