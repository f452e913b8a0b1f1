"""Estimators and schedules in a real, small training run, beside the truth."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from small_training import LogisticRegression

from fairway.train import (
    AccordionSchedule,
    ConsecutiveNoiseEstimator,
    EpochGradient,
    NoiseScaleSchedule,
    ReplicaNoiseEstimator,
)

REPLICAS = 4


def train_by_noise(
    schedule: NoiseScaleSchedule,
    estimator: ReplicaNoiseEstimator | ConsecutiveNoiseEstimator,
    epochs: int,
    rate: float = 0.02,
) -> tuple[LogisticRegression, list[int], list[float]]:
    """Train by a schedule; the model, the batch size of every epoch, and the true noise scale after it."""
    model, batches, truth = LogisticRegression(seed=1), [], []
    for _ in range(epochs):
        batches.append(schedule.batch)
        for rows in model.batches(schedule.batch):
            each = model.gradients(rows)
            if isinstance(estimator, ReplicaNoiseEstimator):
                estimator.observe([part.mean(axis=0) for part in np.split(each, REPLICAS)], len(rows) / REPLICAS)
            else:
                estimator.observe(each.mean(axis=0), len(rows))
            model.step(each.mean(axis=0), rate * schedule.rate_factor)
        truth.append(model.noise_scale())
        schedule.end_epoch(estimator.noise_scale)
    return model, batches, truth


@pytest.mark.parametrize("make", [ReplicaNoiseEstimator, ConsecutiveNoiseEstimator])
def test_the_batch_doubles_as_the_noise_scale_grows(
    make: type[ReplicaNoiseEstimator] | type[ConsecutiveNoiseEstimator],
) -> None:
    start = LogisticRegression(seed=1).loss()
    model, batches, truth = train_by_noise(NoiseScaleSchedule(16, 256), make(decay=0.97), epochs=8)
    assert truth[-1] > 5 * truth[0]
    assert batches[0] == 16
    assert batches[-1] == 256
    for (before, after), true_scale in zip(pairwise(batches), truth, strict=False):
        assert after in (before, 2 * before)
        assert after == before or true_scale > before
    assert model.loss() < 0.7 * start


def test_a_batch_above_the_noise_scale_stays() -> None:
    _, batches, truth = train_by_noise(NoiseScaleSchedule(512, 2048), ReplicaNoiseEstimator(), epochs=6, rate=0.1)
    assert max(truth) < 512
    assert batches == [512] * 6


def test_the_estimate_follows_the_truth() -> None:
    # A rate so small that the weights hardly move, and a fixed batch: the truth stays at about one value.
    estimator = ReplicaNoiseEstimator(decay=0.995)
    _, _, truth = train_by_noise(NoiseScaleSchedule(32, 32), estimator, epochs=10, rate=0.001)
    assert truth[-1] < 1.5 * truth[0]
    assert min(truth) * 0.85 < (estimator.noise_scale or 0) < max(truth) * 1.15


def critical_comparisons(seed: int, decay_epoch: int) -> list[bool]:
    """What Accordion finds every 5 of 46 epochs when the learning rate falls to a tenth in one of them."""
    model, schedule = LogisticRegression(dims=100, seed=seed), AccordionSchedule(16, 128, interval=5)
    total = EpochGradient()
    found = []
    for epoch in range(46):
        rate = (0.1 if epoch < decay_epoch else 0.01) * schedule.rate_factor
        for rows in model.batches(schedule.batch):
            gradient = model.gradients(rows).mean(axis=0)
            total.add(gradient, len(rows))
            model.step(gradient, rate)
        schedule.end_epoch(total.norm())
        total.clear()
        found.append(schedule.regime.critical)
    return found[::5]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_accordion_finds_the_start_and_the_decay_of_the_learning_rate(seed: int) -> None:
    found = critical_comparisons(seed, decay_epoch=28)
    assert found[:2] == [True, True]
    # Two epochs after the decay the norm is still what it was; at the comparison after epoch 35 it has fallen.
    assert found[2:8] == [False] * 5 + [True]
    assert not found[-1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_accordion_finds_nothing_late_without_a_decay(seed: int) -> None:
    assert critical_comparisons(seed, decay_epoch=99) == [True, True] + [False] * 8


def test_without_replacement_the_estimate_knows_of_the_size_of_the_data() -> None:
    # Two samples of one epoch are never the same one, so their gradients correlate by -1 / (N - 1).
    model, samples = LogisticRegression(seed=1), 2048
    for _ in range(100):
        model.step(model.gradients().mean(axis=0), 0.05)
    estimator = ReplicaNoiseEstimator(decay=0.9998)
    for _ in range(150):
        for rows in model.batches(64):
            estimator.observe([part.mean(axis=0) for part in np.split(model.gradients(rows), REPLICAS)], 16)
    truth = model.noise_scale()
    expected = 1 / (1 / truth - 1 / samples)
    assert expected > 1.3 * truth
    assert estimator.noise_scale == pytest.approx(expected, rel=0.1)
