"""Jobs are checked as they are typed: what would be refused, in which line or field, and bodies that are taken."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_site import ALICE, BOB, OPERA, Site, fingerprint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.policies import make_policy

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=net --gpus=2
#SBATCH --mail-user=ada
#SBATCH --array=0-3%2
#SBATCH --chdir=/data/../home/ada
python train.py
"""
TASK = """\
name: net
resources:
  accelerators: cpu:2
  cloud: aws
workdir: /home/ada
envs:
  LR: 0.1
run: |
  python train.py
"""


def check(site: Site, kind: str, text: str, uid: int = ALICE, **terms: Any) -> dict[str, Any]:
    answer = site.as_user(uid).post("/v1/submission", json={"kind": kind, "text": text, "terms": terms})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    assert told["ok"] == (not told["problems"]) == bool(told["jobs"])
    return told


def wrong(site: Site, kind: str, text: str, **terms: Any) -> tuple[int | None, str | None, str]:
    (one,) = check(site, kind, text, **terms)["problems"]
    return one["line"], one["field"], one["text"]


@pytest.mark.parametrize(
    ("kind", "text", "terms"),
    [
        ("command", "python train.py --lr '0.1 x'", {"gpus": 2, "cwd": "/home/ada", "preempt": "checkpoint"}),
        ("command", "torchrun --nproc-per-node=2 train.py", {"cwd": "/home/ada"}),
        ("command", "x", {"array": [0, 3], "hold": True, "cwd": "/", "name": "y", "env": {"A": "b"}}),
        ("command", "bash -c 'a\nb'", {"gpus_min": 1, "gpus_max": 4}),
        ("sbatch", SCRIPT, {}),
        ("skypilot", TASK, {"priority": 3}),
    ],
)
def test_a_body_that_is_ok_is_taken_as_it_is(site: Site, kind: str, text: str, terms: dict[str, Any]) -> None:
    before = fingerprint(site.daemon)
    (body,) = check(site, kind, text, **terms)["jobs"]
    assert fingerprint(site.daemon) == before
    answer = site.as_user(ALICE).post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text


def test_what_a_text_says_is_in_the_body(site: Site) -> None:
    (script,) = check(site, "sbatch", SCRIPT)["jobs"]
    assert (script["gpus"], script["name"], script["cwd"]) == (2, "net", "/home/ada")
    assert (script["array"], script["array_at_once"]) == ([0, 1, 2, 3], 2)
    assert script["command"][2].endswith(SCRIPT)
    (task,) = check(site, "skypilot", TASK, gpus=1, env={"LR": "0.2"})["jobs"]
    assert (task["gpu_types"], task["env"]["LR"], task["cwd"]) == (["cpu"], "0.2", "/home/ada")
    assert task.get("gpus", 1) == task["gpus_max"] == 1
    (command,) = check(site, "command", "python -c 'print(1)'")["jobs"]
    assert command["command"] == ["python", "-c", "print(1)"]


def test_problems_name_the_line_or_the_field(site: Site) -> None:
    assert wrong(site, "sbatch", "#!/bin/sh\n\n#SBATCH --gpus=many\n") == (
        3,
        None,
        "--gpus: GPUs 'many' is neither a number, like 4, nor a range, like 1-4",
    )
    assert wrong(site, "sbatch", "#SBATCH --chdir=data\n")[:2] == (1, None)
    assert wrong(site, "skypilot", "run: |\n  x\nresources: [\n")[0] == 4
    assert wrong(site, "skypilot", "name: x\n")[2] == "there is nothing to `run`"
    assert "no closing quotation" in wrong(site, "command", "python 'x")[2]
    assert "a command is one line" in wrong(site, "command", "a\nb")[2]
    assert wrong(site, "command", "")[2] == "there is no command"
    assert wrong(site, "command", "x", gpus=0)[1:] == ("gpus", "gpus: must be at least 1, not 0")
    assert wrong(site, "command", "x", depends=[{"kind": "afterok", "job": "9"}])[1] == "depends"
    assert "no GPUs here can ever run" in wrong(site, "command", "x", gpus=9)[2]
    assert wrong(site, "command", "x", gpus_min=2, gpus_max=1)[1] == "gpus"
    two = check(site, "command", "x", gpus="2", colour=1)["problems"]
    assert [one["field"] for one in two] == ["gpus", "colour"]


