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


SUSPENDS = "way,gigabytes,out_s,back_s\nmoved,10,0.5,0.4\n"


def test_suspended_jobs_come_back_in_ways_that_are_counted(shell: Shell) -> None:
    table, out = shell.write("suspends.csv", SUSPENDS), shell.path("out.json")
    words = ("--switching", f"suspend:{table}", "--host-memory", "64G", "--min-run", "0", "--json", out)
    call = shell.simulate(*words, policy="srtf")
    assert call.code == 0, call.err
    assert "came back" in call.out
    result = json.loads(Path(out).read_text())
    assert result["host_memory_bytes"] == 64 * 2**30
    assert set(result["switching_ways"]) == {"in_place", "moved", "both", "driver", "restart"}
    assert sum(way["times"] for way in result["switching_ways"].values()) > 0
    assert shell("report", out, "--html", shell.path("page.html")).code == 0


def test_host_memory_is_for_suspended_jobs(shell: Shell) -> None:
    for words, told in (
        (("--host-memory", "64G"), "--host-memory needs --switching suspend or pinned"),
        (("--host-memory", "64G", "--switching", "5ms"), "only suspended jobs are kept in host memory"),
        (("--host-memory", "lots", "--switching", "pinned"), "'lots' is not a size"),
        (("--switching", f"suspend:{shell.path('none.csv')}"), "cannot be read"),
    ):
        call = shell.simulate(*words)
        assert (call.code, len(call.err_lines)) == (2, 1)
        assert told in call.err
