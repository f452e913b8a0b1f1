"""`fairway top`: the queue and the GPUs, live."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.jobs import UNENDED
from fairway.cli.live import Where
from fairway.cli.options import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairway.client import Client

_OVERHEAD_LINES = 8
"""Lines of the screen that are not jobs."""
_ORDER = {"RUNNING": 0, "SUSPENDED": 1, "PREEMPTED": 1, "PENDING": 2}


@takes(where=Where)
def top(
    where: Where,
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between updates", metavar="S", min=0.1)] = 1.0,
) -> None:
    """Watch the queue and the GPUs. q or Ctrl-C quits; jobs are not affected.

    \b
    fairway top
    fairway top --once
    """
    client = where.client()
    if once or where.json or not sys.stdout.isatty():
        seen = look(client)
        where.show(seen, lambda: picture(seen))
        return
    try:
        _watch(client, every)
    except KeyboardInterrupt:
        return


def look(client: Client) -> dict[str, Any]:
    """Everything that is shown, at one moment."""
    jobs = client.ls(state=UNENDED)
    jobs.sort(key=lambda row: _ORDER.get(row["state"], 3))
    return {"status": client.status(), "nodes": client.nodes(), "jobs": jobs}


def picture(seen: Mapping[str, Any], lines: int | None = None, note: str = "") -> RenderableType:
    """A header, the GPUs in a line, and the jobs that fit."""
    from rich.console import Group
    from rich.text import Text

    from fairway.cli.folded_arrays import folded
    from fairway.cli.live_tables import jobs_table

    status, jobs = seen["status"], seen["jobs"]
    rows = folded(jobs)
    shown = rows if lines is None else rows[: max(lines - _OVERHEAD_LINES, 3)]
    states = [row["state"] for row in jobs]
    running = states.count("RUNNING")
    head = (
        f"{status['policy']} · {status['gpus_held']} of {status['gpus']} GPUs held · {running:,} running · "
        f"{len(jobs) - running:,} waiting"
    )
    parts: list[RenderableType] = [Text(head, style="bold"), _gpus(seen["nodes"]), jobs_table(shown)]
    if status["problem"]:
        parts.insert(1, Text(status["problem"], style="red"))
    if len(rows) > len(shown):
        parts.append(Text(f"and {len(rows) - len(shown):,} more", style="dim"))
    if note:
        parts.append(Text(note, style="yellow"))
    return Group(*parts)


def _gpus(nodes: list[Mapping[str, Any]]) -> RenderableType:
    """One word per GPU: the jobs on it, `·` if it is idle, `×` if foreign processes are on it, `?` if its node does not
    answer, `!` if that is lost, `–` if it is drained; and how busy it is, if that is known."""
    from rich.text import Text

    from fairway.cli.live_tables import USE_STYLES, busy_text

    line = Text()
    for node in nodes:
        line.append(f"{node['name']} {node['gpu_type']} ", style="dim")
        for gpu in node["gpus"]:
            marks = {"held": "+".join(gpu["jobs"]), "idle": "·", "foreign": "×", "unreachable": "?", "lost": "!"}
            style = USE_STYLES.get(gpu["use"], "dim")
            words = [marks.get(gpu["use"], "–"), busy_text(gpu)]
            line.append(f"[{' '.join(filter(None, words))}]", style=style)
        line.append(" ")
    return line


def _watch(client: Client, every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from fairway.cli.output import Visible
    from fairway.client import ClientError

    console = Console(highlight=False, markup=False)
    seen, note = look(client), ""
    first = Visible(picture(seen, console.height))
    with _keys(), Live(first, console=console, screen=True, auto_refresh=False) as live:
        while not _left(every_s):
            try:
                seen, note = look(client), ""
            except ClientError as error:
                note = str(error)
            live.update(Visible(picture(seen, console.height, note)), refresh=True)


@contextmanager
def _keys() -> Iterator[None]:
    """Read single keys without echo, if there is a keyboard."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _left(wait_s: float) -> bool:
    """Wait for a time; whether the user wants to quit."""
    end_s = time.monotonic() + wait_s
    while sys.stdin.isatty() and (left_s := end_s - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left_s)[0]:
            key = os.read(sys.stdin.fileno(), 64)
            if not key or b"q" in key.lower():
                return True
    time.sleep(max(end_s - time.monotonic(), 0.0))
    return False
