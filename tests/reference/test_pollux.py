"""The simulator of the Pollux artifact, with `--rules pollux`: Tiresias and Optimus job by job, Pollux by its means.

The published search of Pollux is random, so its runs cannot be repeated job by job.

Needs the published workloads, profiles and results beside the repository (`../shared/data`); they are not part of it.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

from fairway import simulate
from fairway.models.profile import Profile, load_profile
from fairway.simulator.result import Result
from fairway.testing.seeds import LONG, some

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pollux"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published workloads are not here")

# Published mean completion times on 16 nodes of 4 GPUs, workloads 1 to 6, by the load relative to the paper's.
MEANS = {
    ("tiresias", "0.5"): (1450.9, 2333.3, 1869.9, 1946.8, 1425.4, 1826.6),
    ("tiresias", "1.0"): (2473.7, 5145.0, 3876.3, 3280.3, 3501.0, 3469.7),
    ("tiresias", "1.5"): (5520.3, 6333.8, 6562.0, 5577.3, 6832.4, 5830.5),
    ("tiresias", "2.0"): (10138.2, 8656.0, 10727.8, 9664.7, 12098.1, 10254.7),
    ("pollux", "0.5"): (1059.5, 1826.3, 1310.5, 1497.8, 976.8, 1287.8),
    ("pollux", "1.0"): (2088.8, 3322.9, 2188.5, 2721.0, 2673.7, 2446.1),
    ("pollux", "1.5"): (3855.8, 3380.6, 3299.9, 3902.7, 4007.3, 3474.3),
    ("pollux", "2.0"): (6186.3, 4190.8, 5131.8, 5262.4, 6590.8, 5105.3),
    ("optimus", "0.5"): (1309.7, 3124.6, 1986.8, 2173.9, 1324.5, 1958.0),
    ("optimus", "1.0"): (4087.1, 6913.9, 3944.0, 5967.8, 5656.2, 5301.9),
    ("optimus", "1.5"): (7673.8, 6678.2, 5683.6, 7683.8, 7899.7, 7500.2),
    ("optimus", "2.0"): (10806.6, 8515.4, 8363.4, 10312.9, 11830.0, 9767.3),
}


@lru_cache(maxsize=1)
def _profile() -> Profile:
    return load_profile(str(DATA / "profiles"))


@lru_cache(maxsize=1)
def _published() -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, Any] = json.loads((DATA / "osdi21/published_jcts.json").read_text())
    return found


RIGID = [run for run in MEANS if run[0] != "pollux"]
LOADS = [load for policy, load in MEANS if policy == "pollux"]


def _run(policy: str, load: str, number: int) -> Result:
    folder = "workloads" if load == "1.0" else f"workloads-{load}"
    path = DATA / "osdi21" / folder / f"workload-{number}.csv"
    return simulate(path, cluster="aws:16x4", policy=policy, rules="pollux", profile=_profile())


@cache
def _mean_s(policy: str, load: str, number: int) -> float:
    result = _run(policy, load, number)
    assert result.finished == len(result.specs)
    return result.mean_jct_s or 0.0


@pytest.mark.parametrize("number", some(range(1, 7), 1))
@pytest.mark.parametrize(("policy", "load"), RIGID, ids="-".join)
def test_every_job_takes_as_long_as_published(policy: str, load: str, number: int) -> None:
    result = _run(policy, load, number)
    took_s = {spec.id: jct_s for spec, jct_s in zip(result.specs, result.jct_s.tolist(), strict=True)}
    assert took_s == _published()[f"results-jobload/{policy}-{load}"][f"workload-{number}"]
    assert result.figures()["jct_s"]["mean"] == pytest.approx(MEANS[policy, load][number - 1], abs=0.06)


@pytest.mark.parametrize(
    ("load", "number"), some([(load, number) for load in LOADS for number in range(1, 7)], 1, long=True)
)
def test_pollux_completes_each_workload_about_as_fast_as_published(load: str, number: int) -> None:
    mean_s = _mean_s("pollux", load, number)
    assert mean_s <= 1.03 * MEANS["pollux", load][number - 1]
    assert mean_s < min(MEANS["tiresias", load][number - 1], MEANS["optimus", load][number - 1])


@pytest.mark.skipif(not LONG, reason="takes minutes")
@pytest.mark.parametrize("load", LOADS)
def test_pollux_is_as_fast_as_published_over_all_workloads(load: str) -> None:
    means_s = [_mean_s("pollux", load, number) for number in range(1, 7)]
    published_s = MEANS["pollux", load]
    assert sum(means_s) <= 1.01 * sum(published_s)
    if load == "1.0":
        assert sum(means_s) <= sum(published_s)


@pytest.mark.skipif(not LONG, reason="takes minutes")
@pytest.mark.parametrize("policy", ["pollux:p=1", "pollux:p=0", "pollux:p=-inf", "pollux:search=genetic"])
def test_other_knobs_are_ahead_of_policies_that_cannot_adapt(policy: str) -> None:
    assert _mean_s(policy, "1.0", 3) < MEANS["tiresias", "1.0"][2]


@pytest.mark.skipif(not LONG, reason="takes a while")
def test_a_run_of_160_jobs_costs_less_than_20_cpu_seconds() -> None:
    assert _run("pollux", "1.0", 3).costs.cpu_s <= 20.0
