"""`fairway why` and `fairway what-if`: why a job waits, and what will happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.cli.completion import active_jobs
from fairway.cli.jobs import UNENDED
from fairway.cli.live import Where
from fairway.cli.options import takes
from fairway.cli.submit_options import AskedTerms, draft_of, option_names, read
from fairway.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairway.cli.fitted_table import TableColumn
    from fairway.submission.draft import Draft

Row = Mapping[str, Any]


@takes(where=Where)
def why(
    where: Where, job: Annotated[str, typer.Argument(help="Its id", metavar="JOB", autocompletion=active_jobs)]
) -> None:
    """Say why a job waits, and when it may start.

    You see the reason, the jobs that are ahead, and what would free GPUs.

    \b
    fairway why 12
    """
    told = where.client().why(job)
    where.show(told, lambda: _reasons(told))


def _reasons(told: Row) -> RenderableType:
    from fairway.cli.output import pairs_table

    rows = [("job", f"{told['id']} {told['state']}"), ("reason", told["reason"] or "none"), ("policy", told["policy"])]
    if "array" in told:
        rows.insert(1, ("array", _array(told)))
    if told.get("tenant"):
        rows.append(("tenant", _tenant(told["tenant"])))
    if told.get("memory"):
        rows.append(("memory", _memory(told["memory"])))
    if told.get("position"):
        rows.append(("position", f"{told['position']} of {told.get('waiting', told['position'])}"))
    rows += [("ahead", text) for text in _ahead(told)]
    rows += [("would free it", _event(one)) for one in told.get("frees", ())]
    rows += [(name, text) for name, text in _estimates(told) if text]
    return pairs_table(rows)


def _tenant(tenant: Row) -> str:
    if tenant["name"] is None:
        return "none: it runs on what tenants leave idle, and gives way to them"
    broken = f", {tenant['out_of_order']} out of order" if tenant["out_of_order"] else ""
    return f"{tenant['name']}, with {tenant['gpus_held']} of its {tenant['gpus']} GPUs in use{broken}"


def _memory(memory: Row) -> str:
    """Where the GPU memory of a suspended job is."""
    from fairway.cli.output import count

    size = f"{memory['bytes'] / 2**30:.1f} GiB " if memory["bytes"] else ""
    gpus = f"{count(len(memory['gpus']), 'GPU')} ({', '.join(map(str, memory['gpus']))})"
    where = {"gpu": f"on {gpus}", "host": f"in host memory, moved out of {gpus}"}
    told = f"{size}{where.get(memory['place'], f'on its way between {gpus} and host memory')}"
    return f"{told}; it cannot leave: {memory['problem']}" if memory["problem"] else told


def _ahead(told: Row) -> list[str]:
    """Who is ahead of it, a line for each reason: `each of 3, 12_[0-5] starts first`."""
    from fairway.cli.folded_arrays import ids_text

    by_reason: dict[str, list[str]] = {}
    for one in told.get("ahead", ()):
        by_reason.setdefault(one["why"], []).append(one["id"])
    more = [f"and {told['more_ahead']:,} more"] if told.get("more_ahead") else []
    return [*(f"{'each of' if len(ids) > 1 else 'job'} {ids_text(ids)} {why}" for why, ids in by_reason.items()), *more]


def _array(told: Row) -> str:
    from fairway.cli.output import count

    array = told["array"]
    states = ", ".join(f"{number:,} {state}" for state, number in array["states"].items())
    return f"{array['id']}, {count(array['tasks'], 'task')} ({states}); this is about task {told['id']}"


def _event(one: Row) -> str:
    from fairway.cli.output import count, duration

    who = f"job {one['id']} " if one.get("id") else ""
    when = f" in {duration(one['in_s'])}" if one.get("in_s") is not None else ""
    gpus = f" ({count(one['gpus'], 'GPU')})" if one.get("gpus") else ""
    how = f": {one['command']}" if one.get("command") else ""
    how += f": {', '.join(one['tasks'])}" if one.get("tasks") else ""
    return f"{who}{one['what']}{when}{gpus}{how}"


def _estimates(told: Row) -> list[tuple[str, str]]:
    from fairway.cli.output import duration

    estimate = told.get("estimate") or {}
    starts, ends = estimate.get("start_in_s"), estimate.get("finish_in_s")
    if starts is not None:
        start = _when(estimate, "start")
    elif told["state"] == "RUNNING" or not estimate:
        start = ""
    else:
        start = f"not within {duration(estimate['looked_s'])}" if estimate.get("cut") else "never, as things are now"
    return [
        ("may start", start),
        ("may end", "" if ends is None else _when(estimate, "finish")),
        ("estimated from", str(estimate.get("basis", "")) if starts is not None or ends is not None else ""),
        ("estimate", str(estimate.get("cut", "") or "")),
        ("note", str(estimate.get("note", "") or "")),
    ]


def _when(estimate: Row, kind: str) -> str:
    """`in 12 min, about 14:20 (80 % sure: 14:05 to 15:00)`, or `in 12 min, about 14:20 (rough)`."""
    from fairway.cli.eta import when
    from fairway.cli.output import duration

    about = when(estimate, kind)
    return f"in {duration(estimate[f'{kind}_in_s'])}{about and f', {about}'}"


@takes(asked=AskedTerms, where=Where)
def what_if(
    context: typer.Context,
    asked: AskedTerms,
    where: Where,
    words: Annotated[
        list[str] | None, typer.Argument(help="Ids of jobs, or the command of a new job", metavar="[JOB…]")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="As if this policy decided from now on", metavar="POLICY")
    ] = None,
    cluster_gpus: Annotated[
        str | None,
        typer.Option(
            "--cluster-gpus",
            help="As if the cluster had these GPUs: a number, or one for each type, such as v100:8,k80:4",
            metavar="N",
        ),
    ] = None,
    horizon: Annotated[
        str | None, typer.Option("--horizon", help="How far to look ahead. Default: 30d", metavar="T")
    ] = None,
) -> None:
    """Estimate when jobs start and end.

    You can ask about the jobs in the queue, about a new job, about another policy, or about other GPUs. What would be
    different is shown beside what happens as things are.

    \b
    fairway what-if
    fairway what-if 12 13
    fairway what-if --gpus 4 --expect 2h
    fairway what-if --policy srtf
    fairway what-if --cluster-gpus 16
    """
    from fairway.core.units import duration_s

    question: dict[str, Any] = {}
    new = ""
    if words and all(map(_is_id, words)):
        if asked != AskedTerms():
            raise InputError(f"{words[0]} is the id of a job; options of `submit` are only for a new job")
        question["ids"] = list(words)
    elif words or asked != AskedTerms():
        draft = draft_of(words or ["true"], asked, literal=False)
        question |= _new_jobs(draft)
        new = _described(words or (), draft)
    if policy is not None:
        question["policy"] = policy
    if cluster_gpus is not None:
        question["cluster_gpus"] = read("cluster-gpus", cluster_gpus, gpu_counts)
    if horizon is not None:
        question["horizon_s"] = read("horizon", horizon, duration_s)
    told = where.client().what_if(**question)
    where.show(told, lambda: _outlook(told, new))


def gpu_counts(text: str) -> int | dict[str, int]:
    """The GPUs that a cluster would have: `16`, or `v100:8,k80:4`."""
    if text.isascii() and text.isdecimal():
        return int(text)
    counts: dict[str, int] = {}
    for part in text.split(","):
        kind, colon, count = part.strip().partition(":")
        if not (kind and colon and count.isascii() and count.isdecimal()):
            raise InputError(f"{text!r} is neither a number of GPUs nor something like v100:8,k80:4")
        if kind.lower() in counts:
            raise InputError(f"{text!r} names {kind} twice")
        counts[kind.lower()] = int(count)
    return counts


def _is_id(word: str) -> bool:
    return word.replace("_", "", 1).isdigit()


def _new_jobs(draft: Draft) -> dict[str, Any]:
    """The fields of a job that is not submitted, once per task of an array. Its command does not matter."""
    fields = draft.request({}, option_names()).plain()
    for unknown in ("client_key", "user"):
        fields.pop(unknown, None)
    tasks = len(draft.array.tasks) if draft.array is not None else 1
    return {"job": fields} if tasks == 1 else {"jobs": [fields] * tasks}


def _described(words: Sequence[str], draft: Draft) -> str:
    """What was forecast, so that a mistyped id is noticed."""
    import shlex

    from fairway.cli.output import count
    from fairway.cli.visible import line

    tasks = 1 if draft.array is None else len(draft.array.tasks)
    what = f"`{line(shlex.join(words))}`" if words else count(int(draft.fields.get("gpus", 1)), "GPU")
    return f"{'a new job' if tasks == 1 else f'{tasks:,} new jobs'}: {what}"


def _outlook(told: Row, new: str = "") -> RenderableType:
    """The forecast as a table; `new` describes the new jobs, if any."""
    from rich.console import Group
    from rich.text import Text

    rows = [*told["new"], *told["jobs"]]
    lines = [text for text in (told["cut"], told.get("note"), told["problem"]) if text]
    if told["left_out"]:
        lines.insert(0, f"jobs left out: {told['left_out']:,}")
    ended = [f"job {row['id']} has ended: {row['state']}" for row in rows if _has_ended(row)]
    if len(ended) == len(rows):
        return Group(*map(Text, [*ended, *lines] if rows else ["no jobs wait or run", *lines]))
    beside: list[RenderableType] = []
    if "otherwise" in told:
        lines.insert(0, _figures(f"now ({_situation(told['otherwise'], told)})", told["otherwise"]))
        beside = [_user_table(told["users"])] if told.get("users") else []
    lines.insert(0, _figures(_situation(told, told.get("otherwise", told)), told))
    return Group(*([Text(new)] if new else []), _table(rows), *beside, *map(Text, lines))


def _situation(told: Row, other: Row) -> str:
    """The policy, with the GPUs if those are what makes the difference."""
    from fairway.cli.output import count

    there = told.get("cluster_gpus", {})
    if there == other.get("cluster_gpus", {}):
        return str(told["policy"])
    kinds = [f"{number:,} {kind}" for kind, number in there.items()]
    gpus = " + ".join(kinds) if len(kinds) > 1 else count(sum(there.values()), "GPU")
    return f"{told['policy']}, {gpus}"


def _user_table(users: Sequence[Row]) -> RenderableType:
    """The mean completion times of users, side by side."""
    from fairway.cli.fitted_table import Listed, TableColumn
    from fairway.cli.visible import line

    pairs = [(row["mean_jct_s"], row["otherwise_mean_jct_s"]) for row in users]
    columns = [
        TableColumn("user", [line(row["user"]) for row in users], least=8),
        TableColumn("jobs", [f"{row['jobs']:,}" for row in users], right=True),
        TableColumn("mean completion", [_in(then_s) for then_s, _ in pairs]),
        TableColumn("now", [_in(now_s) for _, now_s in pairs]),
        TableColumn("difference", [_difference(then_s, now_s) for then_s, now_s in pairs]),
    ]
    return Listed(columns, keep=("mean completion", "now"))


def _difference(then_s: float | None, now_s: float | None) -> str:
    """How much later or earlier something would be than it is now."""
    if then_s is None or now_s is None:
        return "–"
    if abs(then_s - now_s) < 0.05:
        return "the same"
    return f"{'+' if then_s > now_s else '−'}{_in(abs(then_s - now_s))}"


def _goes_on(row: Row) -> bool:
    """Whether a job runs and stays on its GPUs in a forecast."""
    return row.get("state") == "RUNNING" and row["start_in_s"] is None and not row.get("why")


def _has_ended(row: Row) -> bool:
    return row.get("state", UNENDED[0]) not in UNENDED


def _table(rows: Sequence[Row]) -> RenderableType:
    from fairway.cli.eta import rough
    from fairway.cli.fitted_table import Listed, TableColumn
    from fairway.cli.visible import line

    starts = ["runs" if _goes_on(row) else _in(row["start_in_s"]) + rough(row, "start") for row in rows]
    columns = [
        TableColumn("job", [row.get("id", "new") for row in rows]),
        TableColumn("user", [line(row.get("user", "")) for row in rows], rank=4, least=8),
        TableColumn("state", [row.get("state", "") for row in rows], rank=1),
        TableColumn("GPUs", [str(row["gpus"]) for row in rows], rank=2, right=True),
        TableColumn("starts in", starts),
        *_betweens(rows, "start", "starts"),
        TableColumn("ends in", [_in(row["finish_in_s"]) + rough(row, "finish") for row in rows]),
        *_betweens(rows, "finish", "ends"),
        *_beside(rows),
        TableColumn("preempted", [str(row["preemptions"] or "") for row in rows], rank=5, right=True),
        TableColumn("estimated from", [_from(row) for row in rows]),
    ]
    return Listed(columns, keep=("starts in", "ends in", "now ends in"))


def _beside(rows: Sequence[Row]) -> list[TableColumn]:
    """When jobs start and end as things are, where something else was asked about."""
    from fairway.cli.fitted_table import TableColumn

    if not any("otherwise" in row for row in rows):
        return []
    now = [row.get("otherwise", {"start_in_s": None, "finish_in_s": None}) for row in rows]
    starts = [
        "runs" if row.get("state") == "RUNNING" else _in(one["start_in_s"]) for row, one in zip(rows, now, strict=True)
    ]
    differences = [_difference(row["finish_in_s"], one["finish_in_s"]) for row, one in zip(rows, now, strict=True)]
    return [
        TableColumn("now starts in", starts, rank=3),
        TableColumn("now ends in", [_in(one["finish_in_s"]) for one in now]),
        TableColumn("difference", differences, rank=6),
    ]


def _betweens(rows: Sequence[Row], kind: str, verb: str) -> list[TableColumn]:
    """A column with the intervals of starts or ends, if there are any: `80 % sure: starts`."""
    from fairway.cli.eta import between, sure
    from fairway.cli.fitted_table import TableColumn

    cells = [between(row, kind) for row in rows]
    heads = [f"{sure(row)}: {verb}" for row, cell in zip(rows, cells, strict=True) if cell]
    return [TableColumn(heads[0], cells, rank=6 if kind == "start" else 7)] if heads else []


def _from(row: Row) -> str:
    """What an estimate is based on, or why there is none."""
    from fairway.cli.visible import line

    if _has_ended(row):
        return "it has ended"
    basis = str(row.get("basis", ""))
    return line(row.get("why") or ("nothing (1 h)" if basis == "nothing; an hour is assumed" else basis))


def _in(seconds: float | None) -> str:
    from fairway.cli.output import duration

    return "–" if seconds is None else duration(seconds)


def _figures(name: str, told: Row) -> str:
    """The totals, without those that do not apply."""
    from fairway.cli.output import count

    never, parts = told["never_start"], []
    late = told["not_finished"] - never
    if told["mean_jct_s"] is not None:
        of = f" (of {told['finished']:,} that end)" if told["not_finished"] else ""
        parts.append(f"mean completion time {_in(told['mean_jct_s'])}{of}")
    if told["all_done_in_s"] is not None:
        parts.append(f"all done in {_in(told['all_done_in_s'])}")
    parts.append(count(told["preemptions"], "preemption"))
    if late:
        parts.append(f"{count(late, 'job')} not done within the forecast")
    if never:
        parts.append(f"{count(never, 'job')} never start{'s' if never == 1 else ''}, as things are now")
    return f"{name}: {' · '.join(parts)}"
