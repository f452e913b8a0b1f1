"""What jobs report of themselves: lines of JSON that the training library appends to a file of the job.

A file and not a connection: it is there whether the scheduler is or not, and what was written is read when it is back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairway.runtime.records import Progress

MOST_LINE = 65_536
_NUMBERS = ("step", "steps", "epoch", "epochs", "loss", "samples", "samples_per_s", "noise_scale", "save_s")
MOST_BATCH_SIZES = 64
_SMOOTHING = 0.3
"""How much the latest speed counts against the mean of those before."""


class ReportReader:
    """Reads on where it stopped. A line is taken when it is complete."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The reports since the last time; what is no report is passed over."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self.offset += len(line)
                    report = _parsed(line)
                    if report is not None:
                        yield report
        except OSError:
            return


def _parsed(line: bytes) -> dict[str, Any] | None:
    if len(line) > MOST_LINE:
        return None
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def take_in(progress: Progress, report: Mapping[str, Any], now_s: float) -> bool:
    """Bring a job's progress up to date; whether its batch size is another one than before."""
    time_s = _number(report.get("time")) or now_s
    if report.get("started") is True:
        # A new attempt: what lies between its first report and the last one before was waiting, not training.
        progress.reported_s = None
    before_s, before = progress.reported_s, progress.step
    for name in _NUMBERS:
        value = _number(report.get(name))
        if value is not None:
            setattr(progress, name, value)
    if before_s is not None and time_s > before_s and progress.step > before:
        speed = (progress.step - before) / (time_s - before_s)
        known = progress.steps_per_s
        progress.steps_per_s = speed if known is None else known + _SMOOTHING * (speed - known)
    if _number(report.get("step")) is not None:
        progress.reported_s = time_s
    if isinstance(report.get("checkpoint"), str):
        progress.checkpoint, progress.checkpoint_step = report["checkpoint"], progress.step
        progress.checkpoint_s = time_s
    sizes = report.get("batch_sizes")
    if isinstance(sizes, list) and 0 < len(sizes) <= MOST_BATCH_SIZES and all(_is_count(size) for size in sizes):
        progress.batch_sizes = sizes
    batch = report.get("batch_size")
    changed = _is_count(batch) and batch != progress.batch_size
    if changed:
        changed = progress.batch_size is not None
        progress.batch_size = batch
    return changed


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) < 1e15 else None
