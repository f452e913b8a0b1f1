"""What jobs report: lines of JSON that the training library appends to a file of the job.

A file, not a connection: a job can write to it while no scheduler runs, and the next scheduler reads it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairway.runtime.jobs.records import Progress

MOST_LINE = 65_536
MOST_READ = 4 * 1024 * 1024
"""The most bytes that are read at a time."""
MOST_PATH = 4096
MOST_APART_S = 86400.0
"""Reported times that differ from the scheduler's clock by more than this are ignored."""
_NUMBERS = ("step", "steps", "epoch", "epochs", "loss", "samples", "samples_per_s", "noise_scale", "save_s")
MOST_BATCH_SIZES = 64
_SMOOTHING = 0.3
"""The weight of the latest speed against the mean of the earlier ones."""


class ReportReader:
    """Reads a file from where it last stopped. A line counts when it is complete.

    What a job writes is not trusted: the path may be any kind of file, and lines may have any length. If there is too
    much, only the latest part is read.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The reports since the last time. Lines that are no reports are skipped."""
        # What follows the last end of a line is not complete yet.
        for line in self._new_part().split(b"\n")[:-1]:
            self.offset += len(line) + 1
            report = _parsed(line)
            if report is not None:
                yield report

    def _new_part(self) -> bytes:
        """What was written since the last time, from the beginning of a line."""
        try:
            # Do not wait for a pipe in its place, and do not follow a link.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                return b""
            if about.st_size < self.offset:
                self.offset = 0
            begin = max(self.offset, about.st_size - MOST_READ)
            part = os.pread(fd, MOST_READ, begin)
        except OSError:
            return b""
        finally:
            os.close(fd)
        # If something was skipped, or a line is longer than all that is read, find the next line first.
        if begin > self.offset:
            skipped = part.find(b"\n") + 1 or len(part)
            self.offset, part = begin + skipped, part[skipped:]
        return part


def _parsed(line: bytes) -> dict[str, Any] | None:
    if len(line) > MOST_LINE:
        return None
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def take_in(progress: Progress, report: Mapping[str, Any], now_s: float) -> bool:
    """Bring a job's progress up to date. Returns whether its batch size has changed."""
    time_s = _number(report.get("time")) or now_s
    time_s = time_s if abs(time_s - now_s) < MOST_APART_S else now_s
    if report.get("started") is True:
        # A new attempt: the time between its first report and the last one before was waiting, not training.
        progress.reported_s = None
    before_s, before = progress.reported_s, progress.reported_step
    for name in _NUMBERS:
        value = _number(report.get(name))
        if value is not None:
            setattr(progress, name, value)
    if before_s is not None and time_s > before_s and progress.step > before:
        speed = (progress.step - before) / (time_s - before_s)
        known = progress.steps_per_s
        progress.steps_per_s = speed if known is None else known + _SMOOTHING * (speed - known)
    # Reports without a time all get the instant at which they are read; the first of them counts.
    if _number(report.get("step")) is not None and time_s != before_s:
        progress.reported_s, progress.reported_step = time_s, progress.step
    if _is_path(report.get("checkpoint")):
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
        if changed:
            # A step is something else now.
            progress.steps_per_s, progress.speeds = None, {}
    return changed


def _is_path(value: Any) -> bool:
    """Whether a value can be the name of a file. Some JSON texts cannot."""
    try:
        return isinstance(value, str) and 0 < len(value) <= MOST_PATH and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: a whole number may be too large for a float.
    return float(value) if -1e15 < value < 1e15 else None
