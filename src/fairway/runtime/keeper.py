"""The keeper of one attempt of a job: starts its ranks, passes signals on, and writes down how they ended.

It is a program of its own (`python keeper.py DIRECTORY`), needs nothing but the standard library, and outlives the
scheduler: whoever starts the scheduler again finds in the attempt's directory who runs and how it went.

    launch.json   what to start, written by the scheduler
    keeper.json   who keeps it; made once, by the keeper, or by a scheduler that finds that none has started
    ranks.json    the processes that were started
    exit.json     how they ended; nothing of the attempt is left behind then

Signals: SIGTERM asks the ranks to stop and kills them after their grace period, SIGUSR1 suspends them in place, SIGUSR2
lets them go on.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_POLL_S = 1.0
_GANG_GRACE_S = 10.0
"""How long the other ranks have to stop when one of them has failed."""
_KILL_EVERY_S = 0.2


def write_new(path: Path, content: Any) -> bool:
    """Make a file with this content, at once and only if there is none; False if there is one."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    _write(scratch, content)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        scratch.unlink()
    return True


def write_over(path: Path, content: Any) -> None:
    """Make or replace a file at once; it is on disk when this returns."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    _write(scratch, content)
    scratch.replace(path)


def _write(path: Path, content: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


def started_at(pid: int) -> int:
    """When a process was started, in clock ticks since boot: with its pid it names a process for good; -1 if gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    fields = text[text.rfind(")") + 2 :].split()
    return -1 if fields[0] in ("Z", "X") else int(fields[19])


def identity(pid: int) -> list[int]:
    """A process by pid and start."""
    return [pid, started_at(pid)]


class Keeper:
    """The ranks of one attempt and what is to become of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.launch: dict[str, Any] = json.loads((directory / "launch.json").read_text(encoding="utf-8"))
        self.ranks: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        self.cause = ""
        self.kill_at_s = float("inf")
        self.limit_s = float(self.launch.get("limit_s") or "inf")
        self.ran_s = 0.0
        self.stopped = False
        self.killed = False

    def run(self) -> None:
        """From the first rank's start to the end of the last process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        if not write_new(self.directory / "keeper.json", identity(os.getpid())):
            return
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        problem = self._start_all()
        write_over(self.directory / "ranks.json", [identity(pid) for pid in self.ranks])
        seen_s = time.monotonic()
        while len(self.codes) < len(self.ranks):
            caught = signal.sigtimedwait(HANDLED, max(min(self._wait_s(), _POLL_S), 0.0))
            now_s = time.monotonic()
            self.ran_s += 0.0 if self.stopped else now_s - seen_s
            seen_s = now_s
            self._handle(caught.si_signo if caught else 0)
            self._reap()
            self._look_after(now_s)
        self._clear()
        codes = [self.codes[pid] for pid in self.ranks]
        outcome = {"codes": codes, "cause": self.cause, "killed": self.killed, "problem": problem, "time": time.time()}
        write_over(self.directory / "exit.json", outcome)

    def _wait_s(self) -> float:
        now_s = time.monotonic()
        limit_s = float("inf") if self.stopped or self.cause else self.limit_s - self.ran_s
        return min(self.kill_at_s - now_s, limit_s)

    def _start_all(self) -> str:
        """Start every rank; what went wrong, if something did (the ranks before it are then stopped)."""
        for rank in self.launch["ranks"]:
            log = Path(rank["log"])
            try:
                with log.open("ab", buffering=0) as out:
                    process = subprocess.Popen(
                        rank["argv"],
                        cwd=self.launch["cwd"],
                        env=rank["env"],
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=_prepare_rank,
                    )
            except (OSError, subprocess.SubprocessError) as error:
                problem = f"{type(error).__name__}: {error}"
                with log.open("a", encoding="utf-8", errors="replace") as out_text:
                    out_text.write(f"fairway: cannot start {rank['argv'][0]!r}: {problem}\n")
                self._stop("start", 0.0)
                return problem
            self.ranks[process.pid] = len(self.ranks)
        return ""

    def _handle(self, signo: int) -> None:
        if signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._stop("request", float(self.launch["grace_s"]))
        elif signo == signal.SIGUSR1:
            self.stopped = True
            self._signal_all(signal.SIGSTOP)
        elif signo == signal.SIGUSR2:
            self.stopped = False
            self._signal_all(signal.SIGCONT)

    def _stop(self, cause: str, grace_s: float) -> None:
        """Ask all ranks to stop; the first cause counts."""
        if self.cause:
            return
        self.cause, self.stopped = cause, False
        self.kill_at_s = time.monotonic() + grace_s
        self._signal_all(signal.SIGCONT)
        self._signal_all(signal.SIGTERM)

    def _look_after(self, now_s: float) -> None:
        """Time limits, grace periods, failed gangs and logs that grow too large."""
        if now_s >= self.kill_at_s:
            self.killed = True
            self._kill_all()
            self.kill_at_s = now_s + _KILL_EVERY_S
        elif not self.cause and self.ran_s >= self.limit_s:
            self._stop("limit", float(self.launch["grace_s"]))
        elif not self.cause and any(self.codes.values()):
            self._stop("gang", min(_GANG_GRACE_S, float(self.launch["grace_s"])))
        for rank in self.launch["ranks"]:
            _rotate(Path(rank["log"]), int(self.launch["log_bytes"]))

    def _signal_all(self, signo: int) -> None:
        """Signal the group of every rank that lives; when suspending, also processes that have left their group."""
        for pid in self.ranks:
            if pid not in self.codes:
                _kill_group(pid, signo)
        if signo in (signal.SIGSTOP, signal.SIGCONT):
            for pid in _descendants(os.getpid()):
                _kill(pid, signo)

    def _kill_all(self) -> None:
        for pid in self.ranks:
            _kill_group(pid, signal.SIGKILL)
        for pid in _descendants(os.getpid()):
            _kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Take note of processes that have ended, those that ranks left behind among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.ranks:
                code = os.waitstatus_to_exitcode(status)
                self.codes[pid] = code if code >= 0 else 128 - code

    def _clear(self) -> None:
        """Kill what the ranks have left behind: everything they ever started is below us."""
        while True:
            self._reap()
            left = _descendants(os.getpid())
            if not left:
                return
            # Stopped first, so that nothing can start another process while the others are killed.
            for signo in (signal.SIGSTOP, signal.SIGKILL):
                for pid in left:
                    _kill(pid, signo)
            time.sleep(0.005)


def _prepare_rank() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill(pid: int, signo: int) -> None:
    try:
        os.kill(pid, signo)
    except (ProcessLookupError, PermissionError):
        return


def _kill_group(pid: int, signo: int) -> None:
    try:
        os.killpg(pid, signo)
    except (ProcessLookupError, PermissionError):
        return


def _descendants(root: int) -> list[int]:
    """All processes below one, nearest first."""
    found, level = list[int](), [root]
    while level:
        below = []
        for pid in level:
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    below += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
            except OSError:
                continue
        found += below
        level = below
    return [pid for pid in found if started_at(pid) >= 0]


def _rotate(log: Path, most_bytes: int) -> None:
    """Keep a log within bounds: its content goes to a second file, and writers go on at the start of the first."""
    try:
        if log.stat().st_size <= most_bytes:
            return
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
    except OSError:
        return


if __name__ == "__main__":
    Keeper(Path(sys.argv[1])).run()
