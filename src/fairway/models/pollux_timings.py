"""How long an iteration takes on a placement, from tables in the format of the Pollux artifact (OSDI 2021).

`placements.csv` times gangs by how many GPUs they have on each node, `scalability.csv` larger ones only by the numbers
of nodes and GPUs. What was not measured is interpolated as in the artifact's simulator.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Floats
from fairway.core.batch import Split
from fairway.core.errors import InputError
from fairway.core.text_files import read_text

Shape = tuple[int, ...]
"""GPUs on each node of a gang, in the order in which the nodes were taken."""

MOST_NODES = 16
"""Gangs on more nodes are timed as if they sat on this many, the most that the artifact measured."""
LARGEST_LOCAL = {("yolov3", ""): 8, ("yolov3", "aws"): 8, ("deepspeech2", "rtx"): 57}
"""The largest mini-batch of a GPU, where the artifact's simulator allows less than its measurements."""

_PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
_SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")


class Timings:
    """Seconds per pass of one application on one GPU type."""

    def __init__(self, folder: Path, gpu_type: str) -> None:
        suffix = f"-{gpu_type}" if gpu_type else ""
        self._placed: dict[Shape, Floats] = {}
        groups: dict[Shape, list[list[float]]] = {}
        for local, step_s, sync_s, digits in _read_placements(folder / f"placements{suffix}.csv"):
            groups.setdefault(smallest_rotation(digits), []).append([local, step_s, sync_s])
        for shape, rows in groups.items():
            self._placed[shape] = np.array(sorted(rows)).T
        scalability = folder / f"scalability{suffix}.csv"
        self._scalability = list(numbers(scalability, _SCALABILITY)) if scalability.exists() else []
        locals_seen = [row[0] for rows in groups.values() for row in rows]
        self.least_local = int(min(locals_seen))
        self.most_local = LARGEST_LOCAL.get((folder.name, gpu_type), int(max(locals_seen)))
        self.node_gpus = max(max(shape) for shape in groups)
        self._known: dict[tuple[Shape, int], tuple[float, float]] = {}

    def pass_s(self, shape: Shape, local: int) -> tuple[float, float]:
        """Seconds of one iteration without accumulation, and the part of it that synchronises gradients."""
        key = (smallest_rotation(shape), local)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._timed(*key)
        return found

    def iteration_s(self, shape: Shape, split: Split) -> float:
        """Seconds of one iteration, with its accumulation passes."""
        step_s, sync_s = self.pass_s(shape, split.local)
        return step_s + split.accumulation * (step_s - sync_s)

    def _timed(self, shape: Shape, local: int) -> tuple[float, float]:
        if shape in self._placed:
            return _along_batches(self._placed[shape], local)
        nodes, gpus = min(len(shape), MOST_NODES), sum(shape)
        # On some CPUs interpolation multiplies and adds in one step: the digits that differ are rounded off.
        step_s, sync_s = (float(f"{value:.12g}") for value in self._between(nodes, gpus, local).tolist())
        if math.isnan(step_s):
            return _along_batches(self._nearest(nodes, gpus), local)
        return step_s, sync_s

    @cached_property
    def _between(self) -> Callable[[int, int, int], Floats]:
        """Linear interpolation over (nodes, GPUs, mini-batch).

        The grid is degenerate, so the order of the points decides into which simplices it is cut: placements averaged
        by key in the order of the key, then the scalability rows in the order of the file, as in the artifact.
        """
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import QhullError

        points, times = self._grid
        try:
            inside = LinearNDInterpolator(points, times)
        except QhullError:  # too few gangs were measured to lie between
            return lambda nodes, gpus, local: np.full(2, np.nan)
        return lambda nodes, gpus, local: np.asarray(inside(nodes, gpus, local)).reshape(-1)

    @cached_property
    def _grid(self) -> tuple[Floats, Floats]:
        sums: dict[tuple[float, float, float], list[tuple[float, float]]] = {}
        for shape, table in self._placed.items():
            for local, step_s, sync_s in table.T.tolist():
                sums.setdefault((len(shape), sum(shape), local), []).append((step_s, sync_s))
        keys = sorted(sums)
        points = [list(key) for key in keys] + [row[:3] for row in self._scalability]
        times = [np.array(sums[key]).mean(axis=0).tolist() for key in keys] + [row[3:] for row in self._scalability]
        return np.array(points), np.array(times)

    def _nearest(self, nodes: int, gpus: int) -> Floats:
        """The measurement of the most similar gang, for one outside of the measured range."""
        points, times = self._grid
        away = np.abs(portable.log(points[:, 0] / nodes)) + np.abs(portable.log(points[:, 1] / gpus))
        rows = (away <= away.min() + 1e-9).nonzero()[0]
        rows = rows[np.argsort(points[rows, 2], kind="stable")]
        return np.vstack([points[rows, 2], times[rows].T])


