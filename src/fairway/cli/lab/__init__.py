"""`fairway lab`: what measures Fairway's own models, for those who want to know how far to trust them."""

from __future__ import annotations

import typer

from fairway.cli.lab.estimate import estimate
from fairway.cli.lab.forecast import forecast
from fairway.cli.lab.skew import skew

lab = typer.Typer(rich_markup_mode=None)
for _command in (skew, estimate, forecast):
    lab.command()(_command)


@lab.callback(invoke_without_command=True)
def lab_commands(context: typer.Context) -> None:
    """Measure Fairway's models: the skew of a network, estimates of pairs of jobs, forecasts of run times.

    \b
    fairway lab skew vgg16
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
