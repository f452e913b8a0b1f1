"""Slurm accounting: the output of `sacct --parsable2`, separated by `|`, with any choice of fields.

The reader needs JobID, Submit, a run time (ElapsedRaw, Elapsed, or Start and End) and a field that counts GPUs. Job
steps (`123.batch`, `123.0`) repeat what their job says and are skipped. So are jobs that never ran or have not ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fairway.core.cluster import MAX_GPUS
from fairway.core.errors import InputError
from fairway.core.hardware import known_gpu
from fairway.traces.fields import Jobs, Parsed, Table, TraceRow, shown, split_plain, table

SACCT_COLUMNS = ("JobID", "Submit")
GPU_COLUMNS = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_RUN_TIMES = (("ElapsedRaw",), ("Elapsed",), ("Start", "End"))
_ELAPSED = re.compile(r"(?:(?:(\d{1,6})-)?(\d{1,4}):)?(\d{1,4}):(\d{2})(?:\.\d+)?", re.ASCII)
_GPU_ITEM = re.compile(r"(?:gres[/:])?gpu(?:[:=]|$)")
_GRES = re.compile(
    r"(?:gres[/:])?gpu(?::(?P<type>[^:=,()]*[^:=,()\d][^:=,()]*))?(?:[:=](?P<count>\d{1,18}))?",
    re.ASCII,
)
_NOT_ENDED = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING")


def read_sacct(text: str, path: str) -> Parsed:
    """One job per allocation; elements of an array (`123_4`) are jobs of their own."""
    rows = _rows(text, path)
    jobs = Jobs(path)
    for row in rows:
        job_id = row.required("JobID")
        state = row.text("State").split(" ")[0].rstrip("+").upper()
        why_not = _why_not(row, job_id, state)
        gpus, gpu_types = (0, ()) if why_not else _gpus(row)
        if why_not or gpus == 0:
            jobs.skip(why_not or "no GPU")
            continue
        jobs.add(
            row.line,
            id=job_id,
            submitted_s=row.time("Submit"),
            gpus=gpus,
            duration_s=_duration_s(row),
            user=row.text("User"),
            queue=row.text("Account") or row.text("Partition"),
            name=row.text("JobName"),
            gpu_types=gpu_types,
            status=state,
        )
    return jobs.finish(from_zero=True)


def _rows(text: str, path: str) -> Table:
    rows = table(split_plain(text, "|"), path)
    if rows.columns[-1] == "":  # `--parsable` without the 2 ends every line with the separator
        cut = ((line, cells if cells[-1] else cells[:-1]) for line, cells in rows.lines)
        rows = Table(path, rows.columns[:-1], cut)
    if "JobName" in rows.columns:
        rows = Table(path, rows.columns, _whole_names(rows.lines, rows.columns))
    rows.require(SACCT_COLUMNS)
    if not any(set(columns) <= set(rows.columns) for columns in _RUN_TIMES):
        raise InputError("no run time: ask sacct for Elapsed, ElapsedRaw, or Start and End", path=path, line=1)
    if not set(GPU_COLUMNS) & set(rows.columns):
        raise InputError(f"no GPU count: ask sacct for one of {', '.join(GPU_COLUMNS)}", path=path, line=1)
    return rows


def _whole_names(lines: Iterable[tuple[int, list[str]]], columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Join job names that hold the separator: they are the only free text of a line."""
    at = list(columns).index("JobName")
    for line, cells in lines:
        extra = len(cells) - len(columns)
        if extra > 0:
            cells = [*cells[:at], "|".join(cells[at : at + extra + 1]), *cells[at + extra + 1 :]]
        yield line, cells


def _why_not(row: TraceRow, job_id: str, state: str) -> str:
    """Why this line is not a finished job; empty if it is one."""
    if "." in job_id:
        return "job step"
    if "[" in job_id or state == "PENDING":
        return "never ran"
    if row.blank("Submit"):
        return "no submit time"
    if "Start" in row.at and row.blank("Start"):
        return "never ran"
    if state in _NOT_ENDED:
        return "no end"
    columns = _run_time_columns(row)
    if columns is None:
        return "no end"
    cancelled_early = state == "CANCELLED" and "Start" not in row.at and _duration_s(row) == 0
    return "never ran" if cancelled_early else ""


def _run_time_columns(row: TraceRow) -> tuple[str, ...] | None:
    """The first of the ways to give a run time that this line has."""
    for columns in _RUN_TIMES:
        if all(column in row.at and not row.blank(column) for column in columns):
            return columns
    return None


def _duration_s(row: TraceRow) -> float:
    columns = _run_time_columns(row)
    if columns == ("ElapsedRaw",):
        return row.number("ElapsedRaw")
    if columns == ("Elapsed",):
        return _elapsed_s(row)
    start_s, end_s = row.time("Start"), row.time("End")
    if end_s < start_s:
        raise row.error(f"End {row.text('End')} is before Start {row.text('Start')}")
    return end_s - start_s


def _elapsed_s(row: TraceRow) -> float:
    text = row.text("Elapsed")
    match = _ELAPSED.fullmatch(text)
    if match is None:
        raise row.error(f"Elapsed {shown(text)} is not like 1-02:03:04, 02:03:04 or 03:04")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _gpus(row: TraceRow) -> tuple[int, tuple[str, ...]]:
    """How many GPUs, and their type if Slurm names one that the catalogue knows.

    A TRES list may hold the total (`gres/gpu=4`) beside its parts (`gres/gpu:a100=4`); the total then counts.
    """
    for column in GPU_COLUMNS:
        total, parts, types = 0, 0, []
        for item in row.text(column).split(","):
            match = _GRES.fullmatch(re.sub(r"\(.*", "", item.strip()))
            if match is None:
                if _GPU_ITEM.match(item.strip()):
                    raise row.error(f"{column}: {shown(item)} is not a count of GPUs")
                continue
            count = int(match["count"] or 1)
            if match["type"]:
                parts += count
                types.append(match["type"].lower())
            else:
                total += count
        gpus = total or parts
        if gpus > MAX_GPUS:
            raise row.error(f"{column} {shown(row.text(column))} asks for more than {MAX_GPUS} GPUs")
        if gpus:
            return gpus, tuple(dict.fromkeys(name for name in types if known_gpu(name)))
    return 0, ()
