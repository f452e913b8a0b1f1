"""Condensed numbers tell the same story as the numbers they came from."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.cluster import Cluster, Node
from fairway.report.condense import LANES_CODE, condense_gantt, distribution, step_average
from fairway.simulator.ledger import Ledger
from fairway.simulator.result import _raster as raster
from fairway.simulator.result import busy_intervals


def test_a_small_distribution_is_exact() -> None:
    assert distribution([3.0, 1.0, None, 2.0]) == {"x": [1, 2, 3], "y": [0.25, 0.5, 0.75], "known": 3, "all": 4}


def test_nothing_known_is_no_distribution() -> None:
    assert distribution([None, None]) is None
    assert distribution([]) is None


@pytest.mark.parametrize("n", [401, 5_000, 80_000])
def test_a_thinned_distribution_keeps_its_quantiles_and_its_tail(n: int) -> None:
    values = np.random.default_rng(n).lognormal(8, 2, n)
    curve = distribution(values.tolist())
    assert curve is not None
    assert len(curve["x"]) <= 400
    assert curve["x"] == sorted(curve["x"])
    assert curve["x"][-1] == pytest.approx(values.max(), rel=1e-3)
    assert curve["y"][-1] == 1.0
    for share in (0.05, 0.5, 0.95, 0.99, 0.999):
        drawn = np.interp(share, curve["y"], curve["x"])
        below, above = np.quantile(values, (share - 2 / n, min(1.0, share + 2 / n)))
        assert below * 0.97 <= drawn <= above * 1.03


def test_averaging_a_step_function_keeps_its_area() -> None:
    random = np.random.default_rng(1)
    times = np.cumsum(random.exponential(10, 2000))
    levels = random.integers(0, 32, 2000).astype(float)
    binned = step_average(times.tolist(), levels.tolist(), 50)
    assert binned is not None
    area = float((levels[:-1] * np.diff(times)).sum())
    assert sum(binned["v"]) * binned["dt"] == pytest.approx(area, rel=1e-3)


@pytest.mark.parametrize(
    ("times", "values"), [([], []), ([0.0], [1.0]), ([5.0, 5.0], [1.0, 2.0]), ([None, 1.0], [1, 2])]
)
def test_a_series_without_duration_is_left_out(times: list[float], values: list[float]) -> None:
    assert step_average(times, values) is None


def test_segments_survive_to_a_thousandth_of_a_percent() -> None:
    segments = [[1, 10.0, 60.0, 0], [0, 0.0, 100.0, 1]]
    gantt = condense_gantt({"kind": "segments", "gpus": ["n0/0", "n0/1"], "jobs": ["a", "b"], "segments": segments}, 1)
    assert gantt is not None
    assert gantt["flat"] == [0, 0, 100_000, 1, 0, 1, 10_000, 60_000, 0, 0]
    assert gantt["unit_s"] == pytest.approx(0.001)


def test_batch_sizes_are_kept_by_job_with_the_instants_of_their_changes() -> None:
    gantt = {
        "kind": "segments",
        "gpus": ["n0/0"],
        "jobs": ["a", "b"],
        "segments": [[0, 0.0, 100.0, 1]],
        "batches": [[1, 0.0, 128], [1, 50.0, 512]],
    }
    found = condense_gantt(gantt, 1)
    assert found is not None
    (changes,) = found["batches"].values()
    assert [round(at * found["unit_s"]) for at in changes[::2]] == [0, 50]
    assert changes[1::2] == [128, 512]
    assert list(found["batches"]) == [1]


def test_too_many_segments_become_the_busy_share_of_each_node() -> None:
    gpus = [f"n{node}/{gpu}" for node in range(2) for gpu in range(2)]
    segments = [[0, float(t), float(t + 1), 0] for t in range(60_000)] + [[2, 0.0, 30_000.0, 0], [3, 0.0, 30_000.0, 0]]
    gantt = condense_gantt({"kind": "segments", "gpus": gpus, "jobs": ["a"], "segments": segments}, 1)
    assert gantt is not None
    assert gantt["rows"] == ["n0", "n1"]
    half, full, none = "g", "_", "A"
    assert set(gantt["levels"][0]) == {half}
    assert gantt["levels"][1] == full * 200 + none * 200


def test_jobs_that_share_a_gpu_get_lanes_and_a_job_alone_the_whole_row() -> None:
    # By end, as a run notes them. On GPU 0 a host has two guests, one after the other, and a later job is alone.
    segments = [
        *([0, 20.0, 40.0, 1], [0, 40.0, 50.0, 2], [0, 0.0, 60.0, 0], [0, 60.0, 100.0, 3]),
        *([1, 0.0, 30.0, 0], [1, 10.0, 50.0, 1], [1, 20.0, 55.0, 2], [1, 30.0, 60.0, 3]),
    ]
    gantt = condense_gantt(
        {"kind": "segments", "gpus": ["n0/0", "n0/1"], "jobs": ["a", "b", "c", "d"], "segments": segments}, 1
    )
    assert gantt is not None
    pieces = np.array(gantt["flat"]).reshape(-1, 5)
    lanes = {(gpu, job): (code % LANES_CODE, code // LANES_CODE + 1) for gpu, _, _, job, code in pieces.tolist()}
    assert [lanes[0, job] for job in range(4)] == [(0, 2), (1, 2), (1, 2), (0, 1)]
    assert [lanes[1, job] for job in range(4)] == [(0, 3), (1, 3), (2, 3), (0, 3)]


def test_a_shared_gpu_is_busy_once_in_the_heat_map() -> None:
    gpus = ["n0/0", "n0/1", "n1/0", "n1/1"]
    alone = [[2, float(t), float(t + 1), 0] for t in range(60_000)]
    shared = [[0, 0.0, 60_000.0, 0], [0, 0.0, 60_000.0, 1], [0, 100.0, 200.0, 2]]
    gantt = condense_gantt({"kind": "segments", "gpus": gpus, "jobs": list("abc"), "segments": alone + shared}, 1)
    assert gantt is not None
    half = "g"
    assert set(gantt["levels"][0]) == set(gantt["levels"][1]) == {half}


def test_the_result_counts_a_shared_gpu_once_in_its_heat_map() -> None:
    cluster = Cluster.of([Node("n0", "v100", 2), Node("n1", "v100", 2)])
    ledger = Ledger(cluster, 3)
    ledger.held(1, 100.0, 300.0, (0,), 0, 0.0)
    ledger.held(0, 0.0, 400.0, (0, 1), 0, 0.0)
    ledger.held(2, 0.0, 200.0, (3,), 0, 0.0)
    busy = np.array(raster(cluster, ledger)["busy"])
    assert busy[0] == pytest.approx(np.ones(400))
    assert busy[1] == pytest.approx(np.repeat([0.5, 0.0], 200))


@pytest.mark.parametrize("seed", range(5))
def test_busy_intervals_cover_the_same_time_as_the_segments_and_never_overlap(seed: int) -> None:
    random = np.random.default_rng(seed)
    gpus, starts = random.integers(0, 4, 60), random.integers(0, 200, 60).astype(float)
    ends = starts + random.integers(0, 12, 60)
    held, first, last = busy_intervals(gpus, starts, ends)
    for gpu in range(4):
        wanted = np.zeros(220)
        for start, end in zip(starts[gpus == gpu], ends[gpus == gpu], strict=True):
            wanted[int(start) : int(end)] = 1
        found = np.zeros(220)
        for start, end in zip(first[held == gpu], last[held == gpu], strict=True):
            found[int(start) : int(end)] += 1
        assert found.tolist() == wanted.tolist()


def test_a_large_raster_is_merged_by_averaging() -> None:
    busy = [[1.0] * 900 if node % 2 else [0.0] * 900 for node in range(1000)]
    rows = [f"n{node}" for node in range(1000)]
    gantt = condense_gantt({"kind": "raster", "rows": rows, "t0_s": 5.0, "bin_s": 60.0, "busy": busy}, 1)
    assert gantt is not None
    assert len(gantt["rows"]) == len(gantt["levels"]) == 250
    assert gantt["rows"][0] == "n0 … n3"
    assert gantt["bin_s"] == 180.0
    assert set("".join(gantt["levels"])) == {"g"}


def test_an_empty_gantt_is_none() -> None:
    assert condense_gantt(None, 1) is None
    assert condense_gantt({"kind": "segments", "gpus": [], "jobs": [], "segments": []}, 1) is None
    assert condense_gantt({"kind": "raster", "rows": [], "busy": []}, 1) is None
