"""Critical regimes: the worked example, the edges, and gradients accumulated over epochs of several batch sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairway.train import CriticalRegime, EpochGradient, LayerRegimes

NORMS = [10, 4, 3.5, 3.4, 1.2, 1.1]
CRITICAL = [True, True, False, False, True, False]
"""The worked example: norms at epochs 0, 10, …, 50, and what is found there."""


def test_the_worked_example() -> None:
    regime, found = CriticalRegime(), []
    assert regime.critical
    for epoch in range(51):
        # Norms of epochs between the comparisons do not matter.
        critical = regime.end_epoch(NORMS[epoch // 10] if epoch % 10 == 0 else 99.0 * epoch)
        found.append(critical)
    assert found[::10] == CRITICAL
    # An answer holds until the next comparison.
    assert all(found[epoch] == CRITICAL[epoch // 10] for epoch in range(51))


def test_a_change_of_just_eta_is_critical_and_growth_counts_like_decay() -> None:
    for eta, norm, critical in [
        (0.5, 2.0, True),
        (0.5, 2.1, False),
        (0.5, 6.0, True),
        (0.5, 5.9, False),
        (0.6, 2.0, False),
    ]:
        regime = CriticalRegime(interval=1, eta=eta)
        regime.end_epoch(4.0)
        assert regime.end_epoch(norm) is critical, (eta, norm)


def test_what_follows_a_norm_of_zero_is_critical() -> None:
    regime = CriticalRegime(interval=1)
    assert [regime.end_epoch(norm) for norm in (4.0, 4.0, 0.0, 0.0, 3.0, 3.0)] == [True, False, True, True, True, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_leaves_the_answer_and_the_old_norm(bad: float) -> None:
    regime = CriticalRegime(interval=1)
    assert [regime.end_epoch(norm) for norm in (bad, 4.0, 4.0, bad, 3.9, 1.0, bad)] == [
        *(True, True, False, False, False, True, True)
    ]


def test_layers_are_judged_apart() -> None:
    regimes = LayerRegimes(2, interval=1)
    assert regimes.critical == [True, True]
    regimes.end_epoch([1.0, 1.0])
    assert regimes.end_epoch([0.9, 0.1]) == [False, True]
    assert regimes.critical == [False, True]
    with pytest.raises(ValueError, match=r"shorter|longer"):
        regimes.end_epoch([1.0])


def test_settings_and_norms_must_make_sense() -> None:
    with pytest.raises(ValueError, match="interval"):
        CriticalRegime(interval=0)
    with pytest.raises(ValueError, match="eta"):
        CriticalRegime(eta=0)
    with pytest.raises(ValueError, match="negative"):
        CriticalRegime().end_epoch(-1.0)


def test_an_epoch_accumulates_gradients_and_not_their_norms() -> None:
    epoch = EpochGradient()
    epoch.add([np.array([3.0, 0.0]), 1.0], 8)
    epoch.add([np.array([-3.0, 4.0]), 1.0], 8)
    assert epoch.norms() == pytest.approx([2.0, 1.0])
    assert epoch.norm() == pytest.approx(3.0)
    epoch.clear()
    assert epoch.norms() == []
    assert math.isnan(epoch.norm())


def test_the_norm_of_an_epoch_does_not_depend_on_the_batch_size() -> None:
    samples = np.random.default_rng(0).normal(size=(64, 5)) + 1
    norms = []
    for batch in (1, 8, 64):
        epoch = EpochGradient()
        for part in np.split(samples, len(samples) // batch):
            epoch.add(part.mean(axis=0), batch)
        norms.append(epoch.norm())
    assert norms == pytest.approx([np.linalg.norm(samples.mean(axis=0))] * 3)


@pytest.mark.filterwarnings("error")
def test_a_broken_step_is_left_out_of_the_epoch() -> None:
    epoch = EpochGradient()
    assert epoch.add([np.array([3.0, 4.0]), None], 8)
    assert not epoch.add([np.array([math.inf, -math.inf]), 1.0], 8)
    assert epoch.add([None, np.array([10.0])], 8)
    assert epoch.norms() == pytest.approx([2.5, 5.0])
    assert (epoch.samples, epoch.skipped) == (16, 1)
    with pytest.raises(ValueError, match="batch"):
        epoch.add([None, None], 0)


def test_an_accumulated_gradient_is_its_own() -> None:
    epoch, gradient = EpochGradient(), np.array([3.0, 4.0])
    epoch.add(gradient, 1)
    gradient[:] = 0
    assert epoch.norm() == pytest.approx(5.0)
