"""`fairway submit` and `fairway run`: submit a job, and follow it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from fairway.cli.live import Where
from fairway.cli.options import takes
from fairway.cli.submit_options import AskedTerms, SchemaCommand, draft_of, is_task_file, option_names
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.client import Client, Submitted
    from fairway.runtime.jobs.request import JobRequest
    from fairway.submission.draft import Draft
    from fairway.submission.exported import Export

_LITERAL = "fairway.literal"
_GIVEN_UP, _CANCELLED = 1, 130

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="A command after --, an sbatch script (- reads one) or a SkyPilot task", metavar="[--] COMMAND…"
    ),
]
_Key = Annotated[
    str | None,
    typer.Option("--key", help="A second submission with the same key is the same job", metavar="KEY"),
]


class TakesCommand(SchemaCommand):
    """A command whose options end at the first word that is not an option: the rest belongs to the job.

    A task file takes no words, so options may also follow it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Note whether the words came after `--`; the parser does not keep that."""
        ctx.allow_interspersed_args = False
        before = list(args)
        first = next(iter(self.make_parser(ctx).parse_args(list(args))[0].get("words") or ()), "")
        ctx.allow_interspersed_args = is_task_file(first)
        rest = super().parse_args(ctx, args)
        words = ctx.params.get("words") or ()
        at = len(before) - len(words) - 1
        ctx.meta[_LITERAL] = at >= 0 and before[at] == "--"
        return rest


@takes(asked=AskedTerms, where=Where)
def submit(
    context: typer.Context,
    asked: AskedTerms,
    where: Where,
    words: _Words = None,
    key: _Key = None,
    parsable: Annotated[bool, typer.Option("--parsable", help="Print the job's id and nothing else")] = False,
) -> None:
    """Submit a job.

    \b
    fairway submit --gpus 1 -- python train.py --lr 0.1
    fairway submit --gpus 1-4 --time 8h --depends afterok:12 -- python train.py
    fairway submit --array 0-9%3 -- bash -c 'python t.py $FAIRWAY_ARRAY_TASK_ID'
    fairway submit --executor my_package.training:make_job -- 0.1
    fairway submit -- torchrun --nnodes=1:4 --nproc-per-node=8 train.py
    fairway submit train.sbatch
    fairway submit task.yaml --env LR=0.1
    """
    draft = draft_of(words or (), asked, literal=context.meta[_LITERAL])
    rows = _submitted(where.client(), draft, key)
    name = rows[0]["id"].partition("_")[0] if len(rows) > 1 else rows[0]["id"]
    if parsable:
        sys.stdout.write(f"{name}\n")
        return
    tasks = f", {len(rows):,} tasks" if len(rows) > 1 else ""
    told = (
        f"submitted{tasks}{_kept(draft, rows[0])}"
        if rows.new
        else f"was submitted before under this key{_states(rows)}"
    )
    if rows.new and not where.json and sys.stdout.isatty():
        told += _expected(where.client(), name)
    where.show([{**row, "notes": list(rows.notes)} for row in rows], lambda: f"job {name} {told}\n")


@takes(asked=AskedTerms, where=Where)
def run(context: typer.Context, asked: AskedTerms, where: Where, words: _Words = None, key: _Key = None) -> None:
    """Submit a job, show what it writes, and exit with its exit code.

    Ctrl-C cancels the job; it is also cancelled if its output can no longer be written. With --json its output goes to
    standard error, and the job is printed as by `fairway show --json` when it has ended.

    \b
    fairway run --gpus 1 -- python train.py
    fairway run train.sbatch
    """
    if asked.array is not None:
        raise InputError("`fairway run` takes one job; `fairway submit` takes arrays")
    client = where.client()
    rows = _submitted(client, draft_of(words or (), asked, literal=context.meta[_LITERAL]), key)
    if len(rows) != 1:
        raise InputError(f"this is an array of {len(rows)} tasks, now submitted; `fairway logs` shows one of them")
    name = rows[0]["id"]
    code = _stayed_with(client, name, new=bool(rows.new), to=sys.stderr if where.json else sys.stdout)
    if where.json:
        where.show(client.show(name), str)
    raise typer.Exit(code)


def _expected(client: Client, name: str) -> str:
    """When a new job is expected to start, for somebody who looks. That takes the scheduler a moment."""
    from fairway.cli.eta import when
    from fairway.core.errors import FairwayError

    try:
        start = when(client.why(name, told="submit").get("estimate") or {}, "start")
    except FairwayError:
        # It is submitted; when it starts can be asked later.
        return ""
    return f"; expected to start {start}" if start else ""


def _states(rows: Sequence[dict[str, Any]]) -> str:
    """The states of jobs that are not new."""
    from collections import Counter

    if len(rows) == 1:
        return f": {rows[0]['state']}"
    return f", {len(rows):,} tasks: " + ", ".join(
        f"{number:,} {state}" for state, number in Counter(row["state"] for row in rows).items()
    )


def _kept(draft: Draft, row: Mapping[str, Any]) -> str:
    """Why a new job does not start yet, if its own options say so.

    The policy's reasons are for `fairway why`: at this moment it may not have decided about the job.
    """
    begins_later = draft.fields.get("begin_s", 0.0) > time.time()
    wished = begins_later or draft.fields.get("hold") or draft.fields.get("depends")
    return f": {row['reason']}" if wished and row["reason"] else ""


def _submitted(client: Client, draft: Draft, key: str | None) -> Submitted:
    from fairway.cli import output

    if key == "":
        raise InputError("--key: must not be empty")
    # What is wrong with it is said before the scheduler is asked anything.
    draft.request({}, option_names())
    if draft.export is None:
        draft = replace(draft, export=_usual_export(client, draft))
    request = draft.request(os.environ, option_names())
    # A request leaves out the default folder, and the client would then use the current one.
    body = {**request.plain(), "cwd": request.cwd}
    if draft.array is not None:
        body["array"] = list(draft.array.tasks)
        if draft.array.at_once:
            body["array_at_once"] = draft.array.at_once
    rows = client.submit(body, key=key)
    notes = (*draft.remarks, *draft.exported(os.environ).remarks, *_limits_not_kept(client, request), *rows.notes)
    for note in notes:
        output.say("note", note)
    return rows


def _usual_export(client: Client, draft: Draft) -> Export:
    """Which variables go along if nobody says so: the scheduler's default, and none to a job of somebody else."""
    from fairway.submission.exported import NOTHING, export_of

    told, user = client.status(), draft.fields.get("user")
    return NOTHING if user and user != told["you"] else export_of(told["export"])[0]


