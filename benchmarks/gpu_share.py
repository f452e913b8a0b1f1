"""What one GPU does for many jobs: by lanes of an executor, by processes under MPS, by time slicing, one at a time.

    PYTHONPATH=src python3 benchmarks/gpu_share.py [--part NAME …] [--quick] [--out FILE]

`inference`   42 models (14 × 3) on the GPU at once: the latency of requests that come at a steady rate, and the most
              requests per second. Against each model alone on the GPU, and against 42 processes under MPS.
`search`      300 configurations of a small network: the time until all are done, one at a time and in lanes, with and
              without recorded kernels (CUDA graphs); and in a process for each, from the time of a few.
`orders`      15 trainings of mixed length that come together: mean completion time by FIFO, SRTF, FAIR and PACK.
`stress`      48 jobs whose memory together is far more than they may have: none may run out of it.
`pairs`       two trainings at once: the sum of their speeds, each as a part of its speed alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_models import INFERENCE, inference, search_job, table, this_device, training_job, versions
from gpu_processes import Executor, Utilisation, Worker, begin_as_worker, mps, together

from fairway.gpu.device import Device, find_device
from fairway.gpu.lanes import MARGIN_BYTES, InLane, Lanes, Need

ORDERS = ("fifo", "srtf", "fair", "pack")
PAIRS = (
    ("ResNet50", "BERT-base"),
    ("DeepSpeech", "GraphSAGE"),
    ("FastGCN", "GraphSAGE"),
    ("Transformer", "FastGCN"),
    ("VGG19", "InceptionV3"),
)
QUICK: dict[str, Any] = {"configurations": 6, "steps": 5, "seconds": 0.3, "rate": 5.0, "copies": 1, "long": 10}
FULL: dict[str, Any] = {"configurations": 300, "steps": 150, "seconds": 5.0, "rate": 4.0, "copies": 3, "long": 400}


def percentile(values: list[float], part: float) -> float:
    """A percentile, in milliseconds."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1e3


def summary(latencies_s: list[float], seconds: float) -> dict[str, float]:
    """Latencies and throughput of requests."""
    about = {"median_ms": percentile(latencies_s, 0.5), "p99_ms": percentile(latencies_s, 0.99)}
    return about | {"per_s": len(latencies_s) / seconds, "requests": len(latencies_s)}


class Server:
    """Models that answer requests in the lanes of one process."""

    def __init__(self, device: Device, names: list[str], quick: bool) -> None:
        self._device = device
        lanes = Lanes(device.capacity_bytes() - MARGIN_BYTES, most_lanes=8)
        self.models, self._streams, self._lane = [], dict[int, Any](), list[int]()
        for number, name in enumerate(names):
            before = device.allocated_bytes()
            model = inference(name, device.torch_name, quick=quick)
            persistent = device.allocated_bytes() - before
            model.step()
            need = Need(persistent, max(device.allocated_and_peak_bytes()[1] - before - persistent, 0))
            found = lanes.request(str(number), need)
            assert isinstance(found, InLane), found
            self.models.append(model)
            self._lane.append(found.lane)
            self._streams.setdefault(found.lane, device.new_stream())
        device.synchronize()
        self.used_bytes, self.lanes = lanes.used_bytes, len(lanes.lanes)

    def launch(self, number: int) -> Any:
        """Launch a request; the mark of its end."""
        stream = self._streams[self._lane[number]]
        with self._device.on(stream):
            self.models[number].step()
        return self._device.mark(stream)

    def serve(self, rate: float, seconds: float) -> list[float]:
        """Requests for each model at a steady rate. Returns their latencies, as the host sees them."""
        count = len(self.models)
        total, gap_s = int(rate * seconds * count), 1.0 / (rate * count)
        flying: list[tuple[Any, float]] = []
        latencies, sent, began_s = list[float](), 0, time.perf_counter()
        while sent < total or flying:
            now_s = time.perf_counter() - began_s
            if sent < total and now_s >= sent * gap_s:
                flying.append((self.launch(sent % count), sent * gap_s))
                sent += 1
            ended = [one for one in flying if self._device.reached(one[0])]
            now_s = time.perf_counter() - began_s
            latencies += [now_s - due_s for _, due_s in ended]
            flying = [one for one in flying if one not in ended]
        return latencies

    def flood(self, seconds: float) -> float:
        """Requests per second, if each lane always has one."""
        sent, began_s, marks = 0, time.perf_counter(), list[Any]()
        while time.perf_counter() - began_s < seconds:
            marks.append(self.launch(sent % len(self.models)))
            sent += 1
            if len(marks) > 2 * self.lanes:
                self._device.finish(marks.pop(0))
        self._device.synchronize()
        return sent / (time.perf_counter() - began_s)


