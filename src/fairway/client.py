"""The Python client of a running scheduler: the verbs of the command line as methods. Standard library only.

    from fairway.client import Client

    client = Client()
    job = client.submit({"command": ["python", "train.py"], "gpus": 2})[0]
    for chunk in client.logs(job["id"], follow=True):
        print(chunk.decode(), end="")
    client.wait(job["id"])["state"]

It speaks to the Unix socket in the scheduler's state directory, or to a `url` with a token. A request that was cut off
is sent again where that can do no harm; a submission always carries a key, so it is never taken twice. Each thread
keeps its connection for the next request.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from fairway.core.errors import FairwayError

SOCKET = "fairway.sock"
TOKEN = "token"
TRIES = 4
RETRY_S = 0.1
_CHUNK_BYTES = 65536
_ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"))

Row = dict[str, Any]
"""A job, a node or whatever else the scheduler tells, as JSON values; see docs/api.md."""


_ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,18})?", re.ASCII)


class Submitted(list[Row]):
    """The jobs of a submission; `new` of them were not there before, under the same key."""

    def __init__(self, rows: Iterable[Row], new: int) -> None:
        super().__init__(rows)
        self.new = new


class ClientError(FairwayError):
    """The scheduler could not be asked, or refused."""


class NotUpError(ClientError):
    """No scheduler answers."""


class RefusedError(ClientError):
    """The scheduler refused; `status` is the HTTP status: 403 not yours, 404 no such job, 409 wrong state, 422 bad."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WaitedTooLongError(ClientError):
    """`wait` has a time limit and it has passed."""


def default_folder() -> Path:
    """The state directory that is meant where none is named: $FAIRWAY_STATE, or one in the home directory."""
    named = os.environ.get("FAIRWAY_STATE")
    return Path(named) if named else Path.home() / ".local" / "state" / "fairway"


