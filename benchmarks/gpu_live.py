"""Live scheduling on a real NVIDIA GPU: discovery, time slicing in two ways, and a process of somebody else.

    python benchmarks/gpu_live.py --out results.json

Two PyTorch jobs share one GPU. Once they are preempted by checkpoint and restart, once they are suspended in place and
let go on. Their loss curves and weights are compared, number by number, with those of a run that nobody interrupted.
Then a job is a guest on the GPU of another, throttled to several parts of the time: how fast both go. Last, a process
that Fairway did not start computes on the GPU: it is left alone, and a job waits until it is gone. Needs PyTorch with
CUDA and nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairway.placement import placement
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.runtime.daemon.explain import explain
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import Machine, found_machine
from fairway.testing.hosted import Hosted

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ROOT / "examples" / "pytorch_ddp" / "train.py"
FOREIGN = """
import time, torch
a = torch.randn(4096, 4096, device="cuda"); end = time.monotonic() + {seconds}
print("up", flush=True)
while time.monotonic() < end:
    a = torch.tanh(a @ a); torch.cuda.synchronize()
"""
STEPS = """
import json, os, time, torch
a = torch.randn(2048, 2048, device="cuda"); step = 0
with open(os.environ["FAIRWAY_REPORT"], "a", buffering=1) as report:
    while True:
        for _ in range(20):
            a = torch.tanh(a @ a)
        torch.cuda.synchronize(); step += 1
        if step % 20 == 0:
            report.write(json.dumps({"step": step, "time": time.time()}) + "\\n")
