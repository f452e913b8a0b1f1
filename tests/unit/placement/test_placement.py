"""Placement: packed keeps gangs together, spread pulls them apart, count does not care; none invents GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.occupancy import Occupancy
from fairway.placement import PLACEMENTS, placement
from fairway.testing import cluster
from fairway.testing.strategies import clusters


def _nodes(occupancy: Occupancy, gpus: tuple[int, ...]) -> list[int]:
    return sorted({occupancy.node_of_gpu[gpu] for gpu in gpus})


def _busy(spec: str, taken: tuple[int, ...]) -> Occupancy:
    occupancy = Occupancy(cluster(spec))
    if taken:
        occupancy.take(taken)
    return occupancy


@st.composite
def occupancies(draw: st.DrawFn) -> Occupancy:
    """A cluster with some GPUs taken and perhaps a node down."""
    where: Cluster = draw(clusters())
    occupancy = Occupancy(where)
    taken = draw(st.lists(st.integers(0, where.gpu_count - 1), unique=True))
    if taken:
        occupancy.take(tuple(taken))
    if draw(st.booleans()):
        occupancy.lose(draw(st.integers(0, len(where.nodes) - 1)))
    return occupancy


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
@given(occupancy=occupancies(), data=st.data())
def test_a_gang_gets_free_gpus_of_its_type_whenever_there_are_enough(
    name: str, occupancy: Occupancy, data: st.DataObject
) -> None:
    kind = data.draw(st.integers(0, len(occupancy.cluster.types) - 1))
    want = data.draw(st.integers(1, int(occupancy.cluster.gpus_by_type[kind])))
    before = (list(occupancy.free_mask), [list(row) for row in occupancy.by_free], list(occupancy.free_by_type))
    gpus = placement(name).place(occupancy, want, kind)
    assert before == (occupancy.free_mask, occupancy.by_free, occupancy.free_by_type)
    if occupancy.free_by_type[kind] < want:
        assert gpus is None
        return
    assert gpus is not None
    assert len(gpus) == len(set(gpus)) == want
    for gpu in gpus:
        node = occupancy.node_of_gpu[gpu]
        assert occupancy.free_mask[node] >> (gpu - occupancy.cluster.first_gpu[node]) & 1
        assert occupancy.cluster.node_type[node] == kind


@given(occupancy=occupancies(), data=st.data())
def test_packed_never_spreads_what_one_node_can_hold(occupancy: Occupancy, data: st.DataObject) -> None:
    kind = data.draw(st.integers(0, len(occupancy.cluster.types) - 1))
    want = data.draw(st.integers(1, 8))
    free = [
        occupancy.free_mask[node].bit_count()
        for node in range(len(occupancy.cluster.nodes))
        if occupancy.cluster.node_type[node] == kind
    ]
    gpus = placement("packed").place(occupancy, want, kind)
    if gpus is None:
        assert sum(free) < want
        return
    nodes = _nodes(occupancy, gpus)
    fewest = next(n for n in range(1, len(free) + 1) if sum(sorted(free, reverse=True)[:n]) >= want)
    assert len(nodes) == fewest
    if len(nodes) == 1:
        assert occupancy.free_mask[nodes[0]].bit_count() == min(count for count in free if count >= want)


@given(occupancy=occupancies(), data=st.data())
def test_spread_uses_as_many_nodes_as_there_are(occupancy: Occupancy, data: st.DataObject) -> None:
    want = data.draw(st.integers(1, 8))
    gpus = placement("spread").place(occupancy, want, 0)
    if gpus is None:
        return
    here = [n for n, kind in enumerate(occupancy.cluster.node_type) if kind == 0 and occupancy.free_mask[n]]
    counts = [sum(occupancy.node_of_gpu[gpu] == node for gpu in gpus) for node in here]
    left = [occupancy.free_mask[node].bit_count() - count for node, count in zip(here, counts, strict=True)]
    # Most-free-first levels what is left: no node gives one away while another would keep two more.
    assert all(low >= max(left) - 1 for low, count in zip(left, counts, strict=True) if count)


def test_packed_takes_the_fullest_node_that_has_room() -> None:
    occupancy = _busy("v100:3x4", (0, 4, 5))
    assert placement("packed").place(occupancy, 2, 0) == (6, 7)
    assert placement("packed").place(occupancy, 3, 0) == (1, 2, 3)
    assert placement("packed").place(occupancy, 4, 0) == (8, 9, 10, 11)


def test_packed_puts_the_rest_of_a_large_gang_where_it_leaves_least() -> None:
    occupancy = _busy("v100:3x4", (4, 5))
    assert placement("packed").place(occupancy, 6, 0) == (0, 1, 2, 3, 6, 7)


def test_spread_takes_one_from_each() -> None:
    occupancy = _busy("v100:3x4", ())
    assert _nodes(occupancy, placement("spread").place(occupancy, 3, 0) or ()) == [0, 1, 2]


def test_count_takes_the_first_by_number() -> None:
    assert placement("count").place(_busy("v100:3x4", (0, 2)), 4, 0) == (1, 3, 4, 5)


def test_only_count_says_that_places_mean_nothing() -> None:
    assert [name for name in PLACEMENTS if not placement(name).located] == ["count"]


def test_an_unknown_placement_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="known: packed, spread, count"):
        placement("tetris")
