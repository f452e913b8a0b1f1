"""Line charts: ticks are round, labels stay apart, and any name is well-formed XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from fairway.report.line_chart import HEIGHT, LABEL_GAP, WIDTH, Axis, line_chart


def texts(svg: str) -> dict[str, tuple[float, float]]:
    found = (each for each in ET.fromstring(svg).iter() if each.tag.endswith("text"))
    return {each.text or "": (float(each.get("x", 0)), float(each.get("y", 0))) for each in found}


def test_lines_that_end_together_have_labels_apart_and_in_order() -> None:
    lines = {f"line {i}": [(0.0, 1.0 + i), (1.0, 0.001 * i)] for i in range(5)}
    shown = texts(line_chart("Errors", lines, Axis("done"), Axis("error")))
    heights = [shown[f"line {i}"][1] for i in range(5)]
    assert all(lower - upper >= LABEL_GAP - 0.2 for lower, upper in pairwise(heights))
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in shown.values())


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(0.23, ["0 %", "5 %", "10 %", "15 %", "20 %", "25 %"]), (0.008, ["0 %", "0.2 %", "0.4 %", "0.6 %", "0.8 %"])],
)
def test_ticks_are_round_and_reach_beyond_the_largest_value(most: float, ticks: list[str]) -> None:
    shown = texts(line_chart("Errors", {"a": [(1.0, most)]}, Axis("done", " s", 1.0, 10.0), Axis("error", " %", 100.0)))
    assert [text for text in shown if text.endswith(" %")] == ticks
    assert "10 s" in shown


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)]])
def test_nothing_to_draw_and_odd_names_are_still_a_picture(points: list[tuple[float, float]]) -> None:
    shown = texts(line_chart('<jobs> & "more"', {"a < b": points}, Axis("x"), Axis("y")))
    assert '<jobs> & "more"' in shown
    assert ("a < b" in shown) == bool(points)
