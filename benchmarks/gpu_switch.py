"""What it costs to switch a GPU from one training to another, and that switching changes no bit of a loss.

    PYTHONPATH=src python3 benchmarks/gpu_switch.py [--part switch identical] [--models NAME …] [--quick] [--out FILE]

Two trainings of the same model take turns of three iterations each. A switch is the time from the end of one job's last
kernel to the start of the other's first, by events of the device. `resident`: both states stay on the GPU. Otherwise
the state of a job leaves the GPU after its turn and comes back for the next one: `whole`, all of it while the other
job runs its last iterations; `first groups`, at most 128 MB of it then, and the rest behind the forward pass.

`extra` is what a job's iteration takes longer than a resident one, from the end of the other job to its own end, and
`floor` the time that the bytes of the state need at the copy bandwidth, which is measured first.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from gpu_models import NAMES, PUBLISHED_MS, table, training, versions

from fairway.gpu.device import Device, Mark, RandomNumbers, find_device
from fairway.gpu.residency import CallOrder, CopyStreams, MovableState

AHEAD = {"resident": -1.0, "whole": float("inf"), "first groups": 128e6}
"""How many bytes of a job are copied to the GPU while the other one runs; -1: it never leaves."""
PER_TURN = 3
"""Iterations of a job before the other one has its turn."""
WARM_UP = 6


class Shared(NamedTuple):
    """What all jobs of a device share."""

    copies: CopyStreams
    random: RandomNumbers


class Job:
    """A training with random numbers of its own, whose state can move."""

    def __init__(self, device: Device, shared: Shared, name: str, seed: int, quick: bool) -> None:
        self.device = device
        copies, random = shared
        self.random, self.name = random, f"{name} {seed} {time.monotonic_ns()}"
        self.began: list[Mark] = []
        self.ended: list[Mark] = []
        self.losses: list[Any] = []
        random.use(self.name)
        torch.manual_seed(seed)
        self.training = training(name, device.torch_name, quick=quick)
        self.step()
        self.step()
        order = CallOrder(device, self.training.model)
        self.step()
        called = order.end()
        self.state = MovableState(device, copies, self.training.model, self.training.optimizer, called)
        self.state.first_module.register_forward_pre_hook(self._begin)

    def _begin(self, *_: Any) -> None:
        self.began.append(self.device.mark(self.device.stream()))

    def step(self) -> None:
        """Launch an iteration."""
        self.random.use(self.name)
        self.losses.append(self.training.step()["loss"])
        self.ended.append(self.device.mark(self.device.stream()))

    def bits(self) -> list[bytes]:
        """All losses, bit by bit."""
        return [loss.cpu().numpy().tobytes() for loss in self.losses]


class Turn(NamedTuple):
    """One switch: from the end of the other job to the first kernel and to the end of this one."""

    switch_s: float
    whole_s: float


def take_turns(device: Device, jobs: list[Job], ahead_bytes: float, switches: int) -> list[Turn]:
    """Let two jobs take turns of a few iterations each."""
    moves, stream = ahead_bytes >= 0, device.stream()
    if moves:
        jobs[0].state.unload(stream, device.mark(stream))
    found: list[tuple[Mark, Mark, Mark]] = []
    before = last = device.mark(stream)
    for turn in range(switches + WARM_UP):
        job, other = jobs[turn % 2], jobs[1 - turn % 2]
        if moves:
            # The rest comes when the other job has ended.
            job.state.load(after=before)
        for iteration in range(PER_TURN):
            if moves and iteration == PER_TURN - 1:
                other.state.load(ahead_bytes)
            job.began.clear()
            job.step()
            if iteration == 0:
                found.append((before, job.began[0], job.ended[-1]))
                if moves:
                    other.state.unload(stream, before)
            # The host is one iteration ahead of the device, as an executor is.
            device.finish(last)
            last = job.ended[-1]
        before = last
    for job in jobs:
        job.state.finish_loading()
    device.synchronize()
    return [Turn(device.seconds(end, begin), device.seconds(end, done)) for end, begin, done in found[WARM_UP:]]


def median_and_p99(values: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in milliseconds."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] * 1e3, ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)] * 1e3


def copy_bytes_per_s(device: Device, size: int) -> float:
    """How fast pinned memory is copied to the device."""
    host, buffer = device.host_buffer(size), device.buffer(size)
    best_s = float("inf")
    for _ in range(5):
        device.synchronize()
        began_s = time.perf_counter()
        buffer.copy_(host, non_blocking=True)
        device.synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return size / best_s


def measure(device: Device, name: str, switches: int, quick: bool, speed: float) -> dict[str, Any]:
    """All ways to switch for one model."""
    shared = Shared(CopyStreams(device), RandomNumbers(device))
    jobs = [Job(device, shared, name, seed, quick) for seed in (1, 2)]
    size = jobs[0].state.size
    groups = [jobs[0].state.forward_groups, len(jobs[0].state.groups)]
    about: dict[str, Any] = {"model": name, "state_bytes": size, "groups": groups, "floor_ms": size / speed * 1e3}
    for way, ahead_bytes in AHEAD.items():
        turns = take_turns(device, jobs, ahead_bytes, switches)
        switch, whole = median_and_p99([one.switch_s for one in turns]), median_and_p99([one.whole_s for one in turns])
        about[way] = {
            "switch_ms": switch[0],
            "switch_p99_ms": switch[1],
            "whole_ms": whole[0],
            "whole_p99_ms": whole[1],
        }
        about[way]["extra_ms"] = whole[0] - about["resident"]["whole_ms"]
    return about


def identical(device: Device, name: str, switches: int, quick: bool) -> dict[str, Any]:
    """Whether jobs that take turns have the losses that they have alone."""
    shared = Shared(CopyStreams(device), RandomNumbers(device))

    def run_alone(seed: int) -> list[bytes]:
        job = Job(device, shared, name, seed, quick)
        for _ in range((switches + WARM_UP) // 2 * PER_TURN):
            job.step()
        return job.bits()

    alone = [run_alone(seed) for seed in (1, 2)]
    jobs = [Job(device, shared, name, seed, quick) for seed in (1, 2)]
    take_turns(device, jobs, AHEAD["first groups"], switches)
    same = [job.bits() for job in jobs] == alone
    del jobs
    # If not, the kernels themselves may not repeat their bits.
    repeats = same or run_alone(1) == alone[0]
    about = {"model": name, "identical": same, "repeats alone": repeats, "switches": switches + WARM_UP}
    return {**about, "losses": len(alone[0])}


def _free(device: Device) -> None:
    gc.collect()
    device.give_back()


def _switch_table(found: list[dict[str, Any]]) -> str:
    head = ["ms, median (p99)", "PipeSwitch", "Hare", *AHEAD, "iteration", "extra: whole", "first groups"]
    rows = []
    for one in found:
        cells = [f"{one[way]['switch_ms']:.3f} ({one[way]['switch_p99_ms']:.3f})" for way in AHEAD]
        extras = [f"{one[way]['extra_ms']:.2f}" for way in list(AHEAD)[1:]]
        rows.append([one["model"], *PUBLISHED_MS[one["model"]], *cells, one["resident"]["whole_ms"], *extras])
        rows[-1] += [f"{one['floor_ms']:.2f}", f"{one['state_bytes'] / 1e6:.0f} MB", one["groups"]]
    return table([*head, "floor", "state", "groups"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=("switch", "identical"), default=["switch", "identical"])
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--switches", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="tiny models, few switches")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    switches = 4 if options.quick else options.switches
    device = find_device()
    speed = copy_bytes_per_s(device, 1 << (20 if options.quick else 29))
    document: dict[str, Any] = {"about": versions(), "date": time.strftime("%Y-%m-%d"), "copy_bytes_per_s": speed}
    if "switch" in options.part:
        document["switch"] = []
        for name in options.models:
            document["switch"].append(measure(device, name, switches, options.quick, speed))
            print(_switch_table(document["switch"][-1:]), file=sys.stderr, flush=True)
            _free(device)
        print(_switch_table(document["switch"]), flush=True)
    if "identical" in options.part:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        document["identical"] = []
        for name in options.models:
            document["identical"].append(identical(device, name, 10 if options.quick else 100, options.quick))
            _free(device)
        rows = [list(one.values()) for one in document["identical"]]
        print(table(list(document["identical"][0]), rows), flush=True)
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
