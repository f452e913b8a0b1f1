"""This machine as a site: each attempt has a keeper process, and its pidfd tells when it ends."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.runtime.jobs.reports import ReportReader
from fairway.runtime.processes import environment, hands
from fairway.runtime.processes.containment import Containment, Limits
from fairway.runtime.processes.hands import Running, said_no_memory
from fairway.runtime.processes.site import LOST, Outcome, Over, Report

_READ_AGAIN_S = 0.5
"""How long to wait before files of an attempt that could not be read are read again."""


class LocalSite:
    """The attempts on this machine. Each has a control group of its own, where there can be any."""

    def __init__(self, containment: Containment | None = None) -> None:
        self._containment = containment or Containment(None, why="not asked for")
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._by_fd: dict[int, tuple[Running, str]] = {}
        self._unread: list[tuple[Running, str]] = []

    def start(self, directory: Path, launch: Mapping[str, Any]) -> Running:
        """Start an attempt. `OSError` if the machine cannot."""
        folder = directory.parent
        for one in (folder.parent, folder):
            hands.make_folder(one)
        (folder / "checkpoints").mkdir(mode=0o700, exist_ok=True)
        environment.hand_over(folder, launch["account"])
        limits = Limits(launch.get("host_memory_bytes", 0), launch.get("cpus", 0.0))
        shut = [(major, minor) for major, minor in launch.get("shut_devices", ())]
        group = self._containment.make(launch["token"], limits, shut)
        running = hands.start(directory, launch if group is None else {**launch, "cgroup": str(group)})
        self._watch(running, launch["token"])
        return running

    def find(self, directory: Path, token: str) -> Running | Outcome | None:
        """An attempt of an earlier scheduler: it lives, it has ended, or it never began and never will."""
        found = hands.find(directory)
        if isinstance(found, Running):
            self._watch(found, token)
        elif found is not None:
            if found.cause == "lost":
                hands.kill_strays(directory, token)
            return _with_words(found, directory)
        return found

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that its work is not needed any more: its job was cancelled."""
        return hands.is_given_up(directory)

    def reports(self, folder: Path, read_bytes: int) -> Report:
        """What a job has reported since its file was last read."""
        reader = ReportReader(folder / "reports.jsonl", read_bytes)
        lines = list(reader.new_lines())
        return Report(lines, reader.offset)

    def wait(self, seconds: float) -> Sequence[Over]:
        """The attempts that have ended. Waits for one, at most this many seconds."""
        gone, self._unread = self._unread, []
        longest_s = _READ_AGAIN_S if gone else 3600.0
        for fd, _ in self._poll.poll(max(0.0, min(seconds, longest_s)) * 1000.0):
            if fd == self._wake_read:
                self._drain()
            else:
                self._poll.unregister(fd)
                gone.append(self._by_fd.pop(fd))
        return [over for one in gone if (over := self._end(*one)) is not None]

    def wake(self) -> None:
        """Make `wait` return now. Any thread may call this."""
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            return

    def _watch(self, running: Running, token: str) -> None:
        self._by_fd[running.pidfd] = running, token
        self._poll.register(running.pidfd, select.POLLIN)

    def _end(self, running: Running, token: str) -> Over | None:
        """An attempt's keeper is gone: find out how it ended. None if its files cannot be read now."""
        try:
            outcome = hands.outcome(running.directory)
            if outcome is None:
                hands.kill_strays(running.directory, token, just_now=True)
                outcome = LOST
            over = Over(running, _with_words(outcome, running.directory))
        except OSError:
            # Too many files are open, or the disk does not answer. That says nothing about how it ended.
            self._unread.append((running, token))
            return None
        running.close()
        return over

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            return


def _with_words(outcome: Outcome, directory: Path) -> Outcome:
    """An outcome, with what the logs say about it."""
    return outcome._replace(said_no_memory=said_no_memory(directory, len(outcome.codes)))
