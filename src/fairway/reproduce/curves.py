"""Lines of pictures like those of the papers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fairway.core.arrays import Floats
from fairway.report.line_chart import Axis, line_chart

_POINTS = 120


def shares_done(values: Floats) -> list[tuple[float, float]]:
    """A cumulative distribution as points (value, share of values up to it), few enough to draw."""
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(0, len(ordered) - 1, min(_POINTS, len(ordered))).astype(np.int64))
    return [(0.0, 0.0), *((float(ordered[rank]), (int(rank) + 1) / len(ordered)) for rank in ranks)]


def completion_chart(where: str, lines: Mapping[str, Sequence[tuple[float, float]]], until_s: float = math.inf) -> str:
    """Shares of jobs by completion time, in hours; up to some time, where a few long jobs would squeeze the others."""
    longest = max(line[-1][0] for line in lines.values())
    lines = {name: _up_to(until_s, [*line, (longest, 1.0)]) for name, line in lines.items()}
    title = f"Jobs that have ended by a completion time: {where}"
    return line_chart(title, lines, Axis("completion time", " h", 1 / 3600), Axis("share of jobs", " %", 100, 100))


def _up_to(most: float, line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    kept = [point for point in line if point[0] <= most]
    return kept if len(kept) == len(line) else [*kept, (most, kept[-1][1])]
