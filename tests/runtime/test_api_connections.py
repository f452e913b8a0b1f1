"""Clients that open many connections, or are silent in the middle of a request, cost nobody else anything."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairway.api import connections
from fairway.api.server import Server
from fairway.client import Client
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.testing.waiting import WAIT_S

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(connections, "HEADER_S", WAIT_S)
    monkeypatch.setattr(connections, "_SWEEP_S", 0.1)
    for one in (tmp_path, *tmp_path.parents):
        if one.stat().st_uid == os.geteuid() and not one.stat().st_mode & 0o001:
            one.chmod(0o711)
    server = Server(Daemon(Options(tmp_path / "state", policy="fifo", gpus="2")))
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    yield tmp_path / "state"
    server.stop()
    thread.join(WAIT_S)
    server.close()


def _connected(folder: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(WAIT_S)
    made.connect(str(folder / "fairway.sock"))
    return made


@AS_ROOT
def test_one_user_cannot_take_all_connections(folder: Path) -> None:
    code = (
        "import os, select, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "kept = []\n"
        "for _ in range(300):\n"
        "    one = socket.socket(socket.AF_UNIX); one.connect(sys.argv[1]); kept.append(one)\n"
        "def refused(wait_s):\n"
        "    ready = select.select(kept, (), (), wait_s)[0]\n"
        "    kept[:] = [one for one in kept if one not in ready]\n"
        "    return sum(one.recv(99).startswith(b'HTTP/1.1 429 ') for one in ready)\n"
        "count = 0\n"
        "while count < int(sys.argv[2]): count += refused(None)\n"
        "print(count + refused(0.3), flush=True)\n"
        "sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", code, str(folder / "fairway.sock"), str(300 - connections.MOST_EACH)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert int(other.stdout.readline()) == 300 - connections.MOST_EACH
        client = Client(folder)
        job = client.submit({"command": ["true"]})[0]["id"]
        assert client.wait(job, timeout_s=WAIT_S)["state"] == "COMPLETED"
        other.communicate("")


def test_silence_before_during_and_after_the_head_of_a_request_ends_the_connection(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _connected(folder) as silent, _connected(folder) as slow, _connected(folder) as mute:
        slow.sendall(b"GET /v1/status HTTP/1.1\r\nHost:")
        mute.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        monkeypatch.setattr(connections, "HEADER_S", 0.5)
        monkeypatch.setattr(connections, "BODY_S", 0.5)
        for one in (silent, slow, mute):
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(10_000) == b""


def test_a_client_that_is_silent_between_requests_is_answered_as_often_as_it_asks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _connected(folder) as patient:
        for _ in range(3):
            patient.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += patient.recv(100_000)
            assert answer.startswith(b"HTTP/1.1 200")
            with monkeypatch.context() as context:
                # Now whoever is in the middle of a head is silent for too long.
                context.setattr(connections, "HEADER_S", -1.0)
                time.sleep(0.3)


class One:
    """A connection of a user; `busy`: a request is being answered."""

    def __init__(self, uid: int, *, busy: bool = False) -> None:
        self.uid = uid
        self.busy = busy
        self.aborted = False
        self.transport = self

    def answers(self) -> bool:
        return self.busy

    def abort(self) -> None:
        self.aborted = True


def test_a_user_with_few_connections_gets_a_place_of_one_who_has_many(monkeypatch: pytest.MonkeyPatch) -> None:
    known = connections.Connections()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    known._sweeper = object()  # type: ignore[assignment]
    all_of_them = [One(2000 + at % 8, busy=at % 16 != 0) for at in range(known._most_others)]
    for one in all_of_them:
        known.add(one)  # type: ignore[arg-type]
    assert known.refusal(3000) == ""
    closed = [one for one in all_of_them if one.aborted]
    assert [(one.uid, one.busy) for one in closed] == [(2000, False)]
    known.add(One(3000))  # type: ignore[arg-type]
    # Nobody who has as many as others takes a place from them.
    assert "too many connections" in known.refusal(2001)


def test_places_are_kept_for_root_and_for_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    known = connections.Connections()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    known._sweeper = object()  # type: ignore[assignment]
    for uid in range(2000, 2000 + known._most_others):
        assert known.refusal(uid) == ""
        known.add(One(uid))  # type: ignore[arg-type]
    assert "too many connections" in known.refusal(5000)
    assert known.refusal(0) == known.refusal(1000) == ""
    for _ in range(connections.MOST_EACH):
        known.add(One(1000))  # type: ignore[arg-type]
    assert "the most for one user" in known.refusal(1000)


def test_a_log_does_not_grow_without_end() -> None:
    few = connections.FewLines(most=3, seconds=1000.0)
    assert sum(few.filter(None) for _ in range(100)) == 3  # type: ignore[arg-type]
