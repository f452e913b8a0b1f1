"""Flat rows: one per run in a CSV file, one per policy in a comparison."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from report_samples import nothing_finished, sample_result

from fairway.core.errors import InputError
from fairway.report import comparison_rows, write_csv
from fairway.report.columns import COLUMNS, best_rows, scale_of


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_seeds_of_a_policy_become_mean_min_and_max() -> None:
    runs = [sample_result("fifo", seed=seed) for seed in (1, 2)] + [sample_result("las")]
    runs[0]["makespan_s"], runs[1]["makespan_s"] = 10.0, 30.0
    fifo, las = comparison_rows(runs)
    assert (fifo["makespan_s"], fifo["makespan_s_min"], fifo["makespan_s_max"]) == (20.0, 10.0, 30.0)
    assert (fifo["runs"], fifo["seeds"]) == (2, [1, 2])
    assert (las["policy"], las["runs"], las["knows"]) == ("las", 1, "nothing")


def test_a_mean_skips_the_runs_that_have_no_value() -> None:
    runs = [sample_result(seed=1) | {"cost": None}, sample_result(seed=2) | {"cost": 8.0}]
    (row,) = comparison_rows(runs)
    assert row["cost"] == 8.0


def test_the_same_policy_under_other_settings_is_another_row_that_says_so() -> None:
    rows = comparison_rows([sample_result(), sample_result() | {"restart_cost_s": 0.0}, sample_result("las")])
    assert [row["policy"] for row in rows] == ["fifo (restart 30 s)", "fifo (restart 0 s)", "las"]


def test_csv_has_a_row_per_result_and_empty_cells_for_nulls(tmp_path: Path) -> None:
    target = tmp_path / "runs.csv"
    write_csv([sample_result("srtf", seed=4), nothing_finished("a,b\n")], target)
    full, empty = read(target)
    assert (full["policy"], full["knows"], full["seed"]) == ("srtf", "duration", "4")
    assert float(full["jct_p95_s"]) > 0
    assert float(full["ftf_static_worst"]) > 0
    assert full["jobs"] == "300"
    assert empty["policy"] == "a,b\n"
    assert empty["jct_mean_s"] == empty["ftf_isolated_p99"] == ""
    assert set(full) == set(empty)


def test_csv_into_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_csv([sample_result()], tmp_path / "absent" / "runs.csv")


@pytest.mark.parametrize(
    ("seconds", "unit", "text"),
    [(4.0, "s", "4.00"), (600.0, "min", "10.0"), (7200.0, "h", "2.00"), (864000.0, "d", "10.0"), (0.0, "s", "0.000")],
)
def test_a_time_column_picks_a_unit_people_read(seconds: float, unit: str, text: str) -> None:
    scale = scale_of(COLUMNS[0], [seconds])
    assert (scale.unit, scale.write(seconds)) == (unit, text)


def test_nothing_is_best_when_all_are_equal_or_alone() -> None:
    assert best_rows(COLUMNS[0], [1.0, 1.0]) == set()
    assert best_rows(COLUMNS[0], [1.0, None]) == set()
    assert best_rows(COLUMNS[0], [2.0, 1.0, None, 1.0]) == {1, 3}
