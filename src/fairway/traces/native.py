"""Fairway's own trace format: JSON lines, one job per line, the keys being the fields of `JobSpec`.

An optional first line `{"fairway_trace": 1, ...}` gives the version and the source of the jobs. Reading is strict: a
key that is unknown or comes twice, a value of the wrong JSON type, NaN and Infinity are errors, because a field that is
silently ignored changes a result without a trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from fairway.core.batch import Tuning
from fairway.core.errors import InputError
from fairway.core.job import ADAPTATIONS, JobSpec, LossCurve, Regime, Workload, job_to_dict
from fairway.traces.fields import Jobs, Parsed, shown
from fairway.traces.files import atomic_write

VERSION = 1
_FIELDS = get_type_hints(JobSpec)
_REGIME_FIELDS = get_type_hints(Regime)
_LOSS_FIELDS = get_type_hints(LossCurve)
_HEADER_KEYS = ("fairway_trace", "source", "format", "skipped", "notes")


class _LineError(ValueError):
    """Something is wrong with a line; the caller knows which line."""


def read_native(text: str, path: str) -> Parsed:
    """Jobs in the order of the file, with the skip counts and notes of the header."""
    jobs = Jobs(path)
    first = True
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            entry = _object(content)
            if first and "fairway_trace" in entry:
                _read_header(entry, jobs)
            else:
                jobs.add(line, **_job_fields(entry))
        except _LineError as wrong:
            raise InputError(str(wrong), path=path, line=line) from None
        first = False
    return jobs.finish()


def write_trace(workload: Workload, path: str | Path) -> None:
    """Write a workload in Fairway's own format; the file appears only when it is complete."""
    with atomic_write(path) as stream:
        stream.writelines(f"{line}\n" for line in native_lines(workload))


def native_lines(workload: Workload) -> Iterator[str]:
    """The lines of the native format, header first."""
    header: dict[str, Any] = {"fairway_trace": VERSION}
    if workload.source:
        header["source"] = workload.source
    if workload.format:
        header["format"] = workload.format
    if workload.skipped:
        header["skipped"] = workload.skipped
    if workload.notes:
        header["notes"] = list(workload.notes)
    yield json.dumps(header)
    for job in workload.jobs:
        yield json.dumps(job_to_dict(job), allow_nan=False)


def job_from_dict(entry: dict[str, Any]) -> JobSpec:
    """A job from the JSON values of one line."""
    try:
        return JobSpec(**_job_fields(entry))
    except _LineError as wrong:
        raise InputError(str(wrong)) from None


def _object(content: str) -> dict[str, Any]:
    try:
        entry = json.loads(content, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _LineError(f"this is not valid JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise _LineError("this is not valid JSON: nested too deeply") from None
    except _LineError:
        raise
    except ValueError:
        raise _LineError("this is not valid JSON: a number has too many digits") from None
    if not isinstance(entry, dict):
        raise _LineError(f"expected a JSON object, not {shown(entry)}")
    return entry


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _LineError(f"the key {shown(next(key for key in keys if keys.count(key) > 1))} comes twice")
    return out


def _no_constant(name: str) -> Any:
    raise _LineError(f"{name} is not a number that a trace can hold")


def _read_header(entry: dict[str, Any], jobs: Jobs) -> None:
    version = entry["fairway_trace"]
    if type(version) is not int or version != VERSION:
        raise _LineError(f"fairway_trace {shown(version)} is not a version that this Fairway reads ({VERSION})")
    unknown = [key for key in entry if key not in _HEADER_KEYS]
    if unknown:
        raise _LineError(f"unknown key {shown(unknown[0])} in the header; known: {', '.join(_HEADER_KEYS)}")
    skipped, notes = entry.get("skipped", {}), entry.get("notes", [])
    if not isinstance(skipped, dict) or not all(type(n) is int and n >= 0 for n in skipped.values()):
        raise _LineError(f"skipped {shown(skipped)} is not an object of counts")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise _LineError(f"notes {shown(notes)} is not a list of texts")
    jobs.skipped.update(skipped)
    jobs.notes.extend(notes)


def _job_fields(entry: dict[str, Any]) -> dict[str, Any]:
    for needed in ("id", "submitted_s"):
        if needed not in entry:
            raise _LineError(f"the key {needed!r} is missing")
    return _typed(entry, _FIELDS)


def _typed(entry: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for key, value in entry.items():
        if key not in hints:
            raise _LineError(f"unknown key {shown(key)}; known: {', '.join(hints)}")
        out[key] = _value(key, value, hints[key])
    return out


def _value(key: str, value: Any, hint: Any) -> Any:
    """The value as the field's type, or an error that names the right JSON type."""
    if key == "regimes":
        return _regimes(value)
    if key == "loss":
        return _loss(value)
    if key == "tuning":
        return _tuning(value)
    if key == "gpu_types":
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise _LineError(f"{key} {shown(value)} is not a list of texts")
        return tuple(value)
    if key == "adaptation":
        if value not in ADAPTATIONS:
            raise _LineError(f"adaptation {shown(value)} is not one of {', '.join(ADAPTATIONS)}")
        return value
    if value is None and hint in (float | None, int | None):
        return None
    if hint in (float, float | None):
        return _float(key, value)
    kinds: dict[Any, str] = {str: "a text", bool: "true or false", int: "a whole number"}
    wanted = hint if hint in kinds else int
    name = kinds[wanted]
    if type(value) is not wanted:
        raise _LineError(f"{key} {shown(value)} is not {name}")
    return value


def _float(key: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise _LineError(f"{key} {shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _LineError(f"{key} {shown(value)} is not a finite number")
    return number


def _regimes(value: Any) -> tuple[Regime, ...]:
    if not isinstance(value, list) or not all(isinstance(part, dict) and "until" in part for part in value):
        raise _LineError(f"regimes {shown(value)} is not a list of objects with the key 'until'")
    return tuple(Regime(**_typed(part, _REGIME_FIELDS)) for part in value)


def _tuning(value: Any) -> Tuning | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != set(Tuning._fields):
        raise _LineError(f"tuning {shown(value)} is not an object with the keys {', '.join(Tuning._fields)}")
    for name in Tuning._fields[:4]:
        _value(f"tuning: {name}", value[name], int)
    times, noise = value["step_times"], value["noise"]
    rows = isinstance(noise, list) and all(isinstance(row, list) and len(row) == 2 for row in noise)
    if not isinstance(times, list) or not rows:
        raise _LineError("tuning: step_times is a list of numbers, and noise a list of [until, noise scale]")
    for number in (*times, *(number for row in noise for number in row)):
        _float("tuning", number)
    return Tuning.from_plain(value)


def _loss(value: Any) -> LossCurve | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != _LOSS_FIELDS.keys():
        raise _LineError(f"loss {shown(value)} is not an object with the keys {', '.join(_LOSS_FIELDS)}")
    return LossCurve(**{name: _float(f"loss: {name}", number) for name, number in value.items()})