def test_warnings_say_what_is_left_out_and_what_no_shell_reads(site: Site) -> None:
    script = check(site, "sbatch", SCRIPT + "#")["warnings"]
    assert {"line": 3, "field": None, "text": "--mail-user is left out: Fairway sends no mail"} in script
    other = check(site, "sbatch", "#!/usr/bin/env python3\n#SBATCH --gpus=1 --export=ALL\n", cwd="/")["warnings"]
    assert [one["line"] for one in other] == [1, None]
    (task,) = check(site, "skypilot", TASK)["warnings"]
    assert task["text"] == "resources.cloud is left out: it is about clouds"
    shell, folder = check(site, "command", "cat a | grep $HOME '$X' 'b|c'")["warnings"]
    assert "so |, $HOME mean nothing special" in shell["text"]
    assert folder["text"] == "no directory is given; it runs in /"
    assert check(site, "command", "bash -c 'a | b > $C'", cwd="/")["warnings"] == []


def test_rules_of_this_scheduler_and_of_its_users_count(new_site: Callable[..., Site]) -> None:
    closed = new_site(open_to_all=False)
    assert "may look, but not submit" in wrong(closed, "command", "x")[2]
    assert check(closed, "command", "x", uid=OPERA)["ok"]
    assert not check(closed, "command", "x", uid=BOB, user="ada")["ok"]
    config = closed.daemon.options.folder / "fairway.toml"
    config.write_text("[queues.night]\n")
    assert closed.as_user(OPERA).post("/v1/reload").status_code == 200
    assert not check(closed, "command", "x", uid=OPERA, queue="day")["ok"]
    assert check(closed, "command", "x", uid=OPERA, queue="night")["ok"]


def test_a_token_that_may_only_look_may_check(site: Site) -> None:
    made = site.as_user(OPERA).post("/v1/tokens", json={"name": "looks", "role": "read"}).json()
    client = site.as_user(OPERA)
    client.headers["Authorization"] = f"Bearer {made['token']}"
    from starlette.testclient import TestClient

    tcp = TestClient(site.app, client=("127.0.0.1", 1), headers=dict(client.headers))
    answer = tcp.post("/v1/submission", json={"kind": "command", "text": "x", "terms": {"cwd": "/"}})
    assert answer.json()["ok"]
    assert "you may only look here" in answer.json()["warnings"][0]["text"]
    assert tcp.post("/v1/jobs", json=answer.json()["jobs"][0]).status_code == 403


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sbatch", "#SBATCH --chdir=~root --gpus=1\nx"),
        ("sbatch", "#SBATCH --chdir=/etc/../proc/self/cwd --output=/etc/passwd\nx"),
        ("sbatch", "/etc/passwd"),
        ("command", "/etc/passwd"),
        ("command", "train.sbatch"),
        ("skypilot", "workdir: ~root\nrun: x"),
        ("skypilot", "workdir: /proc/self/root/../x\nrun: x\nconfig: {/a: /etc/passwd}"),
        ("skypilot", "kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: 'working_dir: ~root'}"),
        ("skypilot", "!!python/object/apply:os.system ['touch /tmp/x']"),
        ("skypilot", "run: !include /etc/passwd"),
    ],
)
def test_nothing_of_this_machine_is_looked_up(
    site: Site, monkeypatch: pytest.MonkeyPatch, kind: str, text: str
) -> None:
    check(site, kind, text)

    def refused(*about: Any, **more: Any) -> Any:
        raise AssertionError(f"looks at {about}")

    with monkeypatch.context() as patched:
        for place, names in ((os, ("stat", "lstat", "readlink", "open", "listdir", "scandir")), (io, ("open",))):
            for name in names:
                patched.setattr(place, name, refused)
        patched.setattr(builtins, "open", refused)
        patched.setattr(Path, "expanduser", refused)
        patched.setattr(Path, "resolve", refused)
        check(site, kind, text)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x]\nb: &b [*a,*a]\nnum_nodes: *b\nrun: x",
        "[" * 30_000,
        "{a: " * 7000,
        "num_nodes: " + "9" * 5000 + "\nrun: x",
        "run: x\nresources: {accelerators: {A: [1]}}",
        "run: x\nnum_nodes: 2026-99-99",
        "? {a: b}\n: c\nrun: x",
        "run: x\nenvs: {1: {2: 3}}",
        "kind: RayJob\nspec: {entrypoint: x, entrypointNumCpus: 1" + "0" * 400 + "}",
        "kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: 'env_vars: {a: &a [x], b: *a}'}",
        "x" * 40_000,
        "\x00",
        "\ud7ff",
    ],
)
def test_tasks_of_an_attacker_are_one_line(site: Site, text: str) -> None:
    problems = check(site, "skypilot", text)["problems"]
    assert len(problems) == 1
    assert len(problems[0]["text"]) < 400


