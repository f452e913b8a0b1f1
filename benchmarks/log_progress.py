"""What it costs to read progress off logs: with a rank that writes as fast as it can, and with many running jobs.

Run: python benchmarks/log_progress.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.models.log_progress import LogReader
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.log_watch import EVERY_S, MOST_LOGS, LogWatch
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.log_tail import LogTail

SECONDS = 20.0
FLOOD = """
import os, sys, time
lines = b"".join(b"step %d/100000 loss 0.5 lr 1e-4 tokens/s 12345.6\\n" % n for n in range(20000))
begun, wrote = time.monotonic(), 0
while True:
    wrote += sys.stdout.buffer.write(lines)
    with open(sys.argv[1] + ".new", "w") as said:
        said.write(str(wrote / (time.monotonic() - begun)))
    os.replace(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(max(wrote / 100e6 - (time.monotonic() - begun), 0.0))
"""


def with_a_flood(folder: Path) -> None:
    """One live job writes 100 MB/s, if its keeper can take that much."""
    cluster = Cluster.of([Node("here", "cpu", 1)], [GpuType("cpu", 0, 0.0, 1.0)])
    scheduler = Scheduler(folder, cluster, make_policy("fifo"), placement("packed"), min_run_s=0.0)
    thread = scheduler.start()
    job = scheduler.submit([JobRequest(command=(sys.executable, "-c", FLOOD, str(folder / "speed")))])[0]
    watch = LogWatch(scheduler, lambda: True, print)
    used_s, begun_s = 0.0, time.monotonic()
    while time.monotonic() - begun_s < SECONDS:
        time.sleep(EVERY_S)
        before_s = time.thread_time()
        watch.look()
        used_s += time.thread_time() - before_s
    speed = float((folder / "speed").read_text())
    print(f"a rank that writes {speed / 1e6:.0f} MB/s: {100 * used_s / (time.monotonic() - begun_s):.2f} % of a core")
    scheduler.cancel(job.id)
    while job.open_attempt is not None:
        time.sleep(0.05)
    scheduler.close()
    thread.join()


def with_many(folder: Path) -> None:
    """As many logs as are opened in a look, each with a new bar."""
    logs = [folder / f"{number}.log" for number in range(MOST_LOGS)]
    followed = [(LogTail(log), LogReader("train --epochs 3")) for log in logs]
    used_s = 0.0
    for step in range(1, 21):
        for log in logs:
            with log.open("ab") as out:
                out.write(f"\r  1%|▏         | {step}/1000 [00:01<16:39,  1.00it/s, loss=0.5]".encode())
        before_s = time.thread_time()
        for tail, reader in followed:
            for text, _, gap in tail.new_pieces():
                reader.read(text, float(step), gap=gap)
        used_s += time.thread_time() - before_s
    each_us = 1e6 * used_s / 20 / MOST_LOGS
    print(f"a log with a new bar: {each_us:.0f} µs; {MOST_LOGS} of them every {EVERY_S:g} s: ", end="")
    print(f"{100 * used_s / 20 / EVERY_S:.2f} % of a core")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        with_many(Path(name))
    with tempfile.TemporaryDirectory() as name:
        with_a_flood(Path(name))
