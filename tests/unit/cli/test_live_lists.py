"""Lists on terminals of several widths, and in a pipe."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from test_live_views import ROW

from fairway.cli import output
from fairway.cli.live_tables import history_table, jobs_table, share_table

WAITS = "waits behind job 4, which came first and does not fit yet"
RUNNING = ROW | {"id": "1", "name": "resnet50", "user": "bartholomew", "step": 0.0, "steps": None}
PENDING = RUNNING | {"id": "7_10", "state": "PENDING", "name": "", "started_s": None, "gpus_held": 0, "reason": WAITS}
FAILED = RUNNING | {"state": "OUT_OF_MEMORY", "ended_s": 1090.0, "exit_code": 1, "reason": "said so in its log"}


def shown(what: Any, width: int) -> list[str]:
    """The lines of a list on a terminal."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_eighty_columns_show_what_counts() -> None:
    rows = [row | {"user": "ann"} for row in (RUNNING, PENDING)]
    head, _, first, second = shown(jobs_table(rows, 1100.0), 80)
    assert head.split() == ["job", "state", "GPUs", "user", "name", "ran", "why", "or", "what"]
    assert first.split()[:6] == ["1", "RUNNING", "1", "ann", "resnet50", "1"]
    assert first.endswith("python train.py")
    assert second.startswith("7_10  PENDING     1  ann")
    assert second.endswith("…")
    assert "waits behind job 4" in second


def test_names_are_cut_before_what_counts_is_dropped() -> None:
    long = RUNNING | {"name": "a-rather-long-name-of-a-sweep-over-many-seeds"}
    head, _, first, _ = shown(jobs_table([long, PENDING], 1100.0), 80)
    assert "ran" in head.split()
    assert "a-rather-lo…" in first


def test_wide_terminals_show_more() -> None:
    row = RUNNING | {"step": 50.0, "steps": 200.0, "queue": "night", "priority": 3}
    head = shown(jobs_table([row, PENDING], 1100.0), 160)[0].split()
    assert head[5:-3] == ["ran", "progress", "queue", "priority", "since"]
    assert "progress" not in shown(jobs_table([RUNNING, PENDING], 1100.0), 160)[0], "nobody has made any"


def test_columns_that_are_empty_for_everybody_are_left_out() -> None:
    head = shown(jobs_table([PENDING, PENDING], 1100.0), 80)[0].split()
    assert head == ["job", "state", "GPUs", "user", "since", "why", "or", "what"]


@pytest.mark.parametrize("width", [20, 40, 50, 60, 80, 100, 140, 300])
@pytest.mark.parametrize("table", [jobs_table, history_table])
def test_no_line_is_wider_than_the_terminal_and_no_state_is_cut(table: Any, width: int) -> None:
    rows = [RUNNING | {"name": "日本語" * 20, "queue": "q" * 40}, PENDING, FAILED]
    lines = shown(table(rows), width)
    assert len(lines) == 2 + len(rows), "one line for each"
    assert all(cell_len(line) <= width for line in lines)
    if width >= 40:
        states = ("RUNNING", "PENDING", "OUT_OF_MEMORY")
        assert all(state in line for state, line in zip(states, lines[2:], strict=True))


def test_a_pipe_gets_everything_on_one_line_each() -> None:
    name, reason = "n" * 150, "because " * 60 + "of that"
    text = output.rendered(jobs_table([RUNNING | {"name": name}, PENDING | {"reason": reason}], 1100.0))
    assert name in text
    assert reason in text
    assert len(text.splitlines()) == 4


def test_what_a_user_wrote_cannot_move_the_cursor_of_others() -> None:
    text = output.rendered(jobs_table([RUNNING | {"command": "echo '\x1b[2J\n\r\x07boo'"}], 1100.0))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text
    assert len(text.splitlines()) == 3


def test_shares_fit_eighty_columns() -> None:
    counts = {"running": 12, "waiting": 1200, "ended": 34000}
    user = {"user": "bartholomew", "gpus_held": 12, "share": 0.5, "gpu_s": 123456.0, **counts}
    head, _, first = shown(share_table([user]), 80)
    assert "of all time" in head
    assert first.split()[:4] == ["bartholomew", "12", "50.0", "%"]
    assert "34,000" in first
