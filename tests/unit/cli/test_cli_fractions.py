"""`--fractions on|off`: on under native rules, off under published ones, and only where jobs ask for shares."""

from __future__ import annotations

import json

import pytest
from cli_samples import Shell

JOBS = """{"fairway_trace": 1}
{"id": "a", "submitted_s": 0, "gpus": 1, "duration_s": 100, "gpu_share": 0.5}
{"id": "b", "submitted_s": 0, "gpus": 1, "duration_s": 100, "gpu_share": 0.5}
"""
PODS = """name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time
a,1,460,0,100,0
b,1,540,0,100,0
c,1,1000,0,100,0
"""


def _finished(shell: Shell, *options: str, jobs: str = JOBS, name: str = "jobs.jsonl") -> tuple[bool, list[float]]:
    trace = shell.write(name, jobs)
    call = shell("simulate", trace, "--cluster", "v100:1x1", "--policy", "fifo", *options, "--json", "-")
    assert call.code == 0, call.err
    result = json.loads(call.out)
    return result.get("fractions", False), [record["finished_s"] for record in result["per_job"]]


@pytest.mark.parametrize("options", [(), ("--fractions", "on")])
def test_jobs_share_gpus_under_native_rules(shell: Shell, options: tuple[str, ...]) -> None:
    assert _finished(shell, *options) == (True, [100.0, 100.0])


@pytest.mark.parametrize("options", [("--fractions", "off"), ("--rules", "tiresias")])
def test_but_not_where_that_is_off(shell: Shell, options: tuple[str, ...]) -> None:
    assert _finished(shell, *options) == (False, [100.0, 200.0])


def test_pods_of_alibaba_share_gpus(shell: Shell) -> None:
    assert _finished(shell, jobs=PODS, name="pods.csv") == (True, [100.0, 100.0, 200.0])


def test_another_word_is_refused(shell: Shell) -> None:
    call = shell(
        "simulate", shell.write("jobs.jsonl", JOBS), "--cluster", "v100:1", "--policy", "fifo", "--fractions", "maybe"
    )
    assert call.code != 0
    assert "--fractions must be on or off, not 'maybe'" in call.err
