"""The sampler: global batches are the same whatever the number of processes, and no sample is left out or doubled."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.train import Position, Sampler

SHARDS = 4
WORLDS = (1, 2, 4)


@given(
    samples=st.integers(8, 200),
    multiple=st.integers(1, 4),
    epoch=st.integers(0, 3),
    world=st.sampled_from(WORLDS),
    seed=st.integers(0, 5),
)
def test_the_processes_share_a_batch_that_does_not_depend_on_them(
    samples: int, multiple: int, epoch: int, world: int, seed: int
) -> None:
    size = min(SHARDS * multiple, samples // SHARDS * SHARDS)
    alone = Sampler(samples, seed=seed, shards=SHARDS)
    ranks = [Sampler(samples, seed=seed, rank=rank, world_size=world, shards=SHARDS) for rank in range(world)]
    seen: list[int] = []
    for number in range(alone.batches(size)):
        where = Position(epoch, number)
        parts = [part for rank in ranks for part in rank.parts(where, size)]
        assert parts == alone.parts(where, size)
        assert [row for rank in ranks for row in rank.rows(where, size)] == alone.batch(where, size)
        seen += alone.batch(where, size)
    assert len(set(seen)) == len(seen) == alone.batches(size) * size
    assert set(seen) <= set(range(samples))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first = Sampler(100, seed=1)
    orders = [first.batch(Position(epoch, 0), 100) for epoch in range(3)] + [Sampler(100).batch(Position(0, 0), 100)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_the_order_is_that_of_all_versions() -> None:
    """A checkpoint of today is resumed by another Python tomorrow."""
    assert Sampler(10, seed=3).batch(Position(2, 0), 10) == [4, 1, 8, 5, 6, 7, 0, 2, 9, 3]


def test_a_training_goes_on_in_the_middle_of_an_epoch() -> None:
    whole = list(itertools.islice(Sampler(30, seed=2).rows_from(0, 8), 10))
    rest = list(itertools.islice(Sampler(30, seed=2).rows_from(4, 8), 6))
    assert rest == whole[4:]
    assert Sampler(30).at(4, 8) == (1, 1)


def test_randomness_within_a_step_has_a_seed_of_its_own() -> None:
    sampler = Sampler(8, seed=1)
    seeds = {sampler.seed_of(step, shard) for step in range(20) for shard in range(4)}
    assert len(seeds) == 80
    assert Sampler(99, seed=1, rank=1, world_size=2).seed_of(3, 1) == sampler.seed_of(3, 1)


@pytest.mark.parametrize(
    "about",
    [{"samples": 0}, {"rank": 2, "world_size": 2}, {"world_size": 2, "shards": 3}, {"shards": 0}, {"rank": -1}],
)
def test_what_cannot_be_shared_is_refused(about: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Sampler(**{"samples": 10, **about})


@pytest.mark.parametrize("size", [0, 3, 12])
def test_a_batch_that_has_no_equal_shards_or_too_many_samples_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        Sampler(10, shards=2).batches(size)
    with pytest.raises(ValueError, match="no batch"):
        Sampler(10, shards=2).batch(Position(0, 5), 2)
