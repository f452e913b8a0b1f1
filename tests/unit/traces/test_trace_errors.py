"""Malformed files: one line that starts with the path and the exact line, and names the column and the value."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
import trace_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.traces import FORMATS, read_trace, write_trace

CSV = "job_id,num_gpu,submit_time,duration,model_name\n"
GAVEL = samples.GAVEL.split("\n")[0].split("\t")


def failure(path: Path, text: str, **options: str) -> str:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_trace(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def gavel(**cells: object) -> str:
    """A Gavel line with some columns (named c0 to c9) replaced."""
    row = [str(cells.get(f"c{i}", cell)) for i, cell in enumerate(GAVEL)]
    return samples.GAVEL + "\t".join(row) + "\n"


CASES = {
    "truncated row": (CSV + "1,1,0,5,vgg\n2,1,0\n", 3, "expected 5 columns, found 3"),
    "too wide a row": (CSV + "1,1,0,5,vgg,9\n", 2, "expected 5 columns, found 6"),
    "words for numbers": (CSV + "1,1,0,five,vgg\n", 2, "duration 'five' is not a finite number"),
    "negative duration": (CSV + "1,1,0,-5,vgg\n", 2, "duration '-5' is less than 0"),
    "nan duration": (CSV + "1,1,0,nan,vgg\n", 2, "duration 'nan' is not a finite number"),
    "infinite duration": (CSV + "1,1,0,1e999,vgg\n", 2, "duration '1e999' is not a finite number"),
    "empty duration": (CSV + "1,1,0,,vgg\n", 2, "duration is empty"),
    "underscore": (CSV + "1,1,0,1_0,vgg\n", 2, "duration '1_0' is not a finite number"),
    "zero GPUs": (CSV + "1,0,0,5,vgg\n", 2, "num_gpu '0' is less than 1"),
    "negative GPUs": (CSV + "1,-2,0,5,vgg\n", 2, "num_gpu '-2' is less than 1"),
    "half a GPU": (CSV + "1,1.5,0,5,vgg\n", 2, "num_gpu '1.5' is not a whole number"),
    "too many GPUs": (CSV + "1,1000001,0,5,vgg\n", 2, "num_gpu '1000001' is more than 1000000"),
    "overlong count": (CSV + f"1,{'9' * 5000},0,5,vgg\n", 2, "num_gpu '9999"),
    "negative submit": (CSV + "1,1,-1,5,vgg\n", 2, "submit_time '-1' is less than 0"),
    "empty id": (CSV + ",1,0,5,vgg\n", 2, "job_id is empty"),
    "duplicate id": (CSV + "1,1,0,5,vgg\n\n1,1,0,5,vgg\n", 4, "duplicate job id '1'; the first is on line 2"),
    "line after a quoted break": (CSV + '1,1,0,5,"a\nb"\n2,1,0,x,vgg\n', 4, "duration 'x'"),
    "open quote": (CSV + '1,1,0,5,"vgg\n', 2, "not valid CSV"),
    "column twice": (
        "job_id,num_gpu,submit_time,duration,duration\n1,1,0,5,5\n",
        1,
        "two columns are called 'duration'",
    ),
    "bad time": (samples.PHILLY + "yesterday,1,1,1,a\n", 4, "timestamp 'yesterday' is not a time"),
    "truncated philly": (samples.PHILLY + "2017-10-09 07:01:55,1", 4, "expected 5 columns, found 2"),
    "muri duration": (samples.MURI.replace("281000", "x"), 3, "duration 'x'"),
    "elasticflow deadline": (samples.ELASTICFLOW.replace("4426", "soon"), 2, "ddl 'soon'"),
    "pollux application": (
        samples.POLLUX.replace("h2,6", "h3,6"),
        2,
        "application 'deepspeech3' is unknown; known: cifar10",
    ),
    "alibaba order": (samples.ALIBABA.replace("2500,1200", "1100,1200"), 2, "deletion_time 1100 is before"),
    "alibaba share": (samples.ALIBABA.replace(",460,", ",1460,"), 2, "gpu_milli '1460' is more than 1000"),
    "helios mixed times": (samples.HELIOS + "80,u,v,1,1,1,OK,17,,,5,0\n", 5, "submit_time '17' is not a time"),
    "gavel width": (samples.GAVEL + "LM (batch size 5)\tx\t1\n", 3, "expected 10 columns, found 3"),
    "gavel steps": (gavel(c5="many"), 3, "total_steps 'many'"),
    "gavel GPUs": (gavel(c6=0), 3, "scale_factor '0' is less than 1"),
    "gavel weight": (gavel(c7=0), 3, "weight 0.0 is not a positive number"),
    "gavel slo": (gavel(c8=-0.5), 3, "SLO '-0.5'"),
    "gavel batch": (gavel(c0="LM (batch size x)"), 3, "job_type 'LM (batch size x)'"),
    "gavel arrival": (gavel(c9=-3), 3, "arrival_time '-3' is less than 0"),
    "shockwave mode": (samples.SHOCKWAVE.replace("gns", "magic"), 1, "mode 'magic' is not one of"),
    "sacct elapsed": (samples.SACCT.replace("00:01:30", "90s"), 4, "Elapsed '90s'"),
    "sacct submit": (samples.SACCT.replace("2024-01-01T00:00:10", "soon"), 2, "Submit 'soon'"),
    "native key": (samples.NATIVE.replace('"gpus": 2', '"gpu": 2'), 2, "unknown key 'gpu'"),
    "native nan": (samples.NATIVE.replace("10.5", "NaN"), 2, "NaN"),
    "native infinity": (samples.NATIVE.replace("10.5", "1e999"), 2, "duration_s inf is not a finite number"),
    "native type": (samples.NATIVE.replace('"gpus": 2', '"gpus": "2"'), 2, "gpus '2' is not a whole number"),
    "native bool": (samples.NATIVE.replace('"gpus": 2', '"gpus": true'), 2, "gpus True is not a whole number"),
    "native id": (samples.NATIVE.replace('"a"', "7"), 2, "id 7 is not a text"),
    "native text": (samples.NATIVE.replace("10.5", '"10"'), 2, "duration_s '10' is not a number"),
    "native digits": (samples.NATIVE.replace("10.5", "9" * 5000), 2, "too many digits"),
    "native overflow": (samples.NATIVE.replace("10.5", "9" * 400), 2, "not a finite number"),
    "native twice": (samples.NATIVE.replace('"gpus": 2', '"gpus": 2, "gpus": 3'), 2, "'gpus' comes twice"),
    "native cut": (samples.NATIVE[:-30], 4, "not valid JSON"),
    "native list": (samples.NATIVE + "[1]\n", 5, "expected a JSON object"),
    "native missing": (samples.NATIVE + '{"id": "c"}\n', 5, "'submitted_s' is missing"),
    "native no work": (samples.NATIVE + '{"id": "c", "submitted_s": 0}\n', 5, "exactly one of"),
    "native negative": (samples.NATIVE + '{"id": "c", "submitted_s": -1, "duration_s": 1}\n', 5, "is negative"),
    "native huge": (
        samples.NATIVE + '{"id": "c", "submitted_s": 1, "duration_s": 1, "gpus": 9999999}\n',
        5,
        "more than",
    ),
    "native regimes": (samples.NATIVE.replace('"until": 1', '"till": 1'), 4, "regimes"),
    "native adaptation": (samples.NATIVE.replace('"gns"', '"some"'), 4, "adaptation 'some'"),
    "native version": ('{"fairway_trace": 2}\n', 1, "fairway_trace 2"),
    "native header key": ('{"fairway_trace": 1, "x": 1}\n', 1, "unknown key 'x' in the header"),
    "native late header": (samples.NATIVE + '{"fairway_trace": 1}\n', 5, "'id' is missing"),
    "philly-json cut": (json.dumps([{"jobid": "x"}], indent=1)[:-3], 4, "not valid JSON"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_line_is_named(tmp_path: Path, case: str) -> None:
    text, line, what = CASES[case]
    path = tmp_path / "t"
    message = failure(path, text)
    assert message.startswith(f"{path}:{line}: ")
    assert what in message


PHILLY_JSON_CASES = {
    "not an object": ([1], "job 0: expected an object"),
    "no id": ([{}], "job 0: jobid None is not a text"),
    "twice": ([{"jobid": "a"}, {"jobid": "b"}], ""),
    "attempts": ([{"jobid": "a", "attempts": 3}], "job 0: attempts is not a list"),
    "detail": ([{"jobid": "a", "attempts": [{"detail": [3]}]}], "job 0: detail is not a list"),
    "time": ([{"jobid": "a", "submitted_time": "soon"}], "job 0: submitted_time 'soon' is not a time"),
}


@pytest.mark.parametrize("case", PHILLY_JSON_CASES)
def test_the_philly_log_names_the_job_where_json_has_no_lines(tmp_path: Path, case: str) -> None:
    entries, what = PHILLY_JSON_CASES[case]
    assert what in failure(tmp_path / "t", json.dumps(entries))


def test_a_repeated_id_in_the_philly_log_is_refused(tmp_path: Path) -> None:
    entry = json.loads(samples.PHILLY_JSON)[0]
    assert "job 1: duplicate job id 'application_1'" in failure(tmp_path / "t", json.dumps([entry, entry]))


def test_an_attempt_that_ends_before_it_starts_is_refused(tmp_path: Path) -> None:
    text = samples.PHILLY_JSON.replace("2017-10-09 07:03:22", "2017-10-09 07:00:00")
    assert "job 0: an attempt ends" in failure(tmp_path / "t", text)


@pytest.mark.parametrize("text", [CSV, '{"fairway_trace": 1}\n', "[]", samples.PHILLY.split("\n")[0]])
def test_a_file_without_jobs_is_refused(tmp_path: Path, text: str) -> None:
    assert failure(tmp_path / "t", text) == f"{tmp_path / 't'}: no jobs"


def test_a_file_in_which_all_is_skipped_says_why(tmp_path: Path) -> None:
    message = failure(tmp_path / "t", "".join(samples.ALIBABA.splitlines(keepends=True)[i] for i in (0, 2)))
    assert message.endswith("no jobs (skipped: 1 no GPU)")


def test_unknown_columns_list_what_was_seen_and_what_is_known(tmp_path: Path) -> None:
    message = failure(tmp_path / "t", "when,who,what\n1,2,3\n")
    assert message.startswith(f"{tmp_path / 't'}:1: ")
    assert "when, who, what" in message
    assert all(name in message for name in FORMATS)


def test_columns_of_two_formats_are_ambiguous(tmp_path: Path) -> None:
    text = "job_id,num_gpu,submit_time,duration,ddl,iteration_time,resource_time_0\n1,1,0,5,9,1,1\n"
    assert "more than one format (muri, elasticflow)" in failure(tmp_path / "t", text)
    assert len(read_trace(tmp_path / "t", format="muri")) == 1


def test_tabs_of_another_width_are_refused(tmp_path: Path) -> None:
    assert "11 tab-separated columns" in failure(tmp_path / "t", "\t".join("abcdefghijk"))


def test_an_unknown_format_name_lists_the_known_ones(tmp_path: Path) -> None:
    message = failure(tmp_path / "t", samples.PHILLY, format="excel")
    assert message.startswith("unknown trace format 'excel'; known: fairway, gavel")


def test_a_format_that_does_not_fit_names_the_missing_column(tmp_path: Path) -> None:
    assert "column timestamp, num_gpus is missing" in failure(tmp_path / "t", samples.TIRESIAS, format="philly")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("JobID|Submit|ReqTRES\n1|2024-01-01T00:00:00|gres/gpu=1\n", "no run time"),
        ("JobID|Submit|Elapsed\n1|2024-01-01T00:00:00|00:10\n", "no GPU count"),
    ],
)
def test_sacct_says_which_field_to_ask_for(tmp_path: Path, text: str, what: str) -> None:
    assert what in failure(tmp_path / "t", text)


def test_a_missing_file_and_a_binary_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "absent")
    (tmp_path / "b").write_bytes(b"a\nb\0c")
    with pytest.raises(InputError, match=r"b:2: this is a binary file"):
        read_trace(tmp_path / "b")


@pytest.mark.parametrize("name", samples.SAMPLES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_but_never_crashes(tmp_path: Path, name: str, data: st.DataObject) -> None:
    text = samples.SAMPLES[name]
    at = data.draw(st.integers(0, len(text) - 1))
    junk = data.draw(
        st.sampled_from(["", "-", "\t", ",", "|", "\n", '"', "1e999", "nan", "x", "9" * 30, "\u2028", "٣"])
    )
    keep = data.draw(st.integers(0, 3))
    path = tmp_path / "damaged"
    path.write_text(text[:at] + junk + text[at + keep :], newline="")
    with suppress(InputError):
        assert len(read_trace(path)) > 0


@pytest.mark.parametrize("name", [name for name in samples.SAMPLES if name not in ("philly-json", "fairway")])
def test_a_last_row_cut_at_a_column_is_refused(tmp_path: Path, name: str) -> None:
    text = samples.SAMPLES[name].rstrip("\n")
    separator = "\t" if name in ("gavel", "shockwave") else "|" if name == "sacct" else ","
    message = failure(tmp_path / "t", text[: text.rindex(separator)])
    assert message.startswith(f"{tmp_path / 't'}:{text.count(chr(10)) + 1}: expected ")


def test_the_philly_log_must_be_a_list_of_sound_json(tmp_path: Path) -> None:
    assert "expected a JSON list" in failure(tmp_path / "t", "{}", format="philly-json")
    assert "too long" in failure(tmp_path / "t", f"[{'9' * 5000}]")


def test_writing_fails_in_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(samples.PHILLY)
    workload = read_trace(tmp_path / "t")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(workload, tmp_path / "absent" / "t.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(workload, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("job_id,num_gpu,submit_time,duration\n1,1,1e17,10\n", 2, "submit time 1e+17"),
        ("job_id,num_gpu,submit_time,duration\n1,1,0,1e300\n", 2, "duration 1e+300"),
        ("timestamp,duration,num_gpus,gpu_time,cluster\n0001-01-01T00:00:00+14:00,1,1,1,a\n", 2, "time"),
        ("JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-01-01T00:00:00|60|gres/gpu=x\n", 2, "is not a count of GPUs"),
        ("JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-01-01T00:00:00|60|gres/gpu=1000000000000\n", 2, "1000000 GPUs"),
    ],
)
def test_what_no_log_can_mean_is_refused(tmp_path: Path, text: str, line: int, what: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert what in str(caught.value)
