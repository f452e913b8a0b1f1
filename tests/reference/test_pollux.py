"""Tiresias and Optimus in the simulator of the Pollux artifact, reproduced job by job with `--rules pollux`.

Needs the published workloads, profiles and results beside the repository (`../shared/data`); they are not part of it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from fairway import simulate
from fairway.models.profile import Profile, load_profile
from fairway.testing.seeds import some

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pollux"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published workloads are not here")

# Published mean completion times on 16 nodes of 4 GPUs, workloads 1 to 6, by the load relative to the paper's.
MEANS = {
    ("tiresias", "0.5"): (1450.9, 2333.3, 1869.9, 1946.8, 1425.4, 1826.6),
    ("tiresias", "1.0"): (2473.7, 5145.0, 3876.3, 3280.3, 3501.0, 3469.7),
    ("tiresias", "1.5"): (5520.3, 6333.8, 6562.0, 5577.3, 6832.4, 5830.5),
    ("tiresias", "2.0"): (10138.2, 8656.0, 10727.8, 9664.7, 12098.1, 10254.7),
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


@pytest.mark.parametrize("number", some(range(1, 7), 1))
@pytest.mark.parametrize(("policy", "load"), list(MEANS), ids="-".join)
def test_every_job_takes_as_long_as_published(policy: str, load: str, number: int) -> None:
    folder = "workloads" if load == "1.0" else f"workloads-{load}"
    result = simulate(
        DATA / "osdi21" / folder / f"workload-{number}.csv",
        cluster="aws:16x4",
        policy=policy,
        rules="pollux",
        profile=_profile(),
    )
    took_s = {spec.id: jct_s for spec, jct_s in zip(result.specs, result.jct_s.tolist(), strict=True)}
    assert took_s == _published()[f"results-jobload/{policy}-{load}"][f"workload-{number}"]
    assert result.figures()["jct_s"]["mean"] == pytest.approx(MEANS[policy, load][number - 1], abs=0.06)
