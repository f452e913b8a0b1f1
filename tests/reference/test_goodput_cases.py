"""Goodput cases: step times, batch sizes, speedups and fits of AdaptDL, as a JSON file.

The usual file is beside the repository (`../shared/data/pollux/goodput_cases.json`); `FAIRWAY_GOODPUT_CASES` names
another one of the same format.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway.core.batch import BatchLimits, limits_of
from fairway.models.goodput import best_splits, efficiency, goodput, noise_scale, speedups
from fairway.models.step_fit import fit
from fairway.models.step_loss import Seen, loss
from fairway.models.step_time import StepModel, throughput
from fairway.train import Noise, NoiseEstimator, adascale_factor, rate_factor

USUAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pollux" / "goodput_cases.json"
FILE = Path(os.environ.get("FAIRWAY_GOODPUT_CASES") or USUAL)
CLOSE = 1e-6
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the goodput cases are not here")


@lru_cache(maxsize=1)
def _cases() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return read


def _of(kind: str) -> list[Any]:
    cases = [case for case in _cases().get(kind, []) if set(case) != {"name", "note"}]
    return [pytest.param(case, id=str(case.get("name", number))) for number, case in enumerate(cases)]


def _noise(case: dict[str, Any]) -> Any:
    return noise_scale(*case["grad"], case["init_batch_size"])


def _limits(case: dict[str, Any]) -> BatchLimits:
    options = case["options"]
    least, most = options.get("atomic_bsz_range") or (None, None)
    accumulation = options.get("accumulation", False)
    return limits_of(case["init_batch_size"], options.get("max_batch_size"), least, most, accumulation)


@pytest.mark.parametrize("case", _of("evaluate"))
def test_throughput_efficiency_and_goodput(case: dict[str, Any]) -> None:
    model, first = StepModel(*case["perf"]), case["init_batch_size"]
    nodes, replicas, local, accumulation = np.array(case["configs"]).T
    batch = replicas * local * (accumulation + 1)
    assert throughput(model, nodes, replicas, local, accumulation) == pytest.approx(case["throughput"], rel=CLOSE)
    assert efficiency(_noise(case), first, batch) == pytest.approx(case["efficiency"], rel=CLOSE)
    found = goodput(model, _noise(case), first, nodes, replicas, local, accumulation)
    assert found == pytest.approx(case["goodput"], rel=CLOSE)


@pytest.mark.parametrize("case", _of("optimize"))
def test_best_batch_sizes(case: dict[str, Any]) -> None:
    nodes, replicas = np.array(case["nodes_replicas"]).T
    found = best_splits(StepModel(*case["perf"]), _noise(case), _limits(case), nodes, replicas)
    assert found.goodput == pytest.approx(case["goodput"], rel=CLOSE)
    assert found.local.tolist() == case["atomic_bsz"]
    assert found.accumulation.tolist() == case["accum_steps"]


@pytest.mark.parametrize("case", _of("speedup"))
def test_speedups(case: dict[str, Any]) -> None:
    nodes, replicas = np.array(case["nodes_replicas"]).T
    model, limits = StepModel(*case["perf"]), _limits(case)
    assert speedups(model, _noise(case), limits, nodes, replicas) == pytest.approx(case["speedup"], rel=CLOSE)
    base = best_splits(model, _noise(case), limits, 1, 1).goodput
    assert float(base) == pytest.approx(case["base_goodput"], rel=CLOSE)


@pytest.mark.parametrize("case", _of("fit"))
def test_fits(case: dict[str, Any]) -> None:
    names = ("num_nodes", "num_replicas", "atomic_bsz", "optim_step_time", "accum_step_time")
    nodes, replicas, local, step_s, gradient_s = (np.array(case[name], dtype=np.float64) for name in names)
    seen = Seen(nodes, replicas, local, np.zeros_like(nodes), step_s, gradient_s)
    theirs = StepModel(*case["params"])
    assert loss(theirs, seen) == pytest.approx(case["objective"], rel=CLOSE)
    ours = fit(seen)
    assert ours is not None
    assert loss(ours, seen) <= case["objective"] + 1e-4
    for own, their in zip(ours, theirs, strict=True):
        if their in (1e-8, 1.1 * 1e-8) and not (nodes > 1).any():
            assert own == pytest.approx(their, rel=CLOSE)


@pytest.mark.parametrize("case", _of("lr_gain_formula"))
def test_learning_rates(case: dict[str, Any]) -> None:
    first, scale = 128, case["scale"]
    noise = Noise(case["sqr"], case["var"] * first)
    assert adascale_factor(noise, first * scale, first) == pytest.approx(case["adascale_gain"], rel=CLOSE)
    assert adascale_factor(noise, first * scale, first, adaptive=True) == pytest.approx(case["adam_gain"], rel=CLOSE)
    assert rate_factor(scale, "sqrt") == pytest.approx(case["sqrt"], rel=CLOSE)
    assert rate_factor(scale, "linear") == pytest.approx(case["linear"], rel=CLOSE)


@pytest.mark.parametrize("case", _of("gns_formula"))
def test_noise_of_gradients(case: dict[str, Any]) -> None:
    first = 128
    large = case["scale"] * first
    estimator = NoiseEstimator(decay=0)
    assert estimator.observe_norms(case["local_sqr"], case["total_sqr"], large / case["count"], large)
    found = estimator.state()
    assert found["squared_gradient"] == pytest.approx(case["grad_sqr"], rel=CLOSE)
    assert found["variance"] == pytest.approx(case["grad_var"] * first, rel=CLOSE)
