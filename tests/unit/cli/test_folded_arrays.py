"""Arrays in one row of a list."""

from __future__ import annotations

from typing import Any

import pytest
from test_live_views import ROW

from fairway.cli.folded_arrays import folded, ids_text
from fairway.cli.live_tables import history_table, jobs_table
from fairway.cli.output import rendered


def row(name: str, state: str = "PENDING", **about: Any) -> dict[str, Any]:
    return {**ROW, "id": name, "state": state, **about}


def test_an_array_is_one_row_that_says_how_its_tasks_are() -> None:
    tasks = [row(f"12_{task}", "RUNNING" if task < 40 else "PENDING", reason="") for task in range(64)]
    tasks[50]["reason"] = "needs 1 GPU, 0 free"
    rows = folded([row("11"), *tasks, row("13", "RUNNING")])
    assert [one["id"] for one in rows] == ["11", "12_[0-63]", "13"]
    assert rows[1]["state"] == "40 running, 24 pending"
    assert (rows[1]["tasks"], rows[1]["reason"]) == (64, "needs 1 GPU, 0 free")
    shown = rendered(jobs_table(rows, now_s=2000.0))
    assert "12_[0-63]  40 running, 24 pending" in shown
    assert "each" in shown


def test_a_single_task_and_other_jobs_stay_as_they_are() -> None:
    rows = [row("1"), row("2_7"), row("3")]
    assert folded(rows) == rows


def test_the_history_has_one_row_for_an_array_without_the_times_of_single_tasks() -> None:
    ended = [row(f"12_{task}", "COMPLETED", ended_s=1500.0 + task, ran_s=9.0, exit_code=0) for task in (2, 1, 0)]
    text = rendered(history_table(folded([*ended, row("11", "FAILED", ended_s=1400.0, exit_code=3)])))
    assert "12_[0-2]  COMPLETED" in text
    assert "9.0 s" not in text


def test_tasks_in_one_state_have_its_name() -> None:
    assert folded([row("5_0"), row("5_1")])[0]["state"] == "PENDING"


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (["3"], "3"),
        (["3", "4"], "3, 4"),
        (["12_4"], "12_4"),
        (["12_0", "12_1", "12_2", "12_8", "3"], "12_[0-2,8], 3"),
        ([f"9_{task}" for task in range(0, 20, 2)], "9_[0,2,4,6,…]"),
    ],
)
def test_ids_of_tasks_are_ranges(ids: list[str], text: str) -> None:
    assert ids_text(ids) == text
