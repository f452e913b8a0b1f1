"""The throughput estimator against the pairs that Gavel measured, as docs/estimator.md reports it.

Needs Gavel's table beside the repository (`../shared/data/gavel`); it is not part of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairway.cli.lab.holdout import alone_errors, hold_out, profile_table
from fairway.models.estimator import LearnedPairs
from fairway.models.fingerprint import ReferenceTable
from fairway.models.gavel_profile import GavelProfile
from fairway.testing import job, snapshot_of
from fairway.testing.seeds import ALL

FILE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="Gavel's table is not here")
SEEDS = 2


@pytest.fixture(scope="module")
def profile() -> GavelProfile:
    return GavelProfile.read(str(FILE))


@pytest.fixture(scope="module")
def table(profile: GavelProfile) -> ReferenceTable:
    return profile_table(profile)


def test_the_table_is_that_of_single_gpus(table: ReferenceTable) -> None:
    assert (len(table.kinds), sorted(table.gpu_types)) == (26, ["k80", "p100", "v100"])
    assert not np.isnan(table.kept).any()
    by_type = dict(zip(table.gpu_types, (table.kept == 0).sum(axis=(0, 2)).tolist(), strict=True))
    assert by_type == {"v100": 40, "p100": 20, "k80": 87}


@pytest.mark.skipif(not ALL, reason="`make test-all` runs it")
@pytest.mark.parametrize(("part", "most", "right"), [(0.1, 0.095, 0.82), (0.4, 0.085, 0.85)])
def test_a_new_batch_size_is_estimated_better_than_by_any_baseline(
    table: ReferenceTable, part: float, most: float, right: float
) -> None:
    scores = hold_out(table, part, range(SEEDS))
    assert scores["mixed"].mean < most
    assert scores["mixed"].right > right
    for baseline in ("mean", "built-in", "published", "nearest", "completed"):
        assert scores["mixed"].mean < scores[baseline].mean


def test_a_new_model_is_estimated_a_little_better_than_by_the_built_in_profile(table: ReferenceTable) -> None:
    scores = hold_out(table, 0.2, range(SEEDS), "model")
    assert scores["completed"].mean < scores["mixed"].mean < scores["built-in"].mean < scores["mean"].mean
    assert scores["mixed"].right > scores["built-in"].right


def test_speeds_alone_on_a_type_never_tried(profile: GavelProfile) -> None:
    errors = alone_errors(profile)
    assert errors["p100"] < 1.2
    assert errors["v100"] < 1.4
    assert errors["k80"] < 1.6


def learned_error(table: ReferenceTable, part: float, seed: int) -> float:
    """The mean error of `LearnedPairs` on pairs not measured, when a part of all pairs has been."""
    kinds = table.kinds
    jobs = [job(f"{n:02}", 1, steps=1000, model=kind.model, batch_size=kind.batch_size) for n, kind in enumerate(kinds)]
    snapshot = snapshot_of(jobs, ",".join(f"{name}:1x4" for name in table.gpu_types))
    fresh = LearnedPairs.recall().observe(snapshot)
    labels = [fresh.kind(n).label for n in range(len(kinds))]  # type: ignore[attr-defined]
    random = np.random.default_rng(seed)
    shown = np.triu(random.random((len(table.gpu_types), len(kinds), len(kinds))) < part)
    kept: dict[str, dict[str, dict[str, list[float]]]] = {}
    for t, i, j in zip(*shown.nonzero(), strict=True):
        a, b = (i, j) if labels[i] <= labels[j] else (j, i)
        pair = [float(table.kept[a, t, b]), float(table.kept[b, t, a])]
        kept.setdefault(table.gpu_types[t], {}).setdefault(labels[a], {})[labels[b]] = pair
    pairs = LearnedPairs.recall({**fresh.memory(), "kept": kept}).observe(snapshot)
    usable = snapshot.speeds > 0
    errors = []
    for a in range(len(kinds)):
        for b in range(a, len(kinds)):
            for t, (x, y) in enumerate(pairs.factors(a, b)):
                if not shown[t, a, b] and usable[t, a] and usable[t, b]:
                    errors += [abs(x - table.kept[a, t, b]), abs(y - table.kept[b, t, a])]
    return float(np.mean(errors))


def test_pairs_that_run_improve_the_estimates_of_those_that_do_not(table: ReferenceTable) -> None:
    errors = [np.mean([learned_error(table, part, seed) for seed in range(2)]) for part in (0.0, 0.1, 0.4)]
    assert errors[0] == pytest.approx(0.143, abs=0.002)
    assert errors[1] < 0.13
    assert errors[2] < 0.10
