"""Tables of speedups: the same as one by one, and jobs without a model."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.batch import limits_of
from fairway.models.goodput import speedups
from fairway.models.speedup_table import speedup_table
from fairway.models.step_time import StepModel

MODELS = [
    StepModel(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14),
    None,
    StepModel(0.05, 0.002, 0.1, 0.01, 0.02, 0.001, 2.5),
]
LIMITS = [limits_of(128, 1280, 16, 256, True), limits_of(64), limits_of(32, 4096, 8, 64, True)]
NOISE = np.array([300.0, 10.0, 5000.0])


@pytest.mark.parametrize("share", [1, 3])
def test_a_table_has_the_speedups_of_each_job(share: int) -> None:
    most = np.array([16, 8, 12])
    table = speedup_table(MODELS, NOISE, LIMITS, most, 4, share)
    assert table.shape == (3, 2, 17)
    for job in (0, 2):
        model = MODELS[job]
        assert model is not None
        inside, across = np.arange(5), np.arange(2, most[job] + 1)
        expected = speedups(model, float(NOISE[job]), LIMITS[job], 1, inside, share)
        assert table[job, 0, :5].tolist() == expected.tolist()
        expected = speedups(model, float(NOISE[job]), LIMITS[job], 2, across, share)
        assert table[job, 1, 2 : most[job] + 1].tolist() == expected.tolist()
        assert not table[job, 0, 5:].any()
        assert not table[job, 1, :2].any()
    assert not table[2, :, 13:].any()


def test_a_job_that_never_ran_is_as_fast_as_it_has_replicas() -> None:
    table = speedup_table(MODELS, NOISE, LIMITS, np.array([4, 3, 4]), 2, 2)
    assert table[1].tolist() == [[0, 1, 2, 3, 0], [0, 0, 2, 3, 0]]
    assert speedup_table([None], NOISE[:1], LIMITS[:1], np.array([1]), 4).tolist() == [[[0, 1], [0, 0]]]


def test_a_fair_share_that_a_job_cannot_use_counts_as_one_replica() -> None:
    limits = [limits_of(128, 256, 64)]
    table = speedup_table(MODELS[:1], NOISE[:1], limits, np.array([4]), 4, 8)
    assert table[0, 0, 1] == 1.0
    assert table[0, 0, 4] > 1.0
