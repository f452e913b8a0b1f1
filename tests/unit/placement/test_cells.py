"""Buddy cells: what splits, what merges, what is chosen, and that reservations that fit are never refused."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.cluster import Cluster
from fairway.placement.cells import BLOCKED, UNUSABLE, Cells, Cost
from fairway.placement.hierarchy import Layout, chains_of, sizes_of
from fairway.testing import cluster
from fairway.testing.pace import loops

NODE, SOCKET, PAIR, GPU = range(4)


def cells_of(spec: str) -> Cells:
    return Cells(Layout(cluster(spec)))


@pytest.mark.parametrize(
    ("gpus", "sizes"),
    [(8, (8, 4, 2, 1)), (6, (6, 3, 1)), (5, (5, 1)), (1, (1,)), (12, (12, 6, 3, 1)), (3, (3, 1)), (2, (2, 1))],
)
def test_a_node_splits_into_halves_while_it_is_even_and_then_into_gpus(gpus: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of(gpus) == sizes


def test_a_small_node_is_as_good_as_half_a_large_one_of_its_type() -> None:
    chains = chains_of(cluster("v100:1x4,k80:1x4,v100:1x8,v100:1x6"))
    assert [(chain.kind, chain.sizes, chain.nodes) for chain in chains] == [
        (0, (8, 4, 2, 1), (0, 2)),
        (0, (6, 3, 1), (3,)),
        (1, (4, 2, 1), (1,)),
    ]


def test_the_worked_example_splits_grants_and_merges() -> None:
    """One node of 8 GPUs; tenants A and B have reserved a socket each."""
    cells = cells_of("v100:1x8")
    first = cells.take(0, SOCKET)
    assert first == 0
    assert cells.plain() == [[[], [4], [], []]]
    second = cells.take(0, SOCKET)
    assert second == 4
    assert cells.take(0, GPU) is None
    cells.give(0, SOCKET, first)
    assert cells.plain() == [[[], [0], [], []]]
    cells.give(0, SOCKET, second)
    assert cells.plain() == [[[0], [], [], []]]


def test_a_larger_cell_is_cut_only_where_none_of_the_size_is_left() -> None:
    cells = cells_of("v100:2x8")
    assert [cells.take(0, GPU) for _ in range(3)] == [0, 1, 2]
    assert cells.plain() == [[[8], [4], [], [3]]]
    assert cells.take(0, PAIR) == 4
    assert cells.take(0, NODE) == 8


def test_cells_of_three_gpus_merge_when_all_three_are_back() -> None:
    cells = cells_of("v100:1x6")
    taken = [cells.take(0, 2) for _ in range(3)]
    assert taken == [0, 1, 2]
    for start in (1, 0):
        cells.give(0, 2, start)
    assert cells.plain() == [[[], [3], [0, 1]]]
    cells.give(0, 2, 2)
    assert cells.plain() == [[[0], [], []]]


def test_nodes_that_do_not_start_at_a_multiple_of_their_size_merge_too() -> None:
    cells = cells_of("v100:1x6,k80:1x8")
    assert [cells.take(1, SOCKET), cells.take(1, PAIR)] == [6, 10]
    cells.give(1, SOCKET, 6)
    cells.give(1, PAIR, 10)
    assert cells.plain() == Cells(cells.layout).plain()


def test_a_small_node_does_not_merge_with_its_neighbour() -> None:
    cells = cells_of("v100:1x8,v100:2x4")
    assert [cells.take(0, SOCKET), cells.take(0, SOCKET)] == [8, 12]
    cells.give(0, SOCKET, 8)
    cells.give(0, SOCKET, 12)
    assert cells.plain() == [[[0], [8, 12], [], []]]


def test_the_cell_that_costs_least_is_taken_and_then_the_first() -> None:
    busy = {0, 1, 2, 8}

    def cost(start: int, size: int) -> int:
        return len(busy & set(range(start, start + size)))

    assert cells_of("v100:2x8").take(0, NODE, cost) == 8
    assert cells_of("v100:2x8").take(0, SOCKET, cost) == 4
    assert cells_of("v100:2x8").take(0, GPU, cost) == 3
    assert cells_of("v100:2x8").take(0, GPU) == 0


def test_a_cell_goes_back_home_if_that_costs_nothing() -> None:
    assert cells_of("v100:3x8").take(0, SOCKET, home=12) == 12
    assert cells_of("v100:3x8").take(0, NODE, lambda start, _: int(start == 8), home=8) == 0
    cells = cells_of("v100:2x4,v100:1x8")
    assert cells.take(0, NODE, home=4) == 8


def test_broken_cells_are_passed_over_and_blocked_ones_are_waited_for() -> None:
    def broken(start: int, size: int) -> int:
        return UNUSABLE if start < 8 else 0

    def blocked(start: int, size: int) -> int:
        return BLOCKED if start < 8 else 0

    cells = cells_of("v100:2x8")
    assert cells.take(0, SOCKET) == 0
    assert cells.copy().take(0, SOCKET, broken) == 8
    before = [[list(starts) for starts in chain] for chain in cells.plain()]
    assert cells.take(0, SOCKET, blocked) is None
    assert cells.plain() == before
    assert cells.take(0, SOCKET, lambda start, size: UNUSABLE) is None


def squatted(*gpus: int) -> Cost:
    """Somebody would lose these GPUs."""
    return lambda start, size: sum(start <= gpu < start + size for gpu in gpus)


def with_unused(spec: str, *unused: int) -> Cells:
    """Two nodes of which GPU 0 is taken, and so many reservations of each level that are not in use."""
    cells = Cells(Layout(cluster(spec)), unused=[[*unused[:3], unused[3] + 1]])
    assert cells.take(0, GPU) == 0
    return cells


def test_a_larger_cell_is_cut_where_a_small_one_would_disturb_somebody_and_nobody_needs_it() -> None:
    assert with_unused("v100:2x8", 0, 0, 0, 1).take(0, GPU, squatted(1)) == 2
    assert with_unused("v100:2x8", 0, 0, 1, 1).take(0, GPU, squatted(1)) == 2, "a pair is left in the other half"
    assert with_unused("v100:2x8", 1, 1, 0, 1).take(0, GPU, squatted(1, 4)) == 2
    assert with_unused("v100:2x8", 0, 0, 0, 1).take(0, GPU, squatted(*range(8))) == 8
    assert with_unused("v100:2x8", 0, 0, 0, 1).take(0, GPU, squatted(*range(16))) == 1, "all cost the same"
    assert with_unused("v100:2x8", 0, 0, 0, 1).take(0, GPU, lambda start, size: BLOCKED * (start < 2)) == 2


def test_a_larger_cell_that_a_reservation_needs_is_not_cut() -> None:
    assert with_unused("v100:2x8", 1, 1, 1, 1).take(0, GPU, squatted(1)) == 1
    assert with_unused("v100:2x8", 1, 0, 3, 1).take(0, GPU, squatted(1)) == 1
    assert with_unused("v100:2x8", 1, 0, 0, 1).take(0, GPU, squatted(*range(8))) == 1, "the other node is reserved"
    assert with_unused("v100:2x8", 1, 1, 1, 1).take(0, GPU, lambda start, size: BLOCKED * (start < 2)) is None

    def broken(start: int, size: int) -> int:
        return UNUSABLE if start >= 8 else squatted(1)(start, size)

    assert with_unused("v100:2x8", 0, 1, 1, 1).take(0, GPU, broken) == 1, "what is broken is not to spare"
    cells = with_unused("v100:2x8", 1, 1, 1, 1)
    cells.give(0, GPU, 0)
    assert cells.take(0, GPU, squatted(0)) == 1
    cells.give(0, GPU, 1)
    assert cells.take(0, NODE) == 0
    assert cells.take(0, GPU, squatted(*range(12))) == 12, "the reserved node is in use; its cell is the other's"


def test_free_cells_survive_a_trip_through_plain_values_and_copies_are_their_own() -> None:
    cells = cells_of("v100:2x8")
    cells.take(0, PAIR)
    again = Cells(cells.layout, cells.plain())
    again.take(0, PAIR)
    assert cells.plain() == [[[8], [4], [2], []]]
    assert again.plain() == [[[8], [4], [], []]]
    assert (cells.count(0), again.count(0)) == (14, 12)


def random_reservation(random: np.random.Generator, layout: Layout) -> list[tuple[int, int]]:
    """Cells (chain, level) that fit into the empty cluster together, up to all of it."""
    cells, reserved = Cells(layout), []
    for _ in range(int(random.integers(1, 40))):
        chain = int(random.integers(len(layout.chains)))
        level = int(random.integers(len(layout.chains[chain].sizes)))
        if cells.take(chain, level) is not None:
            reserved.append((chain, level))
    return reserved


def counts(layout: Layout, reserved: list[tuple[int, int]]) -> list[list[int]]:
    """How many of each chain and level."""
    return [[reserved.count((n, level)) for level in range(len(c.sizes))] for n, c in enumerate(layout.chains)]


def refusals(machines: Cluster, seed: int, steps: int, make: type[Cells] = Cells, *, relaxed: bool = False) -> int:
    """Take and give back reserved cells at random, choosing by costs that mean nothing; how many were refused.

    `relaxed`: larger cells may be cut for a cheaper one where the reservations that are not in use do without."""
    random, layout = np.random.default_rng(seed), Layout(machines)
    idle = random_reservation(random, layout)
    cells = make(layout, unused=counts(layout, idle) if relaxed else None)
    taken, owner = list[tuple[int, int, int]](), [False] * machines.gpu_count
    refused = 0
    choices, factors = random.random(steps).tolist(), random.integers(1, 1000, steps).tolist()
    for choice, factor in zip(choices, factors, strict=True):
        if idle and (not taken or choice < 0.5):
            chain, level = idle.pop(int(choice * 2 * len(idle)) % len(idle))
            cost: Cost = lambda start, size, f=factor: start * f % 7  # type: ignore[misc]  # noqa: E731
            start = cells.take(chain, level, cost)
            if start is None:
                refused += 1
                idle.append((chain, level))
                continue
            mine = range(start, start + layout.chains[chain].sizes[level])
            assert not any(owner[gpu] for gpu in mine)
            taken.append((chain, level, start))
        elif taken:
            chain, level, start = taken.pop(int(choice * len(taken)))
            mine = range(start, start + layout.chains[chain].sizes[level])
            cells.give(chain, level, start)
            idle.append((chain, level))
        else:
            continue
        for gpu in mine:
            owner[gpu] = not owner[gpu]
    for chain, level, start in taken:
        cells.give(chain, level, start)
    assert cells.plain() == Cells(layout).plain()
    return refused


@pytest.mark.parametrize("relaxed", [False, True])
def test_no_reservation_that_fits_is_ever_refused(relaxed: bool) -> None:
    """HiveD's safety: 300 random feasible reservations, 2,000 steps each, on 4 nodes of 8 GPUs."""
    machines = cluster("v100:4x8")
    assert sum(refusals(machines, seed, 2000, relaxed=relaxed) for seed in range(300)) == 0


