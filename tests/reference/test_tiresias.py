"""The figures of the Tiresias simulator, reproduced with `--rules tiresias --placement count`.

Needs the published traces beside the repository (`../shared/data`); they are not part of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway import simulate
from fairway.policies import policies
from fairway.simulator.result import Result

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="the published traces are not here")

# policy: mean JCT, median, p95, makespan, preemptions
SIXTEEN_GPUS = {
    "fifo": (200.82, 149.5, 366.1, 3335, 0),
    "backfill": (190.68, 130.0, 366.1, 3271, 0),
    "smallest": (198.20, 126.5, 463.9, 3271, 8),
    "srtf": (192.12, 126.5, 386.8, 3271, 4),
    "srsf": (195.90, 126.5, 461.9, 3315, 7),
    "tiresias:metric=time": (190.68, 130.0, 366.1, 3271, 0),
    "tiresias": (190.68, 130.0, 366.1, 3271, 0),
}
EIGHT_GPUS = {
    "fifo": (1556.48, 1415.5, 3897.7, 5747, 0),
    "backfill": (715.27, 150.5, 3388.1, 4806, 0),
    "smallest": (725.70, 146.5, 3388.1, 4806, 8),
    "srtf": (519.87, 142.0, 2832.6, 4901, 7),
    "srsf": (563.38, 146.5, 2994.3, 4962, 13),
    "tiresias:metric=time": (715.27, 150.5, 3388.1, 4806, 0),
    "tiresias": (715.27, 150.5, 3388.1, 4806, 0),
}
TRACE3 = {
    "fifo": (991167.02, 1143149.0, 1478461.0, 8171961, 0),
    "backfill": (480104.77, 376568.5, 1129484.7, 8171961, 0),
    "smallest": (408105.81, 43180.5, 3049432.6, 8171961, 126),
    "srtf": (180116.35, 3586.5, 765499.2, 8171961, 1037),
    "srsf": (172683.74, 3586.5, 585736.1, 8171961, 749),
    "tiresias:metric=time": (276829.67, 4257.5, 944840.3, 8171961, 1362),
    "tiresias": (312869.59, 9355.5, 1841993.6, 8171961, 1303),
}
SETS = {"v100:4x4": SIXTEEN_GPUS, "v100:2x4": EIGHT_GPUS}


def _run(path: str, cluster: str, policy: str) -> Result:
    return simulate(DATA / path, cluster=cluster, policy=policy, rules="tiresias", placement="count")


def _check(result: Result, wanted: tuple[float, ...]) -> None:
    """All figures to one part in ten thousand; p95 as precisely as it was printed."""
    figures = result.figures()
    jct = figures["jct_s"]
    got = (jct["mean"], jct["p50"], figures["makespan_s"], figures["preemptions"])
    mean, median, p95, makespan, preemptions = wanted
    assert got == pytest.approx((mean, median, makespan, preemptions), rel=1e-4)
    assert jct["p95"] == pytest.approx(p95, abs=0.0501)


@pytest.mark.parametrize("policy", SIXTEEN_GPUS)
@pytest.mark.parametrize("cluster", SETS)
def test_sixty_jobs(cluster: str, policy: str) -> None:
    result = _run("tiresias/60_job.csv", cluster, policy)
    assert result.finished == 60
    _check(result, SETS[cluster][policy])


@pytest.mark.parametrize("policy", TRACE3)
@pytest.mark.parametrize("trace", ["muri/trace3.csv", "muri/trace3_tir.csv"])
def test_a_real_virtual_cluster(trace: str, policy: str) -> None:
    result = _run(trace, "v100:8x8", policy)
    assert result.finished == 992
    _check(result, TRACE3[policy])


@pytest.mark.parametrize("policy", sorted(policies()))
def test_without_contention_a_job_takes_as_long_as_it_lasts(policy: str) -> None:
    result = _run("tiresias/60_job.csv", "v100:16x4", policy)
    _check(result, (178.42, 125.0, 308.1, 3271, 0))
    assert result.jct_s.tolist() == [spec.duration_s for spec in result.specs]
