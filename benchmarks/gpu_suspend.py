"""Suspending jobs on a real GPU: how long memory takes to leave and come back, and whether a training notices.

    python benchmarks/gpu_suspend.py --out results.json [--part moves|turns|cost] [--gb 0.5,4,40]

The jobs are ordinary PyTorch scripts. Nothing in them is about Fairway. `moves` suspends one job in each way and lets
it go on, twice. `cost` measures the step time of a job that is never suspended, with and without movable memory.
`turns` has several jobs, whose memory together exceeds the GPU's, take turns under the live scheduler. Losses are
compared with those of a run that nobody interrupted, number by number. Needs PyTorch with CUDA, nvidia-ml-py and
torch-memory-saver.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from fairway.models.suspend_table import SuspendRow, Way, suspend_csv
from fairway.runtime.daemon.daemon import Daemon
from fairway.runtime.daemon.settings import Options
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.local import LocalSite, Running
from fairway.runtime.processes.machine import Machine, found_machine
from fairway.runtime.processes.movable_memory import MovableMemory, saver_folder

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import sys, time, torch
gb, steps, out = float(sys.argv[1]), int(sys.argv[2]), open(sys.argv[3], "w", buffering=1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(12))).cuda()
optimizer = torch.optim.Adam(model.parameters())
drawn = torch.Generator(device="cuda").manual_seed(1)
size = 1 << 28
kept = [torch.full((size // 4,), float(part), device="cuda") for part in range(max(int(gb * 4) - 3, 0))]
for step in range(steps):
    inputs = torch.randn(256, 2048, device="cuda", generator=drawn)
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    seen = 0.0
    if kept:
        part = kept[step % len(kept)]; part.add_(1.0); seen = part[::1000003].sum().item()
    out.write(f"{step} {loss.item()!r} {seen!r} {time.time()!r}\\n")
"""
POLICIES = ("tiresias:queues=8/16/24/32/40/48/56", "gandiva:quantum_s=8,pack=1,grow=off,migrate=off")
WAYS = ("in place", "moved, first time", "moved", "driver", "moved, then driver")


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def wait_until(met: Callable[[], Any], seconds: float, what: str) -> None:
    end_s = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end_s:
            raise SystemExit(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.005)


def losses(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(words[1], words[2]) for line in lines if len(words := line.split()) == 4]


def step_s(path: Path, first: int = 50) -> float:
    """The median time of a step."""
    ends = [float(line.split()[3]) for line in path.read_text().splitlines()]
    return statistics.median(after - before for before, after in zip(ends[first:], ends[first + 1 :], strict=False))


class Alone:
    """One job under a keeper, without a scheduler."""

    def __init__(self, folder: Path, machine: Machine, gb: float, steps: int, *, movable: bool) -> None:
        assert machine.nvml is not None
        assert machine.devices is not None
        nvml, devices = machine.nvml, machine.devices
        folder.mkdir(parents=True)
        script, self.out = folder / "train.py", folder / "losses"
        script.write_text(SCRIPT)
        self.memory = MovableMemory(folder, lambda gpu: nvml.memory(devices[gpu]), saver_folder() if movable else None)
        self.site = LocalSite(memory=self.memory)
        attempt = folder / "jobs" / "1" / "attempt-1"
        env = {**os.environ, "FAIRWAY_LOG": str(attempt / "rank-0.log"), "CUDA_VISIBLE_DEVICES": devices[0]}
        argv = [sys.executable, str(script), str(gb), str(steps), str(self.out)]
        launch: dict[str, Any] = {"ranks": [{"argv": argv, "env": env, "log": env["FAIRWAY_LOG"]}], "cwd": str(folder)}
        launch |= {"grace_s": 5.0, "limit_s": None, "log_bytes": 1 << 20, "account": "", "token": "t", "suspends": True}
        self.running: Running = self.site.start(attempt, launch)
        self._log = attempt / "rank-0.log"

    def at_step(self, step: int) -> None:
        """Wait until it has done some steps."""
        end_s = time.monotonic() + 180.0
        while len(losses(self.out)) < step:
            if time.monotonic() > end_s or self.running.ended:
                raise SystemExit(f"the job does not train: {self._log.read_text()[-2000:]}")
            time.sleep(0.01)

    def out_and_back(self, *, everything: bool = False) -> tuple[float, float, float]:
        """Suspend it, have its memory moved, and let it go on: seconds out and back, and what stays on the GPU (GB)."""
        running, memory = self.running, self.memory
        running.pause()
        time.sleep(0.3)
        began_s = time.monotonic()
        running.move_out(1 << 50, everything=everything)
        wait_until(lambda: running.memory.place == "host" or running.memory.problem, 120, "memory leaves")
        if running.memory.problem:
            raise SystemExit(f"memory cannot leave: {running.memory.problem}")
        out_s = time.monotonic() - began_s
        told = memory.gpu_memory(0)
        left = (told.total - told.free) / 1e9 if told else 0.0
        step, began_s = len(losses(self.out)), time.monotonic()
        running.go_on()
        wait_until(lambda: running.memory.place == "gpu", 120, "memory comes back")
        back_s = time.monotonic() - began_s
        self.at_step(step + 3)
        return out_s, back_s, left

    def in_place(self) -> tuple[float, float, float]:
        """Suspend it in place and let it go on."""
        began_s = time.monotonic()
        self.running.pause()
        step = -1
        while step != len(losses(self.out)):
            step = len(losses(self.out))
            time.sleep(0.03)
        out_s, began_s = time.monotonic() - began_s - 0.03, time.monotonic()
        self.running.go_on()
        self.at_step(step + 1)
        told = self.memory.gpu_memory(0)
        return max(out_s, 0.0), time.monotonic() - began_s, (told.total - told.free) / 1e9 if told else 0.0

    def close(self) -> list[tuple[str, str]]:
        """Let it finish; its losses."""
        wait_until(lambda: self.running.ended, 240, "it ends")
        self.memory.close()
        return losses(self.out)


