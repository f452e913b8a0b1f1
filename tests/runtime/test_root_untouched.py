"""What a job of another user has in its environment never reaches a process of root.

Keepers, wardens and the scheduler run as root, and become the user only in the process that then begins the program.
The variables of these jobs lead to traps that note as which user they were sprung.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_processes import attempt_alone, end_of, log_of, said, start, wait_for

from fairway.runtime.processes import executors, local

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = "nobody"
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
"""Where there are programs that everybody may run: those of the tests' Python may be in a private folder."""
MARK = "FAIRWAY_TEST_OF_TRAPS"
PROGRAMS = ("sh", "bash", "python3", "id", "env", "cat", "uname", "ldconfig", "nvidia-smi", "nvidia-cuda-mps-control")
IN_C = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void spring(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/preload %d %d", FOLDER, (int)geteuid(), (int)getpid());
  FILE *file = fopen(path, "w");
  if (file) fclose(file);
}
"""
IN_PYTHON = "import os\nopen(f'{folder}/python {{os.geteuid()}} {{os.getpid()}}', 'w').close()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield from attempt_alone(tmp_path)


class Traps:
    """Libraries, modules and programs that note who came upon them."""

    def __init__(self, folder: Path) -> None:
        self.seen = folder / "seen"
        for made in (self.seen, folder / "modules", folder / "bin"):
            made.mkdir()
        self.seen.chmod(0o777)
        code = IN_PYTHON.format(folder=self.seen)
        for name in ("sitecustomize.py", "startup.py"):
            (folder / "modules" / name).write_text(code)
        for name in PROGRAMS:
            path = folder / "bin" / name
            real = shutil.which(name, path=SYSTEM) or "true"
            path.write_text(f"#!/bin/bash -p\n: > '{self.seen}/path '$EUID' '$$\nexec {real} \"$@\"\n")
        (folder / "shell").write_text(f": > '{self.seen}/shell '$EUID' '$$\n")
        self.env = {
            MARK: "yes",
            "PATH": f"{folder / 'bin'}:{SYSTEM}",
            "PYTHONPATH": str(folder / "modules"),
            "PYTHONSTARTUP": str(folder / "modules" / "startup.py"),
            "BASH_ENV": str(folder / "shell"),
            "HOME": str(folder),
        }
        if shutil.which("cc") is not None:
            (folder / "trap.c").write_text(f'#define FOLDER "{self.seen}"\n{IN_C}')
            library = folder / "trap.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "trap.c"], check=True)
            self.env["LD_PRELOAD"] = str(library)
        for path in folder.rglob("*"):
            if path != self.seen:
                path.chmod(0o755)

    def sprung(self) -> set[tuple[str, str]]:
        """The kinds of traps that were sprung, and as whom."""
        return {(kind, user) for kind, user, _ in (path.name.split() for path in self.seen.iterdir())}


@pytest.fixture
def traps() -> Iterator[Traps]:
    with tempfile.TemporaryDirectory(prefix="traps") as place:
        Path(place).chmod(0o755)
        yield Traps(Path(place))


def of_root() -> list[int]:
    """The processes of root that have variables of these jobs, but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if MARK.encode() in (entry / "environ").read_bytes() and entry.stat().st_uid == 0:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def expected(traps: Traps) -> set[tuple[str, str]]:
    kinds = {"python", "path", "shell"} | ({"preload"} if "LD_PRELOAD" in traps.env else set())
    return {(kind, str(pwd.getpwnam(NOBODY).pw_uid)) for kind in kinds}


def test_variables_of_a_job_reach_only_processes_of_its_user(folder: Path, traps: Traps) -> None:
    local.make_folder(folder.parent)
    script = (
        "bash -c 'python3 -c pass; id -u; echo begun; cat'; sleep 0.1; while [ ! -e $HOME/seen/go ]; do sleep 0.1; done"
    )
    running = start(folder, ["sh", "-c", script], account=NOBODY, env=traps.env, host_memory_bytes=1 << 30)
    said(running, "begun")
    assert of_root() == []
    (traps.seen / "go").touch()
    assert end_of(running).codes == (0,), log_of(running)
    (traps.seen / "go").unlink()
    assert traps.sprung() == expected(traps), log_of(running)


def test_variables_of_a_hosted_job_do_not_reach_the_warden(tmp_path: Path, traps: Traps) -> None:
    place = Path(tempfile.mkdtemp(prefix="executors"))
    place.chmod(0o711)
    try:
        about = {
            "folder": str(place),
            "argv": ["python3", "-c", f"open({str(traps.seen / 'hosted 65534 1')!r}, 'w').close()"],
            "env": {**traps.env, "FAIRWAY_EXECUTOR_IDLE_S": "0"},
            "cwd": "/",
            "account": NOBODY,
            "gpu": 0,
        }
        executors.ensure(about)
        wait_for(lambda: any(path.name.startswith("hosted") for path in traps.seen.iterdir()), "the executor")
        for path in traps.seen.glob("hosted*"):
            path.unlink()
        assert of_root() == []
        wait_for(lambda: not set().union(*executors.wardens(place.parent).values(), set()), "the warden to end")
        assert {user for _, user in traps.sprung()} == {str(pwd.getpwnam(NOBODY).pw_uid)}
        assert ("python", str(pwd.getpwnam(NOBODY).pw_uid)) in traps.sprung()
    finally:
        shutil.rmtree(place)


def test_the_python_of_these_tests_would_spring_them(traps: Traps) -> None:
    subprocess.run([sys.executable, "-c", "pass"], env=traps.env, check=True)
    assert ("python", "0") in traps.sprung()
    assert ("preload", "0") in traps.sprung() or "LD_PRELOAD" not in traps.env
