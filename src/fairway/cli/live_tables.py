"""Tables of the live scheduler: jobs, GPUs, users, and one job in full."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairway.cli.fitted_table import NOTHING, Listed, TableColumn
from fairway.cli.output import count, duration, pairs_table, percent
from fairway.cli.visible import line

Row = Mapping[str, Any]

USE_STYLES = {"held": "green", "foreign": "yellow", "unreachable": "yellow", "drained": "yellow", "lost": "red"}
STYLES = {
    "RUNNING": "green",
    "SUSPENDED": "yellow",
    "PREEMPTED": "yellow",
    "FAILED": "red",
    "TIMEOUT": "red",
    "NODE_FAIL": "red",
    "OUT_OF_MEMORY": "red",
    "CANCELLED": "dim",
    "COMPLETED": "dim",
}


def table_of(*headings: str, right: Sequence[str] = ()) -> Table:
    """An empty table in the common style."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        last = heading == headings[-1]
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=not last)
    return table


def jobs_table(rows: Sequence[Row], now_s: float | None = None) -> RenderableType:
    """A list of jobs."""
    now_s = time.time() if now_s is None else now_s
    columns = [
        *_who(rows),
        TableColumn("ran", [duration(row["ran_s"]) if row["started_s"] else NOTHING for row in rows], rank=2),
        TableColumn("progress", [progress_text(row) for row in rows], rank=4),
        TableColumn("queue", [line(row["queue"]) for row in rows], rank=5, least=8),
        TableColumn("priority", [str(row["priority"] or "") for row in rows], rank=6, right=True),
        TableColumn("since", [_since(row, now_s) for row in rows], rank=7),
        TableColumn("why or what", [line(reason_text(row) or row["command"]) for row in rows]),
    ]
    return Listed(columns, keep=("GPUs",))


def _who(rows: Sequence[Row]) -> list[TableColumn]:
    """The first columns of every list of jobs."""
    return [
        TableColumn("job", [row["id"] for row in rows], styles=["bold"] * len(rows)),
        TableColumn("state", [row["state"] for row in rows], styles=[STYLES.get(row["state"], "") for row in rows]),
        TableColumn("GPUs", [gpus_text(row) for row in rows], right=True),
        TableColumn("user", [line(row["user"]) for row in rows], rank=3, least=8),
        TableColumn("name", [line(row["name"]) for row in rows], rank=1, least=12),
    ]


def _since(row: Row, now_s: float) -> str:
    """How long ago it was submitted, or ended."""
    return ago(row["ended_s"] or row["submitted_s"], now_s)


def gpus_text(row: Row) -> str:
    """What a job has or asks for: `2`, `0.5`, `1-4`, `2 of 1-4`; each task of an array: `2 each`."""
    low, high = row["gpus_min"], row["gpus_max"]
    asked = f"{row['gpus'] * row.get('gpu_share', 1.0):g}" if low == high else f"{low}-{high}"
    if "tasks" in row:
        return f"{asked} each"
    return f"{row['gpus_held']} of {asked}" if low != high and row["gpus_held"] else asked


def reason_text(row: Row) -> str:
    """Why it is in its state; empty if that says no more than the state."""
    return "" if row["reason"].upper() == row["state"] else str(row["reason"])


def progress_text(row: Row) -> str:
    """Its step, if it reports one or its log tells one."""
    if not row["step"]:
        return ""
    return f"{row['step']:,.0f}" + (f"/{row['steps']:,.0f}" if row["steps"] else "")


def ago(date_s: float, now_s: float) -> str:
    """How long ago a date was."""
    past_s = round(max(now_s - date_s, 0.0))
    return f"{past_s} s" if past_s < 60 else duration(float(past_s))


def date(date_s: float | None) -> str:
    """A date in local time."""
    return NOTHING if date_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(date_s))


def history_table(rows: Sequence[Row]) -> RenderableType:
    """Jobs that have ended. A row of an array has the end of its latest task, and no times that differ by task."""
    waited = [NOTHING if "tasks" in row else duration(_waited_s(row)) for row in rows]
    columns = [
        *_who(rows),
        TableColumn("ran", [NOTHING if "tasks" in row else duration(row["ran_s"]) for row in rows], rank=2),
        TableColumn("waited", waited, rank=5),
        TableColumn(
            "code", ["" if row["exit_code"] is None else str(row["exit_code"]) for row in rows], rank=6, right=True
        ),
        TableColumn("ended", [date(row["ended_s"]) for row in rows], rank=4),
        TableColumn("why or what", [line(reason_text(row) or row["command"]) for row in rows]),
    ]
    return Listed(columns, keep=("GPUs",))


def _waited_s(row: Row) -> float:
    """How long a job that has ended did not run."""
    submitted_s, ran_s = float(row["submitted_s"]), float(row["ran_s"])
    return max((row["ended_s"] or submitted_s) - submitted_s - ran_s, 0.0)