def moves(folder: Path, machine: Machine, sizes: Sequence[float]) -> list[dict[str, Any]]:
    """Seconds out and back for each way and size."""
    rows = []
    for gb in sizes:
        steps = 2000 if gb < 10 else 8000
        plain = Alone(folder / f"plain-{gb}", machine, gb, steps, movable=False)
        truth = plain.close()
        own = Alone(folder / f"moved-{gb}", machine, gb, steps, movable=True)
        own.at_step(60)
        found = {"in place": own.in_place(), "moved, first time": own.out_and_back(), "moved": own.out_and_back()}
        found["moved, then driver"] = own.out_and_back(everything=True)
        same = own.close() == truth
        driver = Alone(folder / f"driver-{gb}", machine, gb, steps, movable=False)
        driver.at_step(60)
        driver.out_and_back()
        found["driver"] = driver.out_and_back()
        same &= driver.close() == truth
        ready = Alone(folder / f"ready-{gb}", machine, gb, steps, movable=True)
        ready.at_step(60)
        ready.running.get_ready(1 << 50)
        time.sleep(0.5 + 0.15 * gb)
        found["moved, pinned ahead"] = ready.out_and_back()
        same &= ready.close() == truth
        for way, (out_s, back_s, left) in found.items():
            row = {
                "gb": gb,
                "way": way,
                "out_s": round(out_s, 3),
                "back_s": round(back_s, 3),
                "left_gb": round(left, 2),
            }
            rows.append({**row, "losses_equal": same})
            say(f"{gb:5.1f} GB  {way:20}  out {out_s:6.3f} s  back {back_s:6.3f} s  left {left:5.2f} GB  equal {same}")
    return rows


def measured(rows: Sequence[dict[str, Any]], gpu: str) -> list[SuspendRow]:
    """The measurements as a table that simulations read (`--switching suspend:FILE`)."""
    by_way = {(row["way"], row["gb"]): row for row in rows}
    about = (gpu, _driver(), time.strftime("%Y-%m-%d"))
    made = []
    names = {"in_place": "in place", "moved": "moved", "both": "moved, then driver", "driver": "driver"}
    for way, name in names.items():
        for gb in sorted({row["gb"] for row in rows}):
            row, first = by_way[name, gb], by_way["moved, first time", gb]["out_s"] if way == "moved" else None
            left = 0.85 if way == "moved" else 0.0
            made.append(SuspendRow(cast("Way", way), gb, row["out_s"], row["back_s"], first, left, *about))
    return made


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.split("\n")[0].strip()


