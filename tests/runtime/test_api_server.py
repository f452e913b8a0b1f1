"""The API on real sockets, with real jobs, and the Python client: who is asking, streams, keys, and a clean end."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairway.api.server import Server
from fairway.client import Client, ClientError, NotUpError, RefusedError, WaitedTooLongError
from fairway.core.errors import InputError
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.testing.waiting import WAIT_S, wait_for

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")


class Site:
    """A server in a thread of its own."""

    def __init__(self, folder: Path, listen: str | None = None, **about: Any) -> None:
        self.folder = folder
        self.server = Server(Daemon(Options(folder, policy="fifo", gpus="2")), listen, **about)
        ready = threading.Event()
        self._thread = threading.Thread(target=self.server.run, args=(ready.set,), daemon=True)
        self._thread.start()
        assert ready.wait(WAIT_S)
        self.client = Client(folder)

    def close(self) -> None:
        if self._thread.is_alive():
            for row in self.client.ls(state=("PENDING", "RUNNING", "SUSPENDED", "PREEMPTED")):
                self.client.cancel(row["id"])
            wait_for(lambda: not self.server.daemon.scheduler.engine.attempts.live)
        self.server.stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self.server.close()


@pytest.fixture
def new_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(**about: Any) -> Site:
        made.append(Site(tmp_path / f"s{len(made)}", **about))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    return new_site()


def shell(script: str, **fields: Any) -> dict[str, Any]:
    return {"command": ["bash", "-c", script], "grace_s": 2.0, **fields}


def test_a_job_is_submitted_followed_and_waited_for(site: Site) -> None:
    client = site.client
    job = client.submit(shell("echo one; sleep 0.3; echo $FAIRWAY_JOB_ID $PWD", cwd="/tmp"))[0]["id"]
    assert b"".join(client.logs(job, follow=True)) == f"one\n{job} /tmp\n".encode()
    told = client.wait(job, timeout_s=WAIT_S)
    assert (told["state"], told["exit_code"], told["attempts"]) == ("COMPLETED", 0, 1)
    assert told["ran_s"] > 0.2
    assert [row["id"] for row in client.history()] == [job]
    assert client.share()[0]["gpu_s"] > 0.2
    assert b"".join(client.logs(job, rank=0, offset=4)) == f"{job} /tmp\n".encode()
    assert b"".join(client.logs(job, tail=1)) == f"{job} /tmp\n".encode()


def test_ranks_are_followed_together(site: Site) -> None:
    job = site.client.submit(shell("echo I am $RANK", gpus=2, processes="per_gpu"))[0]["id"]
    lines = b"".join(site.client.logs(job, follow=True)).splitlines()
    assert sorted(lines) == [b"[0] I am 0", b"[1] I am 1"]


def test_a_job_can_be_controlled(site: Site) -> None:
    client = site.client
    job = client.submit(shell("sleep 60", name="before"))[0]["id"]
    wait_for(lambda: client.show(job)["state"] == "RUNNING")
    gpus = client.nodes()[0]["gpus"]
    assert sorted(gpu["use"] for gpu in gpus) == ["held", "idle"]
    assert [gpu["jobs"] for gpu in gpus if gpu["use"] == "held"] == [[job]]
    assert client.ls(state="RUNNING")[0]["gpus_held"] == 1
    assert client.suspend(job)[0]["state"] == "SUSPENDED"
    wait_for(lambda: client.status()["gpus_held"] == 0)
    client.resume(job)
    wait_for(lambda: client.show(job)["state"] == "RUNNING")
    assert client.update(job, name="after", priority=3)[0]["name"] == "after"
    assert client.why(job)["state"] == "RUNNING"
    assert client.cancel(job)[0]["state"] == "CANCELLED"
    with pytest.raises(RefusedError, match="is CANCELLED") as caught:
        client.hold(job)
    assert caught.value.status == 409
    waiting = client.submit(shell("true", hold=True))[0]["id"]
    with pytest.raises(WaitedTooLongError):
        client.wait(waiting, timeout_s=0.1)
    client.release(waiting)
    assert client.wait(waiting, timeout_s=WAIT_S)["state"] == "COMPLETED"


def test_a_new_time_limit_counts_for_what_runs(site: Site) -> None:
    client = site.client
    job = client.submit(shell("sleep 60"))[0]["id"]
    wait_for(lambda: client.show(job)["state"] == "RUNNING")
    client.update(job, limit_s=0.5)
    assert client.wait(job, timeout_s=WAIT_S)["state"] == "TIMEOUT"
    short = client.submit(shell("sleep 3; echo done", limit_s=2))[0]["id"]
    wait_for(lambda: client.show(short)["state"] == "RUNNING")
    client.update(short, limit_s=600)
    assert client.wait(short, timeout_s=WAIT_S)["state"] == "COMPLETED"


def test_events_reach_the_client(site: Site) -> None:
    client = site.client
    told: list[dict[str, Any]] = []
    begun = threading.Event()

    def listening() -> None:
        for event in client.events():
            told.append(event)
            begun.set()
            if event["event"] in ("JobFinished", "Gap"):
                return

    thread = threading.Thread(target=listening, daemon=True)
    thread.start()
    wait_for(lambda: site.server.app.state.context.stream._bells)
    job = client.submit(shell("true"))[0]["id"]
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [event["event"] for event in told] == ["JobSubmitted", "Launch", "JobStarted", "JobFinished"]
    assert {event["job"] for event in told} == {job}
    missed = client.events(last=told[1]["id"])
    assert [next(missed)["event"], next(missed)["event"]] == ["JobStarted", "JobFinished"]


def test_a_submission_that_is_cut_off_is_taken_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = http.client.HTTPConnection.getresponse
    cut: list[int] = []

    def lost(self: http.client.HTTPConnection) -> http.client.HTTPResponse:
        answer = sent(self)
        if len(cut) < 2:
            cut.append(answer.status)
            raise ConnectionResetError("cut off")
        return answer

    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", lost)
    rows = site.client.submit([shell("true", hold=True)] * 3)
    assert cut == [201, 200]
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert len(site.client.ls()) == 3


def test_without_a_scheduler_the_client_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NotUpError, match=r"no scheduler is running at .*; `fairway up` starts one"):
            Client(folder).status()
    with pytest.raises(ClientError, match="is not an address"):
        Client(url="nonsense")


def test_long_paths_are_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    site = Site(deep)
    try:
        assert site.client.status()["folder"] == str(deep)
    finally:
        site.close()


def test_over_tcp_the_token_is_needed(new_site: Callable[..., Site]) -> None:
    site = new_site(listen="127.0.0.1:0")
    assert site.server.address is not None
    url = "http://{}:{}".format(*site.server.address)
    token = (site.folder / "token").read_text().strip()
    assert stat.S_IMODE((site.folder / "token").stat().st_mode) == 0o600
    assert Client(site.folder, url).status()["operator"]
    assert Client(url=url, token=token).status()["operator"]
    with pytest.raises(RefusedError) as caught:
        Client(url=url, token="guess").status()
    assert caught.value.status == 401
    for headers in (
        {"X-Forwarded-For": "uid:0"},
        {"Forwarded": "for=uid:0"},
        {"X-Real-IP": "uid:0"},
        {"Authorization": ""},
    ):
        connection = http.client.HTTPConnection(*site.server.address, timeout=WAIT_S)
        connection.request("POST", "/v1/jobs", json.dumps(shell("true")), headers)
        assert connection.getresponse().status == 401
        connection.close()
    assert site.client.ls() == []


@pytest.mark.parametrize("listen", ["0.0.0.0:80", "8.8.8.8:80", "host:80", "127.0.0.1:x", "127.0.0.1:70000", ""])
def test_only_loopback_is_listened_to(tmp_path: Path, listen: str) -> None:
    daemon = Daemon(Options(tmp_path, policy="fifo", gpus="1"))
    try:
        with pytest.raises(InputError, match="--listen"):
            Server(daemon, listen)
    finally:
        daemon.close()


def test_others_can_reach_the_socket_and_nothing_else(site: Site) -> None:
    def mode(path: str) -> int:
        return stat.S_IMODE((site.folder / path).stat().st_mode)

    assert mode(".") == 0o711
    assert mode("fairway.sock") == 0o666
    assert {mode(name) for name in ("journal.db", "lock", "ballast")} == {0o600}
    job = site.client.submit(shell("true", env={"SECRET": "1"}))[0]["id"]
    site.client.wait(job, timeout_s=WAIT_S)
    assert mode(f"jobs/{job}/attempt-1/launch.json") == 0o600


AS_USER = """
import json, os, sys
sys.path.insert(0, {source!r})
from fairway.client import Client, ClientError
os.setgroups([]); os.setgid({gid}); os.setuid({uid})
client = Client({folder!r})
out = []
for verb, *given in json.loads(sys.argv[1]):
    try:
        out.append(getattr(client, verb)(*given))
    except ClientError as error:
        out.append(str(error))