class Client:
    """A running scheduler, found by its state directory or by a URL of its own (`http://127.0.0.1:PORT`).

    `token` is needed with a URL; it is read from $FAIRWAY_TOKEN or from the state directory where it is not given.
    A client may be used by several threads.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 60.0,
    ) -> None:
        if url is None and folder is None:
            url = os.environ.get("FAIRWAY_URL")
        self.folder = default_folder() if folder is None else Path(folder)
        self.url = url
        self.timeout_s = timeout_s
        self._token = _found_token(token, self.folder) if url is not None else None
        self._address = _address(url) if url is not None else None
        self._own = _Own()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, jobs: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, key: str | None = None) -> Submitted:
        """Submit a job or a list of them, with the fields of POST /v1/jobs; returns them as the scheduler has them.

        A working directory that is not given is the present one. `key` makes the submission idempotent: the same key
        of the same user gives the same jobs again. Without one a new key is made up.
        """
        here = str(Path.cwd())
        body = [{"cwd": here, **job} for job in jobs] if not isinstance(jobs, Mapping) else {"cwd": here, **jobs}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        told = self._json("POST", "/jobs", body, headers=headers)
        return Submitted(told["jobs"], told.get("new", len(told["jobs"])))

    def ls(
        self,
        *,
        state: str | Iterable[str] = (),
        user: str | None = None,
        queue: str | None = None,
        since: float | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """Jobs in order of submission; `state` is one state or several, `since` a date in seconds since 1970."""
        states = [state] if isinstance(state, str) else list(state)
        query = [("state", one) for one in states]
        query += _given(user=user, queue=queue, since=since, limit=limit)
        return _rows(self._json("GET", "/jobs", query=query))

    def show(self, job: str) -> Row:
        """Everything about one job; for an array, its tasks under `tasks`."""
        return self._dict("GET", f"/jobs/{_part(job)}")

    def logs(
        self,
        job: str,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        offset: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[bytes]:
        """What a job has written, in pieces; of all ranks (marked where there are several) or of one.

        `tail` begins with the last lines, `offset` (of one rank) at a byte; `follow` goes on until the job has ended.
        """
        query = _given(rank=rank, attempt=attempt, offset=offset, tail=tail, follow="true" if follow else None)
        return self._stream(f"/jobs/{_part(job)}/logs", query)

    def cancel(self, job: str) -> list[Row]:
        """End a job or all tasks of an array."""
        return self._verb(job, "cancel")

    def suspend(self, job: str) -> list[Row]:
        """Take a job off its GPUs until it is resumed."""
        return self._verb(job, "suspend")

    def resume(self, job: str) -> list[Row]:
        """Let a suspended job go on."""
        return self._verb(job, "resume")

    def requeue(self, job: str) -> list[Row]:
        """Stop a running job and let it wait for its turn again."""
        return self._verb(job, "requeue")

    def hold(self, job: str) -> list[Row]:
        """Do not start a job until it is released."""
        return self._verb(job, "hold")

    def release(self, job: str) -> list[Row]:
        """Let a held job run."""
        return self._verb(job, "release")

    def update(self, job: str, **changes: Any) -> list[Row]:
        """Change a job's priority, weight, limit_s, deadline_s or name."""
        return _rows(self._json("PATCH", f"/jobs/{_part(job)}", changes))

    def why(self, job: str) -> Row:
        """Why a job waits, who is ahead of it, and what would free it."""
        return self._dict("GET", f"/jobs/{_part(job)}/why")

    def what_if(self, **question: Any) -> Row:
        """What would happen; see POST /v1/what-if."""
        return self._dict("POST", "/what-if", question)

    def wait(self, job: str, *, timeout_s: float | None = None, poll_s: float = 0.5) -> Row:
        """Wait until a job, or all tasks of an array, have ended; returns what `show` then says."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = min(0.05, poll_s)
        while True:
            told = self.show(job)
            if all(one["state"] in _ENDED for one in told.get("tasks", (told,))):
                return told
            if until_s is not None and time.monotonic() >= until_s:
                raise WaitedTooLongError(f"job {job} has not ended within {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, poll_s)

    # --- the cluster -------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Row]:
        """Machines, their GPUs, and who is on them."""
        return list(self._dict("GET", "/nodes")["nodes"])

    def share(self) -> list[Row]:
        """What every user has now and has had."""
        return list(self._dict("GET", "/share")["users"])

    def history(self, *, user: str | None = None, since: float | None = None, limit: int | None = None) -> list[Row]:
        """Jobs that have ended, the latest first."""
        return _rows(self._json("GET", "/history", query=_given(user=user, since=since, limit=limit)))

    def policy(self) -> Row:
        """The policy that decides now."""
        return self._dict("GET", "/policy")

    def set_policy(self, policy: str) -> Row:
        """Go on with another policy, without losing work."""
        return self._dict("PUT", "/policy", {"policy": policy})

    def reload(self) -> Row:
        """Have the configuration read again."""
        return self._dict("POST", "/reload")

    def status(self) -> Row:
        """The scheduler itself: its version, policy, GPUs, queue and disk."""
        return self._dict("GET", "/status")

    def metrics(self) -> str:
        """The figures that Prometheus reads."""
        return b"".join(self._stream("/metrics", [])).decode()

    def events(self, *, last: str | None = None) -> Iterator[Row]:
        """What happens, as it happens. `last` is the `id` of the last event seen: those after it come first."""
        headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": last})
        data: list[str] = []
        for line in _lines(self._stream("/events", [], headers)):
            if line.startswith("data:"):
                data.append(line[5:].lstrip())
            elif not line and data:
                yield json.loads("\n".join(data))
                data = []

    # --- inside ------------------------------------------------------------------------------------------------------

    def _verb(self, job: str, verb: str) -> list[Row]:
        # Only being stopped twice would matter; whatever else is asked for twice is as if it was asked for once.
        return _rows(self._json("POST", f"/jobs/{_part(job)}/{verb}", again=verb != "requeue"))

    def _dict(self, method: str, path: str, body: Any = None) -> Row:
        told = self._json(method, path, body)
        if not isinstance(told, dict):
            raise ClientError(f"the scheduler at {self._where()} gave an answer that is not an object")
        return told

    def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Sequence[tuple[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> Any:
        """Ask, once more where the answer was cut off and `again` allows it."""
        asked = _Asked(method, path, body, query, headers or {})
        for tried in range(1, TRIES + 1):
            # What must not be sent twice goes over a new connection, which the other side has no reason to close.
            kept = self._own.line.taken() if again else None
            connection = kept or self._connection(self.timeout_s)
            try:
                return _parsed(self._content(connection, asked))
            except (ConnectionError, http.client.HTTPException) as error:
                if not again or tried == TRIES:
                    raise ClientError(f"the scheduler at {self._where()} broke off: {error or 'no answer'}") from None
                if kept is None:
                    time.sleep(RETRY_S * tried)
            except TimeoutError:
                raise ClientError(f"no answer from {self._where()} within {self.timeout_s:g} s") from None
        raise AssertionError("unreachable")

    def _content(self, connection: http.client.HTTPConnection, asked: _Asked) -> bytes:
        """A whole answer. The connection is kept for the next request, unless this one was cut off."""
        try:
            content = self._response(connection, asked).read()
        except RefusedError:
            self._own.line.keep(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._own.line.keep(connection)
        return content

    def _stream(
        self, path: str, query: Sequence[tuple[str, Any]], headers: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        """An answer in pieces; it may take its time between them."""
        with closing(self._connection(None)) as connection:
            try:
                asked = _Asked("GET", path, None, query, {"Connection": "close", **(headers or {})})
                response = self._response(connection, asked)
                while piece := response.read1(_CHUNK_BYTES):
                    yield piece
            except (OSError, http.client.HTTPException) as error:
                raise ClientError(f"the scheduler at {self._where()} broke off: {error or 'no answer'}") from None

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
            raise RefusedError(403, f"you may not connect to {self._where()}") from None
        except OSError:
            raise NotUpError(f"no scheduler is running at {self._where()}; `fairway up` starts one") from None
        return connection

    def _response(self, connection: http.client.HTTPConnection, asked: _Asked) -> http.client.HTTPResponse:
        """Send a request; its answer if it was not refused."""
        sent = dict(asked.headers)
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        content = None
        if asked.body is not None:
            content = json.dumps(asked.body).encode()
            sent["Content-Type"] = "application/json"
        target = f"/v1{asked.path}?{urlencode(asked.query)}" if asked.query else f"/v1{asked.path}"
        # A request that is too large is refused while it is being sent; the answer says so.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(asked.method, target, content, sent)
        response = connection.getresponse()
        if response.status >= 400:
            raise RefusedError(response.status, _told(response.read(), response.status))
        return response

    def _where(self) -> str:
        return self.url or str(self.folder)


class _Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Any
    query: Sequence[tuple[str, Any]]
    headers: Mapping[str, str]


class _Own(threading.local):
    """What each thread has for itself. A copy of a client begins with nothing."""

    def __init__(self) -> None:
        self.line = _Line()

    def __reduce__(self) -> tuple[type[_Own], tuple[()]]:
        return _Own, ()


class _Line:
    """The connection that is kept between requests; closed when its thread, or the client, is gone.

    It is of the process and the user that made it: a child of this process, or this process as another user, is
    somebody else to the scheduler.
    """

    def __init__(self) -> None:
        self._kept: http.client.HTTPConnection | None = None
        self._owner: tuple[int, int] | None = None

    def __del__(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose last answer was read to its end, if it is open still."""
        if connection.sock is not None:
            if self._kept is not None:
                self._kept.close()
            self._kept, self._owner = connection, (os.getpid(), os.geteuid())

    def taken(self) -> http.client.HTTPConnection | None:
        """The connection that was kept, if it can be used once more; whoever has it keeps it again."""
        connection, self._kept = self._kept, None
        if connection is None or (self._owner == (os.getpid(), os.geteuid()) and _is_quiet(connection.sock)):
            return connection
        connection.close()
        return None


def _is_quiet(sock: socket.socket) -> bool:
    """Whether a connection between two requests is as it should be: what can be read now is only its end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


class _Connection(http.client.HTTPConnection):
    """A connection on which a request is sent as a whole.

    Sent in two parts, its head wakes the scheduler, which then waits for the rest; on a busy machine each such turn
    costs milliseconds.
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
        """Send bytes, or gather them while a request is put together."""
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
        # The kernel takes 107 bytes of path; by way of an open directory it is always short.
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


def _part(job: str) -> str:
    """A job's id as one part of a path. What cannot be an id is not asked for: it might lead elsewhere."""
    if not _ID.fullmatch(str(job)):
        raise RefusedError(404, f"there is no job {str(job)[:60]!a}")
    return quote(str(job), safe="")


def _given(**values: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in values.items() if value is not None]


def _rows(told: Any) -> list[Row]:
    return list(told["jobs"])


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        raise ClientError("the scheduler gave an answer that is not JSON") from None


def _told(content: bytes, status: int) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return f"refused with status {status}"


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Text lines of a stream, as soon as each is complete."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", errors="replace").rstrip("\r")