"""


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def command(out: Path, epochs: int) -> tuple[str, ...]:
    return (
        sys.executable,
        str(TRAINING),
        "--out",
        str(out),
        "--epochs",
        str(epochs),
        "--pause",
        "0.02",
        "--shards",
        "1",
    )


def alone(folder: Path, epochs: int) -> tuple[dict[str, Any], float]:
    """The same training without interruption and without Fairway; its result and how long it took."""
    out = folder / "alone.json"
    began_s = time.monotonic()
    subprocess.run(command(out, epochs), check=True, cwd=ROOT, env=dict(os.environ), stdout=subprocess.DEVNULL)
    return json.loads(out.read_text()), time.monotonic() - began_s


def wait_until(met: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.2)


def request(out: Path, epochs: int, preempt: Any) -> JobRequest:
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return JobRequest(
        command(out, epochs), user="me", name=out.stem, cwd=str(ROOT), env=env, preempt=preempt, processes="per_gpu"
    )


def sliced(folder: Path, machine: Machine, preempt: str, epochs: int, truth: dict[str, Any]) -> dict[str, Any]:
    """Two jobs take turns on one GPU; what became of them."""
    place = folder / preempt
    daemon = Daemon(Options(place, policy="las:levels=12/24/36/48/60/72/84/96,metric=time"), machine)
    daemon.start()
    began_s = time.monotonic()
    outs = [place / "a.json", place / "b.json"]
    records = daemon.scheduler.submit([request(out, epochs, preempt) for out in outs])
    wait_until(lambda: all(record.state.ended for record in records), 420, f"jobs preempted by {preempt}")
    took_s = time.monotonic() - began_s
    daemon.close()
    results = [json.loads(out.read_text()) if out.exists() else {} for out in outs]
    return {
        "states": [str(record.state) for record in records],
        "preemptions": [record.preemptions for record in records],
        "attempts": [len(record.attempts) for record in records],
        "seconds": round(took_s, 1),
        "losses_equal": [result.get("losses") == truth["losses"] for result in results],
        "weights_equal": [result.get("weights") == truth["weights"] for result in results],
        "steps": [len(result.get("losses", ())) for result in results],
        "logs": [_tail(daemon, record) for record in records if str(record.state) != "COMPLETED"],
    }


def _tail(daemon: Daemon, record: JobRecord) -> str:
    log = daemon.options.folder / "jobs" / record.id / f"attempt-{len(record.attempts)}" / "rank-0.log"
    return log.read_text(errors="replace")[-1500:] if log.exists() else ""


def foreign(folder: Path, machine: Machine, seconds: float) -> dict[str, Any]:
    """A process of somebody else computes on the GPU; a job waits for it, and it is not touched."""
    other = subprocess.Popen(
        [sys.executable, "-c", FOREIGN.format(seconds=seconds)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    daemon = Daemon(Options(folder / "foreign", policy="fifo"), machine)
    daemon.start()
    time.sleep(4.0)
    (record,) = daemon.scheduler.submit([JobRequest(("sleep", "1"), user="me", cwd="/")])
    began_s = time.monotonic()
    time.sleep(4.0)
    waited = str(record.state)
    reason = str(explain(daemon.scheduler, record.id)["reason"])
    wait_until(lambda: other.poll() is not None, 120, "the foreign process")
    ended_s = time.monotonic()
    wait_until(lambda: record.state.ended, 60, "the job after it")
    daemon.close()
    return {
        "state_beside_it": waited,
        "reason": reason,
        "foreign_exit_code": other.returncode,
        "job_state": str(record.state),
        "started_after_it_s": round((record.started_s or 0.0) - (time.time() - (time.monotonic() - ended_s)), 1),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def _steps_per_s(record: JobRecord, folder: Path, seconds: float) -> float:
    """How fast a job goes, over some seconds from now on."""
    reports = folder / "jobs" / record.id / "reports.jsonl"
    known = len(reports.read_text().splitlines())
    time.sleep(seconds)
    rows = [json.loads(line) for line in reports.read_text().splitlines()[max(known - 1, 0) :]]
    passed_s = rows[-1]["time"] - rows[0]["time"] if len(rows) > 1 else 0.0
    return (rows[-1]["step"] - rows[0]["step"]) / passed_s if passed_s else 0.0


def throttled(folder: Path, machine: Machine, part: float, seconds: float = 6.0) -> dict[str, Any]:
    """A host alone, then with a guest that may compute for a part of the time: steps per second of both."""
    place = folder / f"guest-{part:g}"
    scheduler = Scheduler(place, machine.cluster, Hosted(part), placement("packed"), devices=machine.devices)
    thread = scheduler.start()
    try:
        work = JobRequest((sys.executable, "-c", STEPS), user="me", cwd=str(ROOT), grace_s=2.0)
        (host,) = scheduler.submit([work])
        wait_until(lambda: host.progress.step > 0, 90, "the host's first steps")
        alone = _steps_per_s(host, place, seconds)
        (guest,) = scheduler.submit([work])
        wait_until(lambda: guest.progress.step > 0, 90, "the guest's first steps")
        reports: dict[str, float] = {}
        watch = threading.Thread(target=lambda: reports.update(host=_steps_per_s(host, place, seconds)))
        watch.start()
        reports["guest"] = _steps_per_s(guest, place, seconds)
        watch.join()
    finally:
        scheduler.end_all()
        scheduler.close()
        thread.join()
    return {"part": part, "host_alone": round(alone, 1), **{name: round(rate, 1) for name, rate in reports.items()}}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, help="where to write the results as JSON")
    options.add_argument("--epochs", type=int, default=40)
    options.add_argument("--only", action="append", help="one of checkpoint, suspend, guests, foreign; may be repeated")
    asked = options.parse_args()
    machine = found_machine("nvidia")
    import torch

    results: dict[str, Any] = {
        "gpus": machine.text,
        "devices": list(machine.devices or ()),
        "memory_gib": [round(gpu.memory_bytes / 2**30, 1) for gpu in machine.cluster.types],
        "left_out": list(machine.left_out),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "driver": subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
        ).stdout.strip(),
    }
    say(f"found {machine.text}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth, alone_s = alone(folder, asked.epochs)
        results["alone"] = {"steps": len(truth["losses"]), "seconds": round(alone_s, 1)}
        say(f"alone: {len(truth['losses'])} steps in {alone_s:.0f} s")
        for what, act in (
            ("checkpoint", lambda: sliced(folder, machine, "checkpoint", asked.epochs, truth)),
            ("suspend", lambda: sliced(folder, machine, "suspend", asked.epochs, truth)),
            ("guests", lambda: [throttled(folder, machine, part) for part in (1.0, 0.5, 0.2)]),
            ("foreign", lambda: foreign(folder, machine, 15.0)),
        ):
            if asked.only and what not in asked.only:
                continue
            try:
                results[what] = act()
            except (SystemExit, Exception) as error:
                results[what] = {"error": f"{type(error).__name__}: {error}"}
            say(f"{what}: {results[what]}")
            if asked.out:
                asked.out.write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
