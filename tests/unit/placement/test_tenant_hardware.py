"""Virtual clusters on hardware that is not all there: blocked GPUs, racks, jobs whose state is on GPUs, other cells."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairway import InputError, make_policy
from fairway.core.check import check
from fairway.core.cluster import Cluster, Node
from fairway.core.decision import Decision
from fairway.core.event import JobEvicted
from fairway.core.plan import plan
from fairway.core.reconcile import reconcile
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.core.tenant import TenantSpec
from fairway.placement import placement
from fairway.placement.cells import Cells
from fairway.placement.hierarchy import Layout, chains_of
from fairway.placement.tenanted import Tenanted, kept_bindings
from fairway.placement.tenants import Tenants
from fairway.testing import Invariants, cluster, job, state_of
from fairway.testing.builders import submitted

A, B = TenantSpec.of("a", "4"), TenantSpec.of("b", "4")


def layer(machines: str | Cluster, *tenants: TenantSpec, policy: str = "fifo", **about: Any) -> Tenanted:
    here = cluster(machines) if isinstance(machines, str) else machines
    return Tenanted(make_policy(policy), Tenants(here, tenants), placement("packed"), in_rounds=True, **about)


def without(snapshot: Snapshot, blocked: Collection[int]) -> Snapshot:
    """The snapshot as the policy guard shows it while GPUs are blocked."""
    counts = snapshot.capacity.copy()
    for gpu in blocked:
        counts[snapshot.cluster.node_type[snapshot.cluster.node_of_gpu[gpu]]] -= 1
    return snapshot.part(capacity=counts, withheld=frozenset(blocked))


def enacted(state: State, policy: Tenanted, blocked: Collection[int] = ()) -> Decision:
    """One round while some GPUs are blocked."""
    view = without(state.snapshot(policy.knows), blocked)
    decision = policy.decide(view)
    check(view, decision)
    planned = plan(view, decision, state.occupancy, policy.placer)
    assert not planned.refused
    actions = reconcile(view, decision, planned)
    state.memory = decision.memory
    state.round += 1
    state.commit(actions, planned.occupancy)
    Invariants().check_state(state)
    return decision


def announce(state: State, number: int, gpus: int, **about: Any) -> None:
    state.apply(submitted(job(f"j{number}", gpus, **about), number, state.cluster, state.now_s))


class TestBlockedGpus:
    def test_a_cell_goes_where_all_of_its_gpus_are_sound(self) -> None:
        state = state_of([job("a", 4, queue="a")], "v100:1x8")
        enacted(state, layer("v100:1x8", A), blocked={2})
        assert state.held_gpus == {0: (4, 5, 6, 7)}

    def test_a_tenant_that_has_to_take_a_cell_with_a_blocked_gpu_uses_the_others(self) -> None:
        jobs = [job("a", 4, queue="a"), *(job(f"b{n}", 1, queue="b") for n in range(4))]
        state = state_of(jobs, "v100:1x8")
        decision = enacted(state, layer("v100:1x8", A, B), blocked={2})
        assert state.held_gpus == {0: (4, 5, 6, 7), 1: (0,), 2: (1,), 3: (3,)}
        told = decision.reason(state.snapshot(), 4)
        assert told == "tenant b has 3 of its 4 GPUs in use, 1 out of order: needs 1 GPU, 0 free"

    def test_a_gpu_that_is_blocked_in_a_cell_in_use_is_not_given_out(self) -> None:
        policy = layer("v100:1x8", A, B)
        state = state_of([job("a", 1, queue="a")], "v100:1x8")
        enacted(state, policy)
        assert state.held_gpus == {0: (0,)}
        announce(state, 1, 3, queue="a")
        enacted(state, policy, blocked={1})
        assert state.held_gpus == {0: (0,)}, "two of its GPUs are left"
        announce(state, 2, 2, queue="b")
        announce(state, 3, 1, queue="b", priority=-1)
        enacted(state, policy, blocked={1})
        assert state.held_gpus == {0: (0,), 2: (4, 5), 3: (2,)}
        enacted(state, policy)
        assert state.held_gpus == {0: (0,), 1: (1, 2, 3), 2: (4, 5), 3: (6,)}

    def test_the_cells_with_most_sound_gpus_are_used_first_and_no_job_waits_that_fits(self) -> None:
        """Both cells have a blocked GPU: of four jobs on one GPU and two on three, those of one cell fit."""
        policy = layer("v100:1x8", TenantSpec.of("a", "2x4"))
        state = state_of([job("x", 3, queue="a"), job("y", 3, queue="a"), job("z", 1, queue="a")], "v100:1x8")
        enacted(state, policy, blocked={0, 7})
        assert state.held_gpus == {0: (1, 2, 3), 1: (4, 5, 6)}

    @pytest.mark.parametrize("policy", ["fifo", "las", "tiresias", "gandiva", "gandiva_fair", "antman", "pollux"])
    @pytest.mark.parametrize("seed", range(6))
    def test_nobody_ever_gets_a_bad_gpu_or_one_of_another_tenants_cell(self, policy: str, seed: int) -> None:
        """Jobs come and go, GPUs are blocked at random: laws of the loop hold, and tenants stay in their cells."""
        random = np.random.default_rng(seed)
        specs = [TenantSpec.of("a", "1x4", "1x2"), TenantSpec.of("b", "1x4", "2x1")]
        under = layer("v100:2x8", *specs, policy=policy)
        state = state_of([], "v100:2x8")
        for number in range(60):
            state.now_s += float(random.integers(1, 50))
            queue = str(random.choice(["a", "b", "nobody"]))
            announce(state, number, int(random.integers(1, 5)), queue=queue, priority=-(queue == "nobody"))
            held = {gpu for gpus in state.held_gpus.values() for gpu in gpus}
            blocked = set(random.integers(0, 16, int(random.integers(0, 5))).tolist()) - held
            enacted(state, under, blocked)
            for name, known in state.memory["tenants"].items():
                part = next(part for part in under.tenants.parts if part.name == name)
                cells = {int(cell): int(start) for cell, start in known["bound"].items()}
                mine = {start + k for cell, start in cells.items() for k in range(part.cells[cell].gpus)}
                gangs = [gpus for one, gpus in state.held_gpus.items() if state.specs[one].queue == name]
                assert all(mine.issuperset(gpus) for gpus in gangs)


class TestJobsThatAreBoundToGpus:
    def test_a_cell_waits_for_a_job_that_its_owner_has_suspended(self) -> None:
        """The policy guard does not show such a job. Its cell stays, so that nobody else is there when it goes on."""
        homes: dict[int, tuple[int, ...]] = {}
        policy = layer("v100:1x8", A, B, pinned=lambda: homes)
        state = state_of([job("a", 2, queue="a")], "v100:1x8")
        enacted(state, policy)
        assert state.held_gpus == {0: (0, 1)}
        homes[0] = (0, 1)
        state.apply(JobEvicted(1.0, 0, 0.0, "suspended"))
        announce(state, 1, 4, queue="b")
        for _ in range(2):
            view = state.snapshot()
            decision = policy.decide(view.part(view.rows_of([1])))
            assert decision.placements == {0: (4, 5, 6, 7)}
            state.memory = decision.memory
            assert state.memory["tenants"]["a"]["bound"] == {"0": 0}
        enacted(state, policy)
        assert state.held_gpus == {0: (0, 1), 1: (4, 5, 6, 7)}
        homes.clear()

    def test_a_cell_stays_bound_while_the_state_of_a_waiting_job_is_there(self) -> None:
        homes = {0: (4, 5)}
        policy = layer("v100:1x8", A, B, pinned=lambda: homes)
        state = state_of([job("old", 2, queue="a"), job("new", 4, queue="b")], "v100:1x8")
        enacted(state, policy)
        assert state.held_gpus == {0: (4, 5), 1: (0, 1, 2, 3)}
        assert state.memory["tenants"]["a"]["bound"] == {"0": 4}

    def test_a_job_whose_state_is_outside_of_its_tenants_cells_is_opportunistic(self) -> None:
        homes = {0: (3, 4)}
        policy = layer("v100:1x8", A, B, pinned=lambda: homes)
        state = state_of([job("old", 2, queue="a"), job("new", 4, queue="b")], "v100:1x8")
        enacted(state, policy)
        assert state.held_gpus == {1: (0, 1, 2, 3)}, "b needs the GPUs: it waits for them"
        state = state_of([job("old", 2, queue="a")], "v100:1x8")
        enacted(state, policy)
        assert state.held_gpus == {0: (3, 4)}


class TestOtherCells:
    def test_bindings_stay_if_the_policy_changes(self) -> None:
        policy = layer("v100:2x8", TenantSpec.of("a", "8", "1"), TenantSpec.of("b", "4"))
        state = state_of([job("b", 4, queue="b"), job("a", 1, queue="a"), job("a2", 1, queue="a")], "v100:2x8")
        enacted(state, policy)
        bound = {name: known["bound"] for name, known in state.memory["tenants"].items()}
        held = dict(state.held_gpus)
        state.memory = kept_bindings(state.memory)
        enacted(state, replace(policy, inner=make_policy("las")))
        assert {name: known["bound"] for name, known in state.memory["tenants"].items()} == bound
        assert state.held_gpus == held
        assert kept_bindings({"anything": 1}) == {}

    def test_jobs_stay_in_cells_if_the_reservations_change(self) -> None:
        state = state_of([job("b", 4, queue="b"), job("a", 2, queue="a")], "v100:2x8")
        enacted(state, layer("v100:2x8", A, B))
        held = dict(state.held_gpus)
        enacted(state, layer("v100:2x8", TenantSpec.of("b", "1x4", "1x8"), TenantSpec.of("a", "1x2", "2x1")))
        assert state.held_gpus == held
        assert [len(known["bound"]) for known in state.memory["tenants"].values()] == [1, 1]


def racks(*labels: str, gpus: int = 2) -> Cluster:
    return Cluster.of([Node(f"n{number}", "v100", gpus, label) for number, label in enumerate(labels)])


class TestAboveTheNode:
    def test_a_rack_is_a_cell_and_so_is_a_pod(self) -> None:
        labels = [f"pod{pod}/rack{rack}" for _ in range(2) for pod in (1, 2) for rack in (1, 2)]
        (chain,) = chains_of(racks(*labels), racks=True)
        assert (chain.sizes, chain.node_level) == ((8, 4, 2, 1), 2)
        assert [top.nodes for top in chain.tops] == [(0, 4, 1, 5), (2, 6, 3, 7)]
        assert chains_of(racks(*labels))[0].sizes == (2, 1), "unless nobody reserves one"

    def test_a_rack_of_other_nodes_counts_as_its_nodes(self) -> None:
        chains = chains_of(racks("a", "a", "b", "b", "b", ""), racks=True)
        assert [(chain.sizes, [top.nodes for top in chain.tops]) for chain in chains] == [
            ((6, 2, 1), [(2, 3, 4), (0,), (1,), (5,)])
        ]

    def test_a_reserved_rack_is_nodes_of_one_rack(self) -> None:
        """Nodes of the racks take turns in the cluster. Others fill a node of each rack first."""
        machines = racks("r1", "r2", "r1", "r2", gpus=4)
        policy = layer(machines, TenantSpec.of("big", "1x8"), TenantSpec.of("small", "2x4"))
        state = State(machines, min_run_s=0.0)
        announce(state, 0, 4, queue="small")
        enacted(state, policy)
        announce(state, 1, 8, queue="big")
        announce(state, 2, 4, queue="small")
        enacted(state, policy)
        assert state.held_gpus == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7, 12, 13, 14, 15), 2: (8, 9, 10, 11)}
        part = policy.tenants.parts[0]
        assert [(node.gpus, node.rack) for node in part.cluster.nodes] == [(4, "big-0"), (4, "big-0")]

    def test_a_node_that_is_down_costs_its_rack_only_its_own_gpus(self) -> None:
        machines = racks("r1", "r1", gpus=4)
        policy = layer(machines, TenantSpec.of("big", "1x8"))
        state = State(machines, min_run_s=0.0)
        announce(state, 0, 8, queue="big")
        announce(state, 1, 4, queue="big")
        decision = enacted(state, replace(policy, inner=make_policy("backfill")), blocked=range(4))
        assert state.held_gpus == {1: (4, 5, 6, 7)}
        assert "has 4 of its 8 GPUs in use, 4 out of order" in decision.reason(state.snapshot(), 0)

    def test_racks_that_do_not_exist_cannot_be_reserved(self) -> None:
        with pytest.raises(InputError, match="no cells of 8 GPUs; they split into 4, 2, 1"):
            Tenants(racks("r1", "", gpus=4), [TenantSpec.of("a", "1x8")])
        with pytest.raises(InputError, match="cannot be reserved: other cells leave 0 of 8 GPUs"):
            Tenants(racks("r1", "r1", gpus=4), [TenantSpec.of("a", "1x8"), TenantSpec.of("b", "1")])

    def test_no_reservation_of_racks_is_ever_refused(self) -> None:
        machines = racks(*(f"p{n % 2}/r{n % 4}" for n in range(12)), "x", "x", gpus=2)
        for seed in range(40):
            random, layout = np.random.default_rng(seed), Layout(machines, racks=True)
            idle: list[tuple[int, int]] = []
            cells = Cells(layout)
            for _ in range(20):
                chain = int(random.integers(len(layout.chains)))
                level = int(random.integers(len(layout.chains[chain].sizes)))
                idle += [(chain, level)] if cells.take(chain, level) is not None else []
            unused = [[idle.count((n, at)) for at in range(len(c.sizes))] for n, c in enumerate(layout.chains)]
            cells, taken = Cells(layout, None, unused), list[tuple[int, int, int]]()
            for _ in range(300):
                if idle and (not taken or random.random() < 0.5):
                    chain, level = idle.pop(int(random.integers(len(idle))))
                    place = int(random.integers(len(layout.gpu_at)))
                    around = layout.around(place, layout.chains[chain].sizes[level])
                    mine = layout.chain_of[layout.top_of[place]] == chain
                    mine &= layout.chains[chain].sizes[level] <= layout.top_gpus[layout.top_of[place]]
                    claimed = mine and cells.claim(chain, level, around)
                    start = around if claimed else cells.take(chain, level, lambda start, size: start % 3)
                    assert start is not None
                    taken.append((chain, level, start))
                elif taken:
                    chain, level, start = taken.pop(int(random.integers(len(taken))))
                    cells.give(chain, level, start)
                    idle.append((chain, level))
