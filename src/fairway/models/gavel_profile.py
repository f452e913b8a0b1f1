"""Measured speeds from a file in the format of Gavel (Narayanan et al., OSDI 2020), also used by Shockwave.

The file maps a GPU type to job types, and a job type to its rate alone (under "null") and beside each other job type:
`{"v100": {"('ResNet-18 (batch size 16)', 1)": {"null": 32.4, "('A3C', 1)": [20.1, 5.0]}}}`. A table whose name ends in
`_unconsolidated` holds gangs spread over more nodes than needed. Job-type keys are parsed once, at loading; the entries
of pairs stay as they are and are looked up on demand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fairway.core import portable
from fairway.core.errors import InputError
from fairway.core.text_files import read_text
from fairway.models.names import ModelNames, ProfileKey, gpu_spellings

SPREAD_SUFFIX = "_unconsolidated"
ALONE = "null"
RATE_MAX = 1e12
RATE_MIN = 1e-9

_KEY = re.compile(r"\('(.+)', ([1-9]\d{0,6})\)")
_MODEL = re.compile(r"(.+) \(batch size ([1-9]\d{0,8})\)")

_Table = dict[str, dict[str, Any]]
_Points = dict[int, float]


class GavelProfile:
    """The tables of one file. Rates come back as they were measured, with their noise: nothing is smoothed."""

    def __init__(self, document: Any, path: str) -> None:
        self._path = path
        self._name = Path(path).name
        self._tables = _checked_tables(document, path)
        self._points: dict[str, dict[tuple[str, int | None], _Points]] = {}
        keys = {text: _parse_key(text, path) for rows in self._tables.values() for text in rows}
        self._text_of_key = {key: text for text, key in keys.items()}
        for table, rows in self._tables.items():
            points = self._points.setdefault(table, {})
            for text, row in rows.items():
                if ALONE in row:
                    model, batch_size, gpus = keys[text]
                    points.setdefault((model, batch_size), {})[gpus] = float(row[ALONE])
        self._names = ModelNames(key.model for key in self._text_of_key)
        self._batch_sizes: dict[str, list[int | None]] = {}
        for model, size in sorted({key[:2] for key in self._text_of_key}, key=lambda pair: (pair[0], pair[1] or 0)):
            self._batch_sizes.setdefault(model, []).append(size)

    @staticmethod
    def read(path: str) -> GavelProfile:
        """Load a file; an error is one line that names the file and the entry."""
        return GavelProfile(_read_json(path), path)

    @property
    def name(self) -> str:
        return self._name

    @property
    def models(self) -> tuple[str, ...]:
        return self._names.names

    @property
    def gpu_types(self) -> tuple[str, ...]:
        return tuple(name for name in self._tables if not name.endswith(SPREAD_SUFFIX))

    @property
    def job_types(self) -> tuple[ProfileKey, ...]:
        """The keys of the file's entries, by model, batch size and gang."""
        return tuple(sorted(self._text_of_key, key=lambda key: (key.model, key.batch_size or 0, key.gpus)))

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        """Steps per second of a whole job; see `Profile.rate`. Gangs that were not measured are interpolated."""
        if gpus < 1:
            raise InputError(f"a gang needs at least 1 GPU, not {gpus}")
        name = self._names.require(model, self._path)
        table = self._require_table(gpu_type)
        job_type = (name, self._require_batch_size(name, batch_size))
        points = self._points[table].get(job_type, {})
        if spread and gpus > 1:
            points = {**points, **self._points.get(table + SPREAD_SUFFIX, {}).get(job_type, {})}
        if not points:
            label = name if job_type[1] is None else f"{name} (batch size {job_type[1]})"
            raise InputError(f"{label} was not measured on {gpu_type!r}", path=self._path)
        return interpolated_rate(points, gpus)

    def pair_rates(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        """The measured rates of two jobs that share GPUs; None if there is no measurement or it is zero."""
        pair = self.measured_pair(a, b, gpu_type)
        return pair if pair is not None and min(pair) > 0 else None

    def measured_pair(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        """The file's entry of two jobs that share GPUs, zeros if they did not fit; None if there is none."""
        table = self._find_table(gpu_type)
        text_a, text_b = self._find_text(a), self._find_text(b)
        if table is None or text_a is None or text_b is None:
            return None
        rows = self._tables[table]
        pair = rows.get(text_a, {}).get(text_b)
        if pair is None:
            reverse = rows.get(text_b, {}).get(text_a)
            pair = None if reverse is None else reverse[::-1]
        return None if pair is None else (float(pair[0]), float(pair[1]))

    def _find_text(self, key: ProfileKey) -> str | None:
        name = self._names.find(key.model)
        if name is None:
            return None
        sizes = self._batch_sizes[name]
        size = sizes[0] if key.batch_size is None and len(sizes) == 1 else key.batch_size
        return self._text_of_key.get(ProfileKey(name, size, key.gpus))

    def _find_table(self, gpu_type: str) -> str | None:
        spellings = (s for s in gpu_spellings(gpu_type) if not s.endswith(SPREAD_SUFFIX))
        return next((spelling for spelling in spellings if spelling in self._tables), None)

    def _require_table(self, gpu_type: str) -> str:
        table = self._find_table(gpu_type)
        if table is None:
            raise InputError(f"unknown GPU type {gpu_type!r}; known: {', '.join(self.gpu_types)}", path=self._path)
        return table

    def _require_batch_size(self, model: str, batch_size: int | None) -> int | None:
        sizes = self._batch_sizes[model]
        if batch_size in sizes:
            return batch_size
        if batch_size is None and len(sizes) == 1:
            return sizes[0]
        known = ", ".join("none (leave it out)" if size is None else str(size) for size in sizes)
        problem = "needs a batch size" if batch_size is None else f"has no batch size {batch_size}"
        raise InputError(f"model {model!r} {problem}; known: {known}", path=self._path)


def interpolated_rate(points: _Points, gpus: int) -> float:
    """The rate of a gang from those of measured gang sizes.

    Between two sizes the logarithm of the rate is linear in the logarithm of the size. Outside of the measured range
    the rate per GPU stays that of the nearest size. A neighbour that did not fit in memory (0.0) makes the result 0.0,
    because a GPU's share of the memory does not depend on the size of the gang.
    """
    if gpus in points:
        return points[gpus]
    below = max((size for size in points if size < gpus), default=None)
    above = min((size for size in points if size > gpus), default=None)
    if below is None or above is None:
        nearest = above if below is None else below
        assert nearest is not None, "a job type has at least one measured gang size"
        return points[nearest] * gpus / nearest
    if points[below] == 0 or points[above] == 0:
        return 0.0
    part = portable.log(gpus / below) / portable.log(above / below)
    return portable.power(points[below], 1 - part) * portable.power(points[above], part)


def _parse_key(text: str, path: str) -> ProfileKey:
    match = _KEY.fullmatch(text)
    if match is None:
        raise InputError(f"the job type {text!r} does not read ('Model (batch size B)', gpus)", path=path)
    with_size = _MODEL.fullmatch(match[1])
    if with_size is None:
        return ProfileKey(match[1], None, int(match[2]))
    return ProfileKey(with_size[1], int(with_size[2]), int(match[2]))


def _read_json(path: str) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"this is not JSON: {error.msg}", path=path, line=error.lineno) from None
    except (ValueError, RecursionError):
        raise InputError("this JSON has a number or a nesting that is too long", path=path) from None


def _checked_tables(document: Any, path: str) -> dict[str, _Table]:
    """The tables by lower-case GPU type, with every entry checked for its shape."""
    if not isinstance(document, dict) or not document:
        raise InputError("this is not a throughput file: the top level must map GPU types to tables", path=path)
    for table, rows in document.items():
        if not isinstance(rows, dict):
            raise InputError(f"{table!r} must map job types to rates", path=path)
        for key, row in rows.items():
            if not isinstance(row, dict):
                raise InputError(f"{table!r}, {key!r} must map {ALONE!r} and job types to rates", path=path)
            for other, value in row.items():
                _check_entry(f"{table!r}, {key!r}, {other!r}", other, value, path)
    tables = {str(table).lower(): rows for table, rows in document.items()}
    if len(tables) < len(document):
        raise InputError("two tables are named alike but for upper and lower case", path=path)
    if all(name.endswith(SPREAD_SUFFIX) or not rows for name, rows in tables.items()):
        raise InputError("this is not a throughput file: no GPU type has a job type", path=path)
    return tables


def _check_entry(where: str, other: str, value: Any, path: str) -> None:
    if other == ALONE:
        if not _is_rate(value):
            raise InputError(f"{where}: {_short(value)} is not a rate of at least 0", path=path)
    elif not (isinstance(value, list) and len(value) == 2 and _is_rate(value[0]) and _is_rate(value[1])):
        raise InputError(f"{where}: {_short(value)} is not a pair of rates of at least 0", path=path)


def _is_rate(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (value == 0 or RATE_MIN <= value <= RATE_MAX)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
