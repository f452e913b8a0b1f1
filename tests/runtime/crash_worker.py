"""A job of the crash test: steps of a tenth of a second, a checkpoint every fifth, everything noted in a diary."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

STEP_S = 0.1
SAVE_EVERY = 5


def main() -> None:
    """Do the steps that are left, save now and then, and stop when asked."""
    diary_folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    checkpoint = Path(os.environ["FAIRWAY_CHECKPOINT_DIR"]) / "step"
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    with (
        (diary_folder / os.environ["FAIRWAY_JOB_ID"]).open("a", buffering=1) as diary,
        Path(os.environ["FAIRWAY_REPORT"]).open("a", buffering=1) as reports,
    ):

        def save(step: int) -> None:
            scratch = checkpoint.with_suffix(f".{os.getpid()}")
            scratch.write_text(str(step))
            scratch.replace(checkpoint)
            diary.write(f"{os.getpid()} saved {step}\n")
            told = {"step": step, "steps": steps, "checkpoint": str(checkpoint), "time": time.time()}
            reports.write(json.dumps(told) + "\n")

        diary.write(f"{os.getpid()} start {first}\n")
        for step in range(first, steps):
            time.sleep(STEP_S)
            diary.write(f"{os.getpid()} step {step}\n")
            if step % SAVE_EVERY == SAVE_EVERY - 1 or asked:
                save(step + 1)
            if asked:
                sys.exit(75)
        # What is done is done: while Python shuts down, the signal would end this process as if it were not.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        diary.write(f"{os.getpid()} end {steps}\n")


if __name__ == "__main__":
    main()