def job_table(told: Row) -> RenderableType:
    """One job in full, or the tasks of an array."""
    if "tasks" in told:
        return jobs_table(told["tasks"])
    request, progress = told["request"], told["progress"]
    rows = [
        ("job", f"{told['id']} {told['name']}".rstrip()),
        ("state", told["state"] + (f": {line(reason_text(told))}" if reason_text(told) else "")),
        ("user", told["user"] + (f", queue {told['queue']}" if told["queue"] else "")),
        ("command", "private" if told.get("private") else _command(request)),
        ("directory", "private" if told.get("private") else request.get("cwd", "/")),
        ("GPUs", _gpus_in_full(told)),
        ("submitted", date(told["submitted_s"])),
        ("started", date(told["started_s"])),
        ("ended", date(told["ended_s"])),
        ("ran", _ran(told)),
        ("preempted", _preempted(told)),
    ]
    rows += [(name, text) for name, text in _terms(request) if text]
    # A scheduler that was started before an upgrade does not say it.
    if told.get("estimate"):
        rows.append(("runs in all", _estimate(told["estimate"])))
    if told["exit_code"] is not None:
        rows.append(("exit code", str(told["exit_code"])))
    if progress.get("reported_s"):
        rows.append(("progress", _progress_in_full(told, progress)))
    return Group(pairs_table(rows), _attempts(told["history"])) if told["history"] else pairs_table(rows)


def _estimate(estimate: Row) -> str:
    """How long a job runs in all, how wide that is, and where it comes from."""
    if estimate["sure"] is None:
        wide = "rough"
    else:
        wide = f"{100 * estimate['sure']:.0f} % sure: {duration(estimate['low_s'])} to {duration(estimate['high_s'])}"
    nothing, _, assumed = estimate["source"].partition("; ")
    if nothing == "nothing":
        return f"not known yet; {assumed} ({wide})"
    return f"about {duration(estimate['expected_s'])} ({wide}), from {estimate['source']}"


def _preempted(told: Row) -> str:
    """How often it was preempted, and how that is done."""
    how = told["request"].get("preempt", "suspend")
    return f"{count(told['preemptions'], 'time')} · {'never allowed' if how == 'never' else f'by {how}'}"


def _ran(told: Row) -> str:
    """How long it has computed, and how long its attempts have lasted where that is more."""
    ran = f"{duration(told['ran_s'])} · GPU time {duration(told['gpu_s'])}"
    apart_s = sum(map(_lasted_s, told["history"])) - told["ran_s"]
    return f"{ran} · its attempts also stood still, started or stopped for {duration(apart_s)}" if apart_s >= 1 else ran


def _lasted_s(attempt: Row) -> float:
    """From the start of an attempt to its end, also while it was suspended."""
    began_s, end_s = float(attempt["started_s"] or attempt["launched_s"]), float(attempt["ended_s"] or time.time())
    return max(end_s - began_s, 0.0)


def _command(request: Row) -> str:
    """The command as its owner wrote it."""
    return str(request.get("shown") or shlex.join(request["command"]))


def _gpus_in_full(told: Row) -> str:
    types = told["request"].get("gpu_types") or ()
    ranks = " · a process per GPU" if told["request"].get("processes") == "per_gpu" else ""
    return gpus_text(told) + (f" of {' or '.join(types)}" if types else "") + ranks


def _terms(request: Row) -> list[tuple[str, str]]:
    depends = ", ".join(f"{one['kind']}:{one['job']}" for one in request.get("depends", ()))
    texts = [(name, f"{request[name]:g}" if name in request else "") for name in ("priority", "weight")]
    for name, label in (("limit_s", "time limit"), ("expected_s", "expected"), ("grace_s", "grace period")):
        texts.append((label, duration(request[name]) if request.get(name) is not None else ""))
    deadline = request.get("deadline_s")
    texts.append(("deadline", f"{duration(deadline)} after submission" if deadline is not None else ""))
    texts.append(("not before", date(request["begin_s"]) if request.get("begin_s") else ""))
    return [*texts, ("waits for", depends), ("retries", str(request.get("retries", "")))]


def _progress_in_full(told: Row, progress: Row) -> str:
    # A scheduler that was started before an upgrade does not say the unit.
    unit = progress.get("unit", "step")
    parts = [f"{unit} {progress_text(told) or 0}"]
    if progress.get("steps_per_s"):
        parts.append(f"{progress['steps_per_s']:.3g} {unit if unit == 'percent' else f'{unit}s'}/s")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.4g}")
    if progress.get("batch_size"):
        parts.append(f"batch size {progress['batch_size']:,}")
    if progress.get("checkpoint"):
        parts.append(f"checkpoint at step {progress['checkpoint_step']:,.0f}: {progress['checkpoint']}")
    if progress.get("source"):
        parts.append(f"read off its {progress['source']}")
    return " · ".join(parts)


