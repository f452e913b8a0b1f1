"""Large runs made small enough for a page: the same picture from a few hundred numbers instead of 80,000."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fairway.report.table import finite
from fairway.simulator.result import busy_intervals

Array = npt.NDArray[np.float64]

CURVE_POINTS = 400
SERIES_BINS = 320
RASTER_ROWS = 256
RASTER_BINS = 400
SEGMENTS_PER_PAGE = 48_000
SEGMENT_ROWS = 512
SEGMENT_STEPS = 100_000
LANES_CODE = 1024

_LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def distribution(values: Iterable[object]) -> dict[str, Any] | None:
    """The empirical distribution, thinned. A missing value counts as a job that never got there.

    Beyond the even steps, points crowd towards the last jobs: unfairness and starvation live in the tail.
    """
    numbers = [finite(value) for value in values]
    ordered = np.sort(np.array([number for number in numbers if number is not None], dtype=np.float64))
    n = len(ordered)
    if n == 0:
        return None
    picked = np.arange(n)
    if n > CURVE_POINTS:
        even = np.linspace(0, n - 1, CURVE_POINTS * 5 // 8)
        tail = n - np.geomspace(1, n / 20, CURVE_POINTS * 3 // 8)
        picked = np.unique(np.concatenate([even, tail]).round().astype(np.int64).clip(0, n - 1))
    shares = ((picked + 1) / len(numbers)).round(7)
    return {"x": short(ordered[picked]), "y": shares.tolist(), "known": n, "all": len(numbers)}


def step_average(times_s: Sequence[object], values: Sequence[object], bins: int = SERIES_BINS) -> dict[str, Any] | None:
    """A step function averaged over equal bins of time."""
    pairs = [(finite(t), finite(v)) for t, v in zip(times_s, values, strict=False)]
    known = sorted(((t, v) for t, v in pairs if t is not None and v is not None), key=lambda pair: pair[0])
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    times, levels = (np.array(column, dtype=np.float64) for column in zip(*known, strict=True))
    edges = np.linspace(times[0], times[-1], bins + 1)
    return {
        "t0": float(times[0]),
        "dt": float(edges[1] - edges[0]),
        "v": short(_averages(times, levels, edges)),
    }


def _averages(times: Array, levels: Array, edges: Array) -> Array:
    area = np.concatenate([[0.0], np.cumsum(levels[:-1] * np.diff(times))])
    averaged: Array = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return averaged


def condense_gantt(gantt: Mapping[str, Any] | None, results_on_page: int) -> dict[str, Any] | None:
    """Segments stay segments while the page stays light; beyond that they become a heat map of nodes."""
    if not gantt:
        return None
    if gantt.get("kind") == "raster":
        return _raster(
            gantt["rows"], gantt["busy"], finite(gantt.get("t0_s")) or 0.0, finite(gantt.get("bin_s")) or 1.0
        )
    segments = np.array(gantt["segments"], dtype=np.float64).reshape(-1, 4)
    segments = segments[(np.abs(segments) < 1e100).all(axis=1)]
    if len(segments) == 0:
        return None
    if len(segments) > SEGMENTS_PER_PAGE // max(1, results_on_page) or len(gantt["gpus"]) > SEGMENT_ROWS:
        return _raster_of_segments(gantt["gpus"], segments)
    return _segments(gantt, segments)


def _lanes(pieces: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each piece, which come by row and start: its lane + `LANES_CODE` × (lanes there - 1); 0 where it is alone.

    Pieces that overlap, directly or through others, split the row's height among as many lanes as they need; the one
    that started first takes the top lane.
    """
    codes = np.zeros(len(pieces), dtype=np.int64)
    first, row, free = 0, -1, list[int]()
    for index, (gpu, start, end, _) in enumerate(pieces.tolist()):
        if gpu != row or start >= max(free):
            codes[first:index] += LANES_CODE * (len(free) - 1)
            first, row, free = index, gpu, [end]
            continue
        lane = next((lane for lane, free_from in enumerate(free) if free_from <= start), len(free))
        free[lane : lane + 1] = [end]
        codes[index] = lane
    codes[first:] += LANES_CODE * (len(free) - 1)
    return codes


