"""Whatever is wrong with a result file, the user sees one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_samples import nothing_finished, sample_result

from fairway.core.errors import InputError
from fairway.report import load_result


def stored(folder: Path, content: object) -> Path:
    path = folder / "run.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("result", [sample_result(jobs=20), sample_result(jobs=20, raster=True), nothing_finished()])
def test_a_result_comes_back_as_it_was_written(tmp_path: Path, result: dict[str, Any]) -> None:
    assert load_result(stored(tmp_path, result)) == result


def test_a_result_without_details_is_still_a_result(tmp_path: Path) -> None:
    bare = sample_result(jobs=5, per_job=False)
    for key in ("series", "gantt", "per_user", "per_queue", "cost", "knows"):
        del bare[key]
    assert load_result(stored(tmp_path, bare)) == bare


def test_text_that_is_not_json_names_the_line(tmp_path: Path) -> None:
    path = stored(tmp_path, '{\n "schema": "fairway.result/1",\n oops\n}')
    with pytest.raises(InputError, match="not JSON") as caught:
        load_result(path)
    assert (caught.value.path, caught.value.line) == (str(path), 3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1, 2]", "not a Fairway result"),
        ("{}", "not a Fairway result: it has no schema"),
        ('{"schema": 3}', "not a Fairway result"),
        ('{"schema": "other/1"}', "not a Fairway result: its schema is 'other/1'"),
        ('{"schema": "fairway.result/x"}', "not a Fairway result"),
        ('{"schema": "fairway.result/2"}', "format 2.*update"),
        ('{"schema": "fairway.result/1"}', "policy, trace, cluster.* missing"),
        ("[" * 200_000, "not JSON"),
        (f'{{"a": {"9" * 5000}}}', "not JSON"),
        ("", "empty"),
    ],
)
def test_a_file_that_is_no_result_says_why(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_result(stored(tmp_path, content))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"policy": 3}, "policy should be a text, found 3"),
        ({"gpus": "many"}, "gpus should be a number"),
        ({"jobs": True}, "jobs should be a number"),
        ({"jct_s": [1]}, "jct_s should be an object"),
        ({"jct_s": {"mean": "long"}}, "jct_s.mean should be a number"),
        ({"feedback_s": [1]}, "feedback_s should be an object"),
        ({"feedback_s": {"mean": "long"}}, "feedback_s.mean should be a number"),
        ({"throughput": "high"}, "throughput should be a number"),
        ({"ftf": {"static": 1}}, "ftf.static should be an object"),
        ({"per_user": {"ann": {"jobs": "x"}}}, "per_user.ann.jobs should be a number"),
        ({"per_job": [1]}, r"per_job\[0\] should be an object"),
        ({"rules": ["a"]}, "rules should be a text"),
        ({"knows": "duration"}, "knows should be a list"),
        ({"series": {"time_s": ["a"]}}, "series.time_s should be a list of numbers"),
        ({"gantt": {"kind": "pie"}}, "gantt.kind should be"),
        ({"gantt": {"kind": "raster", "rows": ["n"], "busy": [3]}}, r"gantt.busy\[0\]"),
        ({"gantt": {"kind": "segments", "gpus": ["g"], "jobs": ["j"], "segments": [[0, 1]]}}, "four numbers"),
        (
            {"gantt": {"kind": "segments", "gpus": ["g"], "jobs": ["j"], "segments": [], "batches": [[0, "x", 2]]}},
            "gantt.batches should be a list of rows of 3 numbers",
        ),
        (
            {"gantt": {"kind": "segments", "gpus": ["g"], "jobs": ["j"], "segments": [[0, 1, 2, 9]]}},
            "a known GPU and job",
        ),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_result(stored(tmp_path, sample_result(jobs=3) | change))


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_result(tmp_path / "absent.json")
