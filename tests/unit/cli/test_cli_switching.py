"""`--switching` and `--min-run` on the command line: what is shown, written and compared."""

from __future__ import annotations

import json
from pathlib import Path

from cli_samples import Shell

TABLE = "model,restart_ms,pipelined_ms,resident_ms\nvgg19,4000,20,10\n"


def test_the_summary_says_how_gpus_were_switched_and_what_it_cost(shell: Shell) -> None:
    call = shell.simulate("--switching", "restart")
    assert call.code == 0
    assert "switching restart" in call.out
    assert "of GPU time lost" in call.out
    assert "switch" not in shell.simulate().out


def test_a_measured_table_takes_the_place_of_the_posters(shell: Shell) -> None:
    table, out = shell.write("times.csv", TABLE), shell.path("out.json")
    assert shell.simulate("--switching", f"restart:{table}", "--min-run", "0", "--json", out).code == 0
    result = json.loads(Path(out).read_text())
    assert (result["restart_cost_s"], result["min_run_s"], result["switching"]) == (4.0, 0.0, f"restart:{table}")
    assert result["switches"] > 0
    assert result["switching_gpu_h"] > 0


def test_the_table_is_an_input_that_no_output_overwrites(shell: Shell) -> None:
    table = shell.write("times.csv", TABLE)
    call = shell.simulate("--switching", f"resident:{table}", "--json", table)
    assert (call.code, len(call.err_lines)) == (2, 1)
    assert "the same file is an input" in call.err
    assert Path(table).read_text() == TABLE


def test_compare_simulates_all_policies_under_one_switching(shell: Shell) -> None:
    out = shell.path("out.json")
    argv = ("--cluster", "v100:1x4", "--policy", "fifo", "--policy", "srtf", "--switching", "5ms", "--json", out)
    assert shell("compare", shell.trace, *argv).code == 0
    results = json.loads(Path(out).read_text())["results"]
    assert [(each["switching"], each["restart_cost_s"]) for each in results] == [("5ms", 0.005)] * 2


def test_a_report_tells_runs_apart_by_their_switching(shell: Shell) -> None:
    names = [shell.path(f"{how}.json") for how in ("5s", "restart")]
    for how, name in zip(("5s", "restart"), names, strict=True):
        assert shell.simulate("--switching", how, "--json", name).code == 0
    page = shell.path("page.html")
    assert shell("report", *names, "--html", page).code == 0
    text = Path(page).read_text()
    assert "<dt>switching</dt><dd>5s, restart</dd>" in text
    assert "(switching restart)" in text
