"""`fairway logs`: what a job has written and writes, across its restarts and those of the scheduler."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fairway.cli.completion import all_jobs
from fairway.cli.live import Where
from fairway.cli.log_follower import Follower, write
from fairway.cli.options import takes

if TYPE_CHECKING:
    from fairway.client import Client


@takes(where=Where)
def logs(
    where: Where,
    job: Annotated[
        str, typer.Argument(help="Its id; ID_k for a task of an array", metavar="JOB", autocompletion=all_jobs)
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the job has ended, across restarts")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank", metavar="R", min=0)] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Only this attempt", metavar="N", min=1)] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", help="Begin with the last N lines", metavar="N", min=0)
    ] = None,
) -> None:
    """Show what a job has written, in all its attempts. If it has several ranks, each line starts with its rank.

    With --json each line is an object with job, attempt, rank and line.

    \b
    fairway logs 12 -f
    fairway logs 12 --rank 0 --tail 20
    """
    client = where.client()
    if where.json:
        _logs_as_json(client, job, rank=rank, attempt=attempt, tail=tail, follow=follow)
        return
    if follow and attempt is None:
        try:
            Follower(client, job, rank=rank, tail=tail).run()
        except KeyboardInterrupt:
            return
        return
    silent = True
    for piece in client.logs(job, rank=rank, attempt=attempt, tail=tail, follow=follow):
        silent = False
        write(piece, sys.stdout)
    if silent and tail != 0:
        _say_nothing_is_there(client, job)


def _logs_as_json(client: Client, job: str, *, follow: bool, **chosen: int | None) -> None:
    from fairway.cli.log_lines import LineFollower, written_lines

    if follow:
        try:
            LineFollower(client, job, **chosen).run()
        except KeyboardInterrupt:
            return
    elif not written_lines(client, job, **chosen) and chosen["tail"] != 0:
        _say_nothing_is_there(client, job)


def _say_nothing_is_there(client: Client, job: str) -> None:
    """Say why there is no output: the job has not been started, or has written nothing."""
    from fairway.cli import output

    told = client.show(job)
    if not told["history"]:
        output.say("note", f"job {job} is {told['state']} and has not been started")
    else:
        output.say("note", f"job {job} is {told['state']} and has written nothing")
