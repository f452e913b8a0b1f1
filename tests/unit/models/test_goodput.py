"""Goodput: the worked figures of the specification, the laws that hold for any model, and what cannot be."""

from __future__ import annotations

import doctest
import math
from types import ModuleType

import numpy as np
import pytest

from fairway.core.batch import limits_of
from fairway.core.errors import InputError
from fairway.models import goodput as goodput_module
from fairway.models import step_time
from fairway.models.goodput import (
    best_splits,
    efficiency,
    goodput,
    noise_scale,
    speedups,
    within,
)
from fairway.models.step_time import StepModel, overlapped, stacked, step_s, sync_s, throughput

MODEL = StepModel(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14)
SEEDS = range(6)


def any_model(seed: int) -> StepModel:
    random = np.random.default_rng(seed)
    times = 0.001 + random.random(6) * (0.3, 0.02, 0.5, 0.05, 0.2, 0.02)
    return StepModel(*times.tolist(), 1.0 + 9.0 * float(random.random()) ** 3)


def test_worked_figures() -> None:
    assert float(efficiency(128, 32, 128)) == 0.625
    found = [float(overlapped(0.3, 0.4, overlap)) for overlap in (1.0, 2.0, 10.0, 1000.0)]
    assert found == pytest.approx([0.7, 0.5, 0.4022, 0.4], abs=5e-5)


def test_one_replica_hardly_synchronises_and_others_do_as_the_paper_says() -> None:
    assert sync_s(MODEL, 1, np.array([1, 2, 4])) == pytest.approx([1e-8, 0.0118, 0.0118 + 2 * 0.00317], rel=1e-6)
    assert sync_s(MODEL, 2, np.array([2, 4])) == pytest.approx([0.0236, 0.0236 + 2 * 0.00634], rel=1e-6)


