"""The commands that show jobs and control them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.completion import active_jobs, all_jobs
from fairway.cli.live import Where, for_each, place_of, told_ended, told_state
from fairway.cli.options import takes
from fairway.cli.submit_options import ahead_s, option_names, read
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.client import Client

_Job = Annotated[
    str,
    typer.Argument(
        help="Its id; ID_k for a task, ID for all tasks of an array", metavar="JOB", autocompletion=all_jobs
    ),
]
_Jobs = Annotated[
    list[str],
    typer.Argument(help="Ids; the id of an array means all its tasks", metavar="JOB…", autocompletion=active_jobs),
]
_User = Annotated[str | None, typer.Option("--user", "-u", help="Only jobs of this user", metavar="NAME")]
_Tasks = Annotated[bool, typer.Option("--tasks", "-t", help="A row for each task of an array")]
_SINCE = "Only jobs {} in the last 2h, or since 16:00 or 2026-01-31"

UNENDED = ("PENDING", "RUNNING", "SUSPENDED", "PREEMPTED")
_STATES = (*UNENDED, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
NO_LIMIT = "none"


@takes(where=Where)
def ls(
    where: Where,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended")] = False,
    in_state: Annotated[
        list[str] | None,
        typer.Option("--status", "-s", help="Only in this state; may be repeated", metavar="STATE"),
    ] = None,
    user: _User = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only in this queue", metavar="NAME")] = None,
    since: Annotated[str | None, typer.Option("--since", help=_SINCE.format("submitted"), metavar="T")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Only the latest N", metavar="N", min=1)] = None,
    tasks: _Tasks = False,
) -> None:
    """List jobs that run or wait. An array is one row; --tasks and --json list every task.

    \b
    fairway ls
    fairway ls --all --since 1d
    fairway ls -s running -u ann --json
    """
    from fairway.cli.folded_arrays import folded
    from fairway.cli.live_tables import jobs_table

    states = [_state(one) for one in in_state or ()]
    if not states and not every:
        states = list(UNENDED)
    client = where.client()
    rows = client.ls(state=states, user=user, queue=queue, since=since_s(since), limit=limit)
    where.show(rows, lambda: jobs_table(rows if tasks else folded(rows)) if rows else "no jobs\n")


@takes(where=Where)
def show(where: Where, job: _Job) -> None:
    """Show all about a job, or list the tasks of an array.

    \b
    fairway show 12
    fairway show 12_3 --json
    """
    from fairway.cli.live_tables import job_table

    told = where.client().show(job)
    where.show(told, lambda: job_table(told))


@takes(where=Where)
def history(
    where: Where,
    user: _User = None,
    since: Annotated[str | None, typer.Option("--since", help=_SINCE.format("that ended"), metavar="T")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most N", metavar="N", min=1)] = 50,
    tasks: _Tasks = False,
    export: Annotated[
        str | None,
        typer.Option("--export", help="Write all about all of them to a file, as JSON lines", metavar="FILE"),
    ] = None,
) -> None:
    """List jobs that have ended, the latest first. An array is one row; --tasks and --json list every task.

    \b
    fairway history
    fairway history --since 1d --user ann
    fairway history --export 2026.jsonl
    """
    if export is not None:
        _export(where, Path(export), where.client().export(user=user, since=since_s(since)))
        return
    from fairway.cli.folded_arrays import folded
    from fairway.cli.live_tables import history_table

    rows = where.client().history(user=user, since=since_s(since), limit=limit)
    where.show(rows, lambda: history_table(rows if tasks else folded(rows)) if rows else "no jobs\n")


def _export(where: Where, path: Path, pieces: Iterator[bytes]) -> None:
    """Write a file, all of it or nothing."""
    scratch, jobs = path.with_name(f"{path.name}.part"), 0
    try:
        with scratch.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                jobs += piece.count(b"\n")
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    where.show({"file": str(path), "jobs": jobs}, lambda: f"{jobs:,} job{'s' * (jobs != 1)} written to {path}\n")


@takes(where=Where)
def gc(
    where: Where,
    older: Annotated[
        str | None, typer.Option("--older", help="Those that ended longer ago than this: 7d, 12h", metavar="T")
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", help="All but the latest N", metavar="N", min=0)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many that would be")] = False,
) -> None:
    """Delete jobs that have ended, with their logs and checkpoints. Default: those that the configuration lets go.

    Jobs that others depend on stay until those have ended. `fairway history --export` saves what is known first.

    \b
    fairway gc --dry-run
    fairway gc --older 7d
    fairway gc --keep 1000
    """
    from fairway.core.units import duration_s

    older_s = None if older is None else read("older", older, duration_s)
    told = where.client(timeout_s=3600.0).gc(older_s=older_s, keep=keep, dry_run=dry_run)
    where.show(told, lambda: _told_gone(told))


def _told_gone(told: Mapping[str, Any]) -> str:
    jobs, awaited = told["jobs"], told["awaited"]
    verb = "would be deleted" if told["dry_run"] else "deleted"
    kept = f"; {awaited:,} more stay because others depend on them" if awaited else ""
    return f"{jobs:,} job{'s' * (jobs != 1)} {verb}{kept}\n"


@takes(where=Where)
def cancel(where: Where, jobs: _Jobs) -> None:
    """End jobs. Their processes are asked to stop, and killed after their grace period.

    A job that has ended already stays as it is; this is not an error.

    \b
    fairway cancel 12 13
    fairway cancel 14_3
    """
    _act(where, jobs, "cancel", _told_cancelled)


@takes(where=Where)
def suspend(where: Where, jobs: _Jobs) -> None:
    """Take jobs off their GPUs until they are resumed.

    \b
    fairway suspend 12
    """
    _act(where, jobs, "suspend")


@takes(where=Where)
def resume(where: Where, jobs: _Jobs) -> None:
    """Let suspended jobs go on when it is their turn. Held jobs are released.

    \b
    fairway resume 12
    """
    _act(where, jobs, "resume", _told_released)


@takes(where=Where)
def requeue(where: Where, jobs: _Jobs) -> None:
    """Stop running jobs and put them back in the queue. A job without a checkpoint starts from the beginning.

    \b
    fairway requeue 12
    """
    _act(where, jobs, "requeue", _told_requeued)


@takes(where=Where)
def hold(where: Where, jobs: _Jobs) -> None:
    """Do not start jobs until they are released. Jobs that run go on, but are not started again.

    \b
    fairway hold 12
    """
    _act(where, jobs, "hold", _told_held)


@takes(where=Where)
def release(where: Where, jobs: _Jobs) -> None:
    """Let held jobs run when it is their turn. Suspended jobs are resumed.

    \b
    fairway release 12
    """
    _act(where, jobs, "release", _told_released)


@takes(where=Where)
def update(
    where: Where,
    jobs: _Jobs,
    priority: Annotated[
        int | None,
        typer.Option("--priority", help="Higher is served first; negative is opportunistic", metavar="N"),
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Its share relative to other jobs", metavar="W")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="The time limit; none removes it", metavar="T")] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", help="When it must be done: 6h, 18:00 or a date; none removes it", metavar="T"),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A new name", metavar="NAME")] = None,
) -> None:
    """Change the terms of jobs that have not ended.

    \b
    fairway update 12 --priority 10 --time 4h
    fairway update 12 --deadline 18:00
    """
    from fairway.core.units import duration_s
    from fairway.runtime.jobs.request import JobRequest, checked

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
    # A new job is checked in the same way, with the same messages.
    checked(JobRequest, {"command": ("true",), **changes}, option_names())
    client = where.client()

    def act(job: str) -> list[dict[str, Any]]:
        if changes.get("deadline_s") is None:
            return client.update(job, **changes)
        due_s = now.timestamp() + changes["deadline_s"]
        return client.update(job, **{**changes, "deadline_s": due_s - _submitted_s(client, job)})

    for_each(where, jobs, act, _told_updated)


def _submitted_s(client: Client, job: str) -> float:
    """When a job was submitted; its deadline counts from then. All tasks of an array were submitted at once."""
    told = client.show(job)
    return float(told.get("tasks", [told])[0]["submitted_s"])


def _act(where: Where, jobs: list[str], verb: str, tell: Callable[[Mapping[str, Any]], str] = told_state) -> None:
    for_each(where, jobs, getattr(where.client(), verb), tell)


def _told_cancelled(row: Mapping[str, Any]) -> str:
    from fairway.cli.output import duration

    if row.get("had_ended") or row["state"] not in (*UNENDED, "CANCELLED"):
        return told_ended(row)
    stopping_s = row.get("stopping_s")
    more = f"; its processes have up to {duration(stopping_s)} to stop" if stopping_s else ""
    return f"{told_state(row).rstrip()}{more}\n"


def _told_requeued(row: Mapping[str, Any]) -> str:
    """The state of a job that was requeued, and where it starts again."""
    again = ""
    if row.get("from_the_beginning"):
        again = "; it has saved nothing and starts from the beginning"
    elif row.get("from_step") is not None:
        again = f"; it continues from its checkpoint at step {row['from_step']:,.0f}"
    return f"{told_state(row).rstrip()}{again}\n"


def _told_updated(row: Mapping[str, Any]) -> str:
    return told_ended(row) if row.get("had_ended") else f"job {row['id']} updated\n"


def _told_released(row: Mapping[str, Any]) -> str:
    """What a released job does next. The reason of a preempted job may still be how it was stopped."""
    if row["state"] not in UNENDED or row["state"] == "RUNNING":
        return told_state(row)
    why = f": {row['reason']}" if row["reason"] and row["state"] != "PREEMPTED" else ""
    return f"job {row['id']} {'goes on' if row['attempts'] else 'starts'} when it is its turn{why}\n"


def _told_held(row: Mapping[str, Any]) -> str:
    """That a job is held now, also if something else keeps it from running."""
    if row["state"] not in UNENDED or row["reason"].startswith("held"):
        return told_state(row)
    return f"job {row['id']} held; {place_of(row)}\n"


def _state(text: str) -> str:
    found = text.upper()
    if found not in _STATES:
        raise InputError(f"{text!r} is not a state; the states are {', '.join(_STATES).lower()}")
    return found


def since_s(text: str | None) -> float | None:
    """A date, a time of day, or a duration before now."""
    if text is None:
        return None
    from fairway.submission.quantities import past_s

    now = datetime.now().astimezone()
    return float(read("since", text, lambda text: past_s(text, now)))
