"""Serving the API: on a Unix socket that every user of the machine may connect to, and optionally on loopback TCP.

On the socket the kernel says who connects. TCP has no such thing, so it needs a token, or the cookie of a web page. One
token is in the state directory, in a file that only the scheduler's user can read; operators make others. SIGTERM and
SIGINT end it: no more requests are taken, answers that are on their way are finished, and jobs go on running.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from fairway.api.app import make_app, operators_of
from fairway.api.connections import Connection, Connections, FewLines
from fairway.api.page_port import BACKLOG, PagePort, tcp_socket, written
from fairway.api.people import Access
from fairway.api.web_sessions import Bearer
from fairway.client import TOKEN
from fairway.runtime.daemon.daemon import Daemon

GRACE_S = 5.0
"""How long answers may take after the server was asked to stop."""
SWITCH_S = 0.001
"""How long a thread may compute while others wait. A request goes through several threads, and each waits this long."""
COLLECT_EVERY = (10_000, 10, 10)
"""The thresholds of Python's garbage collector. Jobs leave no cycles, so full collections may be rare."""


def serve(
    daemon: Daemon,
    listen: str | socket.socket | None = None,
    *,
    open_to_all: bool = False,
    on_ready: Callable[[Server], None] = lambda server: None,
) -> None:
    """Schedule and serve until SIGTERM or SIGINT; starts the daemon and closes it.

    `listen` is a loopback address such as 127.0.0.1:8080, or what `tcp_socket` gave for one. `on_ready` is called when
    requests are answered. The daemon may have opened a port for the web page, too.
    """
    server = Server(daemon, listen, open_to_all=open_to_all)
    try:
        server.run(lambda: on_ready(server))
    finally:
        server.close()


class Server:
    """A daemon behind its API. `run` blocks; `stop` may be called from any thread."""

    def __init__(self, daemon: Daemon, listen: str | socket.socket | None = None, *, open_to_all: bool = False) -> None:
        self.daemon = daemon
        folder = daemon.options.folder
        _protect(folder, daemon.scheduler.jobs_folder)
        for name in ("asyncio", "uvicorn.error"):
            logging.getLogger(name).addFilter(FewLines())
        self._sockets = [_unix_socket(daemon.socket)]
        if listen is not None:
            try:
                self._sockets.append(tcp_socket(listen) if isinstance(listen, str) else listen)
            except BaseException:
                self._sockets[0].close()
                raise
        if daemon.page_listener is not None:
            self._sockets.append(daemon.page_listener)
        self._token: str | None = None
        self.address: tuple[str, int] | None = self._sockets[1].getsockname()[:2] if listen is not None else None
        access = Access(operators=operators_of(daemon), token=lambda: self._token, open_to_all=open_to_all)
        self.app: FastAPI = make_app(daemon, access)
        self._uvicorn = _Uvicorn(_settings(self.app), self.app.state.context.close)
        self.page_port: PagePort = self.app.state.context.page_port
        # A port that was opened for the page is where it is looked for first.
        self.page_port.addresses += [one.getsockname()[:2] for one in self._sockets[:0:-1]]
        self.page_port.listen, self.page_port.on_open = self._listen, self._opened
        if self.page_port.addresses:
            self._token = kept_token(folder / TOKEN)

    async def _listen(self, made: socket.socket) -> None:
        """Answer requests on one more socket."""
        self._token = self._token or kept_token(self.daemon.options.folder / TOKEN)
        self._sockets.append(made)
        await self._uvicorn.listen(made)

    def _opened(self, asked: str) -> None:
        """Open the same port next time, and write down for other processes where it is."""
        self.daemon.remember_web(asked)
        if self.page_port.address is not None:
            self.daemon.tell(web=written(self.page_port.address))

    def own_link(self) -> str:
        """A link that signs the scheduler's own user in to the web page, once."""
        context = self.app.state.context
        assert self.page_port.address is not None
        secret = context.sessions.link(Bearer(context.access.own_uid, "operate"))
        return f"http://{written(self.page_port.address)}/#link={secret}"

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Schedule and serve until stopped."""
        sys.setswitchinterval(SWITCH_S)
        # A full collection stops all threads. What is there now stays, so it need not be looked at each time.
        gc.freeze()
        gc.set_threshold(*COLLECT_EVERY)
        about = {} if self.address is None else {"listen": written(self.address)}
        if self.page_port.address is not None:
            about["web"] = written(self.page_port.address)
        self.daemon.scheduler.on_stop.append(self.stop)
        self.daemon.start(**about)
        self._uvicorn.on_ready = on_ready
        self._uvicorn.run(self._sockets)

    def stop(self) -> None:
        """Finish answers and return from `run`."""
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Stop scheduling and give everything back. Jobs go on running."""
        for one in self._sockets:
            one.close()
        self.app.state.context.audit.close()
        with contextlib.suppress(OSError):
            self.daemon.socket.unlink(missing_ok=True)
        self.daemon.close()


class _Uvicorn(uvicorn.Server):
    """A server that ends streams first when it stops."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams
        self.on_ready: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.on_ready()

    async def listen(self, made: socket.socket) -> None:
        """Listen on one more socket."""

        def protocol() -> asyncio.Protocol:
            about: dict[str, Any] = {"server_state": self.server_state, "app_state": self.lifespan.state}
            return cast(asyncio.Protocol, cast(Any, self.config.http_protocol_class)(config=self.config, **about))

        server = await asyncio.get_running_loop().create_server(protocol, sock=made, backlog=BACKLOG)
        self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and finish those that are there."""
        self._end_streams()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT. Unlike uvicorn's own way the signal is not raised again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _settings(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast(Any, functools.partial(Connection, known=Connections())),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Who sends a request is what the kernel says, never a header.
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(GRACE_S),
    )


def _protect(folder: Path, jobs: Path) -> None:
    """Let others pass through the directory to the socket, and look at nothing in it."""
    ours = (folder / name for name in ("journal.db", "journal.db-wal", "journal.db-shm", "lock", "daemon.json"))
    for path in (*ours, *folder.glob("audit.jsonl*")):
        if path.exists():
            path.chmod(0o600)
    # Only after the files are private.
    folder.chmod(0o711)
    jobs.parent.mkdir(mode=0o700, exist_ok=True)
    jobs.mkdir(mode=0o700, exist_ok=True)
    # Jobs that run as their owners must be able to reach their own directories.
    jobs.chmod(0o711 if os.geteuid() == 0 else 0o700)


def _unix_socket(path: Path) -> socket.socket:
    """A listening socket that every user may connect to. We hold the lock, so an old socket is stale."""
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Through the open directory, because the kernel accepts only short paths.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o666)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    finally:
        os.close(folder)
    return made


def kept_token(path: Path) -> str:
    """The token of a state directory; created if there is none, readable only by its owner."""
    try:
        path.chmod(0o600)
        found = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        found = ""
    if found:
        return found
    made = secrets.token_urlsafe(32)
    scratch = path.with_name("token.new")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{made}\n")
    scratch.replace(path)
    return made
