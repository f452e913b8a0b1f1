"""Two adaptive trainings on one real GPU under `pollux`: they grow, shrink, and change batches without a restart.

    python benchmarks/goodput_gpu.py [--seconds 150] [--python PYTHON_WITH_TORCH]

The GPU is offered as two virtual ones. The first job has both until the second comes. Each line of the table is a
change: when it was, the job, its GPUs, its batch, the noise scale of its gradients, and its loss.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fairway
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import virtual_machine

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "adaptive_ddp" / "train.py"


def main() -> None:
    """Train, and print what has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--second-after", type=float, default=40.0)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairway-goodput-") as name:
        folder = Path(name)
        about: dict[str, Any] = {"round_s": 5.0, "policy_text": "pollux", "restart_s": 10.0}
        scheduler = Scheduler(folder, virtual_machine(2).cluster, make_policy("pollux"), placement("packed"), **about)
        thread, began_s = scheduler.start(), time.time()
        try:
            for seed, wait_s in (("1", options.second_after), ("2", options.seconds - options.second_after)):
                scheduler.submit([_request(seed, options.python)])
                until_s = time.time() + wait_s
                while time.time() < until_s and any(not one.state.ended for one in scheduler.store):
                    time.sleep(0.2)
        finally:
            scheduler.end_all()
            scheduler.close()
            thread.join()
        for record in scheduler.store:
            _print(record.id, folder, began_s)
            gpus = [len(attempt.gpus) for attempt in record.attempts]
            print(f"job {record.id}: {record.state}, attempts on {gpus} GPUs, step {record.progress.step:.0f}")
            if record.progress.step == 0:
                print((folder / "jobs" / record.id / "attempt-1" / "rank-0.log").read_text()[-1000:])


def _request(seed: str, python: str) -> JobRequest:
    command = [python, str(EXAMPLE), "--seed", seed, "--target", "0", "--pause", "0.01", "0.00001"]
    env = {"PYTHONPATH": str(Path(fairway.__file__).parents[1])}
    about = {"gpus_min": 1, "gpus_max": 2, "processes": "per_gpu", "preempt": "checkpoint", "env": env}
    return JobRequest.from_plain({"command": command, "cwd": "/", "user": "load", "gpus": 1, **about})


def _print(name: str, folder: Path, began_s: float) -> None:
    before: tuple[Any, ...] = ()
    for text in (folder / "jobs" / name / "reports.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        gpus = line["timing"][0] if line.get("timing") else "?"
        now = (gpus, line.get("batch_size"))
        if "started" in line or (now != before and "loss" in line and gpus != "?"):
            what = "starts" if "started" in line else f"{gpus} GPUs, batch {now[1]}"
            noise, loss = line.get("noise_scale", float("nan")), line.get("loss", float("nan"))
            print(f"{line['time'] - began_s:7.1f} s  job {name}  {what:<22} noise {noise:8.1f}  loss {loss:.4f}")
            before = now


if __name__ == "__main__":
    main()
