"""Configurations of a mixed cluster, and goodput in each, with types on which a job has not run yet."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.arrays import Floats
from fairway.models.configurations import Configurations, configurations, goodputs
from fairway.models.goodput import best_splits
from fairway.models.step_time import StepModel

SLOW = StepModel(0.1, 0.01, 0.3, 0.01, 0.05, 0.002, 1.5)
FAST = StepModel(0.05, 0.002, 0.1, 0.004, 0.02, 0.001, 1.5)
LIMITS = (32.0, 2048.0, 8.0, 64.0, 1.0)


def cluster() -> Configurations:
    return configurations(np.array([0] * 6 + [1] * 2 + [2] * 3), np.array([4] * 6 + [8] * 2 + [8] * 3))


def listed(found: Configurations) -> list[tuple[int, int, int]]:
    return [(int(kind), int(nodes), int(gpus)) for kind, nodes, gpus, _ in zip(*found, strict=True)]


def test_powers_of_two_on_a_node_and_whole_nodes() -> None:
    found = cluster()
    assert len(found.kind) == 3 + 5 + 4 + 1 + 4 + 2
    assert found.regular.all()
    mine = [(nodes, gpus) for kind, nodes, gpus in listed(found) if kind == 0]
    assert mine == [(1, 1), (1, 2), (1, 4), (2, 8), (3, 12), (4, 16), (5, 20), (6, 24)]


def test_nodes_of_odd_or_different_sizes_and_full_nodes() -> None:
    found = configurations(np.array([0, 0, 0, 1]), np.array([6, 6, 3, 0]))
    assert listed(found) == [(0, 1, 1), (0, 1, 2), (0, 1, 4), (0, 1, 6), (0, 2, 12)]
    assert not len(configurations(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).kind)


def test_a_large_cluster_has_few_configurations() -> None:
    found = configurations(np.zeros(150, dtype=np.int64), np.full(150, 8))
    assert sorted(set(found.nodes.tolist())) == [*range(1, 17), 32, 64, 128]
    assert (found.gpus[found.nodes > 1] == 8 * found.nodes[found.nodes > 1]).all()


def test_gangs_of_any_size_are_added_where_they_fit() -> None:
    found = configurations(np.array([0, 0, 1]), np.array([4, 4, 8]), [3, 6, 4, 9])
    odd = [each for each, regular in zip(listed(found), found.regular.tolist(), strict=True) if not regular]
    assert odd == [(0, 1, 3), (0, 2, 6), (1, 1, 3), (1, 1, 6)]


def test_configurations_are_found_again() -> None:
    found = cluster()
    same = found.find(found.kind, found.nodes, found.gpus)
    assert same.tolist() == list(range(len(found.kind)))
    assert found.find(np.array([0, 1]), np.array([2, 1]), np.array([2, 16])).tolist() == [-1, -1]


def table(models: list[StepModel | None], speeds: list[float], seen: list[int], asked: object = True) -> Floats:
    where = cluster()
    rows = np.array([[np.full(7, np.nan) if model is None else np.array(model) for model in models]])
    limits = np.broadcast_to(np.array(LIMITS), (1, 3, 5))
    wanted = np.broadcast_to(np.asarray(asked), (1, len(where.kind)))
    return goodputs(rows, limits, np.array([500.0]), np.array([speeds]), np.array([seen]), where, wanted)[0]


def test_goodput_is_that_of_the_own_model_of_each_type() -> None:
    where, found = cluster(), table([SLOW, FAST, SLOW], [1.0, 3.0, 1.0], [1, 1, 1])
    for kind, model in enumerate((SLOW, FAST, SLOW)):
        mine = where.kind == kind
        best = best_splits(model, 500.0, LIMITS, where.nodes[mine], where.gpus[mine], clamped=False)
        assert found[mine] == pytest.approx(best.goodput)


def test_unknown_types_are_projected_from_the_type_that_is_known_best() -> None:
    where = cluster()
    found = table([SLOW, FAST, None], [1.0, 3.0, 2.0], [4, 2, 0])
    for column in (where.kind == 2).nonzero()[0]:
        shape = int(where.nodes[column]), int(where.gpus[column])
        best = best_splits(SLOW, 500.0, LIMITS, *shape, clamped=False).goodput
        assert found[column] == pytest.approx(2.0 * best)


def test_a_job_cannot_use_a_type_on_which_it_has_no_speed() -> None:
    where, found = cluster(), table([SLOW, FAST, None], [1.0, 0.0, 2.0], [1, 8, 0])
    assert not found[where.kind == 1].any()
    assert (found[where.kind == 2] > 0).all()


def test_without_any_model_nothing_is_known_and_only_what_is_asked_for_is_worked_out() -> None:
    assert not table([None, None, None], [1.0, 1.0, 1.0], [0, 0, 0]).any()
    asked = cluster().gpus == 1
    found = table([SLOW, FAST, SLOW], [1.0, 3.0, 1.0], [1, 1, 1], asked)
    assert (found[asked] > 0).all()
    assert not found[~asked].any()
