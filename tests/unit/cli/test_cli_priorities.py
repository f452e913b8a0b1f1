"""`--priorities on|off`: on under native rules, off under published ones, and only where jobs differ."""

from __future__ import annotations

import json

import pytest
from cli_samples import Shell

JOBS = """{"fairway_trace": 1}
{"id": "low", "submitted_s": 0, "gpus": 4, "duration_s": 1000}
{"id": "high", "submitted_s": 100, "gpus": 4, "duration_s": 100, "priority": 3}
"""


def _finished(shell: Shell, *options: str, jobs: str = JOBS) -> tuple[bool, list[float]]:
    trace = shell.write("jobs.jsonl", jobs)
    call = shell("simulate", trace, "--cluster", "v100:1x4", "--policy", "fifo", *options, "--json", "-")
    assert call.code == 0, call.err
    result = json.loads(call.out)
    return result.get("priorities", False), [record["finished_s"] for record in result["per_job"]]


@pytest.mark.parametrize("options", [(), ("--priorities", "on")])
def test_higher_priorities_go_first_under_native_rules(shell: Shell, options: tuple[str, ...]) -> None:
    assert _finished(shell, *options) == (True, [1130.0, 200.0])


@pytest.mark.parametrize("options", [("--priorities", "off"), ("--rules", "tiresias")])
def test_but_not_where_that_is_off(shell: Shell, options: tuple[str, ...]) -> None:
    assert _finished(shell, *options) == (False, [1000.0, 1100.0])


def test_published_rules_can_be_told_to(shell: Shell) -> None:
    assert _finished(shell, "--rules", "tiresias", "--priorities", "on") == (True, [1100.0, 200.0])


def test_a_trace_of_one_priority_says_nothing_of_it(shell: Shell) -> None:
    assert _finished(shell, jobs=JOBS.replace(', "priority": 3', "")) == (False, [1000.0, 1100.0])


def test_compare_takes_it_too(shell: Shell) -> None:
    trace = shell.write("jobs.jsonl", JOBS)
    about = ("--cluster", "v100:1x4", "--policy", "fifo", "--policy", "las", "--jobs", "1", "--json", "-")
    for word in ("on", "off"):
        call = shell("compare", trace, *about, "--priorities", word)
        assert [each.get("priorities", False) for each in json.loads(call.out)["results"]] == [word == "on"] * 2


def test_another_word_is_refused(shell: Shell) -> None:
    trace = shell.write("jobs.jsonl", JOBS)
    call = shell("simulate", trace, "--cluster", "v100:1x4", "--policy", "fifo", "--priorities", "perhaps")
    assert call.code == 2
    assert call.err_lines == ["fairway: error: --priorities must be on or off, not 'perhaps'"]