@pytest.mark.parametrize("spec", ["v100:2x6", "v100:3x4,v100:2x8,v100:1x2", "v100:2x12,k80:3x5,v100:1x8", "v100:1x64"])
@pytest.mark.parametrize("relaxed", [False, True])
def test_no_reservation_is_refused_on_other_hierarchies(spec: str, relaxed: bool) -> None:
    machines = cluster(spec)
    assert sum(refusals(machines, seed, 500, relaxed=relaxed) for seed in range(60)) == 0


class Careless(Cells):
    """Cuts the largest cell that is left, whatever smaller ones are free."""

    def take(self, chain: int, level: int, cost: Cost = lambda start, size: 0, home: int = -1) -> int | None:
        for above in range(level + 1):
            if self._free[chain][above]:
                start = self._free[chain][above][0]
                self._cut(chain, above, start, level, start)
                return start
        return None


class Forgetful(Cells):
    """Cuts any cell for a cheaper one, as if no reservation needed it."""

    def __init__(self, layout: Layout, free: None = None, unused: list[list[int]] | None = None) -> None:
        super().__init__(layout, free, [[-(10**6)] * len(chain.sizes) for chain in layout.chains])


@pytest.mark.parametrize("make", [Careless, Forgetful])
def test_the_property_can_fail(make: type[Cells]) -> None:
    machines = cluster("v100:4x8")
    assert sum(refusals(machines, seed, 500, make) for seed in range(20)) > 0


def test_taking_a_cell_among_65536_gpus_is_a_matter_of_milliseconds() -> None:
    cells = cells_of("v100:8192x8")
    starts = [cells.take(0, SOCKET) for _ in range(1000)]

    def take_a_hundred() -> None:
        copy = Cells(cells.layout, cells.plain())
        for start in starts[:100]:
            assert start is not None
            copy.give(0, SOCKET, start)
        for _ in range(100):
            copy.take(0, GPU)

    assert loops(take_a_hundred, tries=2) / 100 < 1
