"""What the requests of some users cost the others: the latency of a status and of a submission beside a load.

    python benchmarks/neighbours.py [--load NAME]... [--seconds 10]
    python benchmarks/neighbours.py --load crowd --seconds 120

| load | what goes on meanwhile |
|---|---|
| `nothing` | nothing |
| `dependencies` | 20 jobs with 1,000 dependencies each on an array of 10,000 tasks; then the array is cancelled |
| `arrays` | somebody submits arrays of 10,000 tasks, and cancels each when it is there |
| `forecasts` | 100 clients ask `what-if` and `why` about 2,000 jobs |
| `lists` | 40 clients list 5,000 jobs |
| `reports` | two jobs write reports as fast as they can |
| `streams` | 300 event streams while 4 clients submit |
| `crowd` | 20 clients submit, beside 10 event streams and 2 log readers that never read, and 500 idle connections |

Every load has a scheduler of its own (`fairway up` with four virtual GPUs). Loads run in other processes. If this is
run as root, they belong to several users.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairway.client import Client, ClientError

_FLOOD = """
import os, time
line = b'{"step": 12345, "steps": 999999, "loss": 0.123, "samples": 1234567}\\n'
with open(os.environ["FAIRWAY_REPORT"], "ab", buffering=0) as file:
    while True:
        file.write(line * 15000)
        if file.tell() > 200_000_000:
            file.truncate(0)
        time.sleep(0.05)
