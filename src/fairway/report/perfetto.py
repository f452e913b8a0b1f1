"""A run as a timeline for ui.perfetto.dev, in the Chrome trace-event format.

A node is a process, a GPU is a thread, a job on a GPU is a complete event; cluster-wide counts are counter tracks.
Slices of one thread may nest but not cross, so jobs that share a GPU get further lanes beside the first. Lanes are
dealt out by start, while a run notes a segment when it ends: only their order (a number per segment) is held to sort
them, and events are written one by one, so memory stays small for long runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairway.traces.files import atomic_write

Segment = tuple[int, float, float, tuple[int, ...]]

_CLUSTER_PID = 1
_COUNTERS = {"busy_gpus": "busy GPUs", "running": "running jobs", "waiting": "waiting jobs"}


def write_timeline(
    path: str | Path,
    *,
    policy: str,
    gpu_names: Sequence[str],
    node_names: Sequence[str],
    node_of_gpu: Sequence[int],
    job_names: Sequence[str],
    segments: Iterable[Segment],
    series: Mapping[str, Sequence[float]],
    batches: Sequence[tuple[int, float, int]] = (),
) -> None:
    """Write the timeline of one run; a segment is `(job, start_s, end_s, gpus)` with indices into the names.

    `batches` are the batch sizes that a policy chose, as `(job, since_s, samples)`; each job gets a counter track.

    Segments may come in any order; a list of them is read in place, anything else is copied into one.
    """
    lanes = _Lanes(len(gpu_names))
    with atomic_write(path) as stream:
        stream.write('{"displayTimeUnit":"ms","otherData":{"policy":' + json.dumps(policy) + '},"traceEvents":[\n')
        stream.write(_named("process", _CLUSTER_PID, 0, f"cluster · {policy}", 0))
        for node, name in enumerate(node_names):
            stream.write(",\n" + _named("process", _pid(node), 0, name, node + 1))
        for event in _slices(_by_start(segments), job_names, node_of_gpu, lanes):
            stream.write(event)
        for tid, gpu, lane in lanes.opened():
            name = gpu_names[gpu] if lane == 0 else f"{gpu_names[gpu]} (shared {lane + 1})"
            stream.write(",\n" + _named("thread", _pid(node_of_gpu[gpu]), tid, name, gpu * 64 + lane))
        for event in _counts(series):
            stream.write(event)
        if batches:
            stream.write(",\n" + _named("process", _pid(len(node_names)), 0, "batch sizes", len(node_names) + 1))
        for job, since_s, batch in batches:
            stream.write(",\n" + _counter(f"batch of {job_names[job]}", _pid(len(node_names)), since_s, batch))
        stream.write("\n]}\n")


@dataclass(slots=True)
class _Lanes:
    """Which thread takes the next slice of a GPU: the first one that is free by then. Slices come by start."""

    gpus: int
    free_us: list[list[int]] = field(init=False)
    tids: list[list[int]] = field(init=False)
    next_tid: int = field(init=False)

    def __post_init__(self) -> None:
        self.free_us = [[0] for _ in range(self.gpus)]
        self.tids = [[gpu + 1] for gpu in range(self.gpus)]
        self.next_tid = self.gpus + 1

    def take(self, gpu: int, start_us: int, end_us: int) -> int:
        free = self.free_us[gpu]
        for lane, free_us in enumerate(free):
            if free_us <= start_us:
                free[lane] = end_us
                return self.tids[gpu][lane]
        free.append(end_us)
        self.tids[gpu].append(self.next_tid)
        self.next_tid += 1
        return self.tids[gpu][-1]

    def opened(self) -> Iterator[tuple[int, int, int]]:
        for gpu, tids in enumerate(self.tids):
            for lane, tid in enumerate(tids):
                yield tid, gpu, lane


def _by_start(segments: Iterable[Segment]) -> Iterator[Segment]:
    """The segments by (start, job), so that who came first to a GPU keeps its first lane."""
    held = segments if isinstance(segments, Sequence) else list(segments)
    starts_s = np.fromiter((segment[1] for segment in held), dtype=np.float64, count=len(held))
    jobs = np.fromiter((segment[0] for segment in held), dtype=np.int64, count=len(held))
    for index in np.lexsort((jobs, starts_s)):
        yield held[index]


def _slices(
    segments: Iterable[Segment],
    job_names: Sequence[str],
    node_of_gpu: Sequence[int],
    lanes: _Lanes,
) -> Iterator[str]:
    for job, start_s, end_s, gpus in segments:
        start_us = round(start_s * 1e6)
        end_us = max(start_us, round(end_s * 1e6))
        head = (
            f',\n{{"ph":"X","cat":"job","name":{json.dumps(job_names[job])},"ts":{start_us},"dur":{end_us - start_us}'
        )
        tail = f'"args":{{"job":{job},"gpus":{len(gpus)}}}}}'
        for gpu in gpus:
            tid = lanes.take(gpu, start_us, end_us)
            yield f'{head},"pid":{_pid(node_of_gpu[gpu])},"tid":{tid},{tail}'


def _counts(series: Mapping[str, Sequence[float]]) -> Iterator[str]:
    times_s = series.get("time_s", ())
    for key, name in _COUNTERS.items():
        for time_s, value in zip(times_s, series.get(key, ()), strict=False):
            if value is not None and math.isfinite(value):
                yield ",\n" + _counter(name, _CLUSTER_PID, time_s, value)


def _counter(name: str, pid: int, time_s: float, value: float) -> str:
    event = {"ph": "C", "name": name, "pid": pid, "ts": round(time_s * 1e6), "args": {"n": value}}
    return json.dumps(event, separators=(",", ":"))


def _named(what: str, pid: int, tid: int, name: str, order: int) -> str:
    """The metadata events that give a process or thread its name and its place in the list."""
    where = f'"ph":"M","pid":{pid},"tid":{tid}'
    label = f'{{{where},"name":"{what}_name","args":{{"name":{json.dumps(name)}}}}}'
    return f'{label},\n{{{where},"name":"{what}_sort_index","args":{{"sort_index":{order}}}}}'


def _pid(node: int) -> int:
    return _CLUSTER_PID + 1 + node
