"""How seats and an executor talk: a Unix socket with one JSON message per line, in both directions.

The executor has one thread for all connections. It never waits for a seat: a seat may be stopped for hours.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_LINE = 8 << 20
MOST_WAITING = 4 << 20
"""The most bytes that wait for a seat that does not read. What comes after that is dropped."""
_PIECE = 65_536

Message = dict[str, Any]


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of a socket's path that is short enough, however long its folder is."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """A connection to an executor. `OSError` if none answers."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            made.connect(name)
    except OSError:
        made.close()
        raise
    return made


def listen(path: Path) -> socket.socket:
    """A socket for the executor of this folder, in place of one that an earlier executor left."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    path.unlink(missing_ok=True)
    with _short(path) as name:
        made.bind(name)
    made.listen(256)
    return made


def encoded(message: Message) -> bytes:
    """A message as a line."""
    return json.dumps(message, default=str).encode() + b"\n"


class LineReader:
    """Cuts what arrives into messages. What is no message is dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, piece: bytes) -> list[Message]:
        """The messages that are complete now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE:
            self._rest = b""
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    found.append(message)
        return found


class Said(NamedTuple):
    """What a seat has said; None: its connection has ended."""

    seat: int
    message: Message | None


class _Line:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.reader = LineReader()
        self.waiting = bytearray()
        self.is_slow = False


class Switchboard:
    """All connections of an executor, served by a thread. `said` has what seats say."""

    def __init__(self, path: Path) -> None:
        self.said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._listener = listen(path)
        self._listener.setblocking(False)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._lock = threading.Lock()
        self._lines: dict[int, _Line] = {}
        self._next = 0
        self._hanging_up: set[int] = set()
        self._to_write: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        threading.Thread(target=self._run, name="seats", daemon=True).start()

    def tell(self, seat: int, message: Message) -> None:
        """Send a message to a seat, some time."""
        with self._lock:
            line = self._lines.get(seat)
            if line is not None and len(line.waiting) < MOST_WAITING:
                line.waiting += encoded(message)
                self._to_write.add(seat)
        self._wake()

    def is_there(self, seat: int) -> bool:
        """Whether a seat is connected."""
        return seat in self._lines

    def hang_up(self, seat: int) -> None:
        """End a connection when all has been sent."""
        with self._lock:
            self._hanging_up.add(seat)
            self._to_write.add(seat)
        self._wake()

    def flush(self, seconds: float) -> None:
        """Wait until all has been sent, but not for long."""
        done = threading.Event()
        for _ in range(max(int(seconds / 0.01), 1)):
            with self._lock:
                if not any(line.waiting for line in self._lines.values()):
                    return
            done.wait(0.01)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wake_read:
                    os.read(self._wake_read, 4096)
                else:
                    self._read(key.data)
            self._write()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            seat, self._next = self._next, self._next + 1
            with self._lock:
                self._lines[seat] = _Line(connection)
            self._selector.register(connection, selectors.EVENT_READ, seat)

    def _read(self, seat: int) -> None:
        line = self._lines.get(seat)
        if line is None:
            return
        try:
            piece = line.socket.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._close(seat)
            self.said.put(Said(seat, None))
            return
        for message in line.reader.take(piece):
            self.said.put(Said(seat, message))

    def _write(self) -> None:
        """Send what can be sent now. A seat that takes no more is tried again when it does."""
        gone = []
        with self._lock:
            for seat in list(self._to_write):
                line = self._lines.get(seat)
                if line is not None and line.waiting:
                    with contextlib.suppress(OSError):
                        del line.waiting[: line.socket.send(line.waiting)]
                if line is not None and bool(line.waiting) != line.is_slow:
                    line.is_slow = bool(line.waiting)
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.is_slow else 0)
                    self._selector.modify(line.socket, wanted, seat)
                if line is None or not line.waiting:
                    self._to_write.discard(seat)
                    gone += [seat] if seat in self._hanging_up else []
        for seat in gone:
            self._close(seat)

    def _close(self, seat: int) -> None:
        with self._lock:
            line = self._lines.pop(seat, None)
            self._hanging_up.discard(seat)
        if line is not None:
            self._selector.unregister(line.socket)
            line.socket.close()
