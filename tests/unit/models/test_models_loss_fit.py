"""Loss curves: the fits find the curves that the points lie on, and predict how they go on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fairway.models.loss_fit import BLOCK, FLAT, fall, fit_losses

Curve = Callable[[np.ndarray], np.ndarray]


def fitted(curve: Curve, epochs: np.ndarray, decay: float = 0.95) -> list[float]:
    counts = np.array([len(epochs)])
    row: list[float] = fit_losses(epochs[None], curve(epochs)[None], counts, decay)[0].tolist()
    return row


CURVES: dict[str, Curve] = {
    "first order": lambda k: 1 / (0.05 * k + 0.3) + 0.2,
    "with a square": lambda k: 1 / (0.01 * k * k + 0.05 * k + 0.3) + 0.2,
    "exponential": lambda k: 2 * 0.8**k + 0.3,
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("start", [0.0, 3.0])
def test_the_next_fall_is_predicted_within_a_quarter(name: str, start: float) -> None:
    curve, epochs = CURVES[name], np.linspace(start, start + 8.0, 9)
    fit = fitted(curve, epochs)
    for more in (0.5, 2.0, 4.0):
        true = float(curve(epochs[-1:])[0] - curve(epochs[-1:] + more)[0])
        assert fall(fit, float(epochs[-1]), more) == pytest.approx(true, rel=0.25)


def test_more_epochs_never_predict_less_and_gain_less_and_less() -> None:
    for curve in CURVES.values():
        fit = fitted(curve, np.linspace(0.0, 6.0, 7))
        falls = np.array([fall(fit, 6.0, more) for more in np.arange(0.0, 10.0)])
        assert (np.diff(falls) > 0).all()
        assert (np.diff(falls, 2) < 0).all()


def test_a_loss_that_rises_or_stands_still_predicts_no_fall() -> None:
    for curve in (lambda k: 1.0 + k, lambda k: np.ones_like(k)):
        fit = fitted(curve, np.linspace(0.0, 4.0, 5))
        assert fit[0] == FLAT
        assert fall(fit, 4.0, 10.0) == 0.0


def test_two_points_are_too_few() -> None:
    assert fitted(CURVES["first order"], np.array([0.0, 1.0]))[0] == FLAT


def test_points_that_a_row_does_not_have_do_not_count() -> None:
    epochs, curve = np.linspace(0.0, 4.0, 5), CURVES["first order"]
    padded_epochs = np.concatenate([[7.0, 99.0, -3.0], epochs])[None]
    padded = np.concatenate([[500.0, -9.0, 0.0], curve(epochs)])[None]
    fit = fit_losses(padded_epochs, padded, np.array([5]))[0]
    assert fit.tolist() == pytest.approx(fitted(curve, epochs))


def test_recent_points_count_more() -> None:
    """A loss that fell fast long ago and slowly of late: forgetting the past predicts a smaller fall."""

    def curve(k: np.ndarray) -> np.ndarray:
        return np.where(k < 6, 5.0 - 0.7 * k, 0.8 - 0.02 * (k - 6))

    epochs = np.linspace(0.0, 12.0, 13)
    remembered, forgotten = (fall(fitted(curve, epochs, decay), 12.0, 2.0) for decay in (1.0, 0.5))
    assert forgotten < remembered


def test_many_rows_are_fitted_as_each_alone() -> None:
    random = np.random.default_rng(3)
    epochs = np.cumsum(random.uniform(0.1, 1.0, (BLOCK + 7, 8)), axis=1)
    losses = 1 / (random.uniform(0.01, 0.5, (BLOCK + 7, 1)) * epochs + 0.3) + 0.1
    counts = np.full(BLOCK + 7, 8)
    together = fit_losses(epochs, losses, counts)
    for row in (0, BLOCK - 1, BLOCK, BLOCK + 6):
        alone = fit_losses(epochs[row : row + 1], losses[row : row + 1], counts[:1])[0]
        assert together[row].tolist() == pytest.approx(alone.tolist(), rel=1e-6)
