"""`fairway lab forecast` compares the rules on a trace, shows one job, draws, and explains bad input in one line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_samples import Shell

RULES = ["restatement", "bayes", "reactive", "agnostic"]
JOBS = [
    {
        "id": "grows",
        "submitted_s": 0,
        "gpus": 1,
        "duration_s": 1000,
        "adaptation": "schedule",
        "regimes": [{"until": 0.3, "batch_size": 512, "speed": 0.5}, {"until": 1.0, "batch_size": 4096, "speed": 1.0}],
    },
    {"id": "constant", "submitted_s": 5, "gpus": 2, "duration_s": 500},
]


@pytest.fixture
def trace(shell: Shell) -> str:
    return shell.write("jobs.jsonl", "".join(json.dumps(job) + "\n" for job in JOBS))


def test_the_table_has_every_rule_and_group(shell: Shell, trace: str) -> None:
    call = shell("lab", "forecast", trace)
    assert (call.code, call.err) == (0, "")
    assert all(name in call.out for name in (*RULES, "all 2 · changing 1 · schedule 1"))


def test_json_has_scores_and_curves(shell: Shell, trace: str) -> None:
    document = json.loads(shell("lab", "forecast", trace, "--points", "13", "--json", "-").out)
    assert list(document["groups"]["changing"]) == list(document["curves"]) == RULES
    # 300 work at half speed take 600 s, the rest 700 s: 1,300 s, of which even parts would take 1,500 s.
    assert document["curves"]["restatement"][0] == pytest.approx(200 / 1300)
    assert document["curves"]["reactive"][0] == pytest.approx(700 / 1300)
    assert document["curves"]["restatement"][6:] == pytest.approx([0] * 7, abs=1e-9)
    assert document["groups"]["all"]["restatement"]["jobs"] == 2
    only = json.loads(shell("lab", "forecast", trace, "--jobs", "constant", "--json", "-").out)
    assert (only["curve_of"], only["groups"]["all"]["agnostic"]["jobs"]) == ("all", 1)


def test_one_job_shows_its_stages_and_forecasts(shell: Shell, trace: str) -> None:
    call = shell("lab", "forecast", trace, "--job", "grows")
    assert call.code == 0
    assert "512 (30.0 epochs of 20.0 s) → 4096 (70.0 epochs of 10.0 s)" in call.out
    assert "21 min 40 s" in call.out
    document = json.loads(shell("lab", "forecast", trace, "--job", "grows", "--points", "13", "--json", "-").out)
    assert document["remaining_s"][6] == pytest.approx(700)
    assert document["forecasts"]["restatement"]["remaining_s"][6] == pytest.approx(700)
    assert document["forecasts"]["reactive"]["remaining_s"][0] == pytest.approx(2000)


@pytest.mark.parametrize(("more", "lines"), [((), 4), (("--job", "grows"), 5)])
def test_the_picture_has_a_line_and_a_name_for_each_rule(
    shell: Shell, trace: str, more: tuple[str, ...], lines: int
) -> None:
    out = shell.path("errors.svg")
    assert "wrote" in shell("lab", "forecast", trace, "--plot", out, *more).out
    root = ET.fromstring(Path(out).read_text())
    texts = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert set(RULES) <= set(texts)
    assert sum(each.get("fill") == "none" for each in root.iter() if each.tag.endswith("path")) == lines


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--job", "nobody"), "there is no job 'nobody'"),
        (("--jobs", "grows,nobody"), "there is no job 'nobody'"),
        (("--points", "0"), "--points must be from 1"),
        (("--job", "grows", "--jobs", "grows"), "exclude one another"),
        (("--plot", "-"), "--plot cannot go to the standard output"),
        (("--cluster", "v100:1", "--jobs", "constant"), "no job can run on v100:1"),
        (("--profile", "missing.json"), "missing.json"),
    ],
)
def test_bad_input_is_one_line(shell: Shell, trace: str, more: tuple[str, ...], complaint: str) -> None:
    call = shell("lab", "forecast", trace, *more)
    assert (call.code, call.out) == (2, "")
    assert len(call.err_lines) == 1
    assert complaint in call.err


def test_jobs_that_cannot_run_are_left_out_and_counted(shell: Shell, trace: str) -> None:
    call = shell("lab", "forecast", trace, "--cluster", "v100:1")
    assert call.code == 0
    assert "1 job left out" in call.err