def inference_part(device: Device, about: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Many models that answer requests."""
    names = list(INFERENCE[:3] if quick else INFERENCE) * about["copies"]
    alone: list[float] = []
    for name in names[: len(names) // about["copies"]]:
        server = Server(device, [name], quick)
        server.serve(20.0, 0.5)
        alone += server.serve(20.0, about["seconds"] / 5)
        del server
        device.give_back()
    server = Server(device, names, quick)
    server.serve(about["rate"], 1.0)
    lanes = summary(server.serve(about["rate"], about["seconds"]), about["seconds"])
    found: dict[str, Any] = {"models": len(names), "alone": summary(alone, about["seconds"]), "lanes": lanes}
    found["lanes"] |= {"most_per_s": server.flood(about["seconds"]), "gb": server.used_bytes / 1e9}
    del server
    device.give_back()
    with mps() as env:
        if env is not None:
            found["mps"] = _in_42_processes(names, about, quick, env)
    columns = ("median_ms", "p99_ms", "per_s", "most_per_s", "gb")
    rows = [[way, *(found[way].get(one, "") for one in columns)] for way in ("alone", "lanes", "mps") if way in found]
    print(table([f"{len(names)} models", *columns], rows), flush=True)
    return found


def _in_42_processes(names: list[str], about: dict[str, Any], quick: bool, env: dict[str, str]) -> dict[str, Any]:
    rate, seconds = str(about["rate"]), str(about["seconds"])
    workers = [Worker("serve", name, rate, seconds, "1" if quick else "", env=env) for name in names]
    try:
        answers = together(workers)
    except RuntimeError as error:
        return {"problem": str(error)}
    finally:
        for worker in workers:
            worker.stop()
    found: dict[str, Any] = summary([one for answer in answers for one in answer["latencies_s"]], about["seconds"])
    return found | {"most_per_s": sum(answer["most_per_s"] for answer in answers)}


def _configurations(about: dict[str, Any]) -> list[tuple[str, str, str]]:
    draw = random.Random(1)
    steps = str(about["steps"])
    count = about["configurations"]
    return [(str(draw.choice((64, 128, 256))), f"{10 ** draw.uniform(-4, -1):.6f}", steps) for _ in range(count)]


def _one_at_a_time(device: Device, configurations: list[tuple[str, str, str]], graphed: str) -> float:
    began_s = time.monotonic()
    for configuration in configurations:
        job = search_job(*configuration, graphed)
        device.synchronize()
        with device.on(device.new_stream()):
            for _ in range(job.steps):
                job.step()
        device.synchronize()
    return time.monotonic() - began_s


def _hosted(configurations: list[tuple[str, str, str]], graphed: str) -> float:
    with Executor("pack") as executor:
        executor.host("warm", "search_job", "64", "0.1", "5", graphed)
        executor.until_done(["warm"], 120)
        began_s = time.monotonic()
        for number, configuration in enumerate(configurations):
            executor.host(str(number), "search_job", *configuration, graphed)
        executor.until_done([str(number) for number in range(len(configurations))], 300)
        return time.monotonic() - began_s


def search_part(device: Device, about: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Many small trainings."""
    configurations = _configurations(about)
    _one_at_a_time(device, configurations[:1], "1")
    ways: dict[str, Callable[[], float]] = {
        "one at a time": lambda: _one_at_a_time(device, configurations, ""),
        "one at a time, recorded": lambda: _one_at_a_time(device, configurations, "1"),
        "executor": lambda: _hosted(configurations, ""),
        "executor, recorded": lambda: _hosted(configurations, "1"),
    }
    found: dict[str, Any] = {"configurations": len(configurations)}
    for way, measure in ways.items():
        with Utilisation() as utilisation:
            found[way] = {"makespan_s": measure()}
        found[way]["gpu_percent"] = utilisation.mean_percent
    few = configurations[:2]
    began_s = time.monotonic()
    for configuration in few:
        Worker("search", *configuration).measure()
    each_s = (time.monotonic() - began_s) / len(few)
    found["a process for each, from two"] = {"makespan_s": each_s * len(configurations), "gpu_percent": None}
    rows = [[way, one["makespan_s"], one["gpu_percent"] or ""] for way, one in found.items() if isinstance(one, dict)]
    print(table([f"{len(configurations)} configurations", "makespan s", "GPU %"], rows), flush=True)
    return found


def _mixed_jobs(about: dict[str, Any]) -> list[tuple[str, int]]:
    """Trainings of mixed length; a few long ones come first, as in a queue that somebody has filled."""
    models = ("ResNet50", "BERT-base", "Transformer", "InceptionV3", "VGG19")
    parts = (1.0, 0.8, 0.6, 0.1, 0.05, 0.3, 0.04, 0.08, 0.03, 0.2, 0.05, 0.06, 0.03, 0.1, 0.04)
    return [(models[at % len(models)], max(int(about["long"] * part), 3)) for at, part in enumerate(parts)]


def orders_part(device: Device, about: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Trainings that come together. All are loaded before the first one begins."""
    found: dict[str, Any] = {}
    jobs = {f"{number} {name}": (name, steps) for number, (name, steps) in enumerate(_mixed_jobs(about))}
    with contextlib.ExitStack() as stack:
        executors = {order: stack.enter_context(Executor(order)) for order in ORDERS}
        for executor in executors.values():
            for job, (name, steps) in jobs.items():
                executor.host(job, "training_job", name, "1" if quick else "", str(steps), held=True)
        for order, executor in executors.items():
            executor.release(list(jobs))
            began_s = time.monotonic()
            executor.until_done(list(jobs), 300)
            ends_s = {job: done_s - began_s for job, done_s in executor.done_s.items()}
            mean_s = sum(ends_s.values()) / len(ends_s)
            found[order] = {"mean_jct_s": mean_s, "makespan_s": max(ends_s.values()), "ends_s": ends_s}
    first = found["fifo"]["mean_jct_s"]
    rows = [[order, one["mean_jct_s"], first / one["mean_jct_s"], one["makespan_s"]] for order, one in found.items()]
    print(table([f"{len(jobs)} trainings", "mean JCT s", "against FIFO", "makespan s"], rows), flush=True)
    return {"jobs": jobs, **found}


Pair = tuple[str, str]
Speeds = dict[Pair, list[float]]


def _in_lanes(pairs: Sequence[Pair], seconds: float, quick: bool) -> Speeds:
    found: Speeds = {}
    with contextlib.ExitStack() as stack:
        executors = {pair: stack.enter_context(Executor("pack")) for pair in pairs}
        for pair, executor in executors.items():
            for name in pair:
                executor.host(name, "training_job", name, "1" if quick else "", held=True)
        for pair, executor in executors.items():
            executor.release(pair)
            executor.until_running(pair)
            executor.listen(min(seconds, 1.0))
            before, began_s = dict(executor.steps), time.monotonic()
            executor.listen(seconds)
            passed_s = time.monotonic() - began_s
            found[pair] = [(executor.steps[name] - before[name]) / passed_s for name in pair]
            executor.close()
    return found


def _in_processes(
    pairs: Sequence[Sequence[str]], seconds: float, quick: bool, env: dict[str, str]
) -> list[list[float]]:
    """Speeds of trainings that run together, each in a process. All processes are started before the first begins."""
    groups = [[Worker("train", name, str(seconds), "1" if quick else "", env=env) for name in pair] for pair in pairs]
    try:
        return [[answer["per_s"] for answer in together(group)] for group in groups]
    finally:
        for worker in itertools.chain.from_iterable(groups):
            worker.stop()


def _under_mps(pairs: Sequence[Pair], seconds: float, quick: bool) -> Speeds:
    with mps() as env:
        try:
            return {} if env is None else dict(zip(pairs, _in_processes(pairs, seconds, quick, env), strict=True))
        except RuntimeError as error:
            print(f"MPS does not work here: {error}", flush=True)
            return {}


def pairs_part(device: Device, about: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Two trainings at once."""
    pairs, seconds = PAIRS[:1] if quick else PAIRS, about["seconds"] * 0.6
    names = sorted({name for pair in pairs for name in pair})
    speeds = _in_processes([[name] for name in names], seconds, quick, {})
    alone = {name: speed for name, (speed,) in zip(names, speeds, strict=True)}
    ways = {
        "lanes": _in_lanes(pairs, seconds, quick),
        "mps": _under_mps(pairs, seconds, quick),
        "time slicing": dict(zip(pairs, _in_processes(pairs, seconds, quick, {}), strict=True)),
    }
    found: list[dict[str, Any]] = []
    for pair in pairs:
        parts = {
            way: [speed / alone[name] for speed, name in zip(both[pair], pair, strict=True)]
            for way, both in ways.items()
            if pair in both
        }
        found.append({"pair": pair, **parts})
    rows = [[" + ".join(one["pair"]), *(_both(one.get(way)) for way in ways)] for one in found]
    print(table(["normalised throughput", *ways], rows), flush=True)
    return {"alone_per_s": alone, "pairs": found}


def _both(parts: list[float] | None) -> str:
    return "" if parts is None else f"{sum(parts):.2f} ({parts[0]:.2f} + {parts[1]:.2f})"


def work(arguments: list[str]) -> None:
    """What a worker does, and prints as JSON."""
    kind, name, *rest = arguments
    if this_device() != os.environ["FAIRWAY_BENCHMARK_DEVICE"]:
        sys.exit("this worker has no GPU")
    if kind == "search":
        job = search_job(name, *rest)
        begin_as_worker()
        for _ in range(job.steps):
            job.step()
        find_device().synchronize()
        print(json.dumps({}), flush=True)
    elif kind == "train":
        print(json.dumps(_trained(name, float(rest[0]), rest[1])), flush=True)
    else:
        device = find_device()
        server = Server(device, [name], bool(rest[2]))
        server.serve(20.0, 0.3)
        begin_as_worker()
        latencies = server.serve(float(rest[0]), float(rest[1]))
        print(json.dumps({"latencies_s": latencies, "most_per_s": server.flood(float(rest[1]) / 2)}), flush=True)


def _trained(name: str, seconds: float, quick: str) -> dict[str, float]:
    job, device = training_job(name, quick), find_device()
    for _ in range(5):
        job.step()
    device.synchronize()
    begin_as_worker()
    steps, began_s, marks = 0, time.monotonic(), list[Any]()
    while time.monotonic() - began_s < seconds:
        job.step()
        steps += 1
        marks.append(device.mark(device.stream()))
        if len(marks) > 2:
            device.finish(marks.pop(0))
    device.synchronize()
    return {"per_s": steps / (time.monotonic() - began_s)}


def stress_part(device: Device, about: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Jobs whose memory together is several times what they may have. None may run out of it."""
    draw, most_bytes = random.Random(2), 1_000_000 if quick else 16_000_000_000
    count, steps = (6, 5) if quick else (48, 60)
    jobs = {}
    for number in range(count):
        persistent = int(most_bytes * draw.uniform(0.01, 0.2))
        jobs[str(number)] = (persistent, int((most_bytes - persistent) * draw.uniform(0.05, 0.9)))
    with Executor("pack", FAIRWAY_EXECUTOR_BYTES=str(most_bytes)) as executor:
        began_s = time.monotonic()
        for job, (persistent, ephemeral) in jobs.items():
            sizes = (str(persistent), str(ephemeral), str(steps))
            memory_bytes = persistent + ephemeral + most_bytes // 100
            executor.host(job, "sized_job", *sizes, memory_bytes=memory_bytes)
        executor.until_done(list(jobs), 300)
        found: dict[str, Any] = {"jobs": count, "limit_gb": most_bytes / 1e9}
        found["asked_gb"] = sum(sum(job) for job in jobs.values()) / 1e9
        found |= {"makespan_s": time.monotonic() - began_s, "waited": len(set(executor.waited))}
        wrong = sum(figures["wrong"] > 0 for figures in executor.figures.values())
        found |= {"ran_out": len(executor.ran_out), "wrong": wrong}
    print(table(list(found), [list(found.values())]), flush=True)
    return found


PARTS = {
    "inference": inference_part,
    "search": search_part,
    "orders": orders_part,
    "pairs": pairs_part,
    "stress": stress_part,
}


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny models, a few of them")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device()
    os.environ["FAIRWAY_BENCHMARK_DEVICE"] = this_device()
    document: dict[str, Any] = {"about": versions(), "date": time.strftime("%Y-%m-%d")}
    for part in options.part:
        began_s = time.monotonic()
        document[part] = PARTS[part](device, QUICK if options.quick else FULL, options.quick)
        device.give_back()
        print(f"{part}: {time.monotonic() - began_s:.0f} s on {this_device()}\n", flush=True)
        if options.out:
            options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
