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
from fairway.runtime.daemon.machine import virtual_machine


class _Scheduler:
    """As much of a scheduler as a tape needs; it remembers what was noted when it heard of something."""

    def __init__(self) -> None:
        self.cluster = virtual_machine(2).cluster
        self.loop: Any = type("Loop", (), {})()
        self.tape: Tape | None = None
        self.seen: list[int] = []

    def after_events(self, state: State, events: Any) -> None:
        assert self.tape is not None
        self.seen.append(self.tape.ended)


def _tape() -> tuple[Tape, _Scheduler, State]:
    scheduler: Any = _Scheduler()
    tape = scheduler.tape = Tape(scheduler, 3)
    return tape, scheduler, State(scheduler.cluster)


def test_an_end_is_noted_before_anybody_hears_of_it() -> None:
    tape, scheduler, state = _tape()
    tape.after_events(state, [JobFinished(1.0, 0), JobEvicted(1.0, 1, 0.0, "")])
    tape.after_events(state, [JobCancelled(2.0, 1)])
    assert scheduler.seen == [1, 2]
    assert tape.ledger.finished_s[0] == 1.0


def test_the_result_waits_for_the_last_end() -> None:
    tape, _, state = _tape()
    assert not tape.wait(1, 0.05)

    def later() -> None:
        time.sleep(0.2)
        tape.after_events(state, [JobFinished(1.0, 0)])

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
    assert program() == f"{sys.executable} -m fairway.cli.main"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    assert program() == ".venv/bin/fairway"
    monkeypatch.chdir("/")
    assert program() == str(made).lstrip("/")
    monkeypatch.setenv("PATH", str(made.parent))
    assert program() == "fairway"
