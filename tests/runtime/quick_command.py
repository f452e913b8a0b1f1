"""`fairway` as a process of its own that starts quickly: it is forked from a process that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["fairway.cli.main", "fairway.cli.up", "fairway.api.server", "quick_command"])


def _run(words: Sequence[str], cwd: str, env: Mapping[str, str], out: str, err: str) -> None:
    """The new process: it becomes `fairway WORDS`."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for path, fd in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.argv = ["fairway", *words]
    from fairway.cli.main import main

    sys.exit(main(list(words)))


class QuickCommand:
    """A command that runs. It has what the tests need of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], pipes: Path) -> None:
        pipes.mkdir(exist_ok=True)
        names = [pipes / f"{time.monotonic_ns()}-{what}" for what in ("out", "err")]
        for name in names:
            os.mkfifo(name)
        self.args = ["fairway", *words]
        self._process: BaseProcess = _FORKS.Process(
            target=_run, args=(list(words), str(cwd), dict(env), *map(str, names)), daemon=False
        )
        self._process.start()
        self.stdout, self.stderr = (_opened(name) for name in names)
        for name in names:
            name.unlink()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it still writes, until it has ended."""
        end_s = float("inf") if timeout is None else time.monotonic() + timeout
        said = {self.stdout: b"", self.stderr: b""}
        with selectors.DefaultSelector() as both:
            for stream in said:
                both.register(stream, selectors.EVENT_READ)
            while both.get_map():
                left_s = end_s - time.monotonic()
                if left_s < 0:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in both.select(None if left_s == float("inf") else left_s):
                    piece = os.read(key.fd, 65536)
                    said[key.fileobj] += piece  # type: ignore[index]
                    if not piece:
                        both.unregister(key.fileobj)
        self.wait(None if timeout is None else max(end_s - time.monotonic(), 0.1))
        return said[self.stdout].decode(), said[self.stderr].decode()

    def send_signal(self, signo: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signo)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _opened(pipe: Path) -> IO[str]:
    # Without a buffer, so that reading a line takes nothing of what follows it.
    return _Lines(os.open(pipe, os.O_RDONLY))  # type: ignore[return-value]


class _Lines:
    """The reading end of a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def readline(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self._fd, 1)
            if not piece:
                break
            line += piece
        return line.decode()

    def read(self) -> str:
        parts = []
        while piece := os.read(self._fd, 65536):
            parts.append(piece)
        return b"".join(parts).decode()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def close(self) -> None:
        os.close(self._fd)
