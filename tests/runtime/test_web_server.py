"""The web page on real sockets: its port is opened when somebody asks, and the kernel says whose browser it is."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_cli import LiveCli, live_cli_in

from fairway.api.request_origin import tcp_uid
from fairway.api.server import Server
from fairway.client import Client, RefusedError
from fairway.runtime.daemon.daemon import Daemon, Options

NOBODY = 65534


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    server, ready = Server(Daemon(Options(tmp_path, policy="fifo", gpus="1"))), threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(60.0)
    yield server
    server.stop()
    thread.join(60.0)
    server.close()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LiveCli]:
    yield from live_cli_in(tmp_path)


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """One request over TCP: its status, its headers and what it says."""
    connection = http.client.HTTPConnection(address, timeout=60.0)
    content = None if body is None else json.dumps(body)
    headers |= {} if body is None else {"Content-Type": "application/json"}
    connection.request(method, path, content, headers)
    answer = connection.getresponse()
    told = answer.status, answer.headers, json.loads(answer.read())
    connection.close()
    return told


def test_a_port_is_opened_when_somebody_asks_for_the_page(served: Server, tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert not (tmp_path / "token").exists()
    first = client.web(address="127.0.0.1:0")
    address, _, secret = first["url"].removeprefix("http://").partition("/#link=")
    assert client.web()["address"] == f"http://{address}/" == first["address"]
    assert json.loads((tmp_path / "daemon.json").read_text())["web"] == address
    assert ask(address, "GET", "/v1/status")[0] == 401
    status, headers, told = ask(address, "POST", "/web/session", {"link": secret})
    assert (status, told["operator"]) == (200, True)
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert ask(address, "GET", "/v1/status", Cookie=cookie)[2]["you"] == client.status()["you"]
    token = (tmp_path / "token").read_text().strip()
    assert Client(url=f"http://{address}", token=token).status()["operator"]
    with pytest.raises(RefusedError, match="only loopback"):
        client.web(address="0.0.0.0:0")
    with pytest.raises(RefusedError, match="Address already in use"), socket.create_server(("127.0.0.1", 0)) as other:
        client.web(address=f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("uid", [os.geteuid(), NOBODY] if os.geteuid() == 0 else [os.geteuid()])
def test_the_kernel_says_whose_process_has_connected(family: socket.AddressFamily, uid: int) -> None:
    host, own = "127.0.0.1" if family == socket.AF_INET else "::1", os.geteuid()
    with socket.create_server((host, 0), family=family) as listening:
        os.seteuid(uid)
        try:
            client = socket.create_connection(listening.getsockname()[:2])
        finally:
            os.seteuid(own)
        accepted, _ = listening.accept()
        with client, accepted:
            assert tcp_uid(accepted) == uid
            client.close()
            assert tcp_uid(accepted) == -1, "nobody is there any more"


def test_the_page_is_where_it_was_after_a_restart(cli: LiveCli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert "http" not in cli.start("--gpus", "1")
    secret = cli("web", "--address", address, "--json").json["url"].partition("=")[2]
    _, headers, told = ask(address, "POST", "/web/session", {"link": secret})
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert cli("down").code == 0
    cli.start()
    assert ask(address, "GET", "/web/session", Cookie=cookie)[2] == told, "open pages go on"
    call = cli("web", "--read-only")
    assert call.out.startswith(f"http://{address}/#link=")
    assert "to look only" in call.out
    assert cli("down").code == 0
    cli.start("--web", "none")
    with pytest.raises(ConnectionRefusedError):
        ask(address, "GET", "/web/session")
