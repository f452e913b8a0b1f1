"""An executor in a process of its own, and seats that tests hold in their hands."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairway.gpu.talk import LineReader, Message, connect, encoded

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent


@contextmanager
def executor(folder: Path, python: str = sys.executable, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """An executor while the block runs. `settings` are variables without their prefix."""
    about = {f"FAIRWAY_EXECUTOR_{name.upper()}": value for name, value in settings.items()}
    path = os.pathsep.join((str(ROOT / "src"), str(HERE)))
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **about}
    process = subprocess.Popen([python, "-m", "fairway.gpu.executor", str(folder)], env=env, cwd=HERE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def leave_word(attempt: Path, name: str, word: str) -> None:
    """Leave a file for an executor, as the keeper of an attempt does."""
    scratch = attempt / "scratch"
    scratch.write_text(word, encoding="ascii")
    scratch.replace(attempt / name)


class FakeSeat:
    """A seat that says what a test wants."""

    def __init__(self, folder: Path, seconds: float = 120.0) -> None:
        until_s = time.monotonic() + seconds
        while True:
            try:
                self._socket = connect(folder / "socket")
                break
            except OSError:
                assert time.monotonic() < until_s, "no executor answers"
                time.sleep(0.01)
        self._reader = LineReader()
        self.heard: list[Message] = []
        self.closed = False

    def host(self, job: str, factory: str, *arguments: str, **about: Any) -> FakeSeat:
        """Ask for a job of `hosted_jobs`."""
        factory = factory if ":" in factory else f"hosted_jobs:{factory}"
        self.say({"host": {"job": job, "factory": factory, "arguments": arguments, **about}})
        return self

    def say(self, message: Message) -> None:
        self._socket.sendall(encoded(message))

    def close(self) -> None:
        self._socket.close()

    def until(self, what: str, seconds: float = 120.0) -> Any:
        """Wait for a message with this word, and return what is said there."""
        until_s, begin = time.monotonic() + seconds, 0
        while True:
            for at in range(begin, len(self.heard)):
                if what in self.heard[at]:
                    found = self.heard[at][what]
                    del self.heard[: at + 1]
                    return found
            begin = len(self.heard)
            assert time.monotonic() < until_s, f"waited in vain for {what!r}; heard {self.heard}"
            assert not self.closed, f"closed without {what!r}; heard {self.heard}"
            self.listen(0.1)

    def until_any(self, *words: str) -> Message:
        """Wait for a message with one of these words."""
        until_s = time.monotonic() + 120.0
        while True:
            found = next((one for one in self.heard if set(words) & one.keys()), None)
            if found is not None:
                return found
            assert time.monotonic() < until_s, f"waited in vain for {words}; heard {self.heard}"
            self.listen(0.1)

    def listen(self, seconds: float) -> None:
        """Take in what is said within this time."""
        until_s = time.monotonic() + seconds
        while not self.closed and select.select([self._socket], (), (), max(until_s - time.monotonic(), 0.0))[0]:
            piece = self._socket.recv(65_536)
            self.closed = not piece
            self.heard += self._reader.take(piece)
