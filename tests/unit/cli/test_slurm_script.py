"""`fairway slurm-script`: what the pilot asks Slurm for, that it is a correct script, and every wrong input."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from cli_samples import Shell

from fairway.cli.slurm_script import PilotOptions


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def assigned(text: str) -> dict[str, str]:
    """The values that the script sets first, as bash reads them."""
    head, mark, _ = text.partition("\nset -u\n")
    assert mark
    names = ("jobs", "state", "python", "again")
    shown = "".join(f'printf "%s\\0" "${name}"\n' for name in names) + 'printf "%s\\0" "${up[@]}"\n'
    told = subprocess.run(["bash", "-c", f"{head}\n{shown}"], capture_output=True, text=True, check=True).stdout
    values = told.split("\0")[:-1]
    return {**dict(zip(names, values, strict=False)), "up": "|".join(values[len(names) :])}


def test_the_shortest_call_asks_for_whole_nodes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    call = shell("slurm-script", "-N", "4")
    assert (call.code, call.err) == (0, "")
    assert call.out.startswith("#!/bin/bash\n")
    told = directives(call.out)
    assert {"--nodes=4", "--ntasks-per-node=1", "--exclusive", "--signal=B:USR1@300", "--no-kill"} <= set(told)
    assert {"--dependency=singleton", "--job-name=fairway-home-ada-fairway"} <= set(told)
    assert not any(one.startswith(("--time", "--partition", "--account", "--gpus")) for one in told)
    values = assigned(call.out)
    assert values == {
        "jobs": "/home/ada/fairway",
        "state": "/tmp",
        "python": sys.executable,
        "again": "no",
        "up": "",
    }


def test_what_is_given_reaches_slurm_and_the_scheduler(shell: Shell, tmp_path: Path) -> None:
    call = shell(
        *("slurm-script", "-N", "2", "--gpus-per-node", "a100:8", "--time", "1d12h", "--margin", "90s", "--again"),
        *("--partition", "gpu", "--account", "lab", "--jobs", str(tmp_path / "it's $HOME"), "--state", "/local"),
        *("--policy", "las", "--placement", "spread", "--", "--qos=long", "-c", "16", "--comment", 'a "b" \\c'),
    )
    assert (call.code, call.err) == (0, "")
    told = directives(call.out)
    assert {"--gpus-per-node=a100:8", "--time=1-12:00:00", "--signal=B:USR1@90"} <= set(told)
    assert told[-3:] == ["--qos=long", "-c 16", '--comment "a \\"b\\" \\\\c"']
    assert "--exclusive" not in told, "whole nodes are for those who name no CPUs"
    values = assigned(call.out)
    assert values["jobs"] == str(tmp_path / "it's $HOME")
    assert (values["state"], values["again"]) == ("/local", "yes")
    assert values["up"] == "--policy|las|--placement|spread"


def test_a_relative_directory_becomes_absolute(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert assigned(shell("slurm-script", "-N", "1", "--jobs", "here").out)["jobs"] == str(tmp_path / "here")


@pytest.mark.parametrize(
    "program",
    [
        "bash",
        pytest.param(
            "shellcheck", marks=pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
        ),
    ],
)
def test_the_script_has_no_mistakes(shell: Shell, tmp_path: Path, program: str) -> None:
    path = tmp_path / "pilot.sh"
    path.write_text(shell("slurm-script", "-N", "2", "--again", "--policy", "las").out, encoding="utf-8")
    words = ["bash", "-n"] if program == "bash" else ["shellcheck"]
    done = subprocess.run([*words, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "missing option '-N'"),
        (("-N", "0"), "-N '0' is too small; it must be at least 1"),
        (("-N", "many"), "-N 'many' is not a whole number"),
        (
            ("-N", "2", "--gpus-per-node", "eight"),
            "--gpus-per-node 'eight' is not a number of GPUs, such as 8 or a100:8",
        ),
        (("-N", "2", "--gpus-per-node", "0"), "--gpus-per-node '0' is not a number of GPUs, such as 8 or a100:8"),
        (("-N", "2", "--gpus-per-node", ":8"), "--gpus-per-node ':8' is not a number of GPUs, such as 8 or a100:8"),
        (("-N", "2", "--time", "soon"), "--time: 'soon' is not a duration"),
        (("-N", "2", "--time", "0"), "--time 0 is not from 1 s to a year"),
        (("-N", "2", "--time", "5m"), "--time 5m is not longer than the --margin of 300 s before its end"),
        (("-N", "2", "--margin", "-1"), "--margin: '-1' is not a duration"),
        (("-N", "2", "--partition", ""), "--partition: must not be empty"),
        (("-N", "2", "--jobs", ""), "--jobs: a pilot needs a directory that all nodes share"),
        (("-N", "2", "--jobs", "none"), "--jobs: a pilot needs a directory that all nodes share"),
        (("-N", "2", "--engine", "local"), "--engine: inside a pilot it is always Ray"),
        (("-N", "2", "--jobs", "/a\nb"), "'/a\\nb' cannot be written in a script"),
        (("-N", "2", "--account", "a\nb"), "'--account=a\\nb' cannot be written in a script"),
        (("-N", "2", "--round", "often"), "--round 'often' is neither a duration, such as 90 or 2m, nor 'auto'"),
        (("-N", "2", "--placement", "nowhere"), "unknown placement 'nowhere'"),
        (("-N", "2", "--", "long"), "'long' after -- is not an option of sbatch, such as --qos=long"),
        (("-N", "2", "--", "--qos=a", "b"), "'b' after -- is not an option of sbatch, such as --qos=long"),
        (("-N", "2", "--", "--nodes=4"), "--nodes=4 after --: write -N before it"),
        (("-N", "2", "--", "-t", "5"), "-t after --: write --time before it"),
        (("-N", "2", "--", "--signal=USR2"), "--signal=USR2 after --: the pilot sets this itself"),
        (("-N", "2", "--", "--array=0-3"), "--array=0-3 after --: the pilot sets this itself"),
        (("-N", "2", "--", "--comment", "a\nb"), "'a\\nb' cannot be written in a script"),
    ],
)
def test_wrong_input_is_one_line(shell: Shell, words: tuple[str, ...], told: str) -> None:
    call = shell("slurm-script", *words)
    assert (call.code, call.out) == (2, "")
    assert len(call.err_lines) == 1
    assert call.err.startswith(f"fairway: error: {told}"), call.err


def test_the_calls_on_the_page_work_and_it_names_every_option_of_the_command(shell: Shell) -> None:
    page = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text(encoding="utf-8")
    calls = [line[len("$ fairway ") :] for line in page.splitlines() if line.startswith("$ fairway slurm-script ")]
    assert len(calls) > 1
    for line in calls:
        call = shell(*shlex.split(line.partition(" > ")[0]))
        assert (call.code, call.err) == (0, "")
        assert call.out.startswith("#!/bin/bash\n")
    for one in fields(PilotOptions):
        assert f"`--{one.name.replace('_', '-')}" in page or one.name == "nodes", one.name