def test_a_command_may_be_only_so_long(site: Site) -> None:
    assert wrong(site, "command", "x" * 40_000) == (None, None, "this is longer than 32,768 characters")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(("command", "sbatch", "skypilot")),
    st.one_of(
        st.text(max_size=80),
        st.lists(
            st.sampled_from((*SCRIPT.split(), *TASK.split(), "²", "$(", "'", "%", ":", "\n", "--", "-G")), max_size=12
        ).map(" ".join),
        st.lists(
            st.sampled_from(("gpus", "array", "time", "mem", "begin", "gres", "export", "signal", "dependency"))
        ).flatmap(
            lambda names: st.tuples(*(st.text("0123456789:-%,²@Mnow+ ()", max_size=8) for _ in names)).map(
                lambda values: "".join(f"#SBATCH --{n}={v}\n" for n, v in zip(names, values, strict=True))
            )
        ),
    ),
    st.dictionaries(
        st.sampled_from(("gpus", "array", "env", "cwd", "command", "gpu_share")),
        st.sampled_from((0, 1, "x", [1], {"A": "b"}, None)),
        max_size=2,
    ),
)
def test_whatever_is_typed_gets_an_answer(site: Site, kind: str, text: str, terms: dict[str, Any]) -> None:
    check(site, kind, text, **terms)


def test_what_cannot_be_started_here_is_refused_by_the_api_and_the_page(new_site: Any, tmp_path: Path) -> None:
    site = new_site(look=True)
    (tmp_path / "plain.sh").write_text("#!/bin/sh\n")
    for command, cwd, says in (
        (["./plain.sh"], str(tmp_path), "./plain.sh: not executable"),
        (["no-such-program"], str(tmp_path), "no such program in the PATH"),
        (["true"], f"{tmp_path}/gone", "no such directory"),
    ):
        body = {"command": command, "cwd": cwd, "hold": True}
        answer = site.own.post("/v1/jobs", json=body)
        assert (answer.status_code, says in answer.json()["error"]) == (422, True)
        assert says in wrong(site, "command", command[0], cwd=cwd)[2]
        waits = site.own.post("/v1/jobs", json=[body | {"depends": [{"kind": "afterok", "job": "9"}]}])
        assert "there is no job '9'" in waits.json()["error"]
    assert site.own.post("/v1/jobs", json={"command": ["sh"], "cwd": str(tmp_path)}).status_code == 201
    beyond = site.own.post("/v1/jobs", json={"command": ["sh"], "cpus": 50_000.0})
    assert "it asks for 50000 CPUs" in beyond.json()["error"]
    assert "it asks for 900000 GiB" in wrong(site, "command", "sh", host_memory_bytes=900_000 << 30)[2]
    assert "there is no queue 'nope'" in wrong(site, "command", "sh", queue="nope")[2]


def test_what_the_policy_takes_no_notice_of_is_told_by_the_api_and_the_page(site: Site) -> None:
    site.daemon.scheduler.set_policy(make_policy("tiresias"), "tiresias")
    terms = {"gpus": 1, "gpus_max": 4, "preempt": "checkpoint"}
    answer = site.own.post("/v1/jobs", json={"command": ["true"], "hold": True, **terms}).json()
    (note,) = answer["notes"]
    assert note.startswith("the policy tiresias changes no numbers of GPUs")
    assert note in [one["text"] for one in check(site, "command", "true", **terms)["warnings"]]
    assert site.own.post("/v1/jobs", json={"command": ["true"], "hold": True}).json()["notes"] == []
