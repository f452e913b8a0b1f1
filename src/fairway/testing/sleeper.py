"""A job that trains by sleeping: `python sleeper.py STEPS STEP_S [REPORT_EVERY]`. It needs the standard library only.

It saves and exits with 75 when asked to stop, goes on from there when started again, and appends to `times.jsonl`
beside its checkpoint when each of its attempts began to train, was asked to stop and had done how much.
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
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder = Path(os.environ["FAIRWAY_CHECKPOINT_DIR"])
    asked_s: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: asked_s.append(time.time()))
    saved = folder / "step"
    first = int(saved.read_text()) if saved.exists() else 0
    trained_s, step = 0.0, first
    if every:
        _report(step=first, steps=steps, started=True)
    while step < steps and not asked_s:
        trained_s += _slept_s(step_s)
        step += 1
        if every and step % every == 0:
            _report(step=step)
    done = step >= steps
    if done:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        saved.with_suffix(".new").write_text(str(step))
        saved.with_suffix(".new").replace(saved)
    note = {"began_s": began_s, "ended_s": time.time(), "trained_s": trained_s, "asked_s": asked_s[:1]}
    with (folder / "times.jsonl").open("a") as out:
        out.write(json.dumps(note) + "\n")
    if not done:
        _report(checkpoint=str(saved), **({"step": step} if every else {}))
        sys.exit(75)


def _slept_s(seconds: float) -> float:
    """Sleep, in slices: one in which the process was suspended is over at once afterwards, as no computation would be.

    Returns how long it took, without suspensions.
    """
    slept_s, slice_s = 0.0, seconds / SLICES
    for _ in range(SLICES):
        before_s = time.monotonic()
        time.sleep(slice_s)
        slept_s += min(time.monotonic() - before_s, 2.0 * slice_s)
    return slept_s


def _report(**what: object) -> None:
    with Path(os.environ["FAIRWAY_REPORT"]).open("a") as reports:
        reports.write(json.dumps({**what, "time": time.time()}) + "\n")


if __name__ == "__main__":
    main()
