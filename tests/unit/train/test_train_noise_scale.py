"""The gradient noise scale: worked examples, and convergence to a truth that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from fairway.train import ConsecutiveNoiseEstimator, Noise, NoiseEstimator, ReplicaNoiseEstimator

Floats = NDArray[np.float64]
BATCH = 8
DIMS = 100
SPREAD = np.linspace(0.2, 1.2, DIMS)
TRUE_GRADIENT = np.random.default_rng(5).normal(size=DIMS) / math.sqrt(DIMS)
SQUARED = float(TRUE_GRADIENT @ TRUE_GRADIENT)
VARIANCE = float(SPREAD @ SPREAD)


def drawn(random: np.random.Generator, many: int, batch: int = BATCH) -> Floats:
    """Gradients of batches of samples whose gradients are normal around the true one."""
    return TRUE_GRADIENT + random.normal(size=(many, DIMS)) * SPREAD / math.sqrt(batch)


def last_estimate(estimator: NoiseEstimator) -> tuple[float, float]:
    """What an estimator that does not average made of its last observation."""
    assert estimator.decay == 0
    state = estimator.state()
    return state["squared_gradient"], state["variance"]


def test_the_worked_example_of_four_replicas() -> None:
    estimator = NoiseEstimator()
    assert estimator.observe_norms(10.0, 4.0, 32, 128)
    assert estimator.noise == pytest.approx((2.0, 256.0))
    assert estimator.noise_scale == pytest.approx(128.0)


def test_the_worked_example_of_gain_and_efficiency() -> None:
    noise = Noise(2.0, 256.0)
    assert noise.gain(4, 32) == 2.5
    assert noise.efficiency(128, 32) == 0.625


@pytest.mark.parametrize("scale", [1, 1.5, 2, 7, 64])
@pytest.mark.parametrize("reference", [1, 32, 1000])
@pytest.mark.parametrize("noise", [Noise(2.0, 256.0), Noise(0.01, 3.0), Noise(5.0, 0.0)])
def test_gain_and_efficiency_agree(noise: Noise, reference: float, scale: float) -> None:
    gain = noise.gain(scale, reference)
    assert gain / scale == pytest.approx(noise.efficiency(scale * reference, reference))
    assert 1 - 1e-12 <= gain <= scale + 1e-12


def test_replicas_give_the_variance_between_them_and_their_inner_product() -> None:
    estimator = ReplicaNoiseEstimator()
    g, h = np.array([1.0, 3.0]), np.array([2.0, -1.0])
    assert estimator.observe([[g[:1], g[1:]], [h[:1], h[1:]]], batch=4)
    assert estimator.noise is None  # g·h = -1: this gradient cannot be told from noise
    assert estimator.state()["squared_gradient"] / estimator.state()["weight"] == pytest.approx(g @ h)
    assert estimator.state()["variance"] / estimator.state()["weight"] == pytest.approx(4 * ((g - h) @ (g - h)) / 2)


def test_estimates_of_replicas_converge_to_the_truth() -> None:
    random, estimator = np.random.default_rng(1), ReplicaNoiseEstimator(decay=0.999)
    for _ in range(4000):
        estimator.observe(list(drawn(random, 4)), BATCH)
    noise = estimator.noise
    assert noise is not None
    assert noise.squared_gradient == pytest.approx(SQUARED, rel=0.05)
    assert noise.variance == pytest.approx(VARIANCE, rel=0.01)
    assert noise.scale == pytest.approx(VARIANCE / SQUARED, rel=0.05)


def test_estimates_of_consecutive_steps_converge_to_the_truth_while_weights_stay() -> None:
    random, estimator = np.random.default_rng(2), ConsecutiveNoiseEstimator(decay=0.999)
    for _ in range(6000):
        estimator.observe(drawn(random, 1)[0], BATCH)
    noise = estimator.noise
    assert noise is not None
    assert noise.squared_gradient == pytest.approx(SQUARED, rel=0.1)
    assert noise.variance == pytest.approx(VARIANCE, rel=0.02)


def test_batches_of_different_size_tell_of_the_same_noise() -> None:
    random, estimator = np.random.default_rng(3), ReplicaNoiseEstimator(decay=0.999)
    for step in range(4000):
        batch = 4 if step % 2 else 32
        estimator.observe(list(drawn(random, 4, batch)), batch)
    assert estimator.noise_scale == pytest.approx(VARIANCE / SQUARED, rel=0.05)


def test_the_mean_over_replicas_varies_less_than_one_replica() -> None:
    random = np.random.default_rng(4)
    mean, single = NoiseEstimator(decay=0), NoiseEstimator(decay=0)
    found: list[tuple[float, ...]] = []
    for _ in range(1500):
        replicas = drawn(random, 8)
        squares, large = (replicas**2).sum(axis=1), float((replicas.mean(axis=0) ** 2).sum())
        mean.observe_norms(float(squares.mean()), large, BATCH, 8 * BATCH)
        single.observe_norms(float(squares[0]), large, BATCH, 8 * BATCH)
        found.append((*last_estimate(mean), *last_estimate(single)))
    means, variances = np.mean(found, axis=0), np.var(found, axis=0)
    assert means[[0, 2]] == pytest.approx(SQUARED, rel=0.1)
    assert means[[1, 3]] == pytest.approx(VARIANCE, rel=0.02)
    assert variances[0] < variances[2]
    assert variances[1] < variances[3] / 3


def test_overlapping_pairs_vary_less_than_disjoint_ones() -> None:
    random = np.random.default_rng(6)
    overlapping, disjoint = [], []
    for _ in range(200):
        pairs, apart = ConsecutiveNoiseEstimator(decay=0.99), ConsecutiveNoiseEstimator(decay=0.98)
        for step, gradient in enumerate(drawn(random, 100)):
            pairs.observe(gradient, BATCH)
            if step % 2 == 0:
                apart.start_anew()
            apart.observe(gradient, BATCH)
        overlapping.append(pairs.state()["variance"] / pairs.state()["weight"])
        disjoint.append(apart.state()["variance"] / apart.state()["weight"])
    assert np.var(overlapping) < np.var(disjoint)


def test_moving_weights_bias_consecutive_estimates_as_derived() -> None:
    # A quadratic loss: after a step of rate r along g, the gradient has changed by -r H g.
    random, rate = np.random.default_rng(7), 0.1
    hessian = np.linspace(0.5, 2.0, DIMS)
    estimator, found = ConsecutiveNoiseEstimator(decay=0), []
    for _ in range(6000):
        first, second = drawn(random, 2)
        estimator.start_anew()
        estimator.observe(first, BATCH)
        estimator.observe(second - rate * hessian * first, BATCH)
        found.append(last_estimate(estimator))
    squared, variance = np.mean(found, axis=0)
    error = np.std(found, axis=0) / math.sqrt(len(found))
    noise = float(hessian @ SPREAD**2)
    too_small = rate * (float(TRUE_GRADIENT**2 @ hessian) + noise / BATCH)
    second_order = rate**2 / 2 * (float(hessian**2 @ SPREAD**2) + BATCH * float(hessian**2 @ TRUE_GRADIENT**2))
    assert squared == pytest.approx(SQUARED - too_small, abs=4 * error[0])
    assert variance == pytest.approx(VARIANCE + rate * noise + second_order, abs=4 * error[1])
    # The bias is far more than the error of this measurement, so the comparison above can fail.
    assert too_small > 20 * error[0]
    assert rate * noise > 20 * error[1]


def test_numerator_and_denominator_are_averaged_apart_and_corrected_for_the_start() -> None:
    estimator = NoiseEstimator(decay=0.9)
    estimator.observe_norms(10.0, 4.0, 32, 128)  # 2 and 256
    estimator.observe_norms(7.0, 4.0, 32, 128)  # 3 and 128
    assert estimator.noise == pytest.approx(((0.9 * 2 + 3) / 1.9, (0.9 * 256 + 128) / 1.9))
    assert estimator.noise_scale == pytest.approx((0.9 * 256 + 128) / (0.9 * 2 + 3))


def test_there_is_no_estimate_before_the_first_step() -> None:
    assert NoiseEstimator().noise is None
    assert NoiseEstimator().noise_scale is None


def test_a_gradient_lost_in_noise_gives_no_estimate_until_it_shows() -> None:
    estimator = NoiseEstimator(decay=0.5)
    assert estimator.observe_norms(10.0, 2.0, 32, 128)  # |G|² comes out as -2/3
    assert estimator.noise is None
    assert estimator.observe_norms(10.0, 4.0, 32, 128)
    assert estimator.noise == pytest.approx(((2 * 2 - 2 / 3) / 3, (2 * 256 + 8 * 128 / 3) / 3))


def test_a_variance_below_zero_is_none_at_all() -> None:
    estimator = NoiseEstimator()
    estimator.observe_norms(3.0, 4.0, 32, 128)
    assert estimator.noise_scale == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_norms_that_are_not_finite_do_not_spoil_the_averages(bad: float) -> None:
    estimator = NoiseEstimator()
    estimator.observe_norms(10.0, 4.0, 32, 128)
    assert not estimator.observe_norms(bad, 4.0, 32, 128)
    assert not estimator.observe_norms(10.0, bad, 32, 128)
    assert estimator.noise_scale == pytest.approx(128.0)
    assert (estimator.observed, estimator.skipped) == (1, 2)


@pytest.mark.filterwarnings("error")
def test_a_replica_with_a_broken_gradient_skips_the_step() -> None:
    estimator = ReplicaNoiseEstimator()
    assert not estimator.observe([np.ones(3), np.array([1.0, math.inf, -math.inf])], 8)
    assert (estimator.observed, estimator.skipped) == (0, 1)


def test_one_replica_tells_nothing() -> None:
    estimator = ReplicaNoiseEstimator()
    assert not estimator.observe([np.ones(3)], 8)
    assert not estimator.observe_reduced(3.0, 3.0, 8)  # there is no process group here
    assert estimator.noise is None
    with pytest.raises(ValueError, match="no gradients"):
        estimator.observe([], 8)


def test_consecutive_steps_pair_only_at_one_batch_size_and_across_no_broken_step() -> None:
    estimator = ConsecutiveNoiseEstimator()
    steps = [(1.0, 8), (1.1, 8), (0.9, 16), (1.0, 16), (math.nan, 16), (1.0, 16), (1.2, 16)]
    paired = [estimator.observe(np.array([value]), batch) for value, batch in steps]
    assert paired == [False, True, False, True, False, False, True]
    assert (estimator.observed, estimator.skipped) == (3, 1)


def test_a_loop_may_overwrite_its_gradient_in_place() -> None:
    estimator, gradient = ConsecutiveNoiseEstimator(), np.array([1.0, 2.0])
    estimator.observe(gradient, 4)
    gradient[:] = [3.0, 1.0]
    estimator.observe(gradient, 4)
    assert estimator.noise == pytest.approx((5.0, 4 * 5.0 / 2))


def test_gradients_may_come_from_generators() -> None:
    lists, generators = ReplicaNoiseEstimator(), ReplicaNoiseEstimator()
    parts = [[np.array([1.0, 2.0]), np.array([0.5])], [np.array([1.5, 1.0]), np.array([0.7])]]
    lists.observe(parts, 4)
    generators.observe([iter(part) for part in parts], 4)
    assert generators.noise == lists.noise is not None
    steps = ConsecutiveNoiseEstimator()
    for part in parts:
        steps.observe(iter(part), 4)
    assert steps.noise == pytest.approx(lists.noise)


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_a_decay_that_never_forgets_or_makes_no_sense_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        NoiseEstimator(decay)


@pytest.mark.parametrize("batches", [(0, 8), (-4, 8), (8, 4), (math.nan, 8)])
def test_batch_sizes_must_make_sense(batches: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="batch"):
        NoiseEstimator().observe_norms(10.0, 4.0, *batches)
    with pytest.raises(ValueError, match="negative"):
        NoiseEstimator().observe_norms(-1.0, 4.0, 32, 128)
    with pytest.raises(ValueError, match="batch"):
        ConsecutiveNoiseEstimator().observe(np.ones(3), 0)
