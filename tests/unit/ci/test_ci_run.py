"""`.ci/run` and its tests fail closed with CI=true, and go on without. Stubs stand for what would be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REAL = ("sh", "dirname", "mktemp", "grep", "tail", "cat", "rm", "nice", "date")
"""Programs that the script really runs. All others that it finds are stubs."""
SERVED = ("slurmctld", "slurmd", "sbatch", "munged", "shellcheck", "chromium", "cc", "ip", "unshare", "nsenter")
"""Programs that packages bring."""
TARGETS = ["check", "test", "test-web", "test-cluster", "test-all reproduce-quick", "ends"]


class Machine:
    """A checkout with the script, and a PATH with nothing but stubs, which note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        (folder / "repository" / ".ci").mkdir(parents=True)
        (folder / "repository" / ".venv" / "bin").mkdir(parents=True)
        self.bin.mkdir()
        self.calls.touch()
        shutil.copy(ROOT / ".ci" / "run", folder / "repository" / ".ci" / "run")
        for name in REAL:
            (self.bin / name).symlink_to(shutil.which(name) or name)
        for name in ("make", "sleep", "apt-get", *SERVED):
            self.stub(name)
        self.stub("id", "echo 0")
        self.stub("../repository/.venv/bin/python")

    def stub(self, name: str, does: str = "") -> None:
        """A program that notes its call and does this."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >>{self.calls}\n{does}\n', encoding="ascii")
        path.chmod(0o755)

    def without(self, *names: str) -> None:
        for name in names:
            (self.bin / name).unlink()

    def run(self, ci: str = "") -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "TMPDIR": str(self.folder), "CI": ci}
        script = self.folder / "repository" / ".ci" / "run"
        # The script adds the folders of Slurm to PATH, and this host may have one.
        text = script.read_text(encoding="ascii").replace(":/usr/sbin:/sbin", "")
        script.write_text(text, encoding="ascii")
        return subprocess.run([str(script)], env=env, capture_output=True, text=True, check=False)

    def called(self, program: str) -> list[str]:
        """With what a program was called, each time."""
        lines = [line.partition(" ") for line in self.calls.read_text(encoding="ascii").splitlines()]
        return [rest for name, _, rest in lines if name == program]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


REFUSED = 'echo "Reading package lists..."; echo "E: Unable to locate package $5" >&2; echo; exit 100'
NO_WHEEL = 'echo "ERROR: No matching distribution found for $6" >&2; exit 1'


def test_where_everything_is_there_nothing_is_installed_but_libraries(machine: Machine) -> None:
    done = machine.run("true")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(machine.called("make")) == sorted(TARGETS)
    assert machine.called("apt-get") == machine.called("sleep") == []
    assert [call.rpartition(" ")[2].partition("=")[0] for call in machine.called("python")] == [
        "torch",
        "playwright",
        "ray",
    ]


@pytest.mark.parametrize(
    ("missing", "what", "package"),
    [
        ("chromium", "Chromium", "chromium"),
        ("slurmd", "Slurm", "slurmctld"),
        ("shellcheck", "Slurm", "slurmctld"),
        ("cc", "A C compiler", "gcc"),
        ("ip", "iproute2", "iproute2"),
    ],
)
def test_packages_that_cannot_be_installed_are_red_after_three_tries(
    machine: Machine, missing: str, what: str, package: str
) -> None:
    machine.without(missing)
    machine.stub("apt-get", f'if [ "$1" = install ]; then {REFUSED}; fi')
    done = machine.run("true")
    told = f".ci/run: {what} cannot be installed, after 3 tries: E: Unable to locate package {package}\n"
    assert (done.returncode, done.stderr) == (1, told)
    assert len([call for call in machine.called("apt-get") if call.startswith("install")]) == 3
    assert len(machine.called("sleep")) == 2, "there is a pause before each further try"
    assert machine.called("make") == []


@pytest.mark.parametrize(
    ("library", "what", "made"),
    [("torch", "PyTorch", TARGETS[:1]), ("playwright", "Playwright", TARGETS[:2]), ("ray", "Ray", TARGETS[:3])],
)
def test_a_library_that_cannot_be_installed_is_red_after_three_tries(
    machine: Machine, library: str, what: str, made: list[str]
) -> None:
    machine.stub("../repository/.venv/bin/python", f'case "$6" in {library}=*) {NO_WHEEL};; esac')
    done = machine.run("true")
    told = f".ci/run: {what} cannot be installed, after 3 tries: ERROR: No matching distribution found for {library}=="
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith(told)
    assert len([call for call in machine.called("python") if f"{library}==" in call]) == 3
    assert machine.called("make") == made


def test_an_installation_that_works_the_second_time_is_good_enough(machine: Machine) -> None:
    machine.without("chromium")
    again = machine.folder / "again"
    works = f'echo "#!/bin/sh" >{machine.bin}/chromium; {shutil.which("chmod")} +x {machine.bin}/chromium'
    tries = f"if [ -e {again} ]; then {works}; else : >{again}; {REFUSED}; fi"
    machine.stub("apt-get", f'if [ "$1" = install ]; then {tries}; fi')
    done = machine.run("true")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(machine.called("make")) == sorted(TARGETS)


def test_an_installation_that_brings_no_program_is_none(machine: Machine) -> None:
    machine.without("chromium")
    done = machine.run("true")
    assert done.returncode == 1
    assert "after the installation some of chromium are still missing" in done.stderr


@pytest.mark.parametrize("how", ["no apt-get", "no root", "no package"])
def test_on_a_persons_machine_what_cannot_be_installed_is_skipped(machine: Machine, how: str) -> None:
    machine.without("chromium", "sbatch")
    machine.stub("apt-get", REFUSED)
    machine.stub("../repository/.venv/bin/python", NO_WHEEL)
    if how == "no apt-get":
        machine.without("apt-get")
    elif how == "no root":
        machine.stub("id", "echo 1000")
    done = machine.run()
    assert done.returncode == 0
    assert sorted(machine.called("make")) == sorted(TARGETS)
    assert machine.called("sleep") == []
    told = done.stderr.splitlines()
    assert [line.partition(" cannot be installed; ")[0] for line in told] == [
        "Chromium",
        "Slurm",
        "PyTorch",
        "Playwright",
        "Ray",
    ]
    assert all(" are skipped: " in line for line in told)


@pytest.mark.parametrize("target", TARGETS)
def test_what_fails_is_red_and_not_tried_again(machine: Machine, target: str) -> None:
    machine.stub("make", f'if [ "$*" = "{target}" ]; then exit 2; fi')
    assert machine.run("true").returncode != 0
    assert machine.called("make").count(target) == 1


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_script_is_clean() -> None:
    done = subprocess.run(["shellcheck", ROOT / ".ci" / "run"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


FILES = {
    "itself": "import pytest\ndef test(): pytest.skip('needs ray')",
    "mark": "import pytest\n@pytest.mark.skipif(True, reason='needs root')\ndef test(): pass",
    "fixture": "import pytest\n@pytest.fixture\ndef one(): pytest.skip('needs Slurm')\ndef test(one): pass",
    "library": "import pytest\npytest.importorskip('no_such_library')\ndef test(): pass",
    "data": "import pytest\ndef test(): pytest.skip('the published traces are not here')",
    "fine": "def test(): pass",
}
"""Files of tests, which skip themselves in all ways that there are."""
MISSING = ("needs ray", "needs root", "needs Slurm", "could not import 'no_such_library'")


@pytest.mark.parametrize(("ci", "workers"), [("true", 1), ("", 0)])
def test_what_is_skipped_for_want_of_something_fails_in_ci(tmp_path: Path, ci: str, workers: int) -> None:
    for name, code in FILES.items():
        (tmp_path / f"test_{name}.py").write_text(code, encoding="ascii")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    parts = ("-p", "ci_skips", "-p", "xdist", "-p", "no:cacheprovider")
    options = ("--continue-on-collection-errors", "-n", str(workers), str(tmp_path))
    command = [sys.executable, "-m", "pytest", *parts, *options]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = [f"skipped, which CI does not accept: {reason}" in done.stdout for reason in MISSING]
    if ci:
        assert (done.returncode, told) == (1, [True] * 4), done.stdout
        assert "1 failed, 1 passed, 1 skipped, 3 errors" in done.stdout, "only reference data may be absent"
    else:
        assert (done.returncode, told) == (0, [False] * 4), done.stdout
        assert "1 passed, 5 skipped" in done.stdout
