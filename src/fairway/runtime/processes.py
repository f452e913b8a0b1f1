"""Attempts as processes: starting their keepers, signalling them, finding them again, and seeing them end.

Everything that has to survive the scheduler is in the attempt's directory (see `keeper`). A process is known by its pid
and its start time, so a pid that was used again is never taken for ours.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairway.runtime import keeper

NOBODY = [0, -1]
"""The keeper of an attempt that was found not to have started, and never will."""
_KEEPER = str(Path(keeper.__file__).resolve())


class Outcome(NamedTuple):
    """How an attempt ended: exit codes by rank, why it was stopped ("" if it was not), and what went wrong."""

    codes: tuple[int, ...]
    cause: str = ""
    killed: bool = False
    problem: str = ""
    ended_s: float | None = None


LOST = Outcome((), "lost", problem="its keeper is gone")


@dataclass
class Running:
    """A keeper that lives. `pidfd` becomes readable when it ends."""

    directory: Path
    pid: int
    start: int
    pidfd: int
    child: subprocess.Popen[bytes] | None = None

    def signal(self, signo: int) -> None:
        """Signal the keeper, and nobody who may have its pid after it."""
        try:
            signal.pidfd_send_signal(self.pidfd, signo)
        except ProcessLookupError:
            return

    def stop(self) -> None:
        """Ask the ranks to save and stop; they are killed after their grace period."""
        self.signal(signal.SIGTERM)

    def pause(self) -> None:
        """Suspend the ranks in place."""
        self.signal(signal.SIGUSR1)

    def go_on(self) -> None:
        """Let suspended ranks go on."""
        self.signal(signal.SIGUSR2)

    @property
    def ended(self) -> bool:
        """Whether the keeper is gone."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Let go of a keeper that has ended."""
        os.close(self.pidfd)
        if self.child is not None:
            self.child.wait()


def start(directory: Path, launch: Mapping[str, Any]) -> Running:
    """Start an attempt; its directory is made here. It goes on if the scheduler ends."""
    directory.mkdir(parents=True, exist_ok=True)
    keeper.write_over(directory / "launch.json", launch)
    # Signals that come before the keeper is ready for them have to wait, not to end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, keeper.HANDLED)
    try:
        with (directory / "keeper.log").open("ab") as errors:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", _KEEPER, str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                start_new_session=True,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Running(directory, child.pid, keeper.started_at(child.pid), os.pidfd_open(child.pid), child)


def find(directory: Path) -> Running | Outcome | None:
    """What has become of an attempt that an earlier scheduler started: it runs, it has ended, or it never began.

    In the last case it is made sure that it never will: a keeper that was about to begin finds its place taken.
    """
    ended = outcome(directory)
    if ended is not None:
        return ended
    if not directory.exists() or keeper.write_new(directory / "keeper.json", NOBODY):
        return None
    pid, started = json.loads((directory / "keeper.json").read_text(encoding="utf-8"))
    if [pid, started] == NOBODY:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return outcome(directory) or LOST
    if keeper.started_at(pid) != started:
        os.close(pidfd)
        return outcome(directory) or LOST
    return Running(directory, pid, started, pidfd)


def outcome(directory: Path) -> Outcome | None:
    """How an attempt ended, if it has written that down."""
    try:
        told = json.loads((directory / "exit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Outcome(tuple(told["codes"]), told["cause"], told["killed"], told["problem"], told["time"])


def kill_strays(directory: Path, token: str) -> int:
    """Kill what is left of an attempt whose keeper was killed: its ranks, and processes with its token in their
    environment. Returns how many there were."""
    known: list[list[int]] = []
    try:
        known = json.loads((directory / "ranks.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = []
    strays = {pid for pid, started in known if keeper.started_at(pid) == started}
    strays |= set(_marked(f"FAIRWAY_ATTEMPT={token}".encode()))
    for signo in (signal.SIGSTOP, signal.SIGKILL):
        for pid in strays:
            try:
                os.kill(pid, signo)
            except (ProcessLookupError, PermissionError):
                continue
    return len(strays)


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
