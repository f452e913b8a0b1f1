"""`fairway eta`: how good the starts and ends were that were told; and how such times are written."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.jobs import since_s
from fairway.cli.live import Where
from fairway.cli.options import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = Mapping[str, Any]
_WORDS = {"start": "start", "finish": "end"}


@takes(where=Where)
def eta(
    where: Where,
    policy: Annotated[str | None, typer.Option("--policy", help="Only under this policy", metavar="POLICY")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only about jobs of this user", metavar="NAME")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only those told in the last 2h, or since 16:00 or 2026-01-31", metavar="T"),
    ] = None,
) -> None:
    """Show how good the expected starts and ends were that jobs were given.

    The last lines say whether starts and ends are shown with 80 % intervals, and why. `within` counts the intervals of
    rough times, too, which were not shown.

    \b
    fairway eta
    fairway eta --user ann --since 7d
    """
    told = where.client().eta(policy=policy, user=user, since=since_s(since))
    where.show(told, lambda: _record(told))


def _record(told: Row) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from fairway.cli.output import count

    about = f"{count(told['open'], 'promise')} not decided yet"
    intervals = [Text(f"{_WORDS[row['kind']]}s: {row['why']}") for row in told["intervals"]]
    if not told["policies"]:
        return Group(Text(f"no start and no end that was told is known yet; {about}"), *intervals)
    decided = f"the latest {count(told['latest'], 'promise')} that were decided; {about}"
    return Group(_table("policy", told["policies"]), _table("user", told["users"]), Text(decided), *intervals)


def _table(label: str, rows: Sequence[Row]) -> RenderableType:
    from fairway.cli.fitted_table import Listed, TableColumn
    from fairway.cli.output import duration, percent
    from fairway.cli.visible import line

    columns = [
        TableColumn(label, [line(row[label]) for row in rows], least=8),
        TableColumn("of", [_WORDS[row["kind"]] for row in rows]),
        TableColumn("promises", [f"{row['promises']:,}" for row in rows], right=True),
        TableColumn("median error", [duration(row["median_error_s"]) for row in rows], right=True),
        TableColumn("of what was told", [percent(row["median_relative_error"]) for row in rows], right=True),
        TableColumn("within", [percent(row["within"]) for row in rows], right=True),
        TableColumn("width", [duration(row["median_width_s"]) for row in rows], rank=2, right=True),
        TableColumn("in all", [f"{row['decided_in_all']:,}" for row in rows], rank=3, right=True),
        TableColumn("void", [f"{row['void_in_all']:,}" for row in rows], rank=4, right=True),
    ]
    return Listed(columns, keep=("within",))


def when(entry: Row, kind: str) -> str:
    """When a job starts or ends: `about 14:20 (80 % sure: 14:05 to 15:00)`, or `about 14:20 (rough)`.

    Empty if that is not known.
    """
    point_s, wide = entry.get(f"{kind}_s"), between(entry, kind)
    about = f" ({sure(entry)}: {wide})" if wide else rough(entry, kind)
    return "" if point_s is None else f"about {clock(point_s)}{about}"


def rough(entry: Row, kind: str) -> str:
    """What to add to a time that has no interval because too few held before."""
    return " (rough)" if entry.get(f"{kind}_rough") else ""


def sure(entry: Row) -> str:
    """How sure it is, as people write it: `80 % sure`."""
    return f"{100 * entry['sure']:.0f} % sure"


def between(entry: Row, kind: str) -> str:
    """Between when and when a job starts or ends: `14:05 to 15:00`."""
    ends = entry.get(f"{kind}_between_s")
    return "" if ends is None else f"{clock(ends[0])} to {clock(ends[1])}"


def clock(date_s: float) -> str:
    """A time of today, or a day with a time, as short as it can be."""
    then, now = time.localtime(date_s), time.localtime()
    if then[:3] == now[:3]:
        return time.strftime("%H:%M", then)
    near = abs(date_s - time.time()) < 6 * 86400.0
    return time.strftime("%a %H:%M" if near else "%Y-%m-%d", then)