def _attempts(history: Sequence[Row]) -> Table:
    table = table_of("attempt", "GPUs", "nodes", "started", "lasted", "exit codes", "ended by", right=("attempt",))
    for one in history:
        cells = (
            str(one["number"]),
            ",".join(map(str, one["gpus"])),
            " ".join(one.get("nodes", ())),
            date(one["started_s"] or one["launched_s"]),
            duration(_lasted_s(one)),
            " ".join(map(str, one["codes"])) or ("–" if one["ended_s"] else "none yet"),
            one["cause"],
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def nodes_table(nodes: Sequence[Row]) -> RenderableType:
    """Machines and their GPUs, and what is wrong with those on which nothing is started.

    How busy GPUs are is shown if that is known of any.
    """
    busy = any(gpu.get("utilisation") is not None for node in nodes for gpu in node["gpus"])
    heads = ("node", "status", "GPU", "type", "memory", *(("busy",) if busy else ()), "shares by", "use", "jobs")
    table = table_of(*heads, right=("GPU", "memory", "busy"))
    for node in nodes:
        for gpu in node["gpus"]:
            style = USE_STYLES.get(gpu["use"], "dim")
            who = " ".join(gpu["jobs"]) or ("" if gpu["use"] == node.get("status") else gpu["reason"])
            # A scheduler that was started before an upgrade does not say who is suspended.
            asleep = [_asleep(one) for one in gpu.get("suspended", ())]
            who += f"{' · ' if who else ''}suspended: {', '.join(asleep)}" if asleep else ""
            # Nor does it say anything about nodes.
            cells = [node["name"], node.get("status", "up"), str(gpu["index"]), node["gpu_type"]]
            cells += [_memory_text(node, gpu), *((busy_text(gpu) or "–",) if busy else ()), node.get("sharing", "")]
            table.add_row(*(Text(cell) for cell in cells), Text(gpu["use"], style=style), Text(who))
    away = [(one["name"], line(one["reason"])) for one in nodes if one.get("reason")]
    return Group(table, pairs_table(away)) if away else table


def _memory_text(node: Row, gpu: Row) -> str:
    """The memory of a GPU, and how much of it is in use if that is known."""
    used, whole = gpu.get("memory_used_bytes"), node["memory_bytes"]
    told = "" if used is None else f"{used / 2**30:.1f} of "
    return f"{told}{whole / 2**30:.0f} GiB" if whole else "–"


def busy_text(gpu: Row) -> str:
    """The part of the time in which a GPU computed lately; empty if that is not known."""
    part = gpu.get("utilisation")
    return "" if part is None else f"{part:.0%}"


def _asleep(job: Row) -> str:
    where = "in host memory" if job["memory"] == "host" else "on the GPU"
    size = f"{job['bytes'] / 2**30:.1f} GiB " if job["bytes"] else ""
    return f"{job['id']} ({size}{where})"


def share_table(users: Sequence[Row]) -> RenderableType:
    """What each user holds and has used."""
    total = sum(user["gpu_s"] for user in users)
    figures: list[tuple[str, list[str]]] = [
        ("GPUs", [f"{user['gpus_held']:g}" for user in users]),
        ("of all", [percent(user["share"]) for user in users]),
        ("GPU time", [duration(user["gpu_s"]) for user in users]),
        ("of all time", [percent(user["gpu_s"] / total if total else None) for user in users]),
    ]
    figures += [(name, [f"{user[name]:,}" for user in users]) for name in ("running", "waiting", "ended")]
    names = TableColumn("user", [line(user["user"]) for user in users], least=8)
    return Listed([names, *(TableColumn(heading, cells, right=True) for heading, cells in figures)])


def status_table(status: Row) -> Table:
    """The scheduler itself."""
    jobs = ", ".join(f"{number:,} {state.lower()}" for state, number in status["jobs"].items() if number)
    # A scheduler that was started before an upgrade has one field for all problems.
    trouble = status.get("policy_problem", status["problem"])
    locked_s = status.get("journal_locked_s", 0.0)
    rows = [
        ("scheduler", f"Fairway {status['version']} · pid {status['pid']} of {status['user']}"),
        ("state directory", status["folder"]),
        ("policy", status["policy"] + (f" · {trouble}" if trouble else "")),
        (
            "configuration",
            status.get("configuration_problem") or status.get("configuration") or "none; the defaults are in force",
        ),
        ("GPUs", f"{status['gpus_held']} of {status['gpus']} held · {status['cluster']}"),
        *((f"tenant {line(one['name'])}", _tenant(one)) for one in status.get("tenants", ())),
        ("jobs", jobs or "none"),
        ("decisions", f"{status['rounds']:,}"),
        *([("clock", status["clock"])] if status.get("clock") else []),
        ("disk", _disk(status)),
        ("journal", f"locked by another program for {duration(locked_s)}; everything waits" if locked_s else ""),
        ("containment", status.get("containment", "")),
        ("you", status["you"] + (" · you control all jobs" if status["operator"] else "")),
    ]
    rows.append(("audit", status.get("audit_problem", "")))
    return pairs_table([row for row in rows if row[1]])


def _tenant(one: Row) -> str:
    broken = f", {one['out_of_order']} out of order" if one["out_of_order"] else ""
    jobs = f"{one['running']:,} running, {one['waiting']:,} waiting"
    return f"{one['gpus_held']} of {one['gpus']} GPUs held{broken} · {', '.join(one['cells'])} · {jobs}"


def _disk(status: Row) -> str:
    free = f"{status['free_bytes'] / 2**30:,.1f} GiB free"
    return free if status["accepts"] else f"{free}: too little, submissions are refused"
