"""The verbs that look at jobs and that change what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.live import Where, for_each, place_of, told_ended, told_state
from fairway.cli.options import takes
from fairway.cli.submit_options import ahead_s, option_names, read
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.client import Client

_Job = Annotated[str, typer.Argument(help="Its id; ID_k for a task, ID for all tasks of an array", metavar="JOB")]
_Jobs = Annotated[list[str], typer.Argument(help="Ids; that of an array means all its tasks", metavar="JOB…")]
_User = Annotated[str | None, typer.Option("--user", "-u", help="Only those of this user", metavar="NAME")]
_SINCE = "Only those {} in the last 2h, or since 16:00 or 2026-01-31"

UNENDED = ("PENDING", "RUNNING", "SUSPENDED", "PREEMPTED")
_STATES = (*UNENDED, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
NO_LIMIT = "none"


@takes(where=Where)
def ls(
    where: Where,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended")] = False,
    in_state: Annotated[
        list[str] | None,
        typer.Option("--status", "-s", help="Only in this state; repeat it for several", metavar="STATE"),
    ] = None,
    user: _User = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only in this queue", metavar="NAME")] = None,
    since: Annotated[str | None, typer.Option("--since", help=_SINCE.format("submitted"), metavar="T")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="The latest so many", metavar="N", min=1)] = None,
) -> None:
    """List jobs that run or wait.

    \b
    fairway ls
    fairway ls --all --since 1d
    fairway ls -s running -u ann --json
    """
    from fairway.cli.live_tables import jobs_table

    states = [_state(one) for one in in_state or ()]
    if not states and not every:
        states = list(UNENDED)
    client = where.client()
    rows = client.ls(state=states, user=user, queue=queue, since=_since_s(since), limit=limit)
    where.show(rows, lambda: jobs_table(rows) if rows else "no jobs\n")


@takes(where=Where)
def show(where: Where, job: _Job) -> None:
    """Show everything about a job: what was asked for, where it is, its attempts and its progress.

    Of an array its tasks are listed.
    """
    from fairway.cli.live_tables import job_table

    told = where.client().show(job)
    where.show(told, lambda: job_table(told))


@takes(where=Where)
def history(
    where: Where,
    user: _User = None,
    since: Annotated[str | None, typer.Option("--since", help=_SINCE.format("that ended"), metavar="T")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many", metavar="N", min=1)] = 50,
) -> None:
    """List jobs that have ended, the latest first."""
    from fairway.cli.live_tables import history_table

    rows = where.client().history(user=user, since=_since_s(since), limit=limit)
    where.show(rows, lambda: history_table(rows) if rows else "no jobs\n")


@takes(where=Where)
def cancel(where: Where, jobs: _Jobs) -> None:
    """End jobs. Their processes are asked to stop, and killed after their grace period.

    One that has ended already is left as it is; that is said, and no error.
    """
    _act(where, jobs, "cancel", _told_cancelled)


@takes(where=Where)
def suspend(where: Where, jobs: _Jobs) -> None:
    """Take jobs off their GPUs, and start none of them, until they are resumed."""
    _act(where, jobs, "suspend")


@takes(where=Where)
def resume(where: Where, jobs: _Jobs) -> None:
    """Let suspended jobs go on when it is their turn; held ones, too."""
    _act(where, jobs, "resume", _told_released)


@takes(where=Where)
def requeue(where: Where, jobs: _Jobs) -> None:
    """Stop running jobs and let them wait for their turn again. One that saves nothing starts from the beginning."""
    _act(where, jobs, "requeue", _told_requeued)


@takes(where=Where)
def hold(where: Where, jobs: _Jobs) -> None:
    """Do not start jobs until they are released. Those that run go on; once stopped they are not started again."""
    _act(where, jobs, "hold", _told_held)


@takes(where=Where)
def release(where: Where, jobs: _Jobs) -> None:
    """Let held jobs run when it is their turn; suspended ones, too."""
    _act(where, jobs, "release", _told_released)


@takes(where=Where)
def update(
    where: Where,
    jobs: _Jobs,
    priority: Annotated[
        int | None,
        typer.Option("--priority", help="The higher, the sooner; negative is opportunistic", metavar="N"),
    ] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="Its share", metavar="W")] = None,
    time: Annotated[str | None, typer.Option("--time", help="Its time limit; none takes it away", metavar="T")] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", help="When it has to be done: 6h, 18:00 or a date; none takes it away", metavar="T"),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Another name", metavar="NAME")] = None,
) -> None:
    """Change the terms of jobs that have not ended.

    \b
    fairway update 12 --priority 10 --time 4h
    fairway update 12 --deadline 18:00
    """
    from fairway.core.units import duration_s
    from fairway.runtime.jobs.request import JobRequest
    from fairway.runtime.jobs.schema import checked

    now = datetime.now().astimezone()
    changes: dict[str, Any] = {
        key: value for key, value in (("priority", priority), ("weight", weight), ("name", name)) if value is not None
    }
    if time is not None:
        changes["limit_s"] = None if time == NO_LIMIT else read("time", time, duration_s)
    if deadline is not None:
        changes["deadline_s"] = None if deadline == NO_LIMIT else read("deadline", deadline, lambda t: ahead_s(t, now))
    if not changes:
        raise InputError("there is nothing to change; see fairway update --help")
    # What a new job could not ask for is refused in the same words.
    checked(JobRequest, {"command": ("true",), **changes}, option_names())
    client = where.client()

    def act(job: str) -> list[dict[str, Any]]:
        if changes.get("deadline_s") is None:
            return client.update(job, **changes)
        due_s = now.timestamp() + changes["deadline_s"]
        return client.update(job, **{**changes, "deadline_s": due_s - _submitted_s(client, job)})

    for_each(where, jobs, act, _told_updated)


def _submitted_s(client: Client, job: str) -> float:
    """The date from which the deadline of a job is counted. All tasks of an array were submitted at once."""
    told = client.show(job)
    return float(told.get("tasks", [told])[0]["submitted_s"])


def _act(where: Where, jobs: list[str], verb: str, tell: Callable[[Mapping[str, Any]], str] = told_state) -> None:
    for_each(where, jobs, getattr(where.client(), verb), tell)


def _told_cancelled(row: Mapping[str, Any]) -> str:
    ended = row.get("had_ended") or row["state"] not in (*UNENDED, "CANCELLED")
    return told_ended(row) if ended else told_state(row)


def _told_requeued(row: Mapping[str, Any]) -> str:
    """Where a job is that was stopped, and what that costs it."""
    lost = "; it has saved nothing and starts from the beginning" if row.get("from_the_beginning") else ""
    return f"{told_state(row).rstrip()}{lost}\n"


def _told_updated(row: Mapping[str, Any]) -> str:
    return told_ended(row) if row.get("had_ended") else f"job {row['id']} updated\n"


def _told_released(row: Mapping[str, Any]) -> str:
    """What a job does that is let go. The state of one that waits would only say where it comes from."""
    if row["state"] not in UNENDED or row["state"] == "RUNNING":
        return told_state(row)
    why = f": {row['reason']}" if row["reason"] else ""
    return f"job {row['id']} {'goes on' if row['attempts'] else 'starts'} when it is its turn{why}\n"


def _told_held(row: Mapping[str, Any]) -> str:
    """That a job is held now, also where something else is said to keep it from running."""
    if row["state"] not in UNENDED or row["reason"].startswith("held"):
        return told_state(row)
    return f"job {row['id']} held; {place_of(row)}\n"


def _state(text: str) -> str:
    found = text.upper()
    if found not in _STATES:
        raise InputError(f"{text!r} is no state; there are {', '.join(_STATES).lower()}")
    return found


def _since_s(text: str | None) -> float | None:
    """A date, a time of day, or so long ago."""
    if text is None:
        return None
    from fairway.submission.quantities import past_s

    now = datetime.now().astimezone()
    return float(read("since", text, lambda text: past_s(text, now)))
