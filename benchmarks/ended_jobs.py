"""What jobs that have ended cost a live scheduler: the time of its start, its memory, and how long lists take.

    python benchmarks/ended_jobs.py [--jobs 100000] [--variables 25]

A journal with that many ended jobs is written. A new process then opens it as `fairway up` does.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fairway.api.json_rows import Listing
from fairway.runtime.daemon.daemon import Daemon
from fairway.runtime.daemon.settings import Options
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState, Progress
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.journal.archive import Wanted
from fairway.runtime.journal.database import Journal

BATCH = 5000


def fill(folder: Path, jobs: int, variables: int) -> None:
    """Write a journal with jobs that have ended, of ten users in 1,000 environments."""
    journal = Journal(folder / "journal.db")
    began_s = time.time() - jobs
    for first in range(0, jobs, BATCH):
        records = [_record(number, began_s, variables) for number in range(first, min(first + BATCH, jobs))]
        with journal.transaction():
            journal.save_jobs([record.stored() for record in records])
    journal.close()


def _record(number: int, began_s: float, variables: int) -> JobRecord:
    env = {f"VARIABLE_{at}": f"/some/where/{number % 1000}/{at}" * 2 for at in range(variables)}
    request = JobRequest(
        command=("python", "train.py", "--seed", str(number)),
        user=f"user{number % 10}",
        name=f"job {number % 500}",
        cwd="/home/somebody/project",
        env=env,
        client_key=f"{number:032x}",
    )
    at_s = began_s + number
    attempt = Attempt(1, [0], f"{number:016x}", at_s, at_s + 0.1, at_s + 60.0, [0])
    state = JobState.FAILED if number % 10 == 0 else JobState.COMPLETED
    about = {"started_s": at_s, "ended_s": at_s + 60.0, "exit_code": 0, "ran_s": 60.0, "gpu_s": 60.0}
    return JobRecord(
        number, str(number + 1), request, at_s, state, attempts=[attempt], progress=Progress(step=100.0), **about
    )


def measure(folder: Path) -> None:
    """Open the journal as a scheduler does, ask for lists, and print what that takes."""
    before = _memory_mb()
    began_s = time.perf_counter()
    daemon = Daemon(Options(folder, gpus="4"))
    print(f"start          {time.perf_counter() - began_s:8.2f} s")
    print(f"memory         {_memory_mb():8.0f} MB (without a journal {before:.0f} MB)")
    scheduler = daemon.scheduler
    listing = Listing(scheduler)
    ended = Wanted(frozenset(state for state in JobState if state.ended))
    for name, ask in {
        "show a job": lambda: scheduler.store.get("7"),
        "history": lambda: listing.text(scheduler.lists.ended(ended, 1000)),
        "ls": lambda: listing.text(scheduler.lists.submitted(Wanted(frozenset([JobState.PENDING])), 100_000)),
        "ls --all": lambda: listing.text(scheduler.lists.submitted(Wanted(), 100_000)),
        "to be deleted": lambda: scheduler.archive.families(),
    }.items():
        began_s = time.perf_counter()
        ask()
        print(f"{name:<14} {1000 * (time.perf_counter() - began_s):8.1f} ms")
    print(f"memory         {_memory_mb():8.0f} MB after these lists")
    scheduler.stop()


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    """Write a journal and open it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--variables", type=int, default=25, help="variables in each environment")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), options.jobs, options.variables)
        size = sum(one.stat().st_size for one in Path(folder).iterdir())
        print(f"{options.jobs:,} ended jobs; the journal has {size / 1e6:.0f} MB", flush=True)
        command = [sys.executable, __file__, "--measure", folder]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


if __name__ == "__main__":
    main()
