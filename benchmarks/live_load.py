"""How the live scheduler bears 10,000 waiting jobs: submission, listing, decisions, dispatch, memory.

    python benchmarks/live_load.py [--jobs 10000] [--policy tiresias] [--round S] [--priorities 10] [--direct]

Four virtual GPUs. Two are held by long jobs and the queue needs three at once, so two GPUs are idle: small jobs that
come then are to start at once. The scheduler runs as users run it (`fairway up`), asked over its socket; with
`--direct` it is called inside this process, and decisions are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.client import Client, ClientError
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import virtual_machine

GPUS = 4
_MARK = "import sys,time; open(sys.argv[1],'w').write(repr(time.time()))"
Row = tuple[str, str, str]


class Direct:
    """The scheduler in this process."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        cluster, policy = virtual_machine(GPUS).cluster, make_policy(options.policy)
        about = {"round_s": options.round, "policy_text": options.policy}
        self.scheduler = Scheduler(folder, cluster, policy, placement("packed"), **about)
        self.decided_s: list[float] = []
        self._decide = self.scheduler.guard.decide
        self.scheduler.guard.decide = self._timed  # type: ignore[method-assign]
        self._thread = self.scheduler.start()

    def _timed(self, snapshot: Any) -> Any:
        began_s = time.perf_counter()
        decision = self._decide(snapshot)
        self.decided_s.append(time.perf_counter() - began_s)
        return decision

    def submit(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Submit, and return ids."""
        requests = [JobRequest.from_plain({"user": "load", "cwd": "/", **job}) for job in jobs]
        return [record.id for record in self.scheduler.submit(requests)]

    def ls(self) -> str:
        """All jobs, as JSON."""
        return json.dumps([record.plain() for record in self.scheduler.store])

    def show(self, name: str) -> Mapping[str, Any]:
        """One job."""
        record = self.scheduler.store.get(name)
        assert record is not None
        return record.plain()

    def cancel(self, name: str) -> None:
        """End a job."""
        self.scheduler.cancel(name)

    def why(self, name: str) -> Mapping[str, Any]:
        """Why a job waits."""
        from fairway.api.what_if import why

        return why(self.scheduler, name)

    def what_if(self) -> Mapping[str, Any]:
        """What comes."""
        from fairway.api.what_if import what_if

        return what_if(self.scheduler)

    def memory_mb(self) -> float:
        """The most memory that this process has had."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0

    def close(self) -> None:
        """Stop scheduling."""
        self.scheduler.close()
        self._thread.join()


class OverSocket:
    """The scheduler as users have it, in a process of its own."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "fairway", "up", "--gpus", str(GPUS), "--state", str(folder)]
        command += ["--policy", options.policy]
        command += [] if options.round is None else ["--round", str(options.round)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = Client(folder)
        until(self._answers)
        self.decided_s: list[float] = []

    def _answers(self) -> bool:
        try:
            return bool(self.client.status())
        except ClientError:
            return False

    def submit(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Submit, and return ids."""
        return [str(row["id"]) for row in self.client.submit(jobs if len(jobs) > 1 else jobs[0])]

    def ls(self) -> list[Any]:
        """All jobs, parsed."""
        return self.client.ls()

    def show(self, name: str) -> Mapping[str, Any]:
        """One job."""
        return self.client.show(name)

    def cancel(self, name: str) -> None:
        """End a job."""
        self.client.cancel(name)

    def why(self, name: str) -> Mapping[str, Any]:
        """Why a job waits."""
        return self.client.why(name)

    def what_if(self) -> Mapping[str, Any]:
        """What comes."""
        return self.client.what_if()

    def memory_mb(self) -> float:
        """The most memory that the daemon has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024.0

    def close(self) -> None:
        """Stop the daemon."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def main() -> None:
    """Run all measurements and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--policy", default="tiresias")
    parser.add_argument("--round", type=float, default=None)
    parser.add_argument("--priorities", type=int, default=1, help="of the queue; so many different ones")
    parser.add_argument("--dispatches", type=int, default=200)
    parser.add_argument("--direct", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fairway-load-"))
    try:
        rows = measure(folder / "state", options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    width = max(len(name) for name, *_ in rows)
    where = "called directly" if options.direct else "over its socket"
    print(f"{options.jobs} jobs, {options.policy}, {where}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, value, target in rows:
        print(f"  {name:<{width}}  {value:>16}  {target}")


def measure(folder: Path, options: argparse.Namespace) -> list[Row]:
    """One scheduler, filled in two ways; the figures as texts."""
    scheduler = (Direct if options.direct else OverSocket)(folder, options)
    long_jobs: list[str] = []
    try:
        long_jobs = scheduler.submit([{"command": ["sleep", "3600"], "preempt": "never", "grace_s": 0.1}] * 2)
        rows = _submissions(scheduler, options.jobs, options.priorities)
        rows.append(("list all", f"{1000 * _best(scheduler.ls):.0f} ms", "at most 200 ms"))
        scheduler.decided_s.clear()
        rows += _dispatching(scheduler, folder.parent, options.dispatches)
        if scheduler.decided_s:
            text = _percentiles(scheduler.decided_s, ".1f")
            rows.append((f"decision ({len(scheduler.decided_s)}), median / p99", text, "at most 100 ms"))
        rows.append(("memory, peak", f"{scheduler.memory_mb():.0f} MB", "at most 300 MB"))
        rows += _looking_ahead(scheduler, str(options.jobs))
        rows.append(("memory, peak after looking ahead", f"{scheduler.memory_mb():.0f} MB", "at most 300 MB"))
    finally:
        for name in long_jobs:
            scheduler.cancel(name)
        until(lambda: not _running(folder, long_jobs))
        scheduler.close()
    began_s = time.perf_counter()
    again = Scheduler(folder, virtual_machine(GPUS).cluster, make_policy(options.policy), placement("packed"))
    rows.append(("restart with this journal", f"{time.perf_counter() - began_s:.2f} s", ""))
    assert len(again.store) >= options.jobs
    again.journal.close()
    return rows


def _running(folder: Path, names: Sequence[str]) -> bool:
    return any(not (folder / "jobs" / name / "attempt-1" / "exit.json").exists() for name in names)


def _submissions(scheduler: Direct | OverSocket, jobs: int, priorities: int) -> list[Row]:
    """Half of the jobs one by one, half a hundred at a time."""
    half = jobs // 2
    terms = {"command": ["true"], "gpus": 3, "name": "load", "expected_s": 600.0}
    queue = [{**terms, "priority": at % priorities} for at in range(max(100, priorities))]
    began_s = time.perf_counter()
    for at in range(half):
        scheduler.submit([queue[at % len(queue)]])
    single = half / (time.perf_counter() - began_s)
    began_s = time.perf_counter()
    for _ in range(0, jobs - half, 100):
        scheduler.submit(queue[:100])
    batched = (jobs - half) / (time.perf_counter() - began_s)
    return [
        ("submit, one by one", f"{single:.0f} jobs/s", "at least 300"),
        ("submit, by 100", f"{batched:.0f} jobs/s", "at least 300"),
    ]


def _dispatching(scheduler: Direct | OverSocket, folder: Path, dispatches: int) -> list[Row]:
    """From the call that submits a job to its launch, and to its own first line of code."""
    to_start, to_code = [], []
    for at in range(dispatches):
        mark = folder / f"mark-{at}"
        command = [sys.executable, "-I", "-S", "-c", _MARK, str(mark)]
        asked_s = time.time()
        name = scheduler.submit([{"command": command, "gpus": 1}])[0]
        until(lambda: mark.exists() and mark.stat().st_size > 0)  # noqa: B023 - waited for within the loop
        to_code.append(float(mark.read_text()) - asked_s)
        to_start.append(scheduler.show(name)["started_s"] - asked_s)
        until(lambda: scheduler.show(name)["state"] == "COMPLETED", pause_s=0.02)  # noqa: B023
    return [
        ("dispatch, launched, median / p99", _percentiles(to_start), "at most 250 ms"),
        ("dispatch, job computes, median / p99", _percentiles(to_code), "at most 250 ms"),
    ]


def _looking_ahead(scheduler: Direct | OverSocket, last: str) -> list[Row]:
    rows = []
    for name, call in (("why", lambda: scheduler.why(last)), ("what-if, all jobs", scheduler.what_if)):
        began_s = time.perf_counter()
        told = call()
        cut = told.get("cut") or told.get("estimate", {}).get("cut")
        rows.append((name, f"{time.perf_counter() - began_s:.2f} s", f"({cut})" if cut else ""))
    return rows


def _percentiles(values_s: Sequence[float], form: str = ".0f") -> str:
    ordered = sorted(values_s)
    p50, p99 = (1000 * ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99))
    return f"{p50:{form}} / {p99:{form}} ms"


def until(done: Callable[[], bool], most_s: float = 60.0, pause_s: float = 0.001) -> None:
    """Wait until something is so."""
    deadline_s = time.monotonic() + most_s
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the scheduler did not get there in time")
        time.sleep(pause_s)


def _best(call: Callable[[], Any], times: int = 5) -> float:
    best = float("inf")
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began_s)
    return best


if __name__ == "__main__":
    main()