print(json.dumps(out))
"""


def as_user(site: Site, user: pwd.struct_passwd, *asked: list[Any]) -> list[Any]:
    """What another user of this machine is answered."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    program = AS_USER.format(source=source, uid=user.pw_uid, gid=user.pw_gid, folder=str(site.folder))
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(asked)], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


@pytest.fixture
def open_path(tmp_path: Path) -> Iterator[None]:
    """Let other users come to the temporary directory of a test."""
    changed = [one for one in (tmp_path, *tmp_path.parents) if one.stat().st_mode & 0o001 == 0]
    before = {one: stat.S_IMODE(one.stat().st_mode) for one in changed}
    for one in changed:
        one.chmod(before[one] | 0o111)
    yield
    for one in changed:
        if one.exists():
            one.chmod(before[one])


@ROOT_ONLY
@pytest.mark.usefixtures("open_path")
def test_the_kernel_says_who_is_asking_and_jobs_run_as_their_owner(site: Site) -> None:
    nobody = pwd.getpwnam("nobody")
    script = "id -un; echo $HOME $USER; id -u > $FAIRWAY_CHECKPOINT_DIR/it; echo '{\"step\": 3}' >> $FAIRWAY_REPORT"
    mine = site.client.submit(shell("sleep 60"))[0]["id"]
    told = as_user(
        site,
        nobody,
        ["status"],
        ["submit", shell(script, cwd="/")],
        ["submit", shell("true", user="root", cwd="/")],
        ["cancel", mine],
        ["set_policy", "las"],
    )
    assert (told[0]["you"], told[0]["operator"]) == ("nobody", False)
    job = told[1][0]["id"]
    assert told[1][0]["user"] == "nobody"
    assert told[2] == "you are nobody and cannot submit for root"
    assert told[3] == f"job {mine} is root's; you are nobody"
    assert told[4] == "only operators can change the policy; you are nobody"
    assert site.client.wait(job, timeout_s=WAIT_S)["state"] == "COMPLETED"
    assert b"".join(site.client.logs(job)).decode() == f"nobody\n{nobody.pw_dir} nobody\n"
    folder = site.folder / "jobs" / job
    assert (folder / "checkpoints" / "it").read_text() == f"{nobody.pw_uid}\n"
    wait_for(lambda: site.client.show(job)["step"] == 3)
    log = (folder / "attempt-1" / "rank-0.log").stat()
    assert (log.st_uid, stat.S_IMODE(log.st_mode)) == (nobody.pw_uid, 0o600)
    assert site.client.show(mine)["state"] == "RUNNING"


