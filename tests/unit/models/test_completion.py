"""Matrix completion finds the entries of a table of low rank, and is careful where little is known."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.models.completion import Completion, complete


def low_rank(rows: int = 20, columns: int = 30, rank: int = 2, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.random((rows, rank)) @ random.random((rank, columns))


def hidden(shape: tuple[int, ...], share: float, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) >= share


@pytest.mark.parametrize("offsets", [None, 1.0])
def test_a_table_of_low_rank_is_found_again_from_half_of_it(offsets: float | None) -> None:
    truth = low_rank()
    known = hidden(truth.shape, 0.5)
    found = complete(truth, known, Completion(rank=3, penalty=1e-2, turns=100, offsets=offsets))
    error = np.abs(found - truth)[~known].mean()
    assert error < np.abs(truth[known].mean() - truth)[~known].mean() / 8


def test_known_entries_come_back_as_they_are_and_unknown_ones_are_not_read() -> None:
    truth = low_rank()
    known = hidden(truth.shape, 0.5)
    holes = np.where(known, truth, np.nan)
    found = complete(holes, known)
    assert np.array_equal(found[known], truth[known])
    assert np.isfinite(found).all()
    assert np.array_equal(found, complete(np.where(known, truth, 7.0), known))


def test_the_same_seed_gives_the_same_table_and_another_seed_nearly_the_same() -> None:
    truth, known = low_rank(), hidden((20, 30), 0.2)
    first, again, other = (
        complete(truth, known, Completion(rank=2, penalty=1e-2, turns=200, offsets=None, seed=seed))
        for seed in (0, 0, 9)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.abs(first - other).max() < 0.01


def test_a_row_of_which_nothing_is_known_looks_like_the_mean_of_its_columns() -> None:
    truth = low_rank()
    known = np.ones(truth.shape, dtype=bool)
    known[-1] = False
    found = complete(truth, known)
    assert np.abs(found[-1] - truth[:-1].mean(axis=0)).max() < 0.1
    bare = complete(truth, known, Completion(offsets=None))
    assert np.abs(bare[-1]).max() < 1e-9  # why offsets are taken off first


def test_offsets_alone_explain_a_table_of_sums() -> None:
    truth = np.add.outer(np.arange(5.0), np.arange(7.0) * 10)
    known = hidden(truth.shape, 0.3)
    found = complete(truth, known, Completion(rank=0, offsets=1e-6))
    assert np.abs(found - truth).max() < 0.2


def test_one_measurement_moves_the_others_only_a_little() -> None:
    known = np.zeros((4, 4), dtype=bool)
    known[0, 0] = True
    found = complete(np.where(known, 1.0, 0.0), known, Completion(rank=2, offsets=3.0))
    assert found[0, 0] == 1.0
    assert 0 < np.abs(found[1:, 1:]).max() < 0.5


def test_nothing_known_gives_zeros_and_no_complaint() -> None:
    assert not complete(np.full((3, 2), np.nan), np.zeros((3, 2), dtype=bool)).any()
    assert complete(np.zeros((0, 3)), np.zeros((0, 3), dtype=bool)).shape == (0, 3)


@pytest.mark.parametrize("wrong", [{"rank": -1}, {"turns": -1}, {"penalty": 0.0}, {"offsets": 0.0}, {"spread": 0.0}])
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Completion(**wrong)  # type: ignore[arg-type]


def test_tables_of_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        complete(np.zeros((2, 3)), np.zeros((3, 2), dtype=bool))
