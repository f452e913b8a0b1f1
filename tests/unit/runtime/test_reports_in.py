"""What jobs report is taken in as far as it makes sense; whatever else they write does no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.runtime.jobs.observations import take_in
from fairway.runtime.jobs.records import Progress
from fairway.runtime.processes import environment
from fairway.runtime.processes.environment import ReportReader


def _read(path: Path, reader: ReportReader | None = None) -> list[dict[str, Any]]:
    return list((reader or ReportReader(path)).new_lines())


def test_lines_are_read_once_and_only_when_they_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    reader = ReportReader(path)
    assert _read(path, reader) == []
    path.write_text('{"step": 1}\n{"step": 2')
    assert _read(path, reader) == [{"step": 1}]
    with path.open("a") as file:
        file.write('2}\n{"step": 3}\n')
    assert _read(path, reader) == [{"step": 22}, {"step": 3}]
    assert _read(path, reader) == []
    assert reader.offset == path.stat().st_size


def test_the_last_line_of_a_job_that_has_ended_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    reader = ReportReader(path)
    assert list(reader.new_lines(final=True)) == [{"step": 1}, {"step": 2}]
    with path.open("a") as file:
        file.write('{"step": 3}\n{"st')
    assert list(reader.new_lines(final=True)) == [{"step": 3}]
    assert list(reader.new_lines(final=True)) == []


def test_the_last_reports_are_there_where_a_file_system_remembers_that_they_were_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, remembered, opened, listed = tmp_path / "reports.jsonl", set[object](), os.open, os.scandir

    def remembering_open(name: object, *rest: int) -> int:
        """Like a shared file system: what was not there is not looked for until its folder is listed."""
        if name in remembered:
            raise FileNotFoundError(name)
        try:
            return opened(name, *rest)  # type: ignore[call-overload, no-any-return]
        except FileNotFoundError:
            remembered.add(name)
            raise

    def listing(folder: Any) -> Any:
        remembered.clear()
        return listed(folder)

    monkeypatch.setattr(os, "open", remembering_open)
    monkeypatch.setattr(os, "scandir", listing)
    reader = ReportReader(path)
    assert _read(path, reader) == []
    path.write_text('{"step": 200}\n')
    assert _read(path, reader) == [], "the file system has it that there is no such file"
    assert list(reader.new_lines(final=True)) == [{"step": 200}]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"[1, 2]",
        b"null",
        b"a\rb\x0bc",
        b"\xff\xfe",
        b"",
        b'{"step": ' + b"9" * 5000 + b"}",
        b'{"x": "' + b"y" * 70_000 + b'"}',
    ],
)
def test_lines_that_are_no_report_are_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_bytes(line + b'\n{"step": 5}\n')
    assert _read(path) == [{"step": 5}]


def test_of_a_flood_the_latest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MOST_READ", 1000)
    path = tmp_path / "reports.jsonl"
    reader = ReportReader(path)
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(10_000)))
    found = _read(path, reader)
    assert 10 < len(found) < 100
    assert found[-1] == {"step": 9999}
    with path.open("a") as file:
        file.write("x" * 5000)
    assert _read(path, reader) == []
    with path.open("a") as file:
        file.write('\n{"step": 10000}\n')
    assert _read(path, reader) == [{"step": 10_000}]


def test_a_file_that_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text('{"step": 1}\n' * 10)
    reader = ReportReader(path)
    assert len(_read(path, reader)) == 10
    path.write_text('{"step": 7}\n')
    assert _read(path, reader) == [{"step": 7}]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "link"):
        assert _read(tmp_path / name) == []


def test_numbers_that_are_none_are_not_believed() -> None:
    progress = Progress(step=3.0)
    odd = {"step": 10**400, "loss": float("nan"), "epoch": True, "noise_scale": "7", "batch_size": 2.5, "time": 1e14}
    assert not take_in(progress, json.loads(json.dumps(odd)), 1000.0)
    assert (progress.step, progress.loss, progress.epoch, progress.batch_size) == (3.0, None, None, None)
    take_in(progress, {"step": 4, "time": 1e14}, 1000.0)
    assert progress.reported_s == 1000.0


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "\ud800", 7, None])
def test_a_checkpoint_has_to_be_the_name_of_a_file(name: object) -> None:
    progress = Progress()
    take_in(progress, {"step": 4, "checkpoint": name}, 1000.0)
    assert progress.checkpoint is None
    take_in(progress, {"step": 5, "checkpoint": "/tmp/saved"}, 1000.0)
    assert (progress.checkpoint, progress.checkpoint_step) == ("/tmp/saved", 5.0)


@given(
    st.dictionaries(
        st.sampled_from(
            ["step", "steps", "epoch", "loss", "time", "checkpoint", "batch_size", "batch_sizes", "started"]
        ),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    )
)
def test_any_report_leaves_numbers_that_can_be_stored(report: dict[str, Any]) -> None:
    progress = Progress()
    for _ in range(2):
        take_in(progress, report, 1000.0)
    assert json.loads(json.dumps(vars(progress), allow_nan=False)) == vars(progress)


def test_of_many_lines_the_newest_are_taken_in_and_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    lines = [f'{{"step": {step}}}\n' for step in range(100_000)]
    lines[500] = '{"step": 500, "checkpoint": "/old"}\n'
    lines[60_000] = '{"step": 60000, "checkpoint": "/saved"}\n'
    path.write_text("".join(lines))
    reader = ReportReader(path)
    found = _read(path, reader)
    assert len(found) == environment.MOST_LINES + 1
    assert found[0] == {"step": 60_000, "checkpoint": "/saved"}
    assert found[1:] == [{"step": step} for step in range(100_000 - environment.MOST_LINES, 100_000)]
    assert reader.offset == path.stat().st_size


def test_of_long_lines_few_are_taken_in(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text("".join(json.dumps({"step": step, "x": "y" * 60_000}) + "\n" for step in range(50)))
    assert [one["step"] for one in _read(path)] == [47, 48, 49]


def test_limits_and_step_times_are_taken_as_far_as_they_make_sense() -> None:
    progress = Progress()
    take_in(progress, {"started": True, "batch_limits": [32, 512, 8, 128]}, 1000.0)
    assert (progress.batch_limits, progress.timing) == ([32, 512, 8, 128], None)
    take_in(progress, {"step": 3, "timing": [2, 16, 0, 0.5]}, 1001.0)
    assert progress.timing == [2, 16, 0, 0.5]
    take_in(progress, {"step": 4}, 1002.0)
    assert progress.timing == [2, 16, 0, 0.5]
    for limits in ([32, 16, 8, 128], [32, 512, 8], [0, 1, 1, 1], [32, 512, 9, 8], "all", [32.5, 64, 1, 1], [True] * 4):
        take_in(progress, {"step": 5, "batch_limits": limits}, 1003.0)
        assert progress.batch_limits == [32, 512, 8, 128]
    for timing in ([2, 0, 0, 0.5], [2, 16], "fast", [2, 16, -1, 0.5], [2.5, 16, 0, 0.5]):
        take_in(progress, {"step": 6, "timing": timing}, 1004.0)
        assert progress.timing is None
    for nonsense in (-3.0, float("nan"), 0.0, None, 1e300):
        take_in(progress, {"step": 7, "timing": [2, 16, 0, nonsense]}, 1005.0)
        assert progress.timing == [2, 16, 0, -1.0]
