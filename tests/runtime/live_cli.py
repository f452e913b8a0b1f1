"""A real scheduler in a directory of its own, and the command line as its users call it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from unittest import mock

from quick_command import QuickCommand

from fairway.cli.main import main
from fairway.testing.waiting import WAIT_S
from fairway.testing.waiting import wait_for as until


@dataclass(frozen=True)
class Call:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class LiveCli:
    """`up` in a process of its own; everything else is one call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.daemon: Any = None
        self.env = {**os.environ, "FAIRWAY_STATE": str(self.state), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}

    def start(self, *options: str) -> str:
        """Start the scheduler; returns its first line."""
        self.daemon = self.popen("up", *options)
        assert self.daemon.stdout is not None
        first = self.daemon.stdout.readline()
        assert "listening on" in first, first + (self.daemon.communicate()[1] or "")
        return first

    def popen(self, *words: str, out: IO[str] | int = subprocess.PIPE) -> Any:
        """A process of its own. A scheduler is started in a quick way, because so many are."""
        if words[0] == "up":
            return QuickCommand(words, self.folder, self.env, self.folder / "pipes")
        return subprocess.Popen(
            [sys.executable, "-m", "fairway", *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, given: str | None = None) -> Call:
        """Call the command line in this process, which takes less time than a new one."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with (
            mock.patch.dict(os.environ, self.env, clear=True),
            mock.patch.object(sys, "stdin", io.StringIO(given or "")),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(list(words))
        out.flush()
        err.flush()
        told = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        return Call(code, *told)

    def submit(self, *words: str) -> str:
        """Submit a job; its id."""
        call = self("submit", "--parsable", *words)
        assert call.code == 0, call.err
        return call.out.strip()

    def show(self, job: str) -> dict[str, Any]:
        shown: dict[str, Any] = self("show", job, "--json").json
        return shown

    def wait_for(self, job: str, *states: str) -> dict[str, Any]:
        until(lambda: self.show(job)["state"] in states, f"job {job} to be {' or '.join(states)}")
        return self.show(job)

    def kill(self) -> None:
        """End the scheduler without a word."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.communicate()

    def close(self) -> None:
        """Leave nothing behind."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._kill_keepers()

    def _kill_keepers(self) -> None:
        for told in self.state.glob("jobs/*/attempt-*/keeper.json"):
            if (told.parent / "exit.json").exists():
                continue
            pid = json.loads(told.read_text())[0]
            ranks = (
                json.loads((told.parent / "ranks.json").read_text()) if (told.parent / "ranks.json").exists() else []
            )
            for one in (*(rank[0] for rank in ranks), pid):
                if one > 0 and Path(f"/proc/{one}").exists():
                    os.kill(one, signal.SIGKILL)


def live_cli_in(folder: Path, *options: str) -> Iterator[LiveCli]:
    """For a fixture: the command line in a folder, with a scheduler if options are given. It is closed afterwards."""
    cli = LiveCli(folder)
    try:
        if options:
            cli.start(*options)
        yield cli
    finally:
        cli.close()
