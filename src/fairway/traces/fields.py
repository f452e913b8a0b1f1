"""Typed access to the cells of a table. A reader is then a list of columns, and every error names its line.

A `Table` is a header and rows of text, with the physical line on which each row starts. A `TraceRow` turns its cells
into numbers, counts and times, or raises an `InputError` with the path, line, column and value. `Jobs` collects the
jobs of one file: it refuses an id that comes twice, counts what is skipped, and shifts calendar times to start at 0.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fairway.core.cluster import MAX_GPUS
from fairway.core.errors import InputError
from fairway.core.job import JobSpec

LARGEST_WHOLE = 10**15
"""Larger whole numbers are refused: they are typing errors, and doubles cannot tell them from their neighbours."""
NOTHING = frozenset(("", "none", "null", "unknown", "n/a"))
"""What public logs write, in upper or lower case, if there is no value."""

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)


def shown(value: object) -> str:
    """A value for an error message: quoted, and short even if the file holds a megabyte of digits."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def parse_number(text: str) -> float | None:
    """A finite decimal number, or None. What only Python accepts (`1_000`, `nan`, `inf`, other digits) is refused."""
    try:
        value = float(text)
    except ValueError:
        return None
    if math.isfinite(value) and text.isascii() and "_" not in text:
        return value
    return None


def parse_time(text: str) -> float | None:
    """An ISO-like time stamp as seconds since 1970, or None. A time without a zone is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return (moment - _EPOCH) / _SECOND


class TraceRow:
    """The cells of one line. `at` maps a column name to its position."""

    __slots__ = ("at", "cells", "line", "path")

    def __init__(self, path: str, line: int, cells: Sequence[str], at: dict[str, int]) -> None:
        self.path = path
        self.line = line
        self.cells = cells
        self.at = at

    def error(self, message: str) -> InputError:
        return InputError(message, path=self.path, line=self.line)

    def text(self, column: str) -> str:
        """The cell without surrounding blanks; empty if the file has no such column."""
        try:
            return self.cells[self.at[column]].strip()
        except KeyError:
            return ""

    def required(self, column: str) -> str:
        text = self.text(column)
        if not text:
            raise self.error(f"{column} is empty")
        return text

    def blank(self, column: str) -> bool:
        """Whether the log says that there is no value here."""
        return self.text(column).lower() in NOTHING

    def number(self, column: str, at_least: float = 0.0) -> float:
        text = self.text(column)
        value = parse_number(text)
        if value is None:
            raise self.error(f"{column} {shown(text)} is not a finite number" if text else f"{column} is empty")
        if value < at_least:
            raise self.error(f"{column} {shown(text)} is less than {at_least:g}")
        return value

    def whole(self, column: str, at_least: int = 0, at_most: int = LARGEST_WHOLE) -> int:
        """A whole number; `4.0` is accepted, because data frames write it that way."""
        text = self.text(column)
        if len(text) <= 15 and text.isascii() and text.isdecimal() and at_least <= (quick := int(text)) <= at_most:
            return quick  # nearly every cell, and faster than through a float
        value = self.number(column, -math.inf)
        if value > at_most:
            raise self.error(f"{column} {shown(self.text(column))} is more than {at_most}")
        if value < at_least:
            raise self.error(f"{column} {shown(self.text(column))} is less than {at_least}")
        if value != int(value):
            raise self.error(f"{column} {shown(self.text(column))} is not a whole number")
        return int(value)

    def gpus(self, column: str, at_least: int = 1) -> int:
        return self.whole(column, at_least, MAX_GPUS)

    def optional_whole(self, column: str, at_least: int = 1) -> int | None:
        """A whole number, or None if the column is missing or blank."""
        return None if self.blank(column) else self.whole(column, at_least)

    def time(self, column: str) -> float:
        """A calendar time stamp, in seconds since 1970."""
        text = self.text(column)
        value = parse_time(text)
        if value is None:
            raise self.error(f"{column} {shown(text)} is not a time like 2017-10-09 07:01:55")
        return value


@dataclass(frozen=True)
class Table:
    """A header and the lines below it, all as wide as the header. The lines are split as they are read, once."""

    path: str
    columns: tuple[str, ...]
    lines: Iterator[tuple[int, list[str]]]

    def require(self, columns: Iterable[str]) -> None:
        """Refuse a table that lacks one of the columns."""
        missing = [name for name in columns if name not in self.columns]
        if missing:
            seen = ", ".join(self.columns)
            raise InputError(f"column {', '.join(missing)} is missing; columns seen: {seen}", path=self.path, line=1)

    def __iter__(self) -> Iterator[TraceRow]:
        at = {name: index for index, name in enumerate(self.columns)}
        width = len(self.columns)
        for line, cells in self.lines:
            if len(cells) != width:
                raise InputError(f"expected {width} columns, found {len(cells)}", path=self.path, line=line)
            yield TraceRow(self.path, line, cells, at)


def split_csv(text: str, path: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a CSV text with the physical line on which each starts; blank lines are skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1
    try:
        for cells in reader:
            if cells and (len(cells) > 1 or cells[0].strip()):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"this is not valid CSV: {error}", path=path, line=start) from None


def split_plain(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a text whose separator is never quoted; blank lines are skipped."""
    for line, content in enumerate(text.split("\n"), start=1):
        if content.strip():
            yield line, content.rstrip("\r").split(separator)


