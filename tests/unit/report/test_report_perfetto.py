"""The timeline holds exactly the run's segments, in a form that Perfetto draws without dropping any."""

from __future__ import annotations

import json
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairway.report import write_timeline

Segment = tuple[int, float, float, tuple[int, ...]]
SERIES = {"time_s": [0.0, 10.0], "busy_gpus": [2.0, 0.0], "running": [1.0, 0.0], "waiting": [0.0, 0.0]}


def timeline(path: Path, segments: Iterable[Segment], jobs: list[str] | None = None) -> list[dict[str, Any]]:
    write_timeline(
        path,
        policy="srtf",
        gpu_names=["n0/0", "n0/1", "n1/0", "n1/1"],
        node_names=["n0", "n1"],
        node_of_gpu=[0, 0, 1, 1],
        job_names=jobs or ["a", "b"],
        segments=segments,
        series=SERIES,
    )
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["otherData"] == {"policy": "srtf"}
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def names_of(events: list[dict[str, Any]], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == f"{kind}_name"}


def test_a_job_is_one_slice_on_each_of_its_gpus(tmp_path: Path) -> None:
    events = timeline(tmp_path / "t.json", [(0, 0.0, 10.0, (0, 2)), (1, 10.0, 10.5, (0,))])
    threads = names_of(events, "thread")
    slices = {(threads[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert slices == {("n0/0", "a", 0, 10_000_000), ("n1/0", "a", 0, 10_000_000), ("n0/0", "b", 10_000_000, 500_000)}
    assert next(e for e in events if e["ph"] == "X")["args"] == {"job": 0, "gpus": 2}


def test_nodes_are_processes_and_every_gpu_has_its_thread(tmp_path: Path) -> None:
    events = timeline(tmp_path / "t.json", [])
    processes, threads = names_of(events, "process"), names_of(events, "thread")
    assert sorted(processes.values()) == ["cluster · srtf", "n0", "n1"]
    assert {processes[pid, 0]: name for (pid, _), name in threads.items()} == {"n0": "n0/1", "n1": "n1/1"}
    assert len({tid for _, tid in threads}) == 4


def test_counters_follow_the_series(tmp_path: Path) -> None:
    events = timeline(tmp_path / "t.json", [])
    counts = [(e["name"], e["ts"], e["args"]["n"]) for e in events if e["ph"] == "C"]
    assert ("busy GPUs", 0, 2.0) in counts
    assert ("busy GPUs", 10_000_000, 0.0) in counts
    assert {name for name, _, _ in counts} == {"busy GPUs", "running jobs", "waiting jobs"}


def test_each_job_whose_batch_was_chosen_has_a_counter(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    about: dict[str, Any] = {"policy": "pollux", "gpu_names": ["n0/0"], "node_names": ["n0"], "node_of_gpu": [0]}
    batches = [(1, 0.0, 128), (1, 30.0, 512)]
    write_timeline(path, **about, job_names=["a", "b"], segments=[], series=SERIES, batches=batches)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    counts = [(e["pid"], e["ts"], e["args"]["n"]) for e in events if e["name"] == "batch of b"]
    assert [count[1:] for count in counts] == [(0, 128), (30_000_000, 512)]
    assert names_of(events, "process")[counts[0][0], 0] == "batch sizes"


def test_jobs_that_share_a_gpu_never_cross_on_one_track(tmp_path: Path) -> None:
    shared: list[Segment] = [(0, 0.0, 10.0, (1,)), (1, 5.0, 15.0, (1,)), (0, 10.0, 20.0, (1,))]
    events = timeline(tmp_path / "t.json", shared)
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in (e for e in events if e["ph"] == "X"):
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sorted(len(spans) for spans in tracks.values()) == [1, 2]
    for spans in tracks.values():
        assert all(end <= start for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False))
    assert "n0/1 (shared 2)" in names_of(events, "thread").values()


def test_a_host_that_outlives_its_guest_keeps_the_first_track(tmp_path: Path) -> None:
    by_end: list[Segment] = [(1, 300.0, 1064.0, (0,)), (0, 0.0, 3270.0, (0,))]
    events = timeline(tmp_path / "t.json", by_end, jobs=["host", "guest"])
    threads = names_of(events, "thread")
    assert {e["name"]: threads[e["pid"], e["tid"]] for e in events if e["ph"] == "X"} == {
        "host": "n0/0",
        "guest": "n0/0 (shared 2)",
    }


def test_pairs_need_no_third_track_whatever_order_they_ended_in(tmp_path: Path) -> None:
    by_end: list[Segment] = [(1, 5.0, 10.0, (0,)), (0, 0.0, 20.0, (0,)), (1, 30.0, 40.0, (0,)), (2, 15.0, 50.0, (0,))]
    events = timeline(tmp_path / "t.json", by_end, jobs=["a", "b", "c"])
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 2
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in (e for e in events if e["ph"] == "X"):
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        assert all(end <= start for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False))


def test_odd_names_stay_valid_json(tmp_path: Path) -> None:
    events = timeline(tmp_path / "t.json", [(0, 0.0, 1.0, (0,))], jobs=['"\\\n</script>\ud800é'])
    assert next(e for e in events if e["ph"] == "X")["name"] == '"\\\n</script>\ud800é'


def test_a_run_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterator[Segment]:
        yield (0, 0.0, 1.0, (0,))
        raise RuntimeError("engine stopped")

    with pytest.raises(RuntimeError):
        timeline(tmp_path / "t.json", broken())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_long_run_is_streamed(tmp_path: Path) -> None:
    held: list[Segment] = [(step % 2, step * 1.0, step + 1.0, (step % 4,)) for step in range(80_000)]
    tracemalloc.start()
    write_timeline(
        tmp_path / "t.json",
        policy="fifo",
        gpu_names=["g0", "g1", "g2", "g3"],
        node_names=["n"],
        node_of_gpu=[0, 0, 0, 0],
        job_names=["a", "b"],
        segments=held,
        series=SERIES,
    )
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4_000_000
    with (tmp_path / "t.json").open(encoding="utf-8") as stream:
        assert sum(1 for _ in stream) > 80_000
