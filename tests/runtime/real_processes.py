"""What tests of real processes share: starting an attempt, waiting for something, and seeing that nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fairway.runtime.processes import containment, keeper, local
from fairway.runtime.processes.local import Outcome, Running
from fairway.testing.waiting import wait_for

PYTHON = sys.executable


def launch(folder: Path, *commands: list[str], **about: Any) -> dict[str, Any]:
    """What a keeper is told for commands that are the ranks of one attempt."""
    ranks = [
        {
            "argv": argv,
            "env": {"PATH": os.environ["PATH"], "FAIRWAY_ATTEMPT": folder.name, **about.get("env", {})},
            "log": str(folder / f"rank-{rank}.log"),
        }
        for rank, argv in enumerate(commands)
    ]
    terms = {"cwd": "/", "grace_s": 20.0, "limit_s": None, "log_bytes": 1 << 20} | about
    return {**terms, "ranks": ranks}


def start(folder: Path, *commands: list[str], **about: Any) -> Running:
    """Start an attempt."""
    return local.start_keeper(folder, launch(folder, *commands, **about))


def end_of(running: Running) -> Outcome:
    """Wait for the end of an attempt, and say how it ended."""
    wait_for(lambda: running.ended, "the keeper to end")
    running.close()
    outcome = local.outcome_of(running.directory)
    assert outcome is not None, (running.directory / "keeper.log").read_text()
    return outcome


def log_of(running: Running, rank: int = 0) -> str:
    """What a rank has written so far."""
    path = running.directory / f"rank-{rank}.log"
    return path.read_text(errors="replace") if path.exists() else ""


def said(running: Running, word: str, rank: int = 0) -> None:
    """Wait until a rank has written something."""
    wait_for(lambda: word in log_of(running, rank), f"{word!r} in the log of rank {rank}")


def processes_of(token: str) -> list[int]:
    """All processes that live with a token in their environment or in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if token.encode() in text and keeper.started_at(int(entry.name)) >= 0:
                found.append(int(entry.name))
    return found


def python(code: str) -> list[str]:
    """A command that runs some Python, quick to start."""
    return [PYTHON, "-I", "-S", "-u", "-c", code]


def takes_turns(pid: int) -> None:
    """Wait until a process was stopped and went on, as a throttled one does all the time."""
    wait_for(lambda: state_of(pid) == "T", "a rest")
    wait_for(lambda: state_of(pid) != "T", "a turn")
    wait_for(lambda: state_of(pid) == "T", "another rest")


def stays(pid: int, stopped: bool) -> None:
    """Wait until a process is stopped, or is not, for longer than a throttled one ever is."""

    def all_the_time() -> bool:
        for _ in range(100):
            if (state_of(pid) == "T") != stopped:
                return False
            time.sleep(0.01)
        return True

    wait_for(all_the_time, "it to stand still" if stopped else "it to compute without a rest")


def state_of(pid: int) -> str:
    """The state letter of a process; X if it is gone."""
    return (keeper.stat_fields(pid) or ["X"])[0]


def attempts(folder: Path) -> Iterator[Path]:
    """New directories for attempts, each with a name of its own."""
    number = 0
    while True:
        number += 1
        yield folder / f"{folder.name}-{os.getpid()}-{number}"


@contextmanager
def small_disk(path: Path, size: str = "1m") -> Iterator[Path]:
    """A file system of its own that is soon full; the test is skipped if this user cannot have one."""
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], capture_output=True)
    if made.returncode:
        pytest.skip("cannot mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path) -> None:
    """Take all the room that is left on a disk."""
    with (disk / f"filling-{time.monotonic_ns()}").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def attempt_alone(folder: Path) -> Iterator[Path]:
    """The directory of an attempt, for a fixture: it fails where a test leaves processes behind, and ends them."""
    made = next(attempts(folder))
    yield made
    left = processes_of(made.name)
    containment.kill_strays(made, made.name)
    assert not left, f"processes {left} were left behind"
