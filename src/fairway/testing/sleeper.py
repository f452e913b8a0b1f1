"""A job that trains by sleeping: `python sleeper.py STEPS STEP_S [REPORT_EVERY]`. It needs only the standard library.

When asked to stop it saves and exits with 75; when started again it goes on from there. `times.jsonl` beside its
checkpoint has the times at which its attempts began to train.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

SLICES = 5


def main() -> None:
    """Do the steps that are left."""
    began_s = time.time()
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder = Path(os.environ["FAIRWAY_CHECKPOINT_DIR"])
    with (folder / "times.jsonl").open("a") as times:
        times.write(json.dumps({"restart": int(os.environ["FAIRWAY_RESTART_COUNT"]), "began_s": began_s}) + "\n")
    saved = folder / "step"
    step = int(saved.read_text()) if saved.exists() else 0
    if every:
        _report(step=step, steps=steps, started=True)
    while step < steps and not asked:
        _sleep(step_s)
        step += 1
        if every and step % every == 0:
            _report(step=step)
    if step >= steps:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return
    saved.with_suffix(".new").write_text(str(step))
    saved.with_suffix(".new").replace(saved)
    _report(checkpoint=str(saved), **({"step": step} if every else {}))
    sys.exit(75)


def _sleep(seconds: float) -> None:
    """Sleep in slices: if the process was suspended during a step, it sleeps the rest afterwards, as if it computed."""
    for _ in range(SLICES):
        time.sleep(seconds / SLICES)


def _report(**what: object) -> None:
    with Path(os.environ["FAIRWAY_REPORT"]).open("a") as reports:
        reports.write(json.dumps({**what, "time": time.time()}) + "\n")


if __name__ == "__main__":
    main()