def packed_shape(gpus: int, node_gpus: int) -> Shape:
    """A gang on as few nodes as possible."""
    full, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * full + ((rest,) if rest else ())


def smallest_rotation(shape: Shape) -> Shape:
    """The name of a ring of nodes: the smallest of its readings from all starting points."""
    return min(shape[at:] + shape[:at] for at in range(len(shape)))


def _along_batches(table: Floats, local: int) -> tuple[float, float]:
    """Step and synchronisation time at a mini-batch, between those measured on one placement."""
    return portable.interpolate(local, table[0], table[1]), portable.interpolate(local, table[0], table[2])


def _read_placements(path: Path) -> Iterator[tuple[float, float, float, Shape]]:
    for (_, local, step_s, sync_s), (digits, *_), line in _cells(path, _PLACEMENTS):
        if not (digits.isascii() and digits.isdigit() and "0" not in digits):
            raise InputError(f"placement {digits!r} is not a row of digits from 1 to 9", path=str(path), line=line)
        yield local, step_s, sync_s, tuple(int(digit) for digit in digits)


def numbers(path: Path, columns: Sequence[str]) -> Iterator[list[float]]:
    """The rows of the named columns of a CSV file."""
    for values, _, _ in _cells(path, columns):
        yield values


def _cells(path: Path, columns: Sequence[str]) -> Iterator[tuple[list[float], list[str], int]]:
    """The named columns of a CSV file as numbers and as texts, with the line; an error is one line."""
    reader: Any = csv.DictReader(read_text(path).splitlines())
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"no column {missing[0]!r}; needed: {', '.join(columns)}", path=str(path))
    empty = True
    try:
        for row in reader:
            empty = False
            texts, line = [row[name] or "" for name in columns], reader.line_num
            values = [_number(text, name, path, line) for text, name in zip(texts, columns, strict=True)]
            _check_times(dict(zip(columns, values, strict=True)), path, line)
            yield values, texts, line
    except csv.Error as error:
        raise InputError(f"this is not a CSV table: {error}", path=str(path)) from None
    if empty:
        raise InputError("the table has no rows", path=str(path))


def _check_times(values: dict[str, float], path: Path, line: int) -> None:
    """Synchronising is a part of a step."""
    step_s, sync_s = values.get("step_time", math.inf), values.get("sync_time", 0.0)
    if sync_s > step_s:
        text = f"sync_time {sync_s:g} is longer than the step_time {step_s:g} that it is a part of"
        raise InputError(text, path=str(path), line=line)


def _number(text: str, column: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    may_be_0 = column in ("sync_time", "grad_sqr", "grad_var")
    if not (math.isfinite(value) and (value >= 0 if may_be_0 else value > 0)):
        wanted = "a number of at least 0" if may_be_0 else "a positive number"
        raise InputError(f"{column} {text!r} is not {wanted}", path=str(path), line=line)
    return value