def cost(folder: Path, machine: Machine) -> dict[str, Any]:
    """The step time of a job that is never suspended, with and without movable memory, in turns."""
    found: dict[str, list[float]] = {"plain": [], "movable": []}
    for run in range(3):
        for name in found:
            one = Alone(folder / f"{name}-{run}", machine, 4.0, 1500, movable=name == "movable")
            one.close()
            found[name].append(step_s(one.out))
    plain, movable = statistics.median(found["plain"]), statistics.median(found["movable"])
    say(f"step {1e3 * plain:.3f} ms plain, {1e3 * movable:.3f} ms movable: {100 * (movable / plain - 1):+.2f} %")
    return {"plain_s": found["plain"], "movable_s": found["movable"], "ratio": movable / plain}


def turns(folder: Path, machine: Machine, policy: str, jobs: int, gb: float, steps: int) -> dict[str, Any]:
    """Jobs whose memory together exceeds the GPU's take turns; what became of them."""
    place = folder / policy.partition(":")[0]
    place.mkdir(parents=True)
    script = place / "train.py"
    script.write_text(SCRIPT)
    alone = place / "alone"
    subprocess.run([sys.executable, str(script), str(gb), str(steps), str(alone)], check=True)
    truth = losses(alone)
    daemon = Daemon(Options(place / "state", policy=policy), machine, min_run_s=4.0)
    daemon.start()
    began_s = time.monotonic()
    outs = [place / f"losses-{number}" for number in range(jobs)]
    requests = [
        JobRequest(
            (sys.executable, str(script), str(gb), str(steps), str(out)),
            user="me",
            name=out.name,
            cwd=str(place),
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            preempt="suspend",
            memory_bytes=int((gb + 2) * 1e9),
        )
        for out in outs
    ]
    records = daemon.scheduler.submit(requests)
    moved: dict[str, set[float]] = {}
    end_s = time.monotonic() + 420.0
    while not all(record.state.ended for record in records):
        for live in list(daemon.scheduler.engine.attempts.live.values()):
            memory = live.handle.memory
            if memory.place in ("host", "gpu") and memory.seconds:
                moved.setdefault("out" if memory.place == "host" else "back", set()).add(round(memory.seconds, 4))
        if time.monotonic() > end_s:
            say("not done in time: " + ", ".join(f"{record.id} {record.state} {record.reason}" for record in records))
            break
        time.sleep(0.1)
    told = {
        "policy": policy,
        "jobs": jobs,
        "gb": gb,
        "seconds": round(time.monotonic() - began_s, 1),
        "states": [str(record.state) for record in records],
        "preemptions": [record.preemptions for record in records],
        "attempts": [len(record.attempts) for record in records],
        "losses_equal": [losses(out) == truth for out in outs],
        "moves": {name: len(took) for name, took in moved.items()},
        "median_s": {name: statistics.median(took) for name, took in moved.items()},
        "logs": [_tail(daemon, record) for record in records if str(record.state) != "COMPLETED"],
    }
    for record in records:
        if not record.state.ended:
            daemon.scheduler.cancel(record.id)
    daemon.close()
    say(json.dumps(told))
    return told


def _tail(daemon: Daemon, record: JobRecord) -> str:
    log = daemon.options.folder / "jobs" / record.id / f"attempt-{len(record.attempts)}" / "rank-0.log"
    return log.read_text(errors="replace")[-1500:] if log.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=("moves", "cost", "turns"))
    parser.add_argument("--gb", default="0.5,4,40")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--job-gb", type=float, default=28.0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--policy", action="append")
    asked = parser.parse_args()
    machine = found_machine("nvidia")
    results: dict[str, Any] = {"gpu": machine.text, "date": time.strftime("%Y-%m-%d")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = asked.part or ["moves", "cost", "turns"]
        if "moves" in parts:
            results["moves"] = moves(folder / "moves", machine, [float(gb) for gb in asked.gb.split(",")])
        if "cost" in parts:
            results["cost"] = cost(folder / "cost", machine)
        if "turns" in parts:
            policies = asked.policy or POLICIES
            results["turns"] = [
                turns(folder / "turns", machine, policy, asked.jobs, asked.job_gb, asked.steps) for policy in policies
            ]
    asked.out.write_text(json.dumps(results, indent=1))
    if "moves" in results:
        asked.out.with_suffix(".csv").write_text(suspend_csv(measured(results["moves"], machine.text)))


if __name__ == "__main__":
    main()
