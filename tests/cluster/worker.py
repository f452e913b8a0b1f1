"""A rank of the tests: steps of a twentieth of a second, a checkpoint at every fifth, and a diary with times.

    python worker.py DIARIES STEPS

Rank 0 saves for all ranks; the others only say that they live. With a file `enough` among the diaries all steps are
done.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

STEP_S = 0.05
SAVE_EVERY = 5


def main() -> None:
    """Do the steps that are left, save now and then, and stop when asked."""
    diaries, steps = Path(sys.argv[1]), int(sys.argv[2])
    rank = int(os.environ.get("RANK", "0"))
    checkpoint = Path(os.environ["FAIRWAY_CHECKPOINT_DIR"]) / "step"
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    number = int(os.environ["FAIRWAY_RESTART_COUNT"]) + 1
    told = diaries / f"{os.environ['FAIRWAY_JOB_ID']}-{number}-{rank}-{os.getpid()}-{time.time_ns()}"
    with told.open("a", buffering=1) as diary, Path(os.environ["FAIRWAY_REPORT"]).open("a", buffering=1) as reports:

        def save(step: int) -> None:
            if rank == 0:
                scratch = checkpoint.with_suffix(f".{os.getpid()}")
                scratch.write_text(str(step))
                scratch.replace(checkpoint)
                about = {"step": step, "steps": steps, "checkpoint": str(checkpoint), "time": time.time()}
                reports.write(json.dumps(about) + "\n")
            diary.write(f"{time.time()} saved {step}\n")

        diary.write(f"{time.time()} start {first} {socket.gethostname()}\n")
        for step in range(first, steps):
            time.sleep(STEP_S)
            diary.write(f"{time.time()} step {step}\n")
            if step % SAVE_EVERY == SAVE_EVERY - 1 or asked:
                save(step + 1)
            if asked:
                sys.exit(75)
            if (diaries / "enough").exists():
                break
        # What is done is done: while Python shuts down, the signal would end this process as if it were not.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        diary.write(f"{time.time()} end {steps}\n")


if __name__ == "__main__":
    main()
