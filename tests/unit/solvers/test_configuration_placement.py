"""Nodes for configurations: every choice that fits by numbers finds a place, and few jobs move."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.arrays import Ints
from fairway.solvers.configuration_placement import placed

KIND = np.array([0] * 6 + [1] * 2 + [2] * 3)
SIZES = np.array([4] * 6 + [8] * 2 + [8] * 3)
OPEN = np.zeros(len(KIND), dtype=bool)


def drawn(random: np.random.Generator, jobs: int) -> tuple[Ints, Ints, Ints]:
    """Configurations of some jobs that fit by the number of GPUs of each type."""
    left, found = np.bincount(KIND, weights=SIZES).astype(np.int64), []
    for _ in range(jobs):
        kind = int(random.integers(3))
        size = int(SIZES[kind == KIND][0])
        nodes = 1 if random.random() < 0.8 else int(random.integers(2, (kind == KIND).sum() + 1))
        gpus = int(2 ** random.integers(size.bit_length())) if nodes == 1 else nodes * size
        gpus = gpus if gpus <= left[kind] else 0
        left[kind] -= gpus
        found.append((kind, nodes if gpus else 0, gpus))
    kinds, nodes_, gpus_ = np.array(found, dtype=np.int64).T
    return kinds, nodes_, gpus_


def check(rows: Ints, kind: Ints, nodes: Ints, gpus: Ints) -> None:
    assert (rows.sum(axis=0) <= SIZES).all()
    assert (rows.sum(axis=1) == gpus).all()
    assert ((rows > 0).sum(axis=1) == nodes).all()
    for job in gpus.nonzero()[0]:
        assert set(KIND[rows[job] > 0]) == {kind[job]}


@pytest.mark.parametrize("seed", range(40))
def test_all_that_fits_by_numbers_finds_a_place_round_after_round(seed: int) -> None:
    random = np.random.default_rng(seed)
    held = np.zeros((20, len(KIND)), dtype=np.int64)
    for _ in range(4):
        kind, nodes, gpus = drawn(random, 20)
        held = placed(kind, nodes, gpus, held, KIND, SIZES, OPEN)
        check(held, kind, nodes, gpus)


def test_jobs_that_keep_their_configuration_stay_where_they_are() -> None:
    kind, nodes, gpus = drawn(np.random.default_rng(1), 20)
    first = placed(kind, nodes, gpus, np.zeros((20, len(KIND)), dtype=np.int64), KIND, SIZES, OPEN)
    order = np.random.default_rng(2).permutation(np.arange(len(KIND))[KIND == 0])
    first[:, KIND == 0] = first[:, order]
    assert (placed(kind, nodes, gpus, first, KIND, SIZES, OPEN) == first).all()


def test_a_large_job_pushes_as_few_small_ones_aside_as_it_must() -> None:
    """Three nodes of 4 have 1 + 1, 2 and 1 GPUs in use: 4 more find room only if something moves."""
    sizes, here = np.array([4, 4, 4]), np.zeros(3, dtype=np.int64)
    held = np.array([[1, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 0]])
    gpus = np.array([1, 1, 2, 1, 4])
    rows = placed(np.zeros(5, dtype=np.int64), np.ones(5, dtype=np.int64), gpus, held, here, sizes, here > 0)
    assert (rows.sum(axis=0) <= sizes).all()
    assert rows.sum(axis=1).tolist() == gpus.tolist()
    assert (rows[:4] != held[:4]).any(axis=1).sum() == 1
    assert rows[4].tolist() == [0, 0, 4]


def test_gangs_of_odd_sizes_share_no_node_with_other_distributed_jobs() -> None:
    sizes, here = np.array([4, 4, 4]), np.zeros(3, dtype=np.int64)
    none = np.zeros((2, 3), dtype=np.int64)
    rows = placed(np.zeros(2, dtype=np.int64), np.array([2, 2]), np.array([6, 5]), none, here, sizes, here > 0)
    assert rows[0].sum() == 6
    assert rows[1].sum() == 0
    closed = np.array([True, False, False])
    rows = placed(np.zeros(1, dtype=np.int64), np.array([2]), np.array([6]), none[:1], here, sizes, closed)
    assert rows[0].tolist() in ([0, 4, 2], [0, 2, 4])


def test_what_does_not_fit_on_a_node_finds_no_place() -> None:
    sizes, here = np.array([3, 3]), np.zeros(2, dtype=np.int64)
    none = np.zeros((1, 2), dtype=np.int64)
    rows = placed(np.zeros(1, dtype=np.int64), np.array([1]), np.array([4]), none, here, sizes, here > 0)
    assert not rows.any()
