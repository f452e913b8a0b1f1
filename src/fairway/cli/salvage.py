"""`fairway salvage`: a new journal from a damaged one and from the folders of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairway.runtime.journal.salvage import Salvaged


def salvage(
    damaged: Annotated[str, typer.Argument(help="The journal, DIR/journal.db", metavar="DAMAGED")],
    fresh: Annotated[str, typer.Argument(help="The new file", metavar="NEW")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Make a new journal from what can be read of a damaged one. The damaged files are not changed.

    Jobs that the journal has lost are restored from their folders if they were started at least once; this also works
    if the journal is empty or gone. Move the write-ahead log away with the damaged journal: SQLite would use it for the
    new file.

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
    """What was saved, what has changed, and what was not saved."""
    lost = f"; {told.unreadable:,} could not be read" if told.unreadable else ""
    jobs = f"{told.jobs:,} job{'s' * (told.jobs != 1)} saved in {fresh}"
    yield f"{jobs}, {told.unfinished:,} of them had not ended{lost}"
    if told.from_folders:
        runs = f" (still running: {told.running:,})" if told.running else ""
        yield f"restored from their folders, as they were at their last start: {told.from_folders:,}{runs}"
        yield "jobs that were never started have no folder; if the journal has lost them, they are lost"
    if told.held:
        yield f"held, because they may have been cancelled since; `fairway release` lets them run: {told.held:,}"
    if told.untold:
        yield f"not saved, because their folders are incomplete: {', '.join(told.untold)}"
    for job, pid in told.strays.items():
        yield f"job {job} of these still runs: `kill {pid}` ends it; the scheduler does not start before that"


def _next_step(damaged: Path, fresh: str) -> str:
    there = [name for name in (damaged.name, f"{damaged.name}-wal") if damaged.with_name(name).exists()]
    away = f"move {' and '.join(there)} away and {fresh}" if there else f"move {fresh}"
    return f"to use it, {away} to {damaged}"