"""
_TALK = "while :; do head -c 1000000 /dev/zero | tr '\\0' x; echo; sleep 0.2; done"
_HELD = {"command": ["true"], "cwd": "/", "hold": True}


class Daemon:
    """A scheduler of its own in a new state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "fairway", "up", "--gpus", "4", "--policy", "fifo", "--open-to-all"]
        self.process = subprocess.Popen([*command, "--state", str(self.folder)], stdout=subprocess.DEVNULL)
        self.client = Client(self.folder)
        while True:
            try:
                self.client.status()
                return
            except ClientError:
                time.sleep(0.01)

    def stop(self) -> None:
        """Stop it. Its jobs go on."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def memory_mb(self) -> float:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024.0


class Probe:
    """Asks for a status, and submits a held job, again and again; keeps how long the answers took."""

    def __init__(self, folder: Path) -> None:
        self._client = Client(folder)
        self.took_s: dict[str, list[float]] = {"status": [], "submit": []}

    def run(self, going: Callable[[], bool]) -> None:
        """Measure while something is going on."""
        calls: dict[str, Callable[[], Any]] = {
            "status": self._client.status,
            "submit": lambda: self._client.submit(_HELD),
        }
        while going():
            for name, call in calls.items():
                began_s = time.perf_counter()
                call()
                self.took_s[name].append(time.perf_counter() - began_s)
                time.sleep(0.02)

    def rows(self) -> list[str]:
        """Median, 99th percentile and maximum of each, in milliseconds."""
        out = []
        for name, took_s in self.took_s.items():
            ordered = sorted(took_s)
            parts = (ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])
            out.append(f"{name} {' / '.join(f'{1000 * part:.0f}' for part in parts)} ms")
        return out


@contextlib.contextmanager
def processes(*works: Callable[[], None]) -> Iterator[None]:
    """Run functions in processes of their own, each as another user if we are root; end them afterwards."""

    def alone(at: int, work: Callable[[], None]) -> None:
        if os.geteuid() == 0:
            others = [one.pw_uid for one in pwd.getpwall() if one.pw_uid]
            os.setuid(others[at % len(others)])
        with contextlib.suppress(KeyboardInterrupt, ClientError, OSError):
            work()

    made = [multiprocessing.get_context("fork").Process(target=alone, args=one) for one in enumerate(works)]
    for one in made:
        one.start()
    try:
        yield
    finally:
        for one in made:
            one.terminate()
            one.join()


def threads(count: int, work: Callable[[int], None]) -> None:
    """Run a function in so many threads, and wait for them."""
    made = [threading.Thread(target=work, args=(at,), daemon=True) for at in range(count)]
    for one in made:
        one.start()
    for one in made:
        one.join()


def connected(folder: Path, request: str = "") -> socket.socket:
    """A connection over which a request was sent."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(str(folder / "fairway.sock"))
    if request:
        made.sendall(f"GET /v1/{request} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return made


# --- loads: each returns what is said beside the figures --------------------------------------------------------------


def nothing(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """No load."""
    end_s = time.monotonic() + seconds
    probe.run(lambda: time.monotonic() < end_s)
    return ""


def dependencies(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """Many jobs that wait for a large array."""
    client = daemon.client
    array = client.submit({**_HELD, "array": list(range(10_000))})[0]["id"].partition("_")[0]
    job = {"command": ["true"], "cwd": "/", "depends": [{"kind": "afterok", "job": array}] * 1000}
    took_s: list[float] = []

    def work() -> None:
        for _ in range(20):
            client.submit(job)
        took_s.append(time.perf_counter() - began_s)
        client.cancel(array)

    began_s = time.perf_counter()
    thread = threading.Thread(target=work)
    thread.start()
    probe.run(thread.is_alive)
    whole_s = time.perf_counter() - began_s
    daemon.stop()
    began_s = time.perf_counter()
    daemon.start()
    restart_s = time.perf_counter() - began_s
    return f"20 submissions {took_s[0]:.2f} s, with the cancellation {whole_s:.2f} s, restart {restart_s:.2f} s"


def arrays(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """Large arrays that come and go."""

    def work() -> None:
        client = Client(daemon.folder, timeout_s=600.0)
        while True:
            array = client.submit({**_HELD, "array": list(range(10_000))})[0]["id"].partition("_")[0]
            client.cancel(array)

    end_s = time.monotonic() + seconds
    with processes(work):
        time.sleep(0.5)
        probe.run(lambda: time.monotonic() < end_s)
    ended = daemon.client.status()["jobs"].get("CANCELLED", 0)
    return f"{ended / 10_000:.1f} arrays came and went"


def forecasts(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """Many clients that look ahead."""
    terms = {"command": ["true"], "cwd": "/", "gpus": 4, "expected_s": 600.0}
    daemon.client.submit({"command": ["sleep", "3600"], "cwd": "/", "gpus": 4, "preempt": "never", "grace_s": 0.1})
    for _ in range(20):
        daemon.client.submit([terms] * 100)

    def ask(at: int) -> None:
        client = Client(daemon.folder, timeout_s=600.0)
        while True:
            try:
                client.what_if() if at % 2 else client.why(str(1000 + at))
            except ClientError:
                time.sleep(2.0)

    end_s = time.monotonic() + seconds
    with processes(*[lambda: threads(25, ask)] * 4):
        time.sleep(0.5)
        probe.run(lambda: time.monotonic() < end_s)
    return ""


def lists(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """Many clients that ask for everything."""
    for _ in range(50):
        daemon.client.submit([_HELD] * 100)

    def ask(_: int) -> None:
        connection = connected(daemon.folder)
        while True:
            connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            end = b""
            # Not parsed, because that would take the cores from the scheduler.
            while not end.endswith(b"]}"):
                end = (end + connection.recv(1 << 20))[-2:]

    end_s = time.monotonic() + seconds
    with processes(*[lambda: threads(10, ask)] * 4):
        time.sleep(0.5)
        probe.run(lambda: time.monotonic() < end_s)
    return ""


def reports(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """Jobs that report too much."""
    flood = {"command": [sys.executable, "-c", _FLOOD], "cwd": "/", "grace_s": 0.1}
    daemon.client.submit([flood] * 2)
    time.sleep(1.0)
    end_s = time.monotonic() + seconds
    probe.run(lambda: time.monotonic() < end_s)
    return ""


def streams(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """Many event streams, and something to tell."""

    def listen() -> None:
        made = [connected(daemon.folder, "events") for _ in range(30)]
        while True:
            for one in made:
                with contextlib.suppress(BlockingIOError):
                    one.recv(1 << 20, socket.MSG_DONTWAIT)
            time.sleep(0.1)

    def submit() -> None:
        client = Client(daemon.folder)
        while True:
            client.submit(_HELD)
            time.sleep(0.02)

    end_s = time.monotonic() + seconds
    with processes(*[listen] * 10, *[submit] * 4):
        time.sleep(0.5)
        probe.run(lambda: time.monotonic() < end_s)
    return ""


def crowd(daemon: Daemon, probe: Probe, seconds: float) -> str:
    """Twenty clients beside connections that only take room."""
    talking = daemon.client.submit({"command": ["sh", "-c", _TALK], "cwd": "/", "grace_s": 0.1})[0]["id"]
    time.sleep(1.0)

    def mute() -> None:
        made = [connected(daemon.folder, "events") for _ in range(10)]
        made += [connected(daemon.folder, f"jobs/{talking}/logs?follow=true") for _ in range(2)]
        time.sleep(seconds + 60.0)

    def idle() -> None:
        made = [connected(daemon.folder) for _ in range(100)]
        while True:
            # The scheduler closes connections that say nothing; they come back.
            time.sleep(1.0)
            made = [one if _open(one) else connected(daemon.folder) for one in made]

    def submit(_: int) -> None:
        client = Client(daemon.folder)
        while True:
            with contextlib.suppress(ClientError):
                client.submit(_HELD)
            time.sleep(0.2)

    end_s = time.monotonic() + seconds
    with processes(mute, *[idle] * 5, *[lambda: threads(10, submit)] * 2):
        time.sleep(1.0)
        probe.run(lambda: time.monotonic() < end_s)
    jobs = sum(daemon.client.status()["jobs"].values())
    return f"{jobs:,} jobs at the end"


def _open(one: socket.socket) -> bool:
    try:
        return bool(one.recv(4096, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


LOADS = {one.__name__: one for one in (nothing, dependencies, arrays, forecasts, lists, reports, streams, crowd)}


def measured(load: str, seconds: float) -> str:
    """The figures of one load, in a line."""
    folder = Path(tempfile.mkdtemp(prefix="fairway-neighbours-"))
    folder.chmod(0o711)
    daemon = Daemon(folder / "state")
    try:
        probe = Probe(daemon.folder)
        more = LOADS[load](daemon, probe, seconds)
        parts = [*probe.rows(), f"{daemon.memory_mb():.0f} MB", *([more] if more else [])]
        for row in daemon.client.ls(state=["RUNNING"]):
            daemon.client.cancel(row["id"])
        while daemon.client.status()["gpus_held"]:
            time.sleep(0.05)
        return " · ".join(parts)
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a line for each load."""
    parser = argparse.ArgumentParser(description="Latency beside the load of others: median / p99 / maximum")
    parser.add_argument("--load", action="append", choices=list(LOADS))
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for load in options.load or LOADS:
        print(f"{load:<13} {measured(load, options.seconds)}", flush=True)


if __name__ == "__main__":
    main()
