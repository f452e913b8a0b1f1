"""The profiles against the throughput files and traces that Gavel and Shockwave published."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from fairway.models.builtin import BuiltinProfile
from fairway.models.profile import Profile, ProfileKey, load_profile
from fairway.testing.pace import loops

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
GAVEL = SHARED / "data" / "gavel"
FILES = ("simulation", "physical_cluster", "tacc", "wisr")
TYPES = ("v100", "p100", "k80")

pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="the reference data is not here")


def job_type(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+?)(?: \(batch size (\d+)\))?", text)
    assert match is not None
    return match[1], None if match[2] is None else int(match[2])


def entries(name: str, table: str) -> dict[ProfileKey, dict[str, object]]:
    document = json.loads((GAVEL / f"{name}_throughputs.json").read_text())
    rows = {}
    for text, row in document[table].items():
        label, gpus = re.fullmatch(r"\('(.*)', (\d+)\)", text).groups()  # type: ignore[union-attr]
        rows[ProfileKey(*job_type(label), int(gpus))] = row
    return rows


def load(name: str) -> Profile:
    return load_profile(str(GAVEL / f"{name}_throughputs.json"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("gpu_type", TYPES)
def test_every_published_rate_comes_back_unchanged(name: str, gpu_type: str) -> None:
    profile, rows = load(name), entries(name, gpu_type)
    assert len(rows) == 83
    for key, row in rows.items():
        assert profile.rate(key.model, key.batch_size, gpu_type, key.gpus) == row["null"]
    for key, row in entries(name, f"{gpu_type}_unconsolidated").items():
        if key.gpus > 1:
            assert profile.rate(key.model, key.batch_size, gpu_type, key.gpus, spread=True) == row["null"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_loads_quickly(name: str) -> None:
    assert loops(lambda: load(name), tries=2) < 100


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("gpu_type", TYPES)
def test_pairs_are_symmetric_and_zero_means_none(name: str, gpu_type: str) -> None:
    profile, rows = load(name), entries(name, gpu_type)
    found = 0
    for a in rows:
        for b in rows:
            pair, mirrored = profile.pair_rates(a, b, gpu_type), profile.pair_rates(b, a, gpu_type)
            assert pair == (None if mirrored is None else mirrored[::-1])
            found += pair is not None
            assert pair is None or min(pair) > 0
    assert found > 500


@pytest.mark.parametrize("gpu_type", TYPES)
def test_the_estimates_fall_near_gavels_measurements(gpu_type: str) -> None:
    measured, estimates = load("simulation"), BuiltinProfile()
    ratios = []
    for key in entries("simulation", gpu_type):
        there = measured.rate(key.model, key.batch_size, gpu_type, key.gpus)
        here = estimates.rate(key.model, key.batch_size, gpu_type, key.gpus)
        if there > 0 and here > 0:
            ratios.append(here / there)
    assert len(ratios) >= 76
    assert 0.4 <= math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) <= 2.5
    assert sum(0.4 <= ratio <= 2.5 for ratio in ratios) / len(ratios) >= 0.85
    assert all(1 / 3.5 <= ratio <= 3.5 for ratio in ratios)


def test_every_job_of_the_published_traces_has_a_rate() -> None:
    jobs = set()
    for path in sorted((GAVEL / "traces").glob("*.trace")):
        for line in path.read_text().splitlines():
            columns = line.split("\t")
            jobs.add((*job_type(columns[0]), int(columns[6])))
    assert len(jobs) > 50
    profiles = [load_profile(None), load("simulation"), load("tacc")]
    for model, batch_size, gpus in jobs:
        for profile in profiles:
            rates = [profile.rate(model, batch_size, gpu, gpus, spread=s) for gpu in TYPES for s in (False, True)]
            assert max(rates) > 0
