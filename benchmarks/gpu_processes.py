"""What benchmarks of a shared GPU start: an executor with seats, workers in processes of their own, and MPS."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairway.gpu.talk import LineReader, Message, connect, encoded

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MOST_WORKER_S = 180.0
"""A worker that takes longer than this has failed, for instance because MPS does not work here."""


def environment(**more: str) -> dict[str, str]:
    """The variables of a process that can load the jobs of the benchmarks."""
    path = os.pathsep.join((str(ROOT / "src"), str(HERE)))
    return {**os.environ, "PYTHONPATH": path, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more}


class Executor:
    """An executor in a process of its own, with a seat for each job."""

    def __init__(self, order: str, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fairway-executor-")
        run = Path(self._folder.name) / "run"
        run.mkdir()
        env = environment(FAIRWAY_EXECUTOR_ORDER=order, FAIRWAY_EXECUTOR_IDLE_S="600", **settings)
        self._socket = run / "socket"
        self._process = subprocess.Popen([sys.executable, "-m", "fairway.gpu.executor", str(run)], env=env, cwd=HERE)
        self._selector = selectors.DefaultSelector()
        self._seats: dict[str, socket.socket] = {}
        self.hosted: set[str] = set()
        self.done_s: dict[str, float] = {}
        self.steps: dict[str, int] = {}
        self.figures: dict[str, dict[str, Any]] = {}
        self.ran_out: list[str] = []
        self.waited: list[str] = []

    def __enter__(self) -> Executor:
        until_s = time.monotonic() + 120
        while True:
            try:
                connect(self._socket).close()
                return self
            except OSError:
                if time.monotonic() > until_s or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self.close()
        self._folder.cleanup()

    def close(self) -> None:
        """End it, with all of its jobs."""
        self._process.kill()
        self._process.wait()

    def host(self, job: str, factory: str, *arguments: str, held: bool = False, memory_bytes: int = 0) -> None:
        """Have a job hosted. If it is held, it is loaded and computes when it is released."""
        wanted: Message = {"job": job, "factory": f"gpu_models:{factory}", "arguments": arguments}
        wanted["memory_bytes"] = memory_bytes
        if held:
            wanted["attempt"] = str(self._attempt(job))
            self._attempt(job).mkdir()
            self._hold(job, "yes")
        seat = connect(self._socket)
        seat.sendall(encoded({"host": wanted}))
        self._seats[job] = seat
        self._selector.register(seat, selectors.EVENT_READ, (job, LineReader()))

    def _attempt(self, job: str) -> Path:
        return Path(self._folder.name) / f"attempt {job}"

    def _hold(self, job: str, word: str) -> None:
        scratch = self._attempt(job) / "scratch"
        scratch.write_text(word, encoding="ascii")
        scratch.replace(self._attempt(job) / "paused")

    def release(self, jobs: Sequence[str]) -> None:
        """Let jobs that are held compute, as soon as all of them are loaded."""
        self._until(lambda: self.hosted.issuperset(jobs), "been loaded", 240.0)
        for job in jobs:
            self._hold(job, "no")

    def listen(self, seconds: float) -> None:
        """Take in what jobs say for some time."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                job, reader = key.data
                piece = self._seats[job].recv(65_536)
                if not piece:
                    self._selector.unregister(key.fileobj)
                for message in reader.take(piece):
                    self._take(job, message)

    def _take(self, job: str, message: Message) -> None:
        if "hosted" in message:
            self.hosted.add(job)
        elif "figures" in message:
            self.steps[job] = message["step"]
            self.figures[job] = message["figures"]
        elif "done" in message:
            self.done_s[job] = time.monotonic()
        elif "log" in message and "memory ran out" in message["log"]:
            self.ran_out.append(job)
        elif "waits" in message:
            self.waited.append(job)
        elif "error" in message:
            raise RuntimeError(f"job {job}: {message['error']}")

    def until_done(self, jobs: Sequence[str], most_s: float) -> None:
        """Wait for the ends of jobs."""
        self._until(lambda: all(job in self.done_s for job in jobs), "ended", most_s)

    def until_running(self, jobs: Sequence[str]) -> None:
        """Wait until jobs have made a few steps."""
        self._until(lambda: all(self.steps.get(job, 0) >= 5 for job in jobs), "begun", 120.0)

    def _until(self, true: Callable[[], bool], what: str, most_s: float) -> None:
        until_s = time.monotonic() + most_s
        while not true():
            if time.monotonic() > until_s:
                raise TimeoutError(f"jobs have not {what} in {most_s:.0f} s")
            self.listen(0.02)


class Worker:
    """A process of its own that measures something when it is told to."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, str(HERE / "gpu_share.py"), "--worker", *arguments]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=environment(**(env or {})), cwd=HERE, **pipes)
        self._limit = threading.Timer(MOST_WORKER_S, self._process.kill)
        self._limit.daemon = True
        self._limit.start()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a worker has ended without an answer")
        return line.strip()

    def wait_until_ready(self) -> None:
        """Wait until it is loaded and warm."""
        while self._line() != "ready":
            pass

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What it has found."""
        found = json.loads(self._line())
        self._process.wait()
        self._limit.cancel()
        return found

    def measure(self) -> Any:
        """Let it measure alone."""
        self.wait_until_ready()
        self.go()
        return self.answer()

    def stop(self) -> None:
        """End it."""
        self._limit.cancel()
        self._process.kill()
        self._process.wait()


def together(workers: Sequence[Worker]) -> list[Any]:
    """Let workers measure at the same time."""
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers:
        worker.go()
    return [worker.answer() for worker in workers]


def begin_as_worker() -> None:
    """In a worker: say that it is ready, and wait until it may begin."""
    print("ready", flush=True)
    sys.stdin.readline()


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str] | None]:
    """The variables of clients of an MPS daemon that runs meanwhile; None if there can be none."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="fairway-mps-") as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in env.values():
            Path(path).mkdir()
        started = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment(**env), capture_output=True)
        try:
            yield env if started.returncode == 0 else None
        finally:
            quitting = {"input": b"quit\n", "env": environment(**env), "capture_output": True, "timeout": 60}
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(["nvidia-cuda-mps-control"], **quitting)


class Utilisation:
    """The part of the time in which the GPU computed something, as its driver samples it; None if it does not say."""

    def __enter__(self) -> Utilisation:
        self.percents: list[float] = []
        ask = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        self._process = None
        if shutil.which("nvidia-smi"):
            self._process = subprocess.Popen(ask, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self.percents.append(float(line))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    @property
    def mean_percent(self) -> float | None:
        return sum(self.percents) / len(self.percents) if self.percents else None
