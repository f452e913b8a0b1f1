"""`--tenants FILE`: virtual clusters on the command line, and one line for everything that can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_samples import Shell

from fairway import InputError, read_trace, simulate
from fairway.core.tenant import CellSpec, TenantSpec
from fairway.traces.tenants import read_tenants

JOBS = """{"fairway_trace": 1}
{"id": "a0", "submitted_s": 0, "gpus": 4, "duration_s": 100, "queue": "vision"}
{"id": "a1", "submitted_s": 5, "gpus": 4, "duration_s": 100, "queue": "vision"}
{"id": "b0", "submitted_s": 10, "gpus": 2, "duration_s": 100, "queue": "other", "user": "ann"}
{"id": "x0", "submitted_s": 0, "gpus": 4, "duration_s": 500, "queue": "nobody"}
"""
TENANTS = """# two tenants
[tenants.vision]
cells = ["1x4"]

[tenants.speech]
cells = ["1x4"]
queues = ["speech"]
users = ["ann"]
"""
WRONG: dict[str, tuple[str, str]] = {
    "not TOML": ("[tenants.vision\n", "t.toml:1: this is not valid TOML"),
    "unknown key": ('[tenant.vision]\ncells = ["1x4"]\n', "unknown key 'tenant'; known: tenants"),
    "unknown key of a tenant": ('[tenants.a]\ncell = ["1x4"]\n', "tenants.a: unknown key 'cell'; known: cells,"),
    "no tenants": ("tenants = {}\n", "there are no tenants"),
    "no table": ("[tenants]\na = 1\n", "tenants.a is not a table"),
    "no cells": ('[tenants.a]\nqueues = ["a"]\n', "tenant 'a' reserves no cells"),
    "cells no list": ('[tenants.a]\ncells = "1x4"\n', "cells '1x4' is not a list of one or more texts"),
    "cells numbers": ("[tenants.a]\ncells = [4]\n", "cells [4] is not a list of one or more texts"),
    "malformed cells": ('[tenants.a]\ncells = ["four"]\n', "tenants.a: cells: 'four' is not COUNTxGPUS"),
    "unknown type": ('[tenants.a]\ncells = ["k80:1x4"]\n', "tenant 'a': the cluster has no k80; it has v100"),
    "no such cell": ('[tenants.a]\ncells = ["1x3"]\n', "no cells of 3 GPUs; they split into 4, 2, 1"),
    "infeasible": ('[tenants.a]\ncells = ["3x4"]\n', "1 of its 3 cells of 4 v100 GPUs cannot be reserved"),
    "queue claimed twice": (
        '[tenants.a]\ncells = ["1x4"]\n[tenants.b]\ncells = ["1x4"]\nqueues = ["a"]\n',
        "queue 'a' is claimed by two tenants, 'a' and 'b'",
    ),
    "empty": ("", "the file is empty"),
    "no name": ('[tenants.""]\ncells = ["1x4"]\n', "a tenant has no name"),
}


def written(shell: Shell, tenants: str = TENANTS) -> tuple[str, ...]:
    trace, path = shell.write("jobs.jsonl", JOBS), shell.write("t.toml", tenants)
    return ("simulate", trace, "--cluster", "v100:2x4", "--policy", "fifo", "--tenants", path)


def test_a_run_with_tenants_says_so_and_keeps_their_promise(shell: Shell) -> None:
    call = shell(*written(shell), "--json", shell.path("out.json"))
    assert (call.code, call.err) == (0, "")
    assert f"tenants of {shell.path('t.toml')}" in call.out
    result = json.loads(Path(shell.path("out.json")).read_text())
    assert result["tenants"] == shell.path("t.toml")
    started = {record["id"]: record["started_s"] for record in result["per_job"]}
    assert started == {"a0": 0.0, "a1": 100.0, "b0": 10.0, "x0": 0.0}


def test_the_same_from_python(shell: Shell) -> None:
    written(shell)
    trace = read_trace(shell.path("jobs.jsonl"))
    from_file = simulate(trace, cluster="v100:2x4", policy="fifo", tenants=shell.path("t.toml"))
    specs = [TenantSpec.of("vision", "1x4"), TenantSpec.of("speech", "1x4", users=("ann",))]
    given = simulate(trace, cluster="v100:2x4", policy="fifo", tenants=specs)
    assert from_file.finished_s.tolist() == given.finished_s.tolist()
    assert (from_file.settings.tenants, given.settings.tenants) == (shell.path("t.toml"), "vision, speech")


def test_without_tenants_the_result_does_not_speak_of_them(shell: Shell) -> None:
    call = shell.simulate("--json", "-")
    assert "tenants" not in json.loads(call.out)


def test_compare_takes_tenants_too(shell: Shell) -> None:
    trace, path = shell.write("jobs.jsonl", JOBS), shell.write("t.toml", TENANTS)
    policies = ("--policy", "fifo", "--policy", "las")
    call = shell("compare", trace, "--cluster", "v100:2x4", *policies, "--tenants", path, "--jobs", "1", "--json", "-")
    assert call.code == 0
    assert [each["tenants"] for each in json.loads(call.out)["results"]] == [path, path]


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_one_line(shell: Shell, case: str) -> None:
    text, message = WRONG[case]
    call = shell(*written(shell, text), "--json", shell.path("out.json"))
    assert call.code == 2
    assert len(call.err_lines) == 1
    assert message in call.err
    assert shell.path("t.toml") in call.err
    assert "out.json" not in shell.files()


def test_a_missing_file_and_an_output_over_it_are_errors(shell: Shell) -> None:
    *command, path = written(shell)
    assert "no.toml: cannot be read" in shell(*command, shell.path("no.toml")).err
    assert "the same file is an input" in shell(*command, path, "--json", path).err


def test_a_job_that_its_tenant_can_never_hold_is_an_error_that_names_its_line(shell: Shell) -> None:
    small = written(shell, '[tenants.vision]\ncells = ["1x2"]\n')
    call = shell(*small)
    assert call.code == 2
    assert "jobs.jsonl:2: job 'a0' can never run: its gang of 4 GPUs is larger than the 2 that tenant" in call.err
    assert "2 skipped" in shell(*small, "--skip-impossible").out


def test_the_reader_gives_plain_values(shell: Shell) -> None:
    assert read_tenants(shell.write("t.toml", TENANTS)) == (
        TenantSpec("vision", (CellSpec(1, 4),), ("vision",)),
        TenantSpec("speech", (CellSpec(1, 4),), ("speech",), ("ann",)),
    )
    with pytest.raises(InputError, match="queues"):
        read_tenants(shell.write("t.toml", '[tenants.a]\ncells = ["1"]\nqueues = []\n'))


def test_a_tenant_without_jobs_is_pointed_out(shell: Shell) -> None:
    call = shell(*written(shell, '[tenants.visoin]\ncells = ["1x4"]\n'))
    assert call.code == 0
    assert "tenant 'visoin' has no jobs in this trace; queues there: nobody, other, vision" in call.err


def test_no_file_of_tenants_is_one_line(shell: Shell) -> None:
    call = shell(*written(shell)[:-1], "")
    assert (call.code, call.err) == (2, "fairway: error: --tenants names no file\n")
