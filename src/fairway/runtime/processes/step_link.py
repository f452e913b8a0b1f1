"""Connections between the nodes of a batch job, for the steps that `srun` starts.

Both ends prove that they know a secret, without sending it: the token of the attempt, which only its processes have.
All this runs on the nodes of jobs, in the Python of their keepers, and needs only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

_PROOF_S = 10
"""How long the other end has to prove itself."""
_ERRORS = (OSError, EOFError, ValueError)


class TaskOutput(NamedTuple):
    """What a task has written: to its output (1) or to its errors (2)."""

    task: int
    stream: int
    text: bytes


class Link:
    """A connection. Any thread may send; one thread receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def tell(self, **what: Any) -> None:
        """Send a message. `OSError` if the other end is gone."""
        self._send(b"{" + json.dumps(what).encode()[1:])

    def pass_on(self, output: TaskOutput) -> None:
        """Send what a task has written."""
        self._send(struct.pack(">cIB", b"o", output.task, output.stream) + output.text)

    def heard(self) -> dict[str, Any] | TaskOutput | None:
        """The next message, or what a task has written; None if the other end is gone."""
        try:
            message = self._connection.recv_bytes()
            if message[:1] == b"o":
                _, task, stream = struct.unpack(">cIB", message[:6])
                return TaskOutput(task, stream, message[6:])
            return dict(json.loads(message))
        except _ERRORS:
            return None

    def close(self) -> None:
        """End the connection. The other end hears of it."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            # A thread that receives wakes up.
            end.shutdown(socket.SHUT_RDWR)

    def _send(self, message: bytes) -> None:
        with self._sending:
            self._connection.send_bytes(message)


def listen(address: str, port: int) -> socket.socket:
    """Listen at a port of this node. `OSError` if it is taken."""
    try:
        return socket.create_server((address, port), backlog=128)
    except OSError:
        # The address by which others know this node may not be its own.
        return socket.create_server(("", port), backlog=128)


def accepted(end: socket.socket, secret: str) -> Link | None:
    """A connection that somebody has made; None if that was nobody who knows the secret."""
    return _proven(end, secret, first=True)


def connected(address: str, port: int, secret: str) -> Link | None:
    """A connection to another node; None if there is nobody who knows the secret."""
    try:
        return _proven(socket.create_connection((address, port), timeout=_PROOF_S), secret, first=False)
    except OSError:
        return None


def _proven(end: socket.socket, secret: str, *, first: bool) -> Link | None:
    end.settimeout(None)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PROOF_S, 0))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A node that is gone says nothing.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection = Connection(end.detach())
    steps = (deliver_challenge, answer_challenge) if first else (answer_challenge, deliver_challenge)
    try:
        for step in steps:
            step(connection, secret.encode())
        with socket.socket(fileno=os.dup(connection.fileno())) as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    except Exception:  # the other end may send anything
        connection.close()
        return None
    return Link(connection)
