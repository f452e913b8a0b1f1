"""The link between a scheduler and the process that speaks to other machines for it: lines of JSON, both ways."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import fairway

_ROOT = str(Path(fairway.__file__).resolve().parents[1])
_PIECE_BYTES = 1 << 20


class BridgeLink:
    """One end of the link. Nothing here waits. `end` ends the other side."""

    def __init__(self, sock: socket.socket, end: Callable[[], None]) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.gone = False
        self._end = end
        self._unsent, self._unread = b"", b""

    @property
    def has_unsent(self) -> bool:
        """Whether something is left to be sent when the other side has room for it."""
        return bool(self._unsent)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, now or as soon as there is room."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what is left, as far as there is room."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent, self.gone = b"", True

    def messages(self) -> list[Mapping[str, Any]]:
        """What the other side has sent. `gone` says afterwards whether it is there."""
        found: list[Mapping[str, Any]] = []
        while True:
            try:
                piece = self.sock.recv(_PIECE_BYTES)
            except BlockingIOError:
                return found
            except OSError:
                piece = b""
            if not piece:
                self.gone = True
                return found
            *lines, self._unread = (self._unread + piece).split(b"\n")
            found += map(json.loads, lines)

    def close(self) -> None:
        """End the other side."""
        self.gone = True
        self.sock.close()
        self._end()


def start_ray_bridge(address: str, told: Mapping[str, Any], log: Path) -> BridgeLink:
    """Start the bridge to a Ray cluster. `told` is what the scheduler says about itself."""
    ours, theirs = socket.socketpair()
    words = ["-m", "fairway.runtime.processes.ray_bridge", str(theirs.fileno()), address, json.dumps(told)]
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with theirs:
            bridge = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env={**os.environ, "PYTHONPATH": _ROOT},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
    finally:
        os.close(out)

    def end() -> None:
        with suppress(ProcessLookupError):
            bridge.kill()
        bridge.wait()

    return BridgeLink(ours, end)
