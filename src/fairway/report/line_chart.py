"""A line chart as an SVG text: few lines, each named where it ends, on a light background."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle, pairwise
from typing import NamedTuple

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 130, 64, 52
COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b8478a", "#b07c00", "#4a5560", "#7b5ea7", "#8a5a44")
INK, SOFT, GRID = "#16202c", "#55616f", "#e4e8ed"
LABEL_GAP = 17.0
_FONT = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


class Axis(NamedTuple):
    """What is along an axis: a name, and the unit that follows each number; values are multiplied by `factor`.

    It reaches at least to `most`, which is counted in that unit.
    """

    name: str
    unit: str = ""
    factor: float = 1.0
    most: float = 0.0


def line_chart(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], x: Axis, y: Axis) -> str:
    """The chart; every line has points (x, y) in rising order of x, and y starts at 0."""
    points = [point for line in lines.values() for point in line]
    most_x = max([x.most, *(px * x.factor for px, _ in points)]) or 1.0
    ticks = _ticks(max([y.most, *(py * y.factor for _, py in points)]) or 1.0)

    def place(px: float, py: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * px * x.factor / most_x
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * py * y.factor / ticks[-1]

    drawn = {name: [place(*point) for point in line] for name, line in lines.items() if line}
    parts = [
        *svg_head(title, WIDTH, HEIGHT, 13),
        svg_text(20, 47, y.name, SOFT),
        *_grid(ticks, y, [tick for tick in _ticks(most_x) if tick <= most_x * 1.0001], most_x, x),
        *_strokes(drawn),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def svg_head(title: str, width: float, height: float, font_px: float) -> list[str]:
    """The start of a picture: its size, a white background and its title."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    about = f'role="img" aria-label="{escape(title)}" font-family="{_FONT}" font-size="{font_px:g}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {about}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        svg_text(20, 28, title, INK, 'font-size="16" font-weight="600"'),
    ]


def staircase(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line that stays where it is until the next point."""
    found = list(points[:1])
    for (_, before), (at, value) in pairwise(points):
        found += [(at, before), (at, value)]
    return found


def _grid(y_ticks: Sequence[float], y: Axis, x_ticks: Sequence[float], most_x: float, x: Axis) -> list[str]:
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in y_ticks:
        at = floor - (floor - TOP) * tick / y_ticks[-1]
        parts.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="{SOFT if tick == 0 else GRID}"/>')
        parts.append(svg_text(LEFT - 8, at + 4.5, f"{tick:,g}{y.unit}", SOFT, 'text-anchor="end"'))
    for tick in x_ticks:
        at = LEFT + (right - LEFT) * tick / most_x
        parts.append(svg_text(at, floor + 20, f"{tick:,g}{x.unit}", SOFT, 'text-anchor="middle"'))
    return [*parts, svg_text((LEFT + right) / 2, HEIGHT - 12, x.name, SOFT, 'text-anchor="middle"')]


def _strokes(drawn: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    heights = _apart([line[-1][1] for line in drawn.values()])
    parts = []
    for (name, line), colour, height in zip(drawn.items(), cycle(COLOURS), heights, strict=False):
        path = "L".join(f"{px:.1f} {py:.1f}" for px, py in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"/>')
        end_x, end_y = line[-1]
        parts.append(f'<path d="M{end_x + 3:.1f} {end_y:.1f}L{end_x + 16:.1f} {height:.1f}" stroke="{colour}"/>')
        parts.append(svg_text(end_x + 20, height + 4.5, name, colour, 'font-weight="600"'))
    return parts


def _apart(wanted: Sequence[float]) -> list[float]:
    """Heights for labels, in the order of those wanted but far enough from one another to be read."""
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i])
    heights, below = list(wanted), HEIGHT - BOTTOM + LABEL_GAP
    for i in order:
        heights[i] = below = min(wanted[i], below - LABEL_GAP)
    above = TOP - LABEL_GAP
    for i in reversed(order):
        heights[i] = above = max(heights[i], above + LABEL_GAP)
    return heights


def _ticks(most: float) -> list[float]:
    """From 0 in steps of 1, 2 or 5 times a power of ten, about five of them, the last not below `most`."""
    power = 10.0 ** math.floor(math.log10(most / 5))
    step = next(power * times for times in (1, 2, 5, 10) if power * times * 5.5 >= most)
    return [round(step * i, 12) for i in range(math.ceil(most / step - 1e-9) + 1)]


def svg_text(x: float, y: float, text: str, colour: str, more: str = "") -> str:
    """A text whose baseline starts at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" {more}>{escape(text)}</text>'
