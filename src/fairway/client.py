"""The Python client of a running scheduler: the verbs of the command line as methods. Standard library only.

    from fairway.client import Client

    client = Client()
    job = client.submit({"command": ["python", "train.py"], "gpus": 2})[0]
    for chunk in client.logs(job["id"], follow=True):
        print(chunk.decode(), end="")
    client.wait(job["id"])["state"]

The client connects to the Unix socket in the scheduler's state directory, or to a `url` with a token. It repeats a
request that was cut off if that can do no harm. A submission always carries a key, so it is never taken twice. Each
thread keeps its connection for the next request. `fairway.wire` sends the requests.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fairway.wire import SOCKET, TOKEN, ClientError, NotUpError, RefusedError, Request, Wire

__all__ = [
    "SOCKET",
    "TOKEN",
    "Client",
    "ClientError",
    "NotUpError",
    "RefusedError",
    "Row",
    "Submitted",
    "WaitedTooLongError",
    "default_folder",
]

_API = "/v1"
_ENDED = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"))
_ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,18})?", re.ASCII)

Row = dict[str, Any]
"""A job, a node or another answer of the scheduler, as JSON values; see docs/api.md."""


class Submitted(list[Row]):
    """The jobs of a submission; `new` counts those that were not known before under the same key.

    `notes` say what they ask for and the policy in force takes no notice of.
    """

    def __init__(self, rows: Iterable[Row], new: int, notes: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.new, self.notes = new, tuple(notes)


class WaitedTooLongError(ClientError):
    """The time limit of `wait` has passed."""


def default_folder() -> Path:
    """The default state directory: $FAIRWAY_STATE, or one in the home directory."""
    named = os.environ.get("FAIRWAY_STATE")
    return Path(named) if named else Path.home() / ".local" / "state" / "fairway"


class Client:
    """A running scheduler, found by its state directory or by a URL (`http://127.0.0.1:PORT`).

    A URL needs a `token`. By default it is read from $FAIRWAY_TOKEN or from the state directory. Several threads may
    use one client.
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
        self.timeout_s = timeout_s
        self._wire = Wire(default_folder() if folder is None else Path(folder), url, token)

    @property
    def folder(self) -> Path:
        """The state directory of the scheduler."""
        return self._wire.folder

    @property
    def url(self) -> str | None:
        """Where the scheduler is reached, if not by the socket in its state directory."""
        return self._wire.url

    def submit(self, jobs: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, key: str | None = None) -> Submitted:
        """Submit a job or a list of jobs, with the fields of POST /v1/jobs; returns the jobs as the scheduler has them.

        The default working directory is the current one. `key` makes the submission idempotent: the same key of the
        same user gives the same jobs again. Without a key the client makes a new one.
        """
        body = _placed(jobs) if isinstance(jobs, Mapping) else [_placed(job) for job in jobs]
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        told = self._json("POST", "/jobs", body, headers=headers)
        return Submitted(told["jobs"], told.get("new", len(told["jobs"])), told.get("notes", ()))

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
        tail_bytes: int | None = None,
        follow: bool = False,
    ) -> Iterator[bytes]:
        """What a job has written, in pieces: of all ranks (marked if there are several) or of one.

        `tail` begins with the last lines, `tail_bytes` with the whole lines among the last bytes, `offset` (of one
        rank) at a byte; `follow` goes on until the job has ended.
        """
        query = _given(rank=rank, attempt=attempt, offset=offset, tail=tail, tail_bytes=tail_bytes)
        return self._stream(f"/jobs/{_part(job)}/logs", [*query, *_given(follow="true" if follow else None)])

    def story(self, job: str) -> list[Row]:
        """What happened to a job, in sentences: its events with `time_s`, `what` and `text`."""
        return list(self._dict("GET", f"/jobs/{_part(job)}/events")["events"])

    def course(self, job: str) -> Row:
        """What a job has reported over time, as lists of equal length."""
        return self._dict("GET", f"/jobs/{_part(job)}/course")

    def check(self, kind: str, text: str, **terms: Any) -> Row:
        """What is wrong with a command line, an sbatch script or a SkyPilot task; see POST /v1/submission."""
        return self._dict("POST", "/submission", {"kind": kind, "text": text, "terms": terms})

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

    def why(self, job: str, *, told: str | None = None) -> Row:
        """Why a job waits, who is ahead of it, and what would free it. `told`: "submit" where it was just submitted."""
        return dict(self._json("GET", f"/jobs/{_part(job)}/why", query=_given(told=told)))

    def eta(self, *, policy: str | None = None, user: str | None = None, since: float | None = None) -> Row:
        """How good the starts and ends were that were told; see GET /v1/eta."""
        return dict(self._json("GET", "/eta", query=_given(policy=policy, user=user, since=since)))

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

    def nodes(self) -> list[Row]:
        """Machines, their GPUs, and who is on them."""
        return list(self._dict("GET", "/nodes")["nodes"])

    def drain(self, node: str, *, reason: str = "", move: bool = False) -> Row:
        """Start nothing on a node any more; with `move`, jobs that can leave it now. For operators."""
        return self._dict("POST", f"/nodes/{quote(node, safe='')}/drain", {"reason": reason, "move": move})

    def undrain(self, node: str) -> Row:
        """Let jobs start on a node again. For operators."""
        return self._dict("POST", f"/nodes/{quote(node, safe='')}/undrain")

    def share(self) -> list[Row]:
        """What every user has now and has had."""
        return list(self._dict("GET", "/share")["users"])

    def timeline(self, *, since: float | None = None, until: float | None = None) -> Row:
        """Who held which GPU when; see GET /v1/timeline."""
        return dict(self._json("GET", "/timeline", query=_given(since=since, until=until)))

    def profile(self, *, sharing: str | None = None) -> Row:
        """How fast jobs were measured to be, and what pairs of them keep. `sharing` chooses those in `throughputs`."""
        return dict(self._json("GET", "/profile", query=_given(sharing=sharing)))

    def history(self, *, user: str | None = None, since: float | None = None, limit: int | None = None) -> list[Row]:
        """Jobs that have ended, the latest first."""
        return _rows(self._json("GET", "/history", query=_given(user=user, since=since, limit=limit)))

    def export(self, *, user: str | None = None, since: float | None = None) -> Iterator[bytes]:
        """All about every job that has ended, the latest first, as JSON lines in pieces."""
        return self._stream("/history/export", _given(user=user, since=since))

    def history_trace(self, *, since: float | None = None) -> Row:
        """The jobs since a date as a trace, with what became of each; see GET /v1/history/trace."""
        return dict(self._json("GET", "/history/trace", query=_given(since=since)))

    def replay_history(self, **question: Any) -> Row:
        """What other policies would have made of the jobs of the last days; see POST /v1/history/replay."""
        return self._dict("POST", "/history/replay", question)

    def gc(self, *, older_s: float | None = None, keep: int | None = None, dry_run: bool = False) -> Row:
        """Delete jobs that have ended; see POST /v1/gc. For operators."""
        return self._dict("POST", "/gc", {"older_s": older_s, "keep": keep, "dry_run": dry_run})

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

    def web(self, *, read_only: bool = False, address: str | None = None) -> Row:
        """A link that signs you in to the web page once; see POST /v1/web."""
        return self._dict("POST", "/web", {"read_only": read_only, "address": address})

    def tokens(self) -> list[Row]:
        """All tokens, without their secrets."""
        return list(self._dict("GET", "/tokens")["tokens"])

    def create_token(self, name: str, role: str, *, lasts_s: float | None = None, user: str = "") -> Row:
        """Make a token for requests over TCP; its secret is in `token`, and is not kept."""
        # Not sent again: the second time the name would be taken, and the secret of the first time is lost.
        body = {"name": name, "role": role, "lasts_s": lasts_s, "user": user}
        return self._dict("POST", "/tokens", body, again=False)

    def rotate_token(self, name: str) -> Row:
        """Give a token a new secret, and as much time again."""
        return self._dict("POST", f"/tokens/{quote(name, safe='')}/rotate", again=False)

    def revoke_token(self, name: str) -> Row:
        """Revoke a token."""
        return self._dict("DELETE", f"/tokens/{quote(name, safe='')}", again=False)

    def audit(self, *, user: str | None = None, since: float | None = None, limit: int | None = None) -> list[Row]:
        """Who changed what since a date, the latest last."""
        return list(self._json("GET", "/audit", query=_given(user=user, since=since, limit=limit))["entries"])

    def snapshot(self) -> str:
        """What the scheduler sees and decides now, as the text of a file for `fairway replay`."""
        return b"".join(self._stream("/snapshot", [])).decode()

    def metrics(self) -> str:
        """The figures that Prometheus reads."""
        return b"".join(self._stream("/metrics", [])).decode()

    def events(self, *, last: str | None = None) -> Iterator[Row]:
        """Events as they happen. `last` is the `id` of the last event seen: the events after it come first."""
        headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": last})
        data: list[str] = []
        for line in _lines(self._stream("/events", [], headers)):
            if line.startswith("data:"):
                data.append(line[5:].lstrip())
            elif not line and data:
                yield json.loads("\n".join(data))
                data = []

    def _verb(self, job: str, verb: str) -> list[Row]:
        # Only stopping a job twice would matter. Any other request has the same effect if it arrives twice.
        return _rows(self._json("POST", f"/jobs/{_part(job)}/{verb}", again=verb != "requeue"))

    def _dict(self, method: str, path: str, body: Any = None, *, again: bool = True) -> Row:
        told = self._json(method, path, body, again=again)
        if not isinstance(told, dict):
            raise ClientError(f"the scheduler at {self._wire.where} gave an answer that is not an object")
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
        request = Request(method, _API + path, body, query, headers or {})
        return _parsed(self._wire.content(request, self.timeout_s, again=again))

    def _stream(
        self, path: str, query: Sequence[tuple[str, Any]], headers: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        return self._wire.stream(Request("GET", _API + path, None, query, headers or {}))


def _placed(job: Mapping[str, Any]) -> Row:
    return dict(job) if "cwd" in job else {"cwd": str(Path.cwd()), **job}


def _part(job: str) -> str:
    """A job's id as one part of a path. A text that cannot be an id is refused: it might lead to another path."""
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


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Text lines of a stream, as soon as each is complete."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", errors="replace").rstrip("\r")
