"""`fairway web`: a link to the web page of a running scheduler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from typer.core import TyperCommand

from fairway.cli.live import Where
from fairway.cli.options import takes

_WEB, _AUTO = "--web", "--web=auto"


class MayOmitAddress(TyperCommand):
    """A command whose option --web may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the options."""
        after = zip(args, [*args[1:], "-"], strict=False)
        return super().parse_args(ctx, [_AUTO if one == _WEB and then.startswith("-") else one for one, then in after])


@takes(where=Where)
def web(
    where: Where,
    read_only: Annotated[bool, typer.Option("--read-only", help="A link for looking only")] = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="A loopback address for the page, such as 127.0.0.1:8080. Default: where it is, or 127.0.0.1:3247",
            metavar="ADDR",
        ),
    ] = None,
) -> None:
    """Print a link to the web page. It signs you in once, within ten minutes.

    If the scheduler has no port for the page, it opens one (for operators).

    \b
    fairway web
    fairway web --read-only
    """
    told = where.client().web(read_only=read_only, address=address)
    where.show(told, lambda: _shown(told, read_only))


def _shown(told: Mapping[str, Any], read_only: bool) -> str:
    as_whom = "to look only" if read_only else "as you"
    text = f"{told['url']}\nThe link signs in {as_whom}, once, within {told['expires_s'] / 60:g} minutes.\n"
    if os.environ.get("SSH_CONNECTION"):
        parts = urlsplit(told["address"])
        text += f"From your own machine, first: ssh -L {parts.port}:{parts.netloc} THIS-MACHINE\n"
    return text
