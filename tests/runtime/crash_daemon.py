"""The scheduler of the crash test: submits its jobs (under keys, so once) and runs until all have ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import virtual_machine

GPUS = 8
WORKER = Path(__file__).with_name("crash_worker.py")


def requests(folder: Path, jobs: int) -> list[JobRequest]:
    """Jobs of 3 to 6 seconds; half of them save and stop when asked, half are suspended in place."""
    return [
        JobRequest(
            command=(sys.executable, "-S", str(WORKER), str(folder / "diaries"), str(30 + at * 7 % 31)),
            name=f"job{at}",
            user=f"user{at % 3}",
            gpus=1 + (at % 4 == 3),
            preempt="checkpoint" if at % 2 else "suspend",
            grace_s=20.0,
            client_key=f"key{at}",
        )
        for at in range(jobs)
    ]


def main() -> None:
    """One life of the scheduler."""
    folder, policy, round_s, jobs = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    scheduler = Scheduler(
        folder / "state",
        virtual_machine(GPUS).cluster,
        make_policy(policy),
        placement("packed"),
        min_run_s=0.4,
        round_s=round_s or None,
        policy_text=policy,
    )
    thread = scheduler.start()
    for request in requests(folder, jobs):
        scheduler.submit([request])
    while any(not record.state.ended for record in scheduler.store):
        time.sleep(0.05)
    scheduler.close()
    thread.join()


if __name__ == "__main__":
    main()