def test_each_accumulation_adds_one_pass() -> None:
    times = step_s(MODEL, 2, 8, 32, np.arange(4))
    assert np.diff(times) == pytest.approx(0.121 + 0.00568 * 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_of_speed(seed: int) -> None:
    model = any_model(seed)
    local = np.arange(1, 400)
    by_local = throughput(model, 2, 8, local)
    assert (np.diff(by_local) > 0).all()
    assert (np.diff(by_local, 2) < 1e-12).all()
    each = throughput(model, 2, np.arange(2, 64), 32) / np.arange(2, 64)
    assert (np.diff(each) < 0).all()
    times = step_s(model._replace(overlap=np.linspace(1, 10, 50)), 1, 4, 32)
    assert (np.diff(times) <= 0).all()
    pass_s = float(step_s(model, 1, 1, 32))
    assert (times >= max(pass_s, float(sync_s(model, 1, 4))) * (1 - 1e-12)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_goodput_never_exceeds_throughput_and_efficiency_falls_with_the_batch(seed: int) -> None:
    model, local = any_model(seed), np.arange(32, 1000)
    noise = 1000 * np.random.default_rng(seed).random()
    batch = local * 4
    worth = efficiency(noise, 128, batch)
    assert ((worth > 0) & (worth <= 1)).all()
    assert (np.diff(worth) < 0).all()
    assert (goodput(model, noise, 128, 1, 4, local) <= throughput(model, 1, 4, local)).all()
    assert (efficiency(2 * noise + 1, 128, batch) >= worth).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("accumulation", [False, True])
@pytest.mark.parametrize("clamped", [False, True])
def test_chosen_batches_keep_their_limits_and_none_tried_is_better(
    seed: int, accumulation: bool, clamped: bool
) -> None:
    model, limits = any_model(seed), limits_of(128, 4096, 16, 200, accumulation)
    replicas = np.arange(1, 65)
    nodes = np.where(replicas > 4, 2, 1)
    found = best_splits(model, 700.0, limits, nodes, replicas, clamped=clamped)
    there = found.goodput > 0
    batch = replicas * found.local * (found.accumulation + 1)
    assert there.all() or not accumulation
    assert (batch >= 128)[there].all()
    assert (batch < 4096 + replicas * (found.accumulation + 1))[there].all()
    assert ((found.local >= 16) & (found.local <= 200))[there].all()
    assert accumulation or not found.accumulation.any()
    again = goodput(model, 700.0, 128, nodes, replicas, found.local, found.accumulation)
    assert found.goodput[there].tolist() == again[there].tolist()
    smaller = within(limits.largest, replicas, found.local, found.accumulation)
    assert (replicas * smaller * (found.accumulation + 1) <= 4096).all()
    for batch_size in (128, 512, 2048):
        kept = -(-batch_size // replicas)
        fits = (kept >= 16) & (kept <= 200) & (replicas > 1)
        plain = goodput(model, 700.0, 128, nodes, replicas, kept)
        assert (found.goodput >= plain * 0.99)[fits].all()


def test_without_a_largest_batch_the_first_one_is_shared_by_the_replicas() -> None:
    for nodes in (1, np.arange(1, 6)):
        found = best_splits(MODEL, 1e9, limits_of(128), nodes, np.arange(1, 6))
        assert found.local.tolist() == [128, 64, 43, 32, 26]
        assert not found.accumulation.any()


@pytest.mark.parametrize("accumulation", [False, True])
def test_a_fixed_local_batch_is_kept(accumulation: bool) -> None:
    found = best_splits(MODEL, 50.0, limits_of(128, None, 256, 256, accumulation), 1, np.arange(1, 100))
    assert set(found.local.tolist()) == {256}
    assert not found.accumulation.any()


def test_many_jobs_at_once_get_what_each_gets_alone() -> None:
    models = [any_model(seed) for seed in range(40)]
    noise, replicas = np.linspace(1, 5000, 40)[:, None], np.arange(1, 65)
    first = np.array([64, 128] * 20)[:, None]
    limits = (first, 4096, 8, 256, np.array([[True], [False]] * 20))
    together = best_splits(stacked(models), noise, limits, 2, replicas)
    assert together.goodput.shape == (40, 64)
    for row in (0, 1, 17, 39):
        own = limits_of(int(first[row, 0]), 4096, 8, 256, row % 2 == 0)
        alone = best_splits(models[row], float(noise[row, 0]), own, 2, replicas)
        for whole, single in zip(together, alone, strict=True):
            assert whole[row].tolist() == single.tolist()


def test_speedups_count_from_a_fair_share() -> None:
    limits = limits_of(128, 1280, 64, 256)
    found = speedups(MODEL, 500.0, limits, np.array([0, 1, 1, 2]), np.array([0, 1, 4, 8]))
    assert found[:2].tolist() == [0.0, 1.0]
    assert 1 < found[2] < found[3] < 8
    shared = speedups(MODEL, 500.0, limits, np.array([0, 1, 1, 2]), np.array([0, 1, 4, 8]), share=4)
    assert shared.tolist() == pytest.approx((found / found[2]).tolist())


@pytest.mark.parametrize("noise", [math.nan, -3.0, 0.0])
def test_a_noise_scale_that_cannot_be_never_makes_a_batch_larger(noise: float) -> None:
    assert float(efficiency(noise, 32, 128)) == 0.25
    found = best_splits(MODEL, noise, limits_of(128, 4096, 8, 256, True), 1, np.array([1, 2, 4]))
    assert (found.local * (found.accumulation + 1)).tolist() == [128, 64, 32]


def test_a_gradient_that_is_all_noise_makes_every_sample_count() -> None:
    assert float(noise_scale(0.0, 1.0, 128)) == math.inf
    assert float(efficiency(math.inf, 128, 4096)) == 1.0
    assert float(noise_scale(0.0, 0.0, 128)) == 0.0
    assert float(noise_scale(1.0, 2.0, 128)) == 256.0
    assert math.isfinite(float(best_splits(MODEL, math.inf, limits_of(128, 4096), 2, 8).goodput))


def test_a_gang_that_its_batch_cannot_feed_has_no_goodput() -> None:
    found = best_splits(MODEL, 500.0, limits_of(128, 256, 32), np.array([1, 2, 4]), np.array([8, 9, 64]))
    assert (found.goodput > 0).tolist() == [True, False, False]
    too_small = best_splits(MODEL, 500.0, limits_of(128, 256, None, 16), 1, np.array([1, 4, 8]))
    assert (too_small.goodput > 0).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((0,), "first batch must be at least 1"),
        ((128, 64), "largest batch 64 is below the first batch 128"),
        ((128, 256, 64, 32), "largest local batch 32 is below the smallest local batch 64"),
        ((128, 256, 300), "largest batch 256 is below the smallest local batch 300"),
        ((128, 256, -1), "smallest local batch must be at least 1"),
        ((math.nan,), "first batch must be at least 1"),
    ],
)
def test_limits_that_contradict_each_other_are_one_clear_error(given: tuple[int, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        limits_of(*given)


@pytest.mark.parametrize("module", [goodput_module, step_time])
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0
