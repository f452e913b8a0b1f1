"""`fairway lab`: measurements of Fairway's own models, which say how far to trust them."""

from __future__ import annotations

import typer

from fairway.cli.lab.estimate import estimate
from fairway.cli.lab.forecast import forecast
from fairway.cli.lab.size import size
from fairway.cli.lab.skew import skew

lab = typer.Typer(rich_markup_mode=None)
for _command in (skew, estimate, forecast, size):
    lab.command()(_command)


@lab.callback(invoke_without_command=True)
def lab_commands(context: typer.Context) -> None:
    """Measure Fairway's models: skew, estimates, forecasts and sizes of clusters.

    \b
    fairway lab skew vgg16
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
