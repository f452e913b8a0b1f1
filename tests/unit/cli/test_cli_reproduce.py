"""`fairway reproduce`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

from cli_samples import Shell


def test_a_case_is_run_and_judged(shell: Shell) -> None:
    call = shell("reproduce", "tiresias-example", "--quick", "--json", shell.path("out.json"))
    assert (call.code, call.err) == (0, "")
    assert "9.33" in call.out
    assert "5 met · 0 better · 0 not reached" in call.out
    told = json.loads(Path(shell.path("out.json")).read_text())
    assert (told["schema"], told["quick"]) == ("fairway.reproduction/1", True)
    assert [case["state"] for case in told["cases"]] == ["ran"]


def test_without_data_it_says_what_to_fetch_and_where(shell: Shell) -> None:
    call = shell("reproduce", "tiresias-60jobs")
    assert call.code == 0
    assert "simulator/60_job.csv of SymbioticLab/Tiresias as tiresias/60_job.csv" in call.out
    assert "1 case needs published files" in call.out


def test_everything_can_go_to_the_standard_output(shell: Shell) -> None:
    call = shell("reproduce", "slaq-example", "antman-example", "--jobs", "1", "--json", "-")
    assert [case["name"] for case in json.loads(call.out)["cases"]] == ["antman-example", "slaq-example"]


def test_the_page_shows_every_case(shell: Shell) -> None:
    call = shell("reproduce", "themis-example", "salus", "--html", shell.path("out.html"))
    page = Path(shell.path("out.html")).read_text()
    assert call.code == 0
    assert "auctions by hand" in page
    assert "needs a GPU: benchmarks/gpu_share.py" in page


def test_the_cases_are_listed_with_what_they_take(shell: Shell) -> None:
    call = shell("reproduce", "tiresias", "--list")
    assert "tiresias-philly" in call.out
    assert "needs data" in call.out


def test_bad_input_is_one_line(shell: Shell) -> None:
    for more, said in (
        (("tirsias",), "did you mean 'Tiresias'?"),
        (("--data", shell.path("nowhere")), "there is no such directory"),
        (("--docs", str(shell.folder), "--quick"), "exclude each other"),
        (("slaq-example", "--docs", str(shell.folder)), "there is no policies in it"),
        (("--jobs", "0"), "--jobs must be at least 1"),
        (("--html", shell.path("no/where.html")), "there is no directory"),
    ):
        call = shell("reproduce", *more)
        assert call.code == 2
        assert len(call.err_lines) == 1
        assert said in call.err
