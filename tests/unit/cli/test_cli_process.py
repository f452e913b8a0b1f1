"""The installed command as a process: start-up, pipes, signals."""

from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_samples import JOBS

from fairway.cli.main import app, main
from fairway.policies import policies
from fairway.testing.waiting import WAIT_S, wait_for

FAIRWAY = (sys.executable, "-m", "fairway")
HEAVY = ("torch", "ray", "fastapi", "numpy", "rich")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return str(path)


def run(*argv: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FAIRWAY, *argv], capture_output=True, text=True, check=False, timeout=WAIT_S, **more)  # type: ignore[call-overload,no-any-return]


def test_help_starts_within_three_tenths_of_a_cpu_second() -> None:
    least = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        least = min(least, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        if least <= 0.3:
            return
    pytest.fail(f"--help took {least:.2f} CPU s")


def test_help_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def look(command: Any, words: tuple[str, ...]) -> None:
        capsys.readouterr()
        assert main([*words, "--help"]) == 0
        wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
        assert not wide, words
        for name, below in getattr(command, "commands", {}).items():
            look(below, (*words, name))

    look(typer.main.get_command(app), ())


@pytest.mark.parametrize(
    "code", ["import fairway", "import fairway.cli", "from fairway.cli.main import main; main(['--help'])"]
)
def test_start_up_loads_nothing_heavy(code: str) -> None:
    check = f"import sys; {code}; sys.exit(', '.join(m for m in {HEAVY!r} if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_piped_output_has_no_escape_codes_and_no_progress(trace: str) -> None:
    done = run("compare", trace, "--cluster", "v100:1x4", "--jobs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_a_terminal_gets_colour_and_a_progress_bar(trace: str) -> None:
    master, slave = pty.openpty()
    argv = [*FAIRWAY, "compare", trace, "--cluster", "v100:1x4", "--jobs", "2"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(argv, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                seen += os.read(master, 65536)
            except OSError:
                break
    os.close(master)
    assert process.returncode == 0
    assert b"\x1b[1;32m" in seen
    assert f"{len(policies())} runs".encode() in seen


def test_a_full_disk_behind_stdout_is_one_line(trace: str) -> None:
    with Path("/dev/full").open("w") as full:
        for argv in (("policies",), ("simulate", trace, "--cluster", "v100:4", "--policy", "fifo", "--json", "-")):
            done = subprocess.run([*FAIRWAY, *argv], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            assert (done.returncode, done.stderr) == (2, "fairway: error: standard output: No space left on device\n")


def test_a_closed_pipe_ends_quietly(trace: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*FAIRWAY, "trace", "formats"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_ascii_terminal_can_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"id": "ä", "submitted_s": 0, "duration_s": 5, "user": "łukasz"}\n', encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    assert run("trace", "describe", str(path), env=environment).returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_the_workers_too(tmp_path: Path, number: int, code: int) -> None:
    plugin = tmp_path / "slow.py"
    plugin.write_text(SLOW_POLICIES)
    trace = tmp_path / "jobs.csv"
    trace.write_text(JOBS)
    argv = [*FAIRWAY, "compare", str(trace), "--cluster", "v100:4", "--plugin", str(plugin)]
    argv += ["--policy", "slow", "--policy", "slow:x=2", "--jobs", "2", "--csv", str(tmp_path / "out.csv")]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    workers = _wait_for_children(process.pid)
    process.send_signal(number)
    assert process.wait(timeout=WAIT_S) == code
    assert process.stderr is not None
    lines = process.stderr.read().splitlines()
    assert lines == (["fairway: interrupted"] if number == signal.SIGINT else [])
    wait_for(lambda: not any(_alive(pid) for pid in workers), "the workers to end with the command")
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"slow.py", "jobs.csv"}


def _wait_for_children(pid: int) -> list[int]:
    def children() -> list[str]:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    wait_for(lambda: len(children()) == 2, "two workers")
    time.sleep(0.3)
    return [int(child) for child in children()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SLOW_POLICIES = '''
import time
from dataclasses import dataclass
from typing import ClassVar
import fairway

@fairway.register
@dataclass(frozen=True)
class Slow:
    """Slow."""
    x: int = 1
    name: ClassVar[str] = "slow"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    def decide(self, snapshot):
        time.sleep(60)
'''