@ROOT_ONLY
@pytest.mark.usefixtures("open_path")
def test_another_users_job_enters_no_directory_that_it_may_not(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    wanted = shell("ls", cwd=str(secret))
    refused = as_user(site, pwd.getpwnam("nobody"), ["submit", wanted])[0]
    assert refused == f"{secret}: the job may not enter this directory. Choose another one with --chdir"
    # One that waits for another job is not looked at before it starts.
    before = site.client.submit(shell("true"))[0]["id"]
    later = {**wanted, "depends": [{"kind": "afterany", "job": before}]}
    job = as_user(site, pwd.getpwnam("nobody"), ["submit", later])[0][0]["id"]
    told = site.client.wait(job, timeout_s=WAIT_S)
    assert (told["state"], told["exit_code"]) == ("FAILED", 126)
    assert b"Permission denied" in b"".join(site.client.logs(job))


SERVE = """
import sys
from pathlib import Path
from fairway.api.server import serve
from fairway.runtime.daemon.daemon import Daemon, Options
serve(Daemon(Options(Path(sys.argv[1]), policy="fifo", gpus="2")), on_ready=lambda server: print("ready", flush=True))
print("closed", flush=True)
"""


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_leaves_jobs_running(tmp_path: Path, signo: int) -> None:
    def up() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    first, client = up(), Client(tmp_path)
    job = client.submit(shell("echo begun; sleep 1; echo done"))[0]["id"]
    logs = client.logs(job, follow=True)
    assert next(logs) == b"begun\n"
    events = client.events()
    reader = threading.Thread(target=lambda: list(events), daemon=True)
    reader.start()
    first.send_signal(signo)
    assert first.wait(WAIT_S) == 0
    assert first.stdout is not None
    assert first.stdout.read() == "closed\n"
    reader.join(WAIT_S)
    assert not reader.is_alive()
    b"".join(logs)
    assert not (tmp_path / "fairway.sock").exists()
    with pytest.raises(NotUpError):
        client.status()
    second = up()
    try:
        told = client.wait(job, timeout_s=WAIT_S)
        assert (told["state"], told["attempts"]) == ("COMPLETED", 1)
        assert b"".join(client.logs(job)) == b"begun\ndone\n"
    finally:
        second.terminate()
        assert second.wait(WAIT_S) == 0


def test_bytes_that_are_no_http_do_no_harm(site: Site) -> None:
    for text in (
        b"\0" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"A" * 200_000,
    ):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(WAIT_S)
            peer.connect(str(site.folder / "fairway.sock"))
            try:
                peer.sendall(text)
                peer.shutdown(socket.SHUT_WR)
                assert b" 5" not in peer.recv(65536)[:12]
            except (ConnectionResetError, BrokenPipeError):
                continue
    assert site.client.status()["accepts"]


def test_a_large_body_is_refused_over_the_wire(site: Site) -> None:
    with pytest.raises(RefusedError, match="larger than") as caught:
        site.client.submit(shell("true", env={f"V{k}": "x" * 100_000 for k in range(200)}))
    assert caught.value.status == 413
    assert site.client.ls() == []


def test_a_token_is_made_used_renewed_and_revoked_over_the_wire(new_site: Callable[..., Site]) -> None:
    site = new_site(listen="127.0.0.1:0")
    url = "http://{}:{}".format(*site.server.address)
    made = site.client.create_token("ci", "submit", lasts_s=3600.0)
    assert [one["name"] for one in site.client.tokens()] == ["ci"]
    client = Client(url=url, token=made["token"])
    job = client.submit(shell("true", hold=True))[0]["id"]
    assert client.cancel(job)[0]["state"] == "CANCELLED"
    with pytest.raises(RefusedError, match="only operators"):
        client.reload()
    renewed = site.client.rotate_token("ci")
    with pytest.raises(RefusedError) as caught:
        client.status()
    assert caught.value.status == 401
    assert Client(url=url, token=renewed["token"]).status()["you"] == site.client.status()["you"]
    site.client.revoke_token("ci")
    with pytest.raises(RefusedError):
        Client(url=url, token=renewed["token"]).status()
    told = [(one["path"], one.get("token", ""), one["status"]) for one in site.client.audit()]
    assert told == [
        ("/v1/tokens", "", 201),
        ("/v1/jobs", "ci", 201),
        (f"/v1/jobs/{job}/cancel", "ci", 200),
        ("/v1/reload", "ci", 403),
        ("/v1/tokens/ci/rotate", "", 200),
        ("/v1/tokens/ci", "", 200),
    ]
