"""Occupancy, held against a naive model that keeps a list of tenants for every GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.cluster import Cluster
from fairway.core.errors import EngineError
from fairway.core.occupancy import Occupancy, lowest_bit
from fairway.testing import cluster
from fairway.testing.strategies import clusters


class Naive:
    """Who sits on each GPU, as a plain list."""

    def __init__(self, where: Cluster) -> None:
        self.where = where
        self.tenants = [0] * where.gpu_count
        self.down: set[int] = set()

    def free(self, gpu: int) -> bool:
        return self.tenants[gpu] == 0 and self.where.node_of_gpu[gpu] not in self.down

    def agrees(self, occupancy: Occupancy) -> None:
        where = self.where
        for gpu in range(where.gpu_count):
            up = where.node_of_gpu[gpu] not in self.down
            assert occupancy.tenants(gpu) == (self.tenants[gpu] if up else 0)
        for kind in range(len(where.types)):
            gpus = [g for g in range(where.gpu_count) if where.node_type[where.node_of_gpu[g]] == kind]
            assert occupancy.free_by_type[kind] == sum(self.free(gpu) for gpu in gpus)
        for node in range(len(where.nodes)):
            count = sum(self.free(g) for g in range(where.gpu_count) if where.node_of_gpu[g] == node)
            rows = occupancy.by_free[where.node_type[node]]
            assert [free for free, mask in enumerate(rows) if mask >> node & 1] == [count]
            assert occupancy.free_mask[node].bit_count() == count


@given(where=clusters(), data=st.data())
def test_occupancy_agrees_with_a_naive_model(where: Cluster, data: st.DataObject) -> None:
    occupancy, naive, held = Occupancy(where), Naive(where), list[tuple[int, ...]]()
    for _ in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["take", "share", "give", "lose", "restore", "copy"]))
        free = [gpu for gpu in range(where.gpu_count) if naive.free(gpu)]
        if what == "take" and free:
            gang = tuple(data.draw(st.lists(st.sampled_from(free), min_size=1, unique=True)))
            occupancy.take(gang)
            held.append(gang)
        elif what == "share" and held:
            gang = data.draw(st.sampled_from(held))
            occupancy.take(gang)
            held.append(gang)
        elif what == "give" and held:
            occupancy.give(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif what == "lose":
            node = data.draw(st.integers(0, len(where.nodes) - 1))
            occupancy.lose(node)
            naive.down.add(node)
            for gang in [g for g in held if any(where.node_of_gpu[gpu] == node for gpu in g)]:
                held.remove(gang)
                occupancy.give(gang)
        elif what == "restore" and naive.down:
            node = data.draw(st.sampled_from(sorted(naive.down)))
            occupancy.restore(node)
            naive.down.discard(node)
        elif what == "copy":
            old, occupancy = occupancy, occupancy.copy()
            if free:
                old.take((free[0],))
        naive.tenants = [sum(gpu in gang for gang in held) for gpu in range(where.gpu_count)]
        naive.agrees(occupancy)


def test_giving_back_what_is_free_is_refused() -> None:
    occupancy = Occupancy(cluster("v100:2x4"))
    occupancy.take((0, 1))
    with pytest.raises(EngineError, match="given back twice"):
        occupancy.give((2,))


def test_a_gang_may_come_in_any_order_and_over_nodes() -> None:
    occupancy = Occupancy(cluster("v100:2x4"))
    occupancy.take((7, 0, 5, 1))
    assert occupancy.free_mask == [0b1100, 0b0101]
    occupancy.give((0, 1, 5, 7))
    assert occupancy.free_by_type == [8]


@pytest.mark.parametrize(("mask", "bit"), [(1, 0), (0b1000, 3), (0b1010, 1), (1 << 4000, 4000)])
def test_the_lowest_bit(mask: int, bit: int) -> None:
    assert lowest_bit(mask) == bit
