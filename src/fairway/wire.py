"""How a client reaches a scheduler: HTTP over the Unix socket in a state directory, or to a URL with a token.

A `Wire` takes a request and returns the content of the answer, or the answer in pieces. It does not know what the
request means. It repeats a request that was cut off if that can do no harm. Each thread keeps its connection for the
next request. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from fairway.core.errors import FairwayError

SOCKET = "fairway.sock"
TOKEN = "token"
TRIES = 4
RETRY_S = 0.1
_CHUNK_BYTES = 65536


class ClientError(FairwayError):
    """The scheduler could not be reached, or refused."""


class NotUpError(ClientError):
    """No scheduler answers."""


class RefusedError(ClientError):
    """The scheduler refused; `status` is the HTTP status: 403 not yours, 404 no such job, 409 wrong state, 422 bad."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request(NamedTuple):
    """A request; `body`, if there is one, is sent as JSON."""

    method: str
    path: str
    body: Any
    query: Sequence[tuple[str, Any]]
    headers: Mapping[str, str]


class Wire:
    """The way to one scheduler: by its state directory, or by a URL.

    Only a URL needs a `token`. By default it is read from $FAIRWAY_TOKEN or from the state directory. Several threads
    may use a wire.
    """

    def __init__(self, folder: Path, url: str | None, token: str | None) -> None:
        self.folder = folder
        self.url = url
        self._token = _found_token(token, folder) if url is not None else None
        self._address = _address(url) if url is not None else None
        self._own = _Own()

    @property
    def where(self) -> str:
        """Where the scheduler is, for messages."""
        return self.url or str(self.folder)

    def content(self, request: Request, timeout_s: float, *, again: bool = True) -> bytes:
        """Send a request and return the whole answer; send it again if the answer was cut off and `again` allows it."""
        for tried in range(1, TRIES + 1):
            # A request that must not be sent twice gets a new connection, which the other side has no reason to close.
            kept = self._own.line.taken() if again else None
            connection = kept or self._connection(timeout_s)
            try:
                return self._content(connection, request)
            except (ConnectionError, http.client.HTTPException) as error:
                if not again or tried == TRIES:
                    raise self._broke_off(error) from None
                if kept is None:
                    time.sleep(RETRY_S * tried)
            except TimeoutError:
                raise ClientError(f"no answer from {self.where} within {timeout_s:g} s") from None
        raise AssertionError("unreachable")

    def stream(self, request: Request) -> Iterator[bytes]:
        """An answer in pieces, with any time between them. The request is sent when the first piece is wanted."""
        with closing(self._connection(None)) as connection:
            try:
                asked = request._replace(headers={"Connection": "close", **request.headers})
                response = self._response(connection, asked)
                while piece := response.read1(_CHUNK_BYTES):
                    yield piece
            except (OSError, http.client.HTTPException) as error:
                raise self._broke_off(error) from None

    def _content(self, connection: http.client.HTTPConnection, request: Request) -> bytes:
        """A whole answer. The connection is kept for the next request, unless this one was cut off."""
        try:
            content = self._response(connection, request).read()
        except RefusedError:
            self._own.line.keep(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._own.line.keep(connection)
        return content

    def _connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        """An open connection; `NotUpError` if nobody listens."""
        connection: http.client.HTTPConnection
        if self._address is None:
            connection = _UnixConnection(self.folder / SOCKET, timeout_s)
        else:
            connection = _Connection(*self._address, timeout=timeout_s)
        try:
            connection.connect()
        except PermissionError:
            raise RefusedError(403, f"you may not connect to {self.where}") from None
        except OSError:
            raise NotUpError(f"no scheduler is running at {self.where}; `fairway up` starts one") from None
        return connection

    def _response(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        """Send a request and return its answer, unless it is refused."""
        sent = dict(request.headers)
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        content = None
        if request.body is not None:
            content = json.dumps(request.body).encode()
            sent["Content-Type"] = "application/json"
        target = f"{request.path}?{urlencode(request.query)}" if request.query else request.path
        # A request that is too large is refused while it is being sent; the answer says so.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(request.method, target, content, sent)
        response = connection.getresponse()
        if response.status >= 400:
            raise RefusedError(response.status, _told(response.read(), response.status))
        return response

    def _broke_off(self, error: Exception) -> ClientError:
        return ClientError(f"the scheduler at {self.where} broke off: {error or 'no answer'}")


class _Own(threading.local):
    """What belongs to one thread. A copy of a wire begins with nothing."""

    def __init__(self) -> None:
        self.line = _Line()

    def __reduce__(self) -> tuple[type[_Own], tuple[()]]:
        return _Own, ()


class _Line:
    """The connection that is kept between requests; closed when its thread, or the wire, is gone.

    It belongs to the process and the user that made it: to the scheduler, a child of this process, or this process as
    another user, is a different client.
    """

    def __init__(self) -> None:
        self._kept: http.client.HTTPConnection | None = None
        self._owner: tuple[int, int] | None = None

    def __del__(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose last answer was read to its end, if it is still open."""
        if connection.sock is not None:
            if self._kept is not None:
                self._kept.close()
            self._kept, self._owner = connection, (os.getpid(), os.geteuid())

    def taken(self) -> http.client.HTTPConnection | None:
        """The kept connection, if it can be used once more; the caller keeps it again afterwards."""
        connection, self._kept = self._kept, None
        if connection is None or (self._owner == (os.getpid(), os.geteuid()) and _is_quiet(connection.sock)):
            return connection
        connection.close()
        return None


def _is_quiet(sock: socket.socket) -> bool:
    """Whether a connection between two requests is sound: the only thing that can be read now is its end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


class _Connection(http.client.HTTPConnection):
    """A connection on which a request is sent as a whole.

    If a request were sent in two parts, its head would wake the scheduler, which then waits for the rest. On a busy
    machine each such turn costs milliseconds.
    """

    _parts: list[bytes] | None = None

    def request(self, method: str, url: str, body: Any = None, headers: Any = (), **how: Any) -> None:
        """Send a request."""
        self._parts = []
        try:
            super().request(method, url, body, headers, **how)
            whole = b"".join(self._parts)
        finally:
            self._parts = None
        self.send(whole)

    def send(self, data: Any) -> None:
        """Send bytes, or collect them while a request is being built."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class _UnixConnection(_Connection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file, however long its path is."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        # The kernel takes 107 bytes of path; relative to an open directory the path is always short.
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        except OSError:
            self.sock.close()
            raise
        finally:
            os.close(folder)


def _found_token(token: str | None, folder: Path) -> str | None:
    if token is None:
        token = os.environ.get("FAIRWAY_TOKEN")
    if token is None:
        try:
            token = (folder / TOKEN).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
    return token.strip()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None:
        raise ClientError(f"{url!r} is not an address like http://127.0.0.1:8080")
    return parts.hostname, port


def _told(content: bytes, status: int) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return f"refused with status {status}"
