"""Asks the driver to take a process's memory off the GPU, and to bring it back. A small server that stays up.

The driver saves all CUDA state of a process in host memory (`cuCheckpointProcess…`, driver 570 and later). The first
call of a process takes a second, so one process makes all of them.

    python -m fairway.gpu.checkpointer SOCKET

One JSON object per line and connection: {"do": "out"|"in", "pids": […], "limit_s": 60}. The answer has "pids" (those
that use a GPU, maybe none), or a "problem". It ends when its standard input is closed and no call is under way.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

_RUNNING, _LOCKED, _OUT = 0, 1, 2
_MESSAGES = {
    1: "the driver refuses (invalid value)",
    2: "there is not enough GPU memory",
    3: "the driver is not ready",
    400: "the process has no CUDA state that the driver knows",
    401: "the process is in the wrong state",
    600: "the driver is not ready yet",
    801: "the driver cannot save this kind of memory (managed, or shared between processes)",
    999: "the driver reports an unknown error",
}
_CALLS = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")


class CheckpointError(Exception):
    """The driver cannot do it, and says why."""


class _LockTerms(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("unused", ctypes.c_uint), ("more", ctypes.c_uint64 * 7))


class Driver:
    """The driver's calls. `CheckpointError` if there is no driver or it is too old."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            cuda: Any = ctypes.CDLL(library)
            self._calls = {name: getattr(cuda, f"cuCheckpointProcess{name}") for name in _CALLS}
        except (OSError, AttributeError) as error:
            raise CheckpointError(f"the driver has no calls for this; it must be 570 or later ({error})") from None
        code = cuda.cuInit(0)
        if code:
            raise CheckpointError(_said(code))

    def users(self, pids: list[int]) -> list[int]:
        """Those of these processes that use CUDA."""
        return [pid for pid in pids if self.state(pid) is not None]

    def state(self, pid: int) -> int | None:
        """What the driver says about a process; None if it does not use CUDA."""
        state = ctypes.c_int(-1)
        return None if self._calls["GetState"](pid, ctypes.byref(state)) else state.value

    def out(self, pids: list[int], limit_s: float) -> None:
        """Take the memory of processes off the GPU. If that fails for one, all go on as before."""
        done: list[int] = []
        try:
            for pid in pids:
                if self.state(pid) == _RUNNING:
                    terms = _LockTerms(timeout_ms=int(1000 * limit_s))
                    self._call("Lock", pid, ctypes.byref(terms))
            for pid in pids:
                done.append(pid)
                if self.state(pid) == _LOCKED:
                    self._call("Checkpoint", pid, None)
        except CheckpointError:
            with contextlib.suppress(CheckpointError):
                self.back(pids)
            raise

    def back(self, pids: list[int]) -> None:
        """Bring it back, and let the processes use the GPU again."""
        for pid in pids:
            if self.state(pid) == _OUT:
                self._call("Restore", pid, None)
        for pid in pids:
            if self.state(pid) == _LOCKED:
                self._call("Unlock", pid, None)

    def _call(self, name: str, pid: int, terms: Any) -> None:
        code = self._calls[name](pid, terms)
        if code:
            raise CheckpointError(f"{_said(code)} ({name.lower()} of process {pid})")


def _said(code: int) -> str:
    return _MESSAGES.get(code, f"CUDA error {code}")


class CheckpointServer:
    """Answers requests of processes of its own user, each in a thread."""

    def __init__(self, path: Path, driver: Driver) -> None:
        self._driver = driver
        self._path = path
        self._threads: list[threading.Thread] = []
        path.unlink(missing_ok=True)
        before = os.umask(0o077)
        try:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        self._socket.listen(64)

    def serve(self) -> None:
        """Answer until the socket is closed."""
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(one,))
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

    def close(self) -> None:
        """Take no more requests. Calls that are under way end first."""
        # The name goes first: once the socket is shut the process may be gone at any instant.
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] != os.geteuid():
                return
            with one.makefile("rb") as lines:
                told = self._do(lines.readline(1 << 20))
            one.sendall(json.dumps(told).encode() + b"\n")

    def _do(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            pids = self._driver.users([int(pid) for pid in asked["pids"]])
            if asked["do"] == "out":
                self._driver.out(pids, float(asked["limit_s"]))
            else:
                self._driver.back(pids)
            return {"pids": pids}
        except CheckpointError as error:
            return {"problem": str(error)}
        except (ValueError, KeyError, TypeError) as error:
            return {"problem": f"the request makes no sense: {error}"}


def main() -> None:
    """Serve at the socket that is the first argument, until standard input is closed."""
    try:
        server = CheckpointServer(Path(sys.argv[1]), Driver())
    except (CheckpointError, OSError) as error:
        print(f"fairway: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None

    def end() -> None:
        sys.stdin.buffer.read()
        server.close()

    threading.Thread(target=end, daemon=True).start()
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
