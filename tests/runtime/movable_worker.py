"""A job with memory on a pretended GPU: a file per process, whose size is what it says.

    python movable_worker.py GPU_FOLDER CAPACITY BYTES STEPS [movable] [saves] [deaf] [rests]

It runs out of memory as real jobs do. `movable`: it moves its memory out when it is asked, in the way of
`fairway.gpu.movable`. `saves`: it can be stopped by a checkpoint. `deaf`: it says that it is movable and never answers.
`rests`: a gigabyte of what it moves stays on the GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

gpu, capacity, size, steps, words = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5:]
attempt = Path(os.environ["FAIRWAY_LOG"]).parent
mine = gpu / str(os.getpid())
away = mine.with_suffix(".out")


def wished() -> dict:
    try:
        return json.loads((attempt / "memory").read_text())
    except (OSError, ValueError):
        return {}


def say(**what: object) -> None:
    path = attempt / f"moved-{os.getpid()}"
    path.with_suffix(".new").write_text(json.dumps(what))
    path.with_suffix(".new").replace(path)


def wait_for_driver() -> None:
    """What uses the GPU waits while the driver has the memory elsewhere. Everything else goes on."""
    while away.exists():
        time.sleep(0.002)


def take() -> None:
    wait_for_driver()
    mine.write_text(str(size))
    if sum(int(one.read_text() or 0) for one in gpu.iterdir() if one.name.isdigit()) > capacity:
        mine.unlink()
        print("CUDA out of memory", flush=True)
        os._exit(1)


def free() -> None:
    while True:
        wait_for_driver()
        with contextlib.suppress(FileNotFoundError):
            # The driver may take it just now.
            mine.unlink()
            return


def asked(signo: int, frame: object) -> None:
    if wished().get("memory") != "out" or "deaf" in words:
        return
    if size > wished()["most_bytes"]:
        say(state="refused", bytes=size, problem="its memory is more than the host may take")
        return
    held = mine.exists()
    say(state="moving", bytes=size if held else 0)
    time.sleep(0.02)
    if "rests" in words and held:
        mine.write_text(str(1 << 30))
    else:
        mine.unlink(missing_ok=True)
    say(state="out", bytes=size if held else 0)
    while wished().get("memory") == "out":
        time.sleep(0.002)
    if held:
        take()
    say(state="in", bytes=size if held else 0)


def stop(signo: int, frame: object) -> None:
    mine.unlink(missing_ok=True)
    (Path(os.environ["FAIRWAY_CHECKPOINT_DIR"]) / "step").write_text(str(step))
    os._exit(75)


step = 0
saved = Path(os.environ["FAIRWAY_CHECKPOINT_DIR"]) / "step"
if "saves" in words:
    signal.signal(signal.SIGTERM, stop)
    step = int(saved.read_text()) if saved.exists() else 0
    with Path(os.environ["FAIRWAY_REPORT"]).open("a") as report:
        report.write(json.dumps({"step": step, "checkpoint": str(saved)}) + "\n")
if "movable" in words:
    signal.signal(signal.SIGRTMIN + 5, asked)
    (attempt / f"moves-{os.getpid()}").touch()
take()
while step < steps:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.05)
free()
