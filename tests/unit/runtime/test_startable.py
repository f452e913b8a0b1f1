"""Whether a program could be started here: what is missing is said before the job is taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairway.runtime.processes.host_size import this_machine
from fairway.runtime.processes.startable import Startable, StartCheck, start_problem

NOBODY = "nobody"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, mode in {"run.sh": 0o755, "plain.sh": 0o644, "bin/tool": 0o755, "bin/text": 0o644}.items():
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    return tmp_path


@pytest.mark.parametrize("program", ["./run.sh", "bin/tool", "/bin/sh", "sh", "tool"])
def test_what_can_be_started(folder: Path, program: str) -> None:
    assert start_problem(Startable(program, str(folder), f"/nowhere:{folder}/bin:/bin:/usr/bin", "")) == ""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("./missing.sh", "./missing.sh: no such file in "),
        ("/bin", "/bin: this is a directory"),
        ("./plain.sh", "./plain.sh: not executable. Type `chmod +x ./plain.sh`"),
        ("pyhton", "pyhton: no such program in the PATH of the job"),
        ("text", "text: no such program in the PATH of the job"),
        ("run.sh", "write ./run.sh"),
        ("$(touch x); a", "no such program"),
    ],
)
def test_what_cannot_be_started_is_told_in_one_line(folder: Path, program: str, says: str) -> None:
    problem = start_problem(Startable(program, str(folder), f"{folder}/bin", ""))
    assert says in problem
    assert "\n" not in problem
    assert not (folder / "x").exists()


def test_the_path_is_searched_from_the_directory_of_the_job(folder: Path) -> None:
    assert start_problem(Startable("tool", str(folder), "bin", "")) == ""
    assert start_problem(Startable("run.sh", str(folder), "", "")).startswith("run.sh: no such program")
    assert start_problem(Startable("run.sh", str(folder), ":/bin", "")) == ""


@pytest.mark.parametrize(("cwd", "says"), [("gone", "no such directory"), ("run.sh", "not a directory")])
def test_a_directory_that_is_not_there(folder: Path, cwd: str, says: str) -> None:
    for program in ("true", ""):
        assert f"{cwd}: {says}" in start_problem(Startable(program, str(folder / cwd), "/bin", ""))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root asks as another user")
def test_the_question_is_asked_as_the_user_of_the_job(folder: Path) -> None:
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)
    (folder / "bin" / "tool").chmod(0o700)
    (folder / "private").mkdir(mode=0o700)
    path = f"{folder}/bin:/bin:/usr/bin"
    assert start_problem(Startable("./run.sh", str(folder), path, NOBODY)) == ""
    assert "no such program" in start_problem(Startable("tool", str(folder), path, NOBODY))
    # What is in a private directory is not told.
    inside = [start_problem(Startable(name, f"{folder}/private", path, NOBODY)) for name in ("./x", "sh")]
    assert all("may not enter" in one for one in inside)
    assert start_problem(Startable("./x", "/", path, "no-such-account")) == ""


def test_only_what_can_be_started_is_remembered(folder: Path) -> None:
    check, wish = StartCheck(), Startable("./plain.sh", str(folder), "", "")
    assert check.problem(wish)
    (folder / "plain.sh").chmod(0o755)
    assert check.problem(wish) == ""
    assert list(check._known) == [wish]


def test_this_machine_has_cpus_and_memory() -> None:
    size = this_machine()
    assert size.cpus >= 1
    assert size.memory_bytes > 1 << 26
