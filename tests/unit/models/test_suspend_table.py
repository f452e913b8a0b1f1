"""Tables of measured suspends: what is read and written, what lies between measurements, and bad files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fairway import InputError
from fairway.models.suspend_table import H200, WAYS, CostCurve, SuspendRow, read_suspend_table, suspend_csv
from fairway.models.suspension import Suspension
from fairway.models.switching import POSTER
from fairway.testing import job

GB = 10**9
HEAD = "way,gigabytes,out_s,back_s"


def read(folder: Path, text: str) -> object:
    path = folder / "suspends.csv"
    path.write_text(text)
    return read_suspend_table(str(path))


def test_a_measured_size_costs_what_was_measured() -> None:
    for row in H200.rows:
        costs, size = H200.ways[row.way], row.gigabytes * GB
        assert costs.out_s(size, first=False) == pytest.approx(row.out_s)
        assert costs.back_s(size) == pytest.approx(row.back_s)
        assert costs.out_s(size, first=True) == pytest.approx(row.out_s if row.first_out_s is None else row.first_out_s)


def test_costs_lie_on_lines_between_measurements_and_beyond_them() -> None:
    curve = CostCurve.through([10, 20, 10], [1.0, 3.0, 3.0])
    assert [curve.at(size) for size in (10, 15, 20, 30)] == pytest.approx([2.0, 2.5, 3.0, 4.0])
    assert curve.at(0) == pytest.approx(1.0)
    steep = CostCurve.through([10, 20], [1.0, 11.0])
    assert (steep.at(0), steep.at(5)) == pytest.approx((0.0, 0.5))
    falling = CostCurve.through([10, 20], [2.0, 1.0])
    assert (falling.at(0), falling.at(50)) == (2.0, 0.0)


def test_one_size_is_a_speed_and_no_size_a_constant() -> None:
    assert CostCurve.through([10], [2.0]).at(25) == pytest.approx(5.0)
    assert CostCurve.through([0], [0.1]).at(25) == 0.1


def test_more_memory_never_costs_less_on_the_h200() -> None:
    for way in H200.ways.values():
        for curve in (way.out, way.back, way.first_out):
            costs = [curve.at(size / 4) for size in range(600)]
            assert costs == sorted(costs)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = (*H200.rows, SuspendRow("restart", 4.0, 2.0, 9.0, None, 0.0, "h200", "580.65", "2026-11-16"))
    path = tmp_path / "suspends.csv"
    path.write_text(suspend_csv(rows))
    table = read_suspend_table(str(path))
    assert table.rows == rows
    assert set(table.ways) == set(WAYS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        ("way,gigabytes,out_s\nmoved,1,2\n", "no column 'back_s'"),
        (f"{HEAD}\nby_hand,1,2,3\n", ":2: unknown way 'by_hand'; known: in_place, moved, both, driver, restart"),
        (f"{HEAD}\nmoved,1,2,3\nmoved,1,-2,3\n", ":3: out_s '-2' is not a number from 0"),
        (f"{HEAD}\nmoved,1,nan,3\n", ":2: out_s 'nan' is not a number"),
        (f"{HEAD}\nmoved,1,2\n", ":2: back_s '' is not a number"),
        (f"{HEAD},first_out_s\nmoved,1,2,3,x\n", ":2: first_out_s 'x' is not a number"),
        (f"{HEAD},gpu\nmoved,1,2,3,h200\nmoved,1,2,3,a100\n", "of one GPU type, not of a100, h200"),
        (f"{HEAD}\nin_place,0,0,0\n", "no way to take memory off a GPU"),
        (f'{HEAD}\nmoved,"1,2,3\n', "this is not CSV"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="a binary file, not text"):
        read_suspend_table(str(tmp_path / "bytes"))
    with pytest.raises(InputError, match="cannot be read"):
        read_suspend_table(str(tmp_path / "none"))


def test_a_job_costs_what_the_cheapest_way_costs() -> None:
    how = Suspension("suspend")
    assert how.cost_s(job("a", memory_bytes=40 * GB)) == pytest.approx(0.87 + 0.82)
    assert how.cost_s(job("b")) == POSTER.median.restart_s == how.typical_s
    assert math.isfinite(how.cost_s(job("c", memory_bytes=10**12)))