def _limits_not_kept(client: Client, request: JobRequest) -> Iterator[str]:
    """What a job is limited to, if this scheduler cannot keep it to that."""
    asked = {"memory": request.host_memory_bytes, "cpus": request.cpus}
    if any(asked.values()):
        status = client.status()
        for what in asked.keys() - set(status["limits_kept"]):
            if asked[what]:
                yield f"the limit of {what} is not kept here (containment: {status['containment']})"


def _stayed_with(client: Client, name: str, *, new: bool, to: TextIO) -> int:
    """Show a job's output until it has ended; its exit code."""
    from fairway.cli import output
    from fairway.cli.log_follower import Follower

    follower = Follower(client, name, to=to)
    try:
        output.say("note", f"this is job {name}" + ("" if new else ", which was submitted before under this key"))
        follower.run()
    except (KeyboardInterrupt, SystemExit) as stopped:
        output.say("note", f"cancelling job {name}; Ctrl-C again stops waiting for it")
        client.cancel(name)
        # What it writes while it stops is shown, too.
        follower.run()
        return _CANCELLED if isinstance(stopped, KeyboardInterrupt) else int(stopped.code or 0)
    except OSError:
        # The output has no reader, who could press Ctrl-C.
        client.cancel(name)
        raise
    told = client.wait(name)
    if told["state"] != "COMPLETED":
        output.say("note", f"job {name} {told['state']}" + (f": {told['reason']}" if told["reason"] else ""))
    code = told["exit_code"]
    if told["state"] == "CANCELLED":
        return _CANCELLED
    return code if isinstance(code, int) and 0 < code < 256 else _GIVEN_UP if told["state"] != "COMPLETED" else 0
