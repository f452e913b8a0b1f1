"""The commands about the cluster: nodes, shares and the policy."""

from __future__ import annotations

from typing import Annotated

import typer

from fairway.cli.completion import policy_names
from fairway.cli.live import Where
from fairway.cli.options import takes

policy = typer.Typer(rich_markup_mode=None)


@takes(where=Where)
def nodes(where: Where) -> None:
    """Show machines, their GPUs, and the jobs on them.

    \b
    fairway nodes
    """
    from fairway.cli.live_tables import nodes_table

    told = where.client().nodes()
    where.show(told, lambda: nodes_table(told))


@takes(where=Where)
def share(where: Where) -> None:
    """Show what each user has now and has had so far.

    \b
    fairway share
    """
    from fairway.cli.live_tables import share_table

    told = where.client().share()
    where.show(told, lambda: share_table(told))


@policy.callback(invoke_without_command=True)
@takes(where=Where)
def policy_shown(context: typer.Context, where: Where) -> None:
    """Show the policy that decides now, or change it.

    \b
    fairway policy
    fairway policy set srtf
    """
    if context.invoked_subcommand is not None:
        context.obj = where
        return
    told = where.client().policy()
    problem = f"problem: {told['problem']}\n" if told["problem"] else ""
    rounds = f"decides every {told['round_s']:g} s" if told["round_s"] else "decides at every event"
    where.show(told, lambda: f"{told['policy']} ({rounds})\n{problem}")


@policy.command("set")
@takes(where=Where)
def policy_set(
    context: typer.Context,
    where: Where,
    name: Annotated[
        str,
        typer.Argument(
            help="See `fairway policies`; knobs after a colon", metavar="POLICY", autocompletion=policy_names
        ),
    ],
) -> None:
    """Switch to another policy. No work is lost; jobs are stopped only if the new policy decides so.

    \b
    fairway policy set las:levels=3600/36000
    """
    chosen = where if where != Where() else context.obj or where
    told = chosen.client().set_policy(name)
    chosen.show(told, lambda: f"{told['policy']} decides now\n")
