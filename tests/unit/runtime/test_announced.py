"""What a live job announces of its batch sizes becomes what policies may know of it."""

from __future__ import annotations

import pytest

from fairway.core.event import RegimeEntered
from fairway.runtime.jobs.estimates import announced
from fairway.runtime.jobs.records import Progress
from fairway.runtime.journal.entries import from_plain, to_plain
from fairway.testing import job, state_of


def test_announced_batch_sizes_are_stages_with_the_speeds_that_were_seen() -> None:
    progress = Progress(batch_size=32, batch_sizes=[32, 64], epochs=10)
    first = announced(progress, None, 0.01, (1.0, 0.5))
    assert first.epochs == 10
    assert [stage.batch_size for stage in first.stages] == [32, 64]
    assert first.stages[0].speeds == pytest.approx((0.1, 0.05))
    assert first.stages[1].speeds == first.stages[0].speeds
    progress.batch_size = 64
    second = announced(progress, None, 0.02, (1.0, 0.5))
    assert second.stages[0].speeds == pytest.approx((0.1, 0.05))
    assert second.stages[1].speeds == pytest.approx((0.2, 0.1))


def test_the_state_takes_a_new_prospect_and_the_journal_keeps_it() -> None:
    state = state_of([job("a", 1, 100.0)], "v100:1")
    progress = Progress(batch_size=32, batch_sizes=[32, 64], epochs=10)
    prospect = announced(progress, None, 0.01, (1.0,))
    event = RegimeEntered(1.0, 0, 5.0, 1.0, 32, (1.0,), 100.0, 0.0, work=100.0, prospect=prospect)
    assert to_plain(from_plain(*to_plain(event))) == to_plain(event)
    state.apply(event)
    training = state.snapshot(frozenset({"regimes"})).training(0)
    assert training is not None
    assert training.epochs == 10
    assert [stage.batch_size for stage in training.stages] == [32, 64]
