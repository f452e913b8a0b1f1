"""Every command does what its help says."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_samples import VOLATILE, Shell

from fairway import __version__
from fairway.cli.output import count, duration
from fairway.policies import policies
from fairway.report import load_result
from fairway.simulator.rules import RULES
from fairway.traces import read_trace

EXAMPLES = Path(__file__).parents[3] / "examples"
SCHEMA_KEYS = {
    *("schema", "fairway", "policy", "knows", "trace", "cluster", "gpus", "rules", "placement", "profile", "round_s"),
    *("restart_cost_s", "replan_interval_s", "seed", "jobs", "finished", "skipped", "skipped_by_reason", "makespan_s"),
    *("feedback_s", "throughput"),
    "jct_weighted_s",
    *("jct_s", "queue_s", "utilisation", "preemptions", "restarts", "lost_gpu_h", "cost", "deadline_misses", "jain"),
    *("ftf", "per_user", "per_queue", "rounds", "decide_cpu_s", "cpu_s", "wall_s", "peak_rss_bytes", "per_job"),
    *("series", "gantt"),
}


def stable(path: str) -> dict[str, Any]:
    return {key: value for key, value in load_result(path).items() if key not in VOLATILE}


def test_simulate_prints_a_summary_in_human_units(shell: Shell) -> None:
    call = shell.simulate()
    assert call.code == 0
    assert call.err == ""
    assert "5 of 5 finished" in call.out
    assert "makespan" in call.out
    assert "\x1b" not in call.out


def test_simulate_writes_a_result_of_the_documented_schema(shell: Shell) -> None:
    call = shell.simulate("--json", shell.path("out.json"))
    assert call.code == 0
    result = load_result(shell.path("out.json"))
    assert set(result) == SCHEMA_KEYS
    assert result["schema"] == "fairway.result/1"
    assert (result["jobs"], result["finished"], result["skipped"]) == (5, 5, 0)
    assert len(result["per_job"]) == 5
    assert shell.files() == {"jobs.csv", "out.json"}


def test_every_key_of_the_result_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    assert [key for key in SCHEMA_KEYS if f"`{key}" not in text] == []


def test_json_on_stdout_is_alone_there(shell: Shell) -> None:
    call = shell.simulate("--json", "-")
    assert call.code == 0
    assert set(json.loads(call.out)) == SCHEMA_KEYS


def test_the_same_seed_gives_the_same_result(shell: Shell) -> None:
    for name in ("a.json", "b.json"):
        more = ("--mtbf-hours", "0.05", "--repair-hours", "0.01", "--seed", "3")
        assert shell.simulate(*more, "--json", shell.path(name), cluster="v100:4x2").code == 0
    assert stable(shell.path("a.json")) == stable(shell.path("b.json"))


def test_options_reach_the_simulator(shell: Shell) -> None:
    options = ("--rules", "tiresias", "--round", "60", "--restart-cost", "5", "--replan-interval", "9")
    assert shell.simulate(*options, "--placement", "count", "--seed", "7", "--json", shell.path("out.json")).code == 0
    result = load_result(shell.path("out.json"))
    assert [
        result[key] for key in ("rules", "round_s", "restart_cost_s", "replan_interval_s", "placement", "seed")
    ] == [*("tiresias", 60, 5, 9, "count", 7)]


def test_a_timeline_opens_as_json(shell: Shell) -> None:
    assert shell.simulate("--timeline", shell.path("t.json")).code == 0
    events = json.loads(Path(shell.path("t.json")).read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} == set("01234")


def test_skipped_jobs_are_counted_in_the_table_and_on_stderr(shell: Shell) -> None:
    call = shell.simulate("--skip-impossible", cluster="v100:1x2")
    assert call.code == 0
    assert "2 skipped (2 impossible on this cluster)" in call.out
    assert call.err_lines == ["fairway: warning: 2 of 5 jobs skipped: 2 impossible on this cluster"]


def test_jobs_that_never_finish_are_counted(shell: Shell) -> None:
    faults = shell.write("faults.csv", "time_s,node,down_s\n60,v100-0,inf\n")
    call = shell.simulate("--faults", faults)
    assert call.code == 0
    assert "5 of 5 jobs did not finish" in call.err or "did not finish" in call.err


def test_planned_failures_are_given_by_name_or_number(shell: Shell) -> None:
    for node in ("v100-1", "1"):
        faults = shell.write(f"{node}.csv", f"time_s,node,down_s\n5,{node},1000\n")
        assert shell.simulate("--faults", faults, "--json", shell.path(f"{node}.json"), cluster="v100:2x4").code == 0
    assert stable(shell.path("v100-1.json")) == stable(shell.path("1.json"))


def test_rules_that_are_incomplete_say_so(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    call = shell.simulate("--rules", "gavel")
    assert call.code == 0
    assert call.err_lines == []
    monkeypatch.setitem(RULES, "gavel", replace(RULES["gavel"], unmodelled=("the weather", "the moon")))
    call = shell.simulate("--rules", "gavel")
    assert call.code == 0
    assert call.err_lines == ["fairway: note: the gavel rules do not model yet: the weather, the moon"]


def test_estimated_throughputs_are_called_estimates(shell: Shell) -> None:
    line = '{"id": "a", "submitted_s": 0, "steps": 1000, "model": "ResNet-50", "batch_size": 64}\n'
    call = shell("simulate", shell.write("steps.jsonl", line), "--cluster", "v100:1x1", "--policy", "fifo")
    assert call.code == 0
    assert "throughputs are estimates" in call.err


def test_compare_runs_all_policies_and_writes_what_was_asked_for(shell: Shell) -> None:
    outputs = {option: shell.path(f"out.{option[2:]}") for option in ("--html", "--csv", "--json")}
    call = shell.compare(*(text for pair in outputs.items() for text in pair))
    assert (call.code, call.err) == (0, "")
    assert all(name in call.out for name in policies())
    assert Path(outputs["--html"]).read_text().startswith("<!")
    rows = list(csv.DictReader(Path(outputs["--csv"]).read_text().splitlines()))
    assert [row["policy"] for row in rows] == list(policies())
    document = json.loads(Path(outputs["--json"]).read_text())
    assert document["schema"] == "fairway.comparison/1"
    assert [result["policy"] for result in document["results"]] == list(policies())


def test_compare_is_the_same_in_one_process_and_in_many(shell: Shell) -> None:
    documents = []
    for processes in ("1", "3"):
        more = ("--policy", "fifo", "--policy", "las", "--seeds", "2", "--mtbf-hours", "0.1", "--repair-hours", "0.01")
        call = shell.compare(*more, "--jobs", processes, "--json", "-", cluster="v100:2x4")
        assert (call.code, call.err) == (0, "")
        results = json.loads(call.out)["results"]
        documents.append([{k: v for k, v in each.items() if k not in VOLATILE} for each in results])
    assert documents[0] == documents[1]
    assert [(each["policy"], each["seed"]) for each in documents[0]] == [
        ("fifo", 0),
        ("fifo", 1),
        ("las", 0),
        ("las", 1),
    ]


def test_compare_sorts_by_mean_completion_time(shell: Shell) -> None:
    call = shell.compare("--policy", "fifo", "--policy", "srtf")
    lines = [line.split()[0] for line in call.out.splitlines() if line.strip()]
    assert lines.index("srtf") < lines.index("fifo")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_plugin_is_known_in_every_process(shell: Shell, processes: str) -> None:
    plugin = str(EXAMPLES / "my_policy.py")
    call = shell.compare("--plugin", plugin, "--policy", "largest", "--policy", "fifo", "--jobs", processes)
    assert (call.code, call.err) == (0, "")
    assert "largest" in call.out
    assert "largest" in shell("policies", "--plugin", plugin).out


def test_policies_are_listed_with_knowledge_and_knobs(shell: Shell) -> None:
    table = shell("policies").out
    assert "levels=3600/36000" in table
    listed = {each["name"]: each for each in json.loads(shell("policies", "--json").out)}
    assert set(listed) >= {"fifo", "backfill", "sjf", "smallest", "srtf", "srsf", "las", "proportional"}
    assert listed["srtf"]["oracle"] == ["duration"]
    assert listed["las"]["knobs"]["metric"] == "gpu_time"


def test_trace_describe(shell: Shell) -> None:
    assert "tiresias" in shell("trace", "describe", shell.trace).out
    figures = json.loads(shell("trace", "describe", shell.trace, "--json", "--format", "tiresias").out)
    assert (figures["jobs"], figures["gpus"]) == (5, {"1": 2, "2": 1, "4": 2})


def test_trace_convert_keeps_every_job(shell: Shell) -> None:
    assert shell("trace", "convert", shell.trace, shell.path("jobs.jsonl")).code == 0
    assert read_trace(shell.path("jobs.jsonl")).jobs == read_trace(shell.trace).jobs
    assert shell("trace", "convert", shell.trace, "-").out == Path(shell.path("jobs.jsonl")).read_text()


def test_trace_generate_is_seeded(shell: Shell) -> None:
    options = ("--jobs", "7", "--seed", "3", "--set", "gpus=16")
    assert shell("trace", "generate", "philly-like", *options, "-o", shell.path("a.jsonl")).code == 0
    first = shell("trace", "generate", "philly-like", *options, "-o", "-").out
    assert Path(shell.path("a.jsonl")).read_text() == first
    assert len(first.splitlines()) == 8
    assert first != shell("trace", "generate", "philly-like", "--jobs", "7", "-o", "-").out


def test_trace_formats(shell: Shell) -> None:
    out = shell("trace", "formats").out
    assert [line.split()[0] for line in out.splitlines()][:2] == ["fairway", "gavel"]


def test_report_from_results(shell: Shell) -> None:
    for policy in ("fifo", "srtf"):
        shell.simulate("--json", shell.path(f"{policy}.json"), policy=policy)
    results = [shell.path("fifo.json"), shell.path("srtf.json")]
    call = shell("report", *results, "--html", shell.path("r.html"), "--csv", shell.path("r.csv"))
    assert (call.code, call.err) == (0, "")
    assert len(Path(shell.path("r.csv")).read_text().splitlines()) == 3
    assert "srtf" in Path(shell.path("r.html")).read_text()


def test_demo_makes_everything_and_says_where(shell: Shell) -> None:
    out = shell.path("demo")
    call = shell("demo", "--jobs", "60", "--out", out)
    assert (call.code, call.err) == (0, "")
    assert f"{out}/report.html" in call.out
    assert {"demo/report.html", "demo/results.csv", "demo/trace.jsonl"} <= shell.files()
    assert any(name.endswith(".perfetto.json") for name in shell.files())


@pytest.mark.parametrize("argv", [(), ("--help",), ("simulate", "--help"), ("trace",), ("trace", "generate", "--help")])
def test_help_goes_to_stdout(shell: Shell, argv: tuple[str, ...]) -> None:
    call = shell(*argv)
    assert (call.code, call.err) == (0, "")
    assert call.out.startswith("Usage: fairway")


def test_version(shell: Shell) -> None:
    assert shell("--version").out == f"fairway {__version__}\n"


def test_the_examples_run(shell: Shell) -> None:
    options = ("--cluster", str(EXAMPLES / "cluster.toml"), "--faults", str(EXAMPLES / "faults.csv"))
    call = shell("simulate", str(EXAMPLES / "jobs.jsonl"), *options, "--policy", "las")
    assert (call.code, call.err) == (0, "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.04, "0.0 s"), (59.96, "1 min"), (3599.9, "1 h"), (11_100, "3 h 5 min"), (187_200, "2 d 4 h")],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counts_read_well() -> None:
    assert (count(1, "job"), count(2000, "job")) == ("1 job", "2,000 jobs")


def test_trace_generate_counts_steps_on_a_gpu_type(shell: Shell) -> None:
    options = ("trace", "generate", "shockwave-like", "--jobs", "6")
    assert shell(*options, "--gpu-type", "v100", "-o", shell.path("steps.jsonl")).code == 0
    jobs = read_trace(shell.path("steps.jsonl")).jobs
    assert all(job.steps and job.duration_s is None and not job.regimes for job in jobs)
    refused = shell("trace", "generate", "philly-like", "--gpu-type", "v100", "-o", shell.path("x.jsonl"))
    assert (refused.code, "takes no profile" in refused.err) == (2, True)