def table(lines: Iterator[tuple[int, list[str]]], path: str) -> Table:
    """A table whose first line is its header."""
    line, header = next(lines, (0, []))
    if not header:
        raise InputError("no header line", path=path)
    columns = tuple(name.strip() for name in header)
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise InputError(f"two columns are called {shown(twice[0])}", path=path, line=line)
    return Table(path, columns, lines)


def csv_table(text: str, path: str, required: Iterable[str]) -> Table:
    """A comma-separated table with a header that holds at least the required columns, in any order."""
    out = table(split_csv(text, path), path)
    out.require(required)
    return out


@dataclass
class Parsed:
    """The result of reading a file."""

    jobs: list[JobSpec]
    skipped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lines: dict[str, int] = field(default_factory=dict)


class Jobs:
    """The jobs of one file while it is being read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self._drafts: list[tuple[int | None, dict[str, Any]]] = []
        self._first_line: dict[str, int | None] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._first_line

    def __len__(self) -> int:
        return len(self._drafts)

    def skip(self, reason: str) -> None:
        self.skipped[reason] += 1

    def add(self, line: int | None, **spec: Any) -> None:
        """Take one job, given as the fields of its `JobSpec`."""
        job_id: str = spec["id"]
        if job_id in self._first_line:
            first = self._first_line[job_id]
            where = "" if first is None else f"; the first is on line {first}"
            raise InputError(f"duplicate job id {shown(job_id)}{where}", path=self.path, line=line)
        self._first_line[job_id] = line
        self._drafts.append((line, spec))

    def finish(self, from_zero: bool = False) -> Parsed:
        """The jobs; `from_zero` counts calendar times from the earliest submission."""
        start_s = min((spec["submitted_s"] for _, spec in self._drafts), default=0.0) if from_zero else 0.0
        jobs = []
        for line, spec in self._drafts:
            spec["submitted_s"] -= start_s
            try:
                job = JobSpec(**spec)
            except InputError as error:
                raise InputError(error.message, path=self.path, line=line) from None
            if job.gpus_max > MAX_GPUS:
                raise InputError(f"{job.gpus_max} GPUs are more than {MAX_GPUS}", path=self.path, line=line)
            jobs.append(job)
        lines = {job_id: line for job_id, line in self._first_line.items() if line is not None}
        return Parsed(jobs, dict(self.skipped), tuple(self.notes), lines)
