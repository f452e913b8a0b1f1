"""Freest placement: the emptiest nodes first, and the GPUs in the order in which nodes were taken."""

from __future__ import annotations

from fairway.core.occupancy import Occupancy
from fairway.placement import Freest, placement
from fairway.testing import cluster


def test_a_gang_takes_all_it_can_from_the_emptiest_node_first() -> None:
    occupancy = Occupancy(cluster("aws:3x4"))
    occupancy.take((0, 1, 4))
    # Free: two on node 0, three on node 1, four on node 2.
    assert Freest().place(occupancy, 8, 0) == (8, 9, 10, 11, 5, 6, 7, 2)
    assert Freest().place(occupancy, 1, 0) == (8,)
    assert Freest().place(occupancy, 10, 0) is None


def test_equally_empty_nodes_are_taken_by_number() -> None:
    assert Freest().place(Occupancy(cluster("aws:3x2")), 3, 0) == (0, 1, 2)


def test_it_goes_by_its_name() -> None:
    assert isinstance(placement("freest"), Freest)
