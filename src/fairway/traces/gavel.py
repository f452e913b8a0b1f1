"""Gavel's trace of ten tab-separated columns, and Shockwave's of twelve (with a mode and a nominal duration).

The work is `total_steps`, mini-batches at the initial batch size; a profile says how fast they go. Shockwave's nominal
duration gives the same work a second time, as seconds on a V100, and is not kept.
"""

from __future__ import annotations

import re

from fairway.core.job import Adaptation
from fairway.traces.fields import Jobs, Parsed, Table, TraceRow, shown, split_plain

GAVEL_COLUMNS = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
SHOCKWAVE_COLUMNS = (*GAVEL_COLUMNS[:7], "mode", *GAVEL_COLUMNS[7:9], "duration", "arrival_time")

_JOB_TYPE = re.compile(r"(?P<model>\S.*?)(?: \(batch size (?P<batch>[0-9]{1,9})\))?")
_DATASETS = ("cifar10", "imagenet", "multi30k", "wikitext2", "ml-20m", "monet2photo")
_MODES: dict[str, Adaptation] = {"static": "none", "accordion": "accordion", "gns": "gns"}


def read_gavel(text: str, path: str) -> Parsed:
    """Gavel's own format. A job's id is its line's index, counted from 0 as Gavel does."""
    return _read(text, path, GAVEL_COLUMNS)


def read_shockwave(text: str, path: str) -> Parsed:
    """Shockwave's format; `static`, `accordion` and `gns` say how the batch size adapts."""
    return _read(text, path, SHOCKWAVE_COLUMNS)


def _read(text: str, path: str, columns: tuple[str, ...]) -> Parsed:
    jobs = Jobs(path)
    seconds_slo = 0
    for index, row in enumerate(Table(path, columns, split_plain(text, "\t"))):
        model, batch_size = _job_type(row)
        deadline_s = _deadline_s(row)
        seconds_slo += deadline_s is not None and "duration" not in row.at
        if "duration" in row.at:
            row.number("duration")
        jobs.add(
            row.line,
            id=str(index),
            submitted_s=row.number("arrival_time"),
            gpus=row.gpus("scale_factor"),
            steps=float(row.whole("total_steps")),
            model=model,
            dataset=_dataset(row),
            batch_size=batch_size,
            weight=row.number("priority_weight"),
            deadline_s=deadline_s,
            adaptation=_mode(row),
        )
    if seconds_slo:
        jobs.notes.append(f"the SLO of {seconds_slo} jobs is read as seconds after arrival (no duration to multiply)")
    return jobs.finish()


def _job_type(row: TraceRow) -> tuple[str, int | None]:
    text = row.required("job_type")
    match = _JOB_TYPE.fullmatch(text)
    if match is None or (match["batch"] is None and "(batch size" in text):
        raise row.error(f"job_type {shown(text)} is not like 'ResNet-18 (batch size 32)'")
    if match["batch"] is not None and int(match["batch"]) < 1:
        raise row.error(f"job_type {shown(text)} has a batch size of 0")
    return match["model"], None if match["batch"] is None else int(match["batch"])


def _dataset(row: TraceRow) -> str:
    """The data set, from the data directory in the command or from the working directory."""
    where = f"{row.text('command')} {row.text('working_directory')}"
    return next((name for name in _DATASETS if name in where), "")


def _mode(row: TraceRow) -> Adaptation:
    if "mode" not in row.at:
        return "none"
    mode = row.required("mode")
    if mode not in _MODES:
        raise row.error(f"mode {shown(mode)} is not one of {', '.join(_MODES)}")
    return _MODES[mode]


def _deadline_s(row: TraceRow) -> float | None:
    """The deadline on the trace's clock; an SLO of -1 is none.

    Gavel's scheduler multiplies the SLO by the job's duration, which only the twelve-column format holds. Without it
    the SLO can only be taken as seconds.
    """
    slo = row.number("SLO", -1.0)
    if slo == -1.0:
        return None
    if slo <= 0:
        raise row.error(f"SLO {shown(row.text('SLO'))} is neither -1 nor positive")
    allowed_s = slo * row.number("duration") if "duration" in row.at else slo
    return row.number("arrival_time") + allowed_s
