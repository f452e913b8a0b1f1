"""SenseTime's Helios logs, and the table that Lucid derived from them (with model, data set and batch size).

Helios' own `queue` column is a waiting time; the virtual cluster `vc` is the queue.
"""

from __future__ import annotations

from fairway.traces.fields import Jobs, Parsed, TraceRow, csv_table, parse_number

HELIOS_COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")
_EPOCH_FROM_S = 1e9
"""Submit times that all lie above this (September 2001) are seconds since 1970, not since the trace began."""


def read_helios(text: str, path: str) -> Parsed:
    """Jobs with a GPU. Calendar times are counted from the first submission, small second counts stay as they are."""
    calendar: bool | None = None
    jobs, earliest_s = Jobs(path), float("inf")
    for row in csv_table(text, path, HELIOS_COLUMNS):
        if calendar is None:
            calendar = _has_calendar_time(row)
        gpus = row.gpus("gpu_num", at_least=0)
        if gpus == 0:
            jobs.skip("no GPU")
        elif row.blank("duration"):
            jobs.skip("never ran")
        else:
            submitted_s = row.time("submit_time") if calendar else row.number("submit_time")
            earliest_s = min(earliest_s, submitted_s)
            _add(jobs, row, gpus, submitted_s)
    return jobs.finish(from_zero=bool(calendar) or earliest_s >= _EPOCH_FROM_S)


def _has_calendar_time(row: TraceRow) -> bool:
    """Whether the submit time is a time stamp rather than a number of seconds; the first row decides for the file."""
    text = row.text("submit_time")
    return parse_number(text) is None and ":" in text


def _add(jobs: Jobs, row: TraceRow, gpus: int, submitted_s: float) -> None:
    jobs.add(
        row.line,
        id=row.required("job_id"),
        submitted_s=submitted_s,
        gpus=gpus,
        duration_s=row.number("duration"),
        model=row.text("model"),
        dataset=row.text("dataset"),
        batch_size=row.optional_whole("batchsize"),
        user=row.text("user"),
        queue=row.text("vc"),
        name=row.text("jobname"),
        status=row.text("state"),
    )
