"""The client's connections: one per thread that is used again, never one that is dead or somebody else's."""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairway.client import SOCKET, Client, ClientError, RefusedError

OK, REFUSED = b"200 OK", b"409 Conflict"


class Listener:
    """Answers every request with an empty list of jobs, and notes on which connection each came."""

    def __init__(self, path: Path) -> None:
        self.seen: list[tuple[int, str]] = []
        self.status = OK
        self.after: Callable[[int], bool] = lambda requests: True
        self.before: Callable[[int], bool] = lambda requests: True
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            number += 1
            threading.Thread(target=self._serve, args=(peer, number), daemon=True).start()

    def _serve(self, peer: socket.socket, number: int) -> None:
        requests = 0
        with peer, peer.makefile("rb") as lines:
            while request := lines.readline():
                length = 0
                while (line := lines.readline().lower()) not in (b"\r\n", b""):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                lines.read(length)
                requests += 1
                self.seen.append((number, request.decode().split()[1]))
                if not self.before(requests):
                    return
                body = json.dumps({"jobs": [], "error": "no"}).encode()
                peer.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (self.status, len(body), body))
                if not self.after(requests):
                    return

    @property
    def connections(self) -> list[int]:
        return [number for number, _ in self.seen]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / SOCKET)
    yield made
    made.close()


@pytest.fixture
def client(listener: Listener, tmp_path: Path) -> Client:
    return Client(tmp_path, timeout_s=20.0)


def test_requests_one_after_the_other_share_a_connection(listener: Listener, client: Client) -> None:
    for _ in range(3):
        client.ls()
    client.submit({"command": ["true"]})
    assert listener.connections == [1, 1, 1, 1]


def test_a_refusal_does_not_cost_the_connection(listener: Listener, client: Client) -> None:
    listener.status = REFUSED
    for _ in range(2):
        with pytest.raises(RefusedError, match="no"):
            client.ls()
    assert listener.connections == [1, 1]


def test_a_connection_that_the_other_side_has_closed_is_replaced(listener: Listener, client: Client) -> None:
    listener.after = lambda requests: False
    for _ in range(3):
        client.ls()
    # The end may come before or after the next request is sent; nothing is lost either way.
    assert listener.connections == [1, 2, 3]


def test_a_request_that_a_kept_connection_loses_is_sent_again(listener: Listener, client: Client) -> None:
    listener.before = lambda requests: requests < 2
    client.ls()
    assert client.submit({"command": ["true"]}) == []
    assert listener.connections == [1, 1, 2]


def test_what_must_not_be_sent_twice_is_not(listener: Listener, client: Client) -> None:
    client.ls()
    client.requeue("7")
    assert listener.seen[-1] == (2, "/v1/jobs/7/requeue")
    listener.before = lambda requests: False
    with pytest.raises(ClientError, match="broke off"):
        client.requeue("8")
    assert [path for _, path in listener.seen].count("/v1/jobs/8/requeue") == 1


def test_threads_do_not_share_a_connection(listener: Listener, client: Client) -> None:
    client.ls()
    other = threading.Thread(target=client.ls)
    other.start()
    other.join(20)
    client.ls()
    assert listener.connections == [1, 2, 1]


def test_another_process_or_user_gets_a_connection_of_its_own(
    listener: Listener, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ls()
    with monkeypatch.context() as as_somebody_else:
        as_somebody_else.setattr(os, "geteuid", lambda: 12345)
        client.ls()
    with monkeypatch.context() as in_a_child:
        in_a_child.setattr(os, "getpid", lambda: 1)
        client.ls()
    assert listener.connections == [1, 2, 3]


def test_a_copy_of_a_client_can_be_sent_elsewhere(listener: Listener, client: Client) -> None:
    client.ls()
    assert pickle.loads(pickle.dumps(client)).ls() == []
    assert listener.connections == [1, 2]
