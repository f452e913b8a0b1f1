"""A small real training run: logistic regression on seeded data, whose true gradient noise can be computed exactly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class LogisticRegression:
    """Labels drawn from a logistic model in `dims` dimensions; plain SGD on the mean log loss."""

    def __init__(self, samples: int = 2048, dims: int = 40, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.inputs: Floats = self.random.normal(size=(samples, dims))
        truth = self.random.normal(size=dims) / np.sqrt(dims) * 2
        self.labels = (self.random.random(samples) < _sigmoid(self.inputs @ truth)).astype(float)
        self.weights: Floats = np.zeros(dims)

    def gradients(self, rows: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """The gradient of every sample."""
        inputs = self.inputs[rows]
        return (_sigmoid(inputs @ self.weights) - self.labels[rows])[:, None] * inputs

    def loss(self) -> float:
        logits = self.inputs @ self.weights
        return float(np.mean(np.logaddexp(0, logits) - self.labels * logits))

    def noise_scale(self) -> float:
        """The true one at the present weights: tr(Sigma) / |G|²."""
        each = self.gradients()
        mean = each.mean(axis=0)
        return float(((each - mean) ** 2).sum() / len(each) / (mean @ mean))

    def batches(self, batch: int) -> Iterator[NDArray[np.intp]]:
        """The rows of one epoch in random order, by whole batches."""
        order = self.random.permutation(len(self.inputs))
        for start in range(0, len(order) - batch + 1, batch):
            yield order[start : start + batch]

    def step(self, gradient: Floats, rate: float) -> None:
        self.weights = self.weights - rate * gradient


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
