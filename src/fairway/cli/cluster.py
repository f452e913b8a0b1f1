"""The commands about the cluster: nodes and their draining, shares, the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fairway.cli.completion import policy_names
from fairway.cli.live import Where
from fairway.cli.options import takes

policy = typer.Typer(rich_markup_mode=None)
node = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
_NodeName = Annotated[str, typer.Argument(help="See `fairway nodes`", metavar="NAME")]


@takes(where=Where)
def nodes(where: Where) -> None:
    """Show machines, their GPUs, and the jobs on them.

    \b
    fairway nodes
    """
    from fairway.cli.live_tables import nodes_table

    told = where.client().nodes()
    where.show(told, lambda: nodes_table(told))


@node.callback()
def node_group() -> None:
    """Drain machines before work on them, and let jobs start there again. For operators.

    \b
    fairway node drain n3 --reason "new disks"
    fairway node undrain n3
    """


@node.command("drain")
@takes(where=Where)
def node_drain(
    where: Where,
    name: _NodeName,
    reason: Annotated[str, typer.Option("--reason", help="Why; users who wait see it", metavar="TEXT")] = "",
    move: Annotated[
        bool, typer.Option("--move", help="Stop jobs that go on elsewhere from a checkpoint; others end there")
    ] = False,
) -> None:
    """Start nothing on a machine any more. The jobs there end by themselves.

    \b
    fairway node drain n3 --reason "new disks"
    fairway node drain n3 --move
    """
    told = where.client().drain(name, reason=reason, move=move)
    where.show(told, lambda: _drained(told))


@node.command("undrain")
@takes(where=Where)
def node_undrain(where: Where, name: _NodeName) -> None:
    """Let jobs start on a machine again.

    \b
    fairway node undrain n3
    """
    told = where.client().undrain(name)
    where.show(told, lambda: f"node {told['name']} is {told['status']}\n")


def _drained(told: Mapping[str, Any]) -> str:
    there = list(dict.fromkeys(job for gpu in told["node"]["gpus"] for job in gpu["jobs"]))
    left = [job for job in there if job not in told["moved"]]
    leaving = f"; job {', '.join(told['moved'])} leaves it" if told["moved"] else ""
    waits = f"; job {', '.join(left)} is still there" if left else ""
    return f"node {told['node']['name']} is drained{leaving}{waits}\n"


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
