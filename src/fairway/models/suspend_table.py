"""What it costs to take a suspended job's memory off a GPU and to bring it back, as measured.

There are five ways. *In place*: the processes stand still, and their memory stays. *Moved*: a memory pool copies it to
the host over the bus; the first time it has to pin host memory. *Driver*: the driver's checkpoint of a CUDA process.
*Both*: what a memory pool leaves on the GPU is saved by the driver.
*Restart*: the job saves a checkpoint, ends, and is started again.

A table is a CSV file with `COLUMNS`, one row for each way and size. `benchmarks/gpu_suspend.py` writes it. Costs of
other sizes lie on the line between two measurements: a constant, and seconds for each gigabyte.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from fairway.core.errors import InputError
from fairway.core.text_files import read_text

Way = Literal["in_place", "moved", "both", "driver", "restart"]
WAYS: tuple[Way, ...] = get_args(Way)
OUT_WAYS: tuple[Way, ...] = ("moved", "both", "driver")
"""The ways by which memory goes to the host."""
COLUMNS = ("way", "gigabytes", "out_s", "back_s", "first_out_s", "left_gigabytes", "gpu", "driver", "date")
REQUIRED = COLUMNS[:4]
GIGABYTE = 1e9
MOST_S = 1e6
MOST_ROWS = 10_000


class SuspendRow(NamedTuple):
    """One measurement. `first_out_s` is for a job that leaves for the first time; None: as at any other time.

    `left_gigabytes` stay on the GPU while the job is out.
    """

    way: Way
    gigabytes: float
    out_s: float
    back_s: float
    first_out_s: float | None = None
    left_gigabytes: float = 0.0
    gpu: str = ""
    driver: str = ""
    date: str = ""


class CostCurve(NamedTuple):
    """Seconds by gigabytes: lines between measured points, and the outer lines beyond them. It is never below 0."""

    points: tuple[tuple[float, float], ...]

    @staticmethod
    def through(sizes: Sequence[float], costs_s: Sequence[float]) -> CostCurve:
        """The curve through measurements, with the mean of those of one size. One size alone is taken for a speed."""
        seen: dict[float, list[float]] = {}
        for size, cost_s in zip(sizes, costs_s, strict=True):
            seen.setdefault(size, []).append(cost_s)
        points = [(size, math.fsum(seen[size]) / len(seen[size])) for size in sorted(seen)]
        (size, cost_s), *rest = points
        if size > 0:
            slope = (rest[0][1] - cost_s) / (rest[0][0] - size) if rest else cost_s / size
            points.insert(0, (0.0, min(max(cost_s - slope * size, 0.0), cost_s)))
        return CostCurve(tuple(points))

    def at(self, gigabytes: float) -> float:
        """The cost of this much memory."""
        if len(self.points) == 1:
            return self.points[0][1]
        last = len(self.points) - 1
        end = next((at for at in range(1, last) if gigabytes <= self.points[at][0]), last)
        (size, cost_s), (larger, dearer_s) = self.points[end - 1], self.points[end]
        return max(cost_s + (dearer_s - cost_s) / (larger - size) * (gigabytes - size), 0.0)


class WayCosts(NamedTuple):
    """The costs of one way, in seconds by gigabytes, and what it leaves on a GPU."""

    out: CostCurve
    back: CostCurve
    first_out: CostCurve
    left_bytes: float

    def out_s(self, size_bytes: float, *, first: bool) -> float:
        """Seconds until the memory has left the GPU."""
        return (self.first_out if first else self.out).at(size_bytes / GIGABYTE)

    def back_s(self, size_bytes: float) -> float:
        """Seconds until the memory is back."""
        return self.back.at(size_bytes / GIGABYTE)


class SuspendTable:
    """The ways that were measured on one machine. A way without rows cannot be used there."""

    def __init__(self, name: str, rows: Sequence[SuspendRow]) -> None:
        self.name = name
        self.rows = tuple(rows)
        self.ways = {way: _costs([row for row in rows if row.way == way]) for way in WAYS if _has(rows, way)}


def _has(rows: Iterable[SuspendRow], way: Way) -> bool:
    return any(row.way == way for row in rows)


def _costs(rows: Sequence[SuspendRow]) -> WayCosts:
    sizes = [row.gigabytes for row in rows]
    first = [row.out_s if row.first_out_s is None else row.first_out_s for row in rows]
    columns = [row.out_s for row in rows], [row.back_s for row in rows], first
    out, back, first_out = (CostCurve.through(sizes, column) for column in columns)
    return WayCosts(out, back, first_out, GIGABYTE * max(row.left_gigabytes for row in rows))


H200 = SuspendTable(
    "an H200 with driver 580",
    [
        SuspendRow("in_place", 0.0, 0.0, 0.1),
        SuspendRow("moved", 1.6, 0.09, 0.02, 0.42, 0.85, "h200", "580"),
        SuspendRow("moved", 20.0, 0.46, 0.42, 10.1, 0.85, "h200", "580"),
        SuspendRow("moved", 40.0, 0.87, 0.82, 20.0, 0.85, "h200", "580"),
        SuspendRow("both", 4.0, 0.51, 0.46, None, 0.0, "h200", "580"),
        SuspendRow("both", 20.0, 1.4, 2.1, None, 0.0, "h200", "580"),
        SuspendRow("both", 40.0, 2.1, 3.3, None, 0.0, "h200", "580"),
        SuspendRow("driver", 4.0, 3.3, 1.1, None, 0.0, "h200", "580"),
        SuspendRow("driver", 20.0, 11.4, 3.8, None, 0.0, "h200", "580"),
        SuspendRow("driver", 40.0, 23.0, 8.2, None, 0.0, "h200", "580"),
    ],
)
"""Seen in a probe on an H200 with driver 580 and torch 2.11: `moved` is torch-memory-saver 0.0.10 under an unmodified
script, `driver` the calls cuCheckpointProcess…, `both` these calls after a script had copied its tensors out. The cost
in place is what live jobs are assumed to need for SIGSTOP and SIGCONT. Restarts were not measured there."""


def read_suspend_table(path: str) -> SuspendTable:
    """A table from a file; an error is one line that names the file and the row."""
    try:
        lines = list(csv.DictReader(io.StringIO(read_text(path)), strict=True))
    except csv.Error as error:
        raise InputError(f"this is not CSV: {error}", path=path) from None
    missing = [name for name in REQUIRED if not lines or name not in lines[0]]
    if missing:
        raise InputError(f"this is not a table of suspends: it has no rows or no column {missing[0]!r}", path=path)
    if len(lines) > MOST_ROWS:
        raise InputError(f"the table has more than {MOST_ROWS} rows", path=path)
    rows = [_row(line, path, number) for number, line in enumerate(lines, start=2)]
    gpus = sorted({row.gpu for row in rows if row.gpu})
    if len(gpus) > 1:
        raise InputError(f"a table is of one GPU type, not of {', '.join(gpus)}", path=path)
    if not {"moved", "both", "driver", "restart"}.intersection(row.way for row in rows):
        raise InputError("the table has no way to take memory off a GPU: moved, driver or restart", path=path)
    return SuspendTable(path, rows)


def suspend_csv(rows: Iterable[SuspendRow]) -> str:
    """The text of a table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(["" if value is None else value for value in row])
    return out.getvalue()


def _row(line: dict[str, str | None], path: str, number: int) -> SuspendRow:
    way = next((one for one in WAYS if one == (line["way"] or "").strip()), None)
    if way is None:
        raise InputError(f"unknown way {line['way']!r}; known: {', '.join(WAYS)}", path=path, line=number)
    figures = [_number(line, name, path, number) for name in ("gigabytes", "out_s", "back_s")]
    first, left = (
        _number(line, name, path, number) if (line.get(name) or "").strip() else None
        for name in ("first_out_s", "left_gigabytes")
    )
    about = [(line.get(name) or "").strip() for name in ("gpu", "driver", "date")]
    return SuspendRow(way, figures[0], figures[1], figures[2], first, left or 0.0, *about)


def _number(line: dict[str, str | None], name: str, path: str, number: int) -> float:
    text = (line[name] or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_S:
        raise InputError(f"{name} {text!r} is not a number from 0 to {MOST_S:g}", path=path, line=number)
    return value
