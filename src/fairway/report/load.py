"""Reading a result file. Whatever is wrong with it becomes one line that names the file, never a traceback.

Only what a report cannot do without is required, so a result without per-job rows or a Gantt still opens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.core.text_files import read_text

SCHEMA_FAMILY = "fairway.result"
SCHEMA_VERSION = 1
COMPARISON_SCHEMA = "fairway.comparison/1"

_TEXTS = ("policy", "trace", "cluster")
_NUMBERS = ("gpus", "jobs", "finished", "makespan_s", "utilisation")
_OBJECTS = ("jct_s", "queue_s", "ftf")
_OPTIONAL_NUMBERS = (
    *("skipped", "seed", "round_s", "restart_cost_s", "preemptions", "restarts", "lost_gpu_h", "cost"),
    *("throughput", "deadline_misses", "jain", "rounds", "decide_cpu_s", "cpu_s", "wall_s", "peak_rss_bytes"),
    *("min_run_s", "switches", "switching_gpu_h", "host_memory_bytes"),
)
_OPTIONAL_TEXTS = ("fairway", "rules", "placement", "switching")
_OPTIONAL_OBJECTS = ("switching_ways", "feedback_s", "per_user", "per_queue", "series", "gantt")
_OPTIONAL_LISTS = ("knows", "per_job")


def load_result(path: str | Path) -> dict[str, Any]:
    """The result stored in a file that `fairway simulate --json` wrote."""
    name = str(path)
    return _checked(_parse(read_text(path), name), name)


def load_results(path: str | Path) -> list[dict[str, Any]]:
    """All results in a file: one that `simulate --json` wrote holds one, one of `compare --json` those of every run."""
    name = str(path)
    document = _parse(read_text(path), name)
    if document.get("schema") != COMPARISON_SCHEMA:
        return [_checked(document, name)]
    results = document.get("results")
    if not isinstance(results, list) or not results or not all(isinstance(result, dict) for result in results):
        raise InputError("this comparison holds no results", path=name)
    return [_checked(result, name) for result in results]


def _checked(result: dict[str, Any], name: str) -> dict[str, Any]:
    _check_schema(result, name)
    try:
        _check_fields(result)
        _check_inner(result)
    except _MalformedError as error:
        raise InputError(str(error), path=name) from None
    return result


class _MalformedError(Exception):
    pass


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} at column {error.colno}", path=name, line=error.lineno) from None
    except (ValueError, RecursionError):
        raise InputError("not JSON that can be read: a number is too long or the nesting too deep", path=name) from None
    if not isinstance(value, dict):
        raise InputError("not a Fairway result: the file holds no JSON object", path=name, line=1)
    return value


def _check_schema(result: Mapping[str, Any], name: str) -> None:
    schema = result.get("schema")
    family, _, version = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    if family != SCHEMA_FAMILY or not version.isdecimal():
        found = "it has no schema" if schema is None else f"its schema is {str(schema)[:60]!r}"
        raise InputError(f"not a Fairway result: {found}, expected '{SCHEMA_FAMILY}/{SCHEMA_VERSION}'", path=name)
    if version != str(SCHEMA_VERSION):
        raise InputError(
            f"this result has format {version[:20]}; this Fairway reads format {SCHEMA_VERSION}, please update Fairway",
            path=name,
        )


def _check_fields(result: Mapping[str, Any]) -> None:
    missing = [key for key in (*_TEXTS, *_NUMBERS, *_OBJECTS) if key not in result]
    if missing:
        raise _MalformedError(f"not a complete Fairway result: {', '.join(missing)} missing")
    for key in _TEXTS:
        _require(isinstance(result[key], str), key, "a text", result[key])
    for key in (*_NUMBERS, *_OPTIONAL_NUMBERS):
        _require(_is_number(result.get(key)), key, "a number or null", result.get(key))
    for key in _OPTIONAL_TEXTS:
        _require(isinstance(result.get(key), str | None), key, "a text or null", result.get(key))
    for key in _OBJECTS:
        _require(isinstance(result[key], dict), key, "an object", result[key])
    for key in _OPTIONAL_OBJECTS:
        _require(isinstance(result.get(key), dict | None), key, "an object or null", result.get(key))
    for key in _OPTIONAL_LISTS:
        _require(isinstance(result.get(key), list | None), key, "a list or null", result.get(key))


def _check_inner(result: Mapping[str, Any]) -> None:
    for key in ("jct_s", "queue_s", "feedback_s"):
        _check_numbers(result.get(key) or {}, key)
    for variant, values in result["ftf"].items():
        _require(isinstance(values, dict), f"ftf.{variant}", "an object", values)
        _check_numbers(values, f"ftf.{variant}")
    for key in ("per_user", "per_queue"):
        for owner, values in (result.get(key) or {}).items():
            _require(isinstance(values, dict), f"{key}.{owner}", "an object", values)
            _check_numbers(values, f"{key}.{owner}")
    for row, job in enumerate(result.get("per_job") or []):
        _require(isinstance(job, dict), f"per_job[{row}]", "an object", job)
    for key, values in (result.get("series") or {}).items():
        well_formed = isinstance(values, list) and all(_is_number(value) for value in values)
        _require(well_formed, f"series.{key}", "a list of numbers", values)
    if result.get("gantt"):
        _check_gantt(result["gantt"])


def _check_gantt(gantt: Mapping[str, Any]) -> None:
    kind = gantt.get("kind")
    _require(kind in ("segments", "raster"), "gantt.kind", "'segments' or 'raster'", kind)
    lists = ("gpus", "jobs", "segments") if kind == "segments" else ("rows", "busy")
    for key in lists:
        _require(isinstance(gantt.get(key), list), f"gantt.{key}", "a list", gantt.get(key))
    batches = gantt.get("batches", [])
    rows = isinstance(batches, list) and all(isinstance(row, list) and len(row) == 3 for row in batches)
    well_formed = rows and all(_is_number(value) for row in batches for value in row)
    _require(well_formed, "gantt.batches", "a list of rows of 3 numbers", batches)
    if kind == "raster":
        for row, cells in enumerate(gantt["busy"]):
            well_formed = isinstance(cells, list) and all(_is_number(cell) for cell in cells)
            _require(well_formed, f"gantt.busy[{row}]", "a list of numbers", cells)
        return
    gpus, jobs = len(gantt["gpus"]), len(gantt["jobs"])
    for row, segment in enumerate(gantt["segments"]):
        well_formed = isinstance(segment, list) and len(segment) == 4 and all(map(_is_number, segment))
        _require(well_formed and None not in segment, f"gantt.segments[{row}]", "four numbers", segment)
        inside = segment[0] in range(gpus) and segment[3] in range(jobs)
        _require(inside, f"gantt.segments[{row}]", "a known GPU and job", segment)


def _check_numbers(values: Mapping[str, Any], where: str) -> None:
    for key, value in values.items():
        _require(_is_number(value), f"{where}.{key}", "a number or null", value)


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() < 1000
    return value is None or isinstance(value, float)


def _require(holds: bool, key: str, wanted: str, found: object) -> None:
    if not holds:
        shown = json.dumps(found)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise _MalformedError(f"not a valid Fairway result: {key} should be {wanted}, found {shown}")
