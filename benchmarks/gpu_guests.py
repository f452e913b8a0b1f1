"""What a guest costs its host on a real NVIDIA GPU, and what it gets: without control, throttled, in turns, by MPS.

    python benchmarks/gpu_guests.py --out results.json

A host trains with a session, alone at first. Then a guest trains on the same GPU, in one of these ways:

* free: the GPU divides its time among the two as it likes.
* antman at several bounds (`eps`): the guest is opportunistic, and its throttle follows the step time of the host.
* shares in turns: the host asks for 0.7 of the GPU and the guest for 0.3.
* shares by MPS: the same, with the driver's limits on threads and memory.

A busy host leaves no time of the GPU unused. A host with gaps waits for its data a third of the time. "slower" compares
the steps in a second. Needs PyTorch with CUDA and nvidia-ml-py. `--smoke` tries everything but MPS on a virtual GPU,
without PyTorch.
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
from typing import Any, NamedTuple

from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import NoTerms, Scheduler
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.machine import Machine, found_machine, virtual_machine
from fairway.testing.hosted import Hosted

ROOT = Path(__file__).resolve().parent.parent
GAP = 1 / 3
TRAINING = """
import os, sys, time
from fairway import train
gap, real = float(sys.argv[1]), sys.argv[2] == "real"
if real:
    import torch
    torch.manual_seed(0)
    size, batch = 4096, 512
    layers = [part for _ in range(6) for part in (torch.nn.Linear(size, size), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(16, batch, size, device="cuda", dtype=torch.bfloat16)
def compute(step):
    if not real:
        return sum(range(200_000))
    loss = model(data[step % 16]).float().square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad(); torch.cuda.synchronize()
session = train.session(steps=10**9, batch_size=512)
for _ in range(20):
    compute(0)
times, worked_s = open(os.environ["TIMES"], "a", buffering=1), 0.0
save = lambda path: open(path, "w").close()
for step in session.steps(save, lambda path: None):
    began_s = time.perf_counter()
    if gap and step:
        time.sleep(gap / (1 - gap) * worked_s)
    at_s = time.perf_counter()
    compute(step)
    ended_s = time.perf_counter()
    # Only a step without others shows how long it waits for its data.
    worked_s = min(worked_s or 1e9, ended_s - at_s)
    times.write(f"{time.time()} {ended_s - began_s}\\n")
    session.report()
"""


class Case(NamedTuple):
    """One way for host and guest to share the GPU."""

    name: str
    policy: Callable[[], Any]
    host: dict[str, Any]
    guest: dict[str, Any]
    sharing: str = "turns"
    settle_s: float = 5.0


class Terms(NoTerms):
    """No configuration but the way of sharing."""

    def __init__(self, sharing: Any) -> None:
        self._sharing = sharing

    def sharing(self) -> Any:
        """How jobs share a GPU."""
        return self._sharing


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def cases(bounds: Sequence[float], settle_s: float) -> list[Case]:
    """All ways that are measured."""
    opportunistic = {"priority": -1}
    found = [Case("free", lambda: Hosted(1.0), {}, {})]
    for eps in bounds:
        text = f"antman:eps={eps:g},interval_s=3,hold_s=3600,cooldown_s=5,window=3"
        found.append(
            Case(text.partition(",")[0], lambda text=text: make_policy(text), {}, opportunistic, "turns", settle_s)
        )
    shares: tuple[dict[str, Any], dict[str, Any]] = {"gpu_share": 0.7}, {"gpu_share": 0.3}
    return found + [Case(f"0.7 + 0.3, {way}", lambda: make_policy("fifo"), *shares, way) for way in ("turns", "mps")]


def wait_until(met: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something, or give up."""
    end_s = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end_s:
            raise SystemExit(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.1)


def step_ms(times: Path, seconds: float) -> dict[str, float]:
    """The steps that a job makes from now on: their median, their 99th percentile, and how many a second."""
    since_s = time.time()
    time.sleep(seconds)
    rows = [line.split() for line in times.read_text().splitlines() if line.count(" ") == 1]
    took = [1000.0 * float(row[1]) for row in rows if float(row[0]) >= since_s]
    if len(took) < 2:
        return {"median_ms": float("nan"), "p99_ms": float("nan"), "per_s": len(took) / seconds}
    cut = statistics.quantiles(took, n=100, method="inclusive")
    return {"median_ms": statistics.median(took), "p99_ms": cut[98], "per_s": len(took) / seconds}


def job(place: Path, name: str, gap: float, about: dict[str, Any], *, real: bool) -> JobRequest:
    """A training job; it writes its step times to a file."""
    env = {"PYTHONPATH": str(ROOT / "src"), "TIMES": str(place / f"{name}.times"), "PATH": os.environ["PATH"]}
    command = (sys.executable, "-c", TRAINING, str(gap), "real" if real else "smoke")
    return JobRequest(command, user="me", name=name, cwd=str(ROOT), env=env, grace_s=2.0, **about)


def measured(folder: Path, machine: Machine, case: Case, gap: float, seconds: float) -> dict[str, Any]:
    """The steps of a host alone, and of both jobs together."""
    real, place = machine.devices is not None, folder / f"{case.name.replace(' ', '')}-{gap:.2f}"
    about: dict[str, Any] = {"devices": machine.devices, "terms": Terms(case.sharing)}
    scheduler = Scheduler(place, machine.cluster, case.policy(), placement("packed"), min_run_s=0.0, **about)
    thread = scheduler.start()
    try:
        host = _begun(scheduler, place, job(place, "host", gap, case.host, real=real))
        alone = step_ms(place / "host.times", seconds)
        guest = _begun(scheduler, place, job(place, "guest", 0.0, case.guest, real=real))
        time.sleep(case.settle_s)
        both = _together(place, seconds)
        part = scheduler.engine.attempts.live[guest.number].throttle
        states = [str(record.state) for record in (host, guest)]
    finally:
        scheduler.end_all()
        scheduler.close()
        thread.join()
    slower = alone["per_s"] / both["host"]["per_s"] - 1
    return {
        "alone": alone,
        **both,
        "slower": slower,
        "throttle": part,
        "states": states,
        "way": scheduler.sharing.words(),
    }


def _begun(scheduler: Scheduler, place: Path, request: JobRequest) -> JobRecord:
    (record,) = scheduler.submit([request])
    times = place / f"{request.name}.times"
    try:
        wait_until(lambda: times.exists() and times.stat().st_size > 2000, 120, f"first steps of the {request.name}")
    except SystemExit as error:
        log = place / "jobs" / record.id / f"attempt-{len(record.attempts)}" / "rank-0.log"
        said = log.read_text(errors="replace")[-800:] if log.exists() else ""
        raise SystemExit(f"{error}; it is {record.state}: {record.reason}; {said}") from None
    return record


def _together(place: Path, seconds: float) -> dict[str, Any]:
    since_s = time.time()
    host = step_ms(place / "host.times", seconds)
    rows = [line.split() for line in (place / "guest.times").read_text().splitlines() if line.count(" ") == 1]
    done = sum(float(row[0]) >= since_s for row in rows)
    return {"host": host, "guest_per_s": done / seconds}


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| host | way | step alone | with guest | slower | p99 | guest, steps/s | guest's throttle |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in results:
        if "error" in one:
            lines.append(f"| {one['host_kind']} | {one['case']} | {one['error'][:80]} | | | | | |")
            continue
        alone, host = one["alone"], one["host"]
        cells = (f"{alone['median_ms']:.2f} ms", f"{host['median_ms']:.2f} ms", f"{100 * one['slower']:.1f} %")
        more = (f"{host['p99_ms']:.2f} ms", f"{one['guest_per_s']:.1f}", f"{one['throttle']:.2f}")
        lines.append(f"| {one['host_kind']} | {one['case']} | {' | '.join((*cells, *more))} |")
    return "\n".join(lines)


def about(machine: Machine) -> dict[str, Any]:
    """What the figures were measured on."""
    told: dict[str, Any] = {"gpus": machine.text, "python": sys.version.split()[0], "date": time.strftime("%Y-%m-%d")}
    if machine.devices is not None:
        import torch

        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        told |= {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver}
    return told


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, help="where to write the results as JSON")
    options.add_argument("--seconds", type=float, default=8.0, help="how long each measurement takes")
    options.add_argument("--settle", type=float, default=30.0, help="how long antman may look for the right throttle")
    options.add_argument("--bounds", type=float, nargs="*", default=[0.05, 0.1, 0.2], help="bounds of antman")
    options.add_argument("--only", action="append", help="a part of a way's name; may be repeated")
    options.add_argument("--smoke", action="store_true", help="on a virtual GPU, without PyTorch and MPS")
    asked = options.parse_args()
    machine = virtual_machine(1) if asked.smoke else found_machine("nvidia")
    results: dict[str, Any] = {"about": about(machine), "rows": []}
    with tempfile.TemporaryDirectory() as name:
        for kind, gap in (("busy", 0.0), ("with gaps", GAP)):
            for case in cases(asked.bounds, asked.settle):
                if (asked.only and not any(word in case.name for word in asked.only)) or (
                    asked.smoke and case.sharing == "mps"
                ):
                    continue
                row: dict[str, Any] = {"host_kind": kind, "case": case.name}
                try:
                    row |= measured(Path(name), machine, case, gap, asked.seconds)
                except (SystemExit, Exception) as error:
                    row["error"] = f"{type(error).__name__}: {error}"
                results["rows"].append(row)
                say(f"{kind}, {case.name}: {json.dumps(row)[:400]}")
                if asked.out:
                    asked.out.write_text(json.dumps(results, indent=1))
    print(table(results["rows"]))


if __name__ == "__main__":
    main()
