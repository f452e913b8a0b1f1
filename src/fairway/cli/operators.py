"""The commands for operators: tokens, and the log of what was changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.live import Where
from fairway.cli.options import takes
from fairway.cli.submit_options import read

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = Mapping[str, Any]

token = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
_Name = Annotated[str, typer.Argument(help="The name of a token", metavar="NAME")]


@token.callback()
def tokens() -> None:
    """Make, list, renew and revoke tokens for requests over TCP. For operators.

    \b
    fairway token create --role read --expires 30d --name ci
    fairway token ls
    fairway token revoke ci
    """


@token.command("create")
@takes(where=Where)
def token_create(
    where: Where,
    name: Annotated[str, typer.Option("--name", help="A name for it", metavar="NAME")],
    role: Annotated[
        str,
        typer.Option(
            "--role", help="read: look; submit: also submit and control jobs; operate: all that its user may do"
        ),
    ] = "read",
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long it counts: 30d, 12h. Default: until revoked", metavar="T")
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Whom it stands for. Default: you", metavar="USER")] = "",
) -> None:
    """Make a token for requests over TCP. It is shown once and not kept.

    \b
    fairway token create --role read --expires 30d --name ci
    """
    from fairway.core.units import duration_s

    lasts_s = None if expires is None else read("expires", expires, duration_s)
    told = where.client().create_token(name, role, lasts_s=lasts_s, user=user)
    where.show(told, lambda: _made(told))


@token.command("ls")
@takes(where=Where)
def token_ls(where: Where) -> None:
    """List tokens.

    \b
    fairway token ls
    """
    rows = where.client().tokens()
    where.show(rows, lambda: _tokens_table(rows) if rows else "no tokens\n")


@token.command("rotate")
@takes(where=Where)
def token_rotate(where: Where, name: _Name) -> None:
    """Give a token a new secret, and as much time again. The old one counts no more.

    \b
    fairway token rotate ci
    """
    told = where.client().rotate_token(name)
    where.show(told, lambda: _made(told))


@token.command("revoke")
@takes(where=Where)
def token_revoke(where: Where, name: _Name) -> None:
    """Revoke a token. It counts no more.

    \b
    fairway token revoke ci
    """
    told = where.client().revoke_token(name)
    where.show(told, lambda: f"token {told['name']} is revoked\n")


@takes(where=Where)
def audit(
    where: Where,
    since: Annotated[
        str | None, typer.Option("--since", help="Only in the last 2h, or since 16:00 or 2026-01-31", metavar="T")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only requests of this user", metavar="NAME")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Only the latest N", metavar="N", min=1)] = 1000,
) -> None:
    """Show who changed what, when, from where, and what the answer was. For operators.

    \b
    fairway audit --since 1d
    fairway audit --user ann --json
    """
    from fairway.submission.quantities import past_s

    now = datetime.now().astimezone()
    since_s = None if since is None else float(read("since", since, lambda text: past_s(text, now)))
    rows = where.client().audit(user=user, since=since_s, limit=limit)
    where.show(rows, lambda: _audit_table(rows) if rows else "nothing was changed\n")


def _made(told: Row) -> str:
    until = "" if told["expires_s"] is None else f" until {_date(told['expires_s'])}"
    return f"token {told['name']} of {told['user']} may {told['role']}{until}; it is shown only now:\n{told['token']}\n"


def _date(date_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(date_s))


def _ends(row: Row) -> str:
    ends_s = row["expires_s"]
    if ends_s is None:
        return "never"
    return f"{_date(ends_s)}{' (has expired)' if ends_s <= time.time() else ''}"


def _tokens_table(rows: Sequence[Row]) -> RenderableType:
    from fairway.cli.fitted_table import Listed, TableColumn

    return Listed(
        [
            TableColumn("token", [row["name"] for row in rows]),
            TableColumn("may", [row["role"] for row in rows]),
            TableColumn("as", [row["user"] for row in rows]),
            TableColumn("made", [_date(row["made_s"]) for row in rows], rank=2),
            TableColumn("by", [row["made_by"] for row in rows], rank=1),
            TableColumn("expires", [_ends(row) for row in rows]),
        ]
    )


def _audit_table(rows: Sequence[Row]) -> RenderableType:
    from fairway.cli.fitted_table import Listed, TableColumn

    return Listed(
        [
            TableColumn("when", [_date(row["time_s"]) for row in rows]),
            TableColumn("user", [row.get("user", "") for row in rows]),
            TableColumn("from", [_origin(row) for row in rows], rank=1),
            TableColumn("request", [f"{row.get('method', '')} {row.get('path', '')}" for row in rows]),
            TableColumn("answer", [str(row.get("status", "")) for row in rows], right=True),
            TableColumn("about", [_about(row) for row in rows]),
        ]
    )


def _origin(row: Row) -> str:
    return next((f"{one} {row[one]}" for one in ("session", "token", "pid") if one in row), "")


def _about(row: Row) -> str:
    """What else is known of a request."""
    if "lost" in row:
        return f"{row['lost']:,} entries before this are lost"
    if "error" in row:
        return str(row["error"])
    parts = [f"jobs {' '.join(row['jobs'])} of {' '.join(row['users'])}"] if row.get("jobs") else []
    parts += [f"{name} {value}" for name, value in (row.get("changes") or {}).items()]
    named = ("policy", "name", "role", "for_user", "older_s", "keep", "dry_run", "node", "reason", "move")
    parts += [f"{name} {row[name]}" for name in named if row.get(name) not in (None, False, "")]
    return ", ".join(parts)
