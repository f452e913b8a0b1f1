"""Results as flat rows: one per run for a CSV file, one per policy (over its seeds) for comparison."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairway.traces.files import atomic_write

SUMMARY = ("mean", "p50", "p95", "p99", "max")
RHO_KINDS = ("static", "concurrent", "isolated")
RHO_SUMMARY = ("mean", "worst", "p99", "unfair_fraction")

_SETTINGS = ("trace", "cluster", "gpus", "rules", "placement", "round_s", "restart_cost_s")
_SCALARS = (
    *("jobs", "finished", "skipped", "makespan_s", "utilisation", "preemptions", "restarts", "lost_gpu_h", "cost"),
    *("throughput", "deadline_misses", "jain", "rounds", "decide_cpu_s", "cpu_s", "wall_s", "peak_rss_bytes"),
)
_PROMISES = {
    "error": "median_relative_error",
    "error_mean": "mean_relative_error",
    "error_s": "median_error_s",
    "within": "within",
    "width_s": "median_width_s",
}
"""What is told of the ends that jobs were promised at their submission, where that was asked for."""


@dataclass(frozen=True, slots=True)
class PolicyRuns:
    """The runs of one policy under one set of settings; they differ by seed."""

    label: str
    policy: str
    runs: tuple[Mapping[str, Any], ...]


def finite(value: object) -> float | None:
    """The value as a number, or None where there is none: null, NaN, and what is too large to be meant."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e100 else None


def metrics(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Every number of a result under a flat name such as `jct_p95_s` or `ftf_static_worst`."""
    flat = {key: finite(result.get(key)) for key in _SCALARS}
    for name in ("jct", "queue", "feedback"):
        part = result.get(f"{name}_s") or {}
        flat |= {f"{name}_{key}_s": finite(part.get(key)) for key in SUMMARY}
    told = (result.get("promises") or {}).get("finish") or {}
    flat |= {f"promise_{key}": finite(told.get(name)) for key, name in _PROMISES.items()}
    for kind in RHO_KINDS:
        part = (result.get("ftf") or {}).get(kind) or {}
        flat |= {f"ftf_{kind}_{key}": finite(part.get(key)) for key in RHO_SUMMARY}
    return flat


def knowledge(result: Mapping[str, Any]) -> str:
    """What the policy may know beyond the request, in words."""
    return ", ".join(str(item) for item in result.get("knows") or ()) or "nothing"


def group_by_policy(results: Sequence[Mapping[str, Any]]) -> list[PolicyRuns]:
    """Runs that differ only by seed belong together; a label names a setting only where a policy needs it."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault((str(result.get("policy")), *_setting_texts(result)), []).append(result)
    policies = [key[0] for key in groups]
    grouped = []
    for key, runs in groups.items():
        rivals = [other for other in groups if other[0] == key[0]]
        telling = [key[i] for i in range(1, len(key)) if len({other[i] for other in rivals}) > 1]
        label = key[0] if policies.count(key[0]) == 1 else f"{key[0]} ({', '.join(telling)})"
        grouped.append(PolicyRuns(label, key[0], tuple(runs)))
    return grouped


def comparison_rows(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per policy: each metric as the mean over seeds, with `…_min` and `…_max` beside it."""
    rows = []
    for group in group_by_policy(results):
        row: dict[str, Any] = {
            "policy": group.label,
            "knows": knowledge(group.runs[0]),
            "runs": len(group.runs),
            "seeds": [run.get("seed") for run in group.runs],
        }
        per_run = [metrics(run) for run in group.runs]
        for key in per_run[0]:
            values = [value for run in per_run if (value := run[key]) is not None]
            row[key] = math.fsum(values) / len(values) if values else None
            row[f"{key}_min"] = min(values, default=None)
            row[f"{key}_max"] = max(values, default=None)
        rows.append(row)
    return rows


def write_csv(results: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """One row per result; a value that does not exist is an empty cell."""
    described = ("policy", "knows", "seed", *_SETTINGS, "fairway")
    columns = [*described, *metrics({})]
    with atomic_write(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        for result in results:
            row = {key: result.get(key) for key in described} | {"knows": knowledge(result)} | metrics(result)
            writer.writerow(["" if (value := row[key]) is None else _cell(value) for key in columns])


def _cell(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def _setting_texts(result: Mapping[str, Any]) -> tuple[str, ...]:
    texts = [str(result.get(key)) for key in _SETTINGS[:5]]
    rounds, restart = (finite(result.get(key)) or 0.0 for key in ("round_s", "restart_cost_s"))
    switching = result.get("switching")
    starts = f"switching {switching}" if switching else f"restart {restart:g} s"
    return (*texts, f"rounds of {rounds:g} s", starts, f"knows {knowledge(result)}")
