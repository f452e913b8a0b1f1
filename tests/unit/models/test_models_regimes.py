from __future__ import annotations

import pytest

from fairway.core.job import JobSpec, Regime
from fairway.models.regimes import regime_at
from fairway.models.restart import restart_cost_s

THIRDS = (Regime(1 / 3, 32, 1.0), Regime(2 / 3, 64, 2.0), Regime(1.0, 128, 4.0))


def test_a_job_without_regimes_has_a_single_one() -> None:
    assert regime_at((), 0.4) == Regime(1.0)


@pytest.mark.parametrize(
    ("progress", "batch"), [(0.0, 32), (0.33, 32), (1 / 3, 64), (1 / 3 - 1e-16, 64), (2 / 3, 128), (1.0, 128)]
)
def test_a_regime_ends_where_the_next_one_begins(progress: float, batch: int) -> None:
    assert regime_at(THIRDS, progress).batch_size == batch


def test_a_restart_costs_what_the_job_says_or_else_the_default() -> None:
    assert restart_cost_s(JobSpec("a", 0.0, duration_s=1.0), 20.0) == 20.0
    assert restart_cost_s(JobSpec("a", 0.0, duration_s=1.0, checkpoint_s=0.0), 20.0) == 0.0
    assert restart_cost_s(JobSpec("a", 0.0, duration_s=1.0, checkpoint_s=45.0), 20.0) == 45.0
