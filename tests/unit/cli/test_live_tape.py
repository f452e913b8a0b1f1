"""The notes that `demo --live` makes of a run, and what it tells people to type."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fairway.cli.live import program
from fairway.cli.live_result import Tape
from fairway.core.event import JobCancelled, JobEvicted, JobFinished
from fairway.core.state import State
from fairway.runtime.processes.machine import virtual_machine


class _Scheduler:
    """As much of a scheduler as a tape needs."""

    def __init__(self) -> None:
        self.cluster = virtual_machine(2).cluster
        self.state = State(self.cluster)
        self.listeners: list[Any] = []
        self.watchers: list[Any] = []


def _tape() -> tuple[Tape, Any]:
    scheduler: Any = _Scheduler()
    tape = Tape(scheduler, 3)
    return tape, scheduler.listeners[0]


def test_ends_are_noted_and_evictions_are_none() -> None:
    tape, happened = _tape()
    happened([JobFinished(1.0, 0), JobEvicted(1.0, 1, 0.0, "")])
    assert tape.ended == 1
    happened([JobCancelled(2.0, 1)])
    assert tape.ended == 2
    assert tape.ledger.finished_s[0] == 1.0


def test_the_result_waits_for_the_last_end() -> None:
    tape, happened = _tape()
    assert not tape.wait(1, 0.05)

    def later() -> None:
        time.sleep(0.2)
        happened([JobFinished(1.0, 0)])

    thread = threading.Thread(target=later)
    thread.start()
    assert tape.wait(1, 60.0)
    assert tape.ledger.finished_s[0] == 1.0
    thread.join()


def test_what_to_type_is_what_works_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    made = tmp_path / ".venv" / "bin" / "fairway"
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert program() == f"{sys.executable} -m fairway"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    assert program() == ".venv/bin/fairway"
    monkeypatch.chdir("/")
    assert program() == str(made).lstrip("/")
    monkeypatch.setenv("PATH", str(made.parent))
    assert program() == "fairway"