def _segments(gantt: Mapping[str, Any], segments: Array) -> dict[str, Any]:
    t0_s = float(segments[:, 1].min())
    unit_s = max(float(segments[:, 2].max()) - t0_s, 1e-9) / SEGMENT_STEPS
    ordered = segments[np.lexsort((segments[:, 3], segments[:, 1], segments[:, 0]))]
    ordered[:, 1:3] = ((ordered[:, 1:3] - t0_s) / unit_s).round()
    pieces = ordered.astype(np.int64)
    flat = np.column_stack([pieces, _lanes(pieces)]).ravel().tolist()
    rows, jobs = ([str(name) for name in gantt[key]] for key in ("gpus", "jobs"))
    found = {"kind": "segments", "rows": rows, "jobs": jobs, "t0_s": t0_s, "unit_s": unit_s, "flat": flat}
    return found | ({"batches": _batches(gantt["batches"], t0_s, unit_s)} if gantt.get("batches") else {})


def _batches(batches: Sequence[Sequence[float]], t0_s: float, unit_s: float) -> dict[int, list[int]]:
    """For each job, instants in units and the batch size from then on, alternating."""
    found: dict[int, list[int]] = {}
    for job, since_s, batch in batches:
        found.setdefault(int(job), []).extend((round((since_s - t0_s) / unit_s), int(batch)))
    return found


def _raster_of_segments(gpus: Sequence[object], segments: Array) -> dict[str, Any] | None:
    nodes = [str(gpu).rpartition("/")[0] or str(gpu) for gpu in gpus]
    gpus_on = Counter(nodes)
    names = list(gpus_on)
    row_of_node = {name: row for row, name in enumerate(names)}
    row_of_gpu = np.array([row_of_node[node] for node in nodes])
    held, starts, ends = busy_intervals(segments[:, 0].astype(np.int64), segments[:, 1], segments[:, 2])
    row_of_interval = row_of_gpu[held]
    edges = np.linspace(starts.min(), ends.max(), RASTER_BINS + 1)
    busy = np.zeros((len(names), RASTER_BINS))
    for row in range(len(names)):
        own = row_of_interval == row
        times = np.concatenate([edges[:1], starts[own], ends[own], edges[-1:]])
        change = np.repeat([0, 1, -1, 0], [1, own.sum(), own.sum(), 1])
        order = np.argsort(times, kind="stable")
        busy[row] = _averages(times[order], np.cumsum(change[order]), edges) / gpus_on[names[row]]
    return _raster(names, busy.tolist(), float(edges[0]), float(edges[1] - edges[0]))


def _raster(
    names: Sequence[object], busy: Sequence[Sequence[object]], t0_s: float, bin_s: float
) -> dict[str, Any] | None:
    bins = max((len(row) for row in busy), default=0)
    if bins == 0:
        return None
    cells = np.zeros((len(busy), bins))
    for row, values in enumerate(busy):
        cells[row, : len(values)] = [finite(value) or 0.0 for value in values]
    per_row = -(-len(cells) // RASTER_ROWS)
    per_bin = -(-bins // RASTER_BINS)
    cells = _merge(_merge(cells, per_row).T, per_bin).T
    levels = (cells.clip(0, 1) * (len(_LEVELS) - 1)).round().astype(np.int64)
    shown = [str(name) for name in names[: len(busy)]]
    return {
        "kind": "raster",
        "rows": [_span(shown[first : first + per_row]) for first in range(0, len(busy), per_row)],
        "t0_s": t0_s,
        "bin_s": bin_s * per_bin,
        "levels": ["".join(_LEVELS[level] for level in row) for row in levels.tolist()],
    }


def _merge(cells: Array, size: int) -> Array:
    """Average every `size` neighbouring rows; the last group may be smaller."""
    starts = np.arange(0, len(cells), size)
    counts = np.diff(np.append(starts, len(cells)))
    merged: Array = np.add.reduceat(cells, starts, axis=0) / counts[:, None]
    return merged


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}" if names else ""


def short(values: Iterable[float]) -> list[float | int]:
    """Four significant digits are more than a chart can show, and a third of the bytes."""
    return [int(v) if v.is_integer() and abs(v) < 1e6 else v for v in (float(f"{value:.4g}") for value in values)]
