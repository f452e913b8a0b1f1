"""Virtual clusters: what may be reserved, whose jobs are whose, and that a tenant fares as on a private cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fairway import InputError, JobSpec, Workload, make_policy, simulate
from fairway.core.action import Action
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.event import Event, JobFinished, NodeLost
from fairway.core.plan import plan
from fairway.core.policy import Policy
from fairway.core.reconcile import reconcile
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.core.tenant import CellSpec, TenantSpec
from fairway.placement import placement
from fairway.placement.tenanted import Tenanted
from fairway.placement.tenants import Tenants
from fairway.placement.virtual import tenant_view
from fairway.reproduce.systems.hived import TOGETHER, QuotaOnly, extra_queueing_min
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.result import Result
from fairway.testing import Invariants, cluster, job, state_of
from fairway.testing.builders import submitted
from fairway.testing.contract import check_decision
from fairway.testing.seeds import some
from fairway.traces import shockwave_like

A, B, C = (TenantSpec.of("a", "2x8", "1x4"), TenantSpec.of("b", "1x4", "1x2", "2x1"), TenantSpec.of("c", "1x4"))
SIZES = {"a": (1, 1, 2, 4, 8, 12), "b": (1, 1, 2), "c": (1, 2, 4), "nobody": (1, 3, 8, 16)}


def noisy_jobs(seed: int, each: int = 25) -> list[JobSpec]:
    """Jobs of three tenants and of nobody, many of them opportunistic."""
    random = np.random.default_rng([seed, 5])
    jobs = []
    for queue, sizes in SIZES.items():
        for number in range(each):
            priority = 0 if queue == "a" else int(random.choice([0, 0, -1]))
            at_s, last_s = int(random.integers(0, 6000)) / 3, int(random.integers(30, 6000)) / 3
            about = {"gpus": int(random.choice(sizes)), "queue": queue, "priority": priority}
            jobs.append(job(f"{queue}{number}", duration_s=last_s, submitted_s=at_s, **about))
    return jobs


def times(result: Result, queue: str) -> dict[str, tuple[float, float]]:
    ends = zip(result.specs, result.started_s.tolist(), result.finished_s.tolist(), strict=True)
    return {spec.id: (start_s, end_s) for spec, start_s, end_s in ends if spec.queue == queue}


class TestReservations:
    def test_cells_are_written_like_clusters(self) -> None:
        assert CellSpec.of("2x8") == CellSpec(2, 8)
        assert CellSpec.of(" V100:2x8 ") == CellSpec(2, 8, "v100")
        assert CellSpec.of("4") == CellSpec(1, 4)
        assert str(CellSpec.of("v100:4")) == "v100:1x4"

    @pytest.mark.parametrize("text", ["", "x8", "2x", "two", "2x8x1", "0x8", "1x0", "-1x8", "v100:", "999999x999999"])
    def test_other_cells_are_refused(self, text: str) -> None:
        with pytest.raises(InputError):
            CellSpec.of(text)

    @pytest.mark.parametrize(
        ("a", "b", "fits"), [("8", "1", False), ("4", "5x1", False), ("4", "4x1", True), ("4", "4", True)]
    )
    def test_the_worked_example_of_what_one_node_can_hold(self, a: str, b: str, fits: bool) -> None:
        specs = [TenantSpec.of("a", a), TenantSpec.of("b", b)]
        if fits:
            assert len(Tenants(cluster("v100:1x8"), specs).parts) == 2
        else:
            with pytest.raises(InputError, match=r"'b'.*cannot be reserved: other cells leave 0 of 8 GPUs"):
                Tenants(cluster("v100:1x8"), specs)

    def test_large_cells_are_reserved_before_small_ones_whoever_comes_first(self) -> None:
        tenants = Tenants(cluster("v100:2x8"), [TenantSpec.of("a", "8x1"), TenantSpec.of("b", "8")])
        assert [part.cluster.gpu_count for part in tenants.parts] == [8, 8]

    @pytest.mark.parametrize(
        ("spec", "cells", "message"),
        [
            ("v100:2x8", "1x3", "no cells of 3 GPUs; they split into 8, 4, 2, 1"),
            ("v100:2x8", "1x16", "no cells of 16 GPUs"),
            ("v100:2x8", "k80:1x8", "has no k80; it has v100"),
            ("v100:2x8,k80:1x4", "1x4", "need a GPU type, like v100:1x4"),
        ],
    )
    def test_cells_that_do_not_exist_are_refused(self, spec: str, cells: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            Tenants(cluster(spec), [TenantSpec.of("a", cells)])

    def test_nobody_is_claimed_twice(self) -> None:
        with pytest.raises(InputError, match="queue 'q' is claimed by two tenants, 'a' and 'b'"):
            Tenants(cluster("v100:8"), [TenantSpec.of("a", "1", queues=("q",)), TenantSpec.of("b", "1", queues=("q",))])
        with pytest.raises(InputError, match="user 'u'"):
            Tenants(cluster("v100:8"), [TenantSpec.of("a", "1", users=("u",)), TenantSpec.of("b", "1", users=("u",))])
        with pytest.raises(InputError, match="no cells"):
            TenantSpec.of("a")
        with pytest.raises(InputError, match="no tenants"):
            Tenants(cluster("v100:8"), [])

    def test_a_job_belongs_to_its_queue_then_to_its_user_and_else_to_nobody(self) -> None:
        tenants = Tenants(cluster("v100:8"), [TenantSpec.of("a", "1", users=("ann",)), TenantSpec.of("b", "1")])
        jobs = [
            job("0", queue="a"),
            job("1", queue="b", user="ann"),
            job("2", queue="other", user="ann"),
            job("3", queue="other", user="bob"),
            job("4", queue="a", priority=-1),
        ]
        assert [tenants.owner_of(spec) for spec in jobs] == [0, 1, 0, -1, -1]
        assert tenants.owners(state_of(jobs, "v100:8").snapshot()).tolist() == [0, 1, 0, -1, -1]
        assert [tenants.marked(spec).priority for spec in jobs] == [0, 0, 0, -1, -1]

    def test_the_virtual_cluster_has_the_cells_as_nodes(self) -> None:
        specs = [TenantSpec.of("a", "k80:2x2", "v100:4", "v100:8")]
        part = Tenants(cluster("v100:2x8,k80:1x4"), specs).parts[0]
        assert [(node.gpu_type, node.gpus) for node in part.cluster.nodes] == [
            ("v100", 8),
            ("v100", 4),
            ("k80", 2),
            ("k80", 2),
        ]
        assert part.kinds == (0, 1)

    def test_a_gang_that_its_tenant_can_never_hold_is_an_error_or_left_out(self) -> None:
        jobs = Workload.of([job("big", 8, queue="a"), job("small", 4, queue="a"), job("free", 8)])
        about: dict[str, Any] = {"cluster": "v100:2x8", "policy": "fifo", "tenants": [TenantSpec.of("a", "1x4")]}
        with pytest.raises(
            InputError, match="job 'big' can never run: its gang of 8 GPUs is larger than the 4 that tenant"
        ):
            simulate(jobs, **about)
        result = simulate(jobs, skip_impossible=True, **about)
        assert (result.finished, result.skipped) == (2, 1)

    def test_a_job_for_another_type_than_its_tenant_has_is_impossible(self) -> None:
        jobs = Workload.of([job("a", 2, queue="a", gpu_types=("k80",))])
        with pytest.raises(InputError, match="no GPUs of a type that it can use"):
            simulate(jobs, cluster="v100:8,k80:4", policy="fifo", tenants=[TenantSpec.of("a", "v100:4")])


class TestSafety:
    """The law: a tenant's jobs start and finish as if it were alone on a private cluster of its cells."""

    @pytest.mark.parametrize("policy", ["fifo", "backfill", "srtf", "las", "proportional", "tiresias"])
    @pytest.mark.parametrize("seed", some([1, 2], 1))
    def test_a_tenant_fares_as_on_a_private_cluster(self, policy: str, seed: int) -> None:
        self.compare(noisy_jobs(seed), policy, "v100:4x8", "v100:2x8,v100:1x4")

    @pytest.mark.parametrize("policy", ["gandiva", "antman"])
    def test_so_does_one_whose_policy_shares_gpus_and_places_by_itself(self, policy: str) -> None:
        self.compare(noisy_jobs(3), policy, "v100:4x8", "v100:2x8,v100:1x4")

    @pytest.mark.parametrize(
        "about", [{"rules": "tiresias"}, {"placement": "spread"}, {"round_s": 60.0}, {"placement": "count"}], ids=str
    )
    def test_under_other_rules_too(self, about: dict[str, Any]) -> None:
        self.compare(noisy_jobs(4), "las:levels=600", "v100:4x8", "v100:2x8,v100:1x4", **about)

    def compare(self, jobs: list[JobSpec], policy: str, shared: str, private: str, **about: Any) -> None:
        watch = Invariants()
        result = simulate(Workload.of(jobs), cluster=shared, policy=policy, tenants=[A, B, C], observer=watch, **about)
        alone = simulate(
            Workload.of([spec for spec in jobs if spec.queue == "a"]), cluster=private, policy=policy, **about
        )
        assert result.finished == len(jobs)
        assert times(result, "a") == times(alone, "a")
        assert watch.checks > 100

    @pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "proportional"])
    def test_every_tenant_does_so_with_jobs_that_change_their_speed(self, policy: str) -> None:
        """Jobs in steps, with batch sizes that grow: the inner policy is asked at the change of a regime, too."""
        trace, queues = shockwave_like(60, seed=6, mean_interarrival_s=100.0).jobs, "abcx"
        jobs = [replace(spec, queue=queues[n % 4], priority=-(n % 4 == 3)) for n, spec in enumerate(trace)]
        about: dict[str, Any] = {"policy": policy, "placement": "count", "skip_impossible": True}
        specs = [TenantSpec.of("a", "8"), TenantSpec.of("b", "4", "2", "2"), TenantSpec.of("c", "4")]
        shared = simulate(Workload.of(jobs), cluster="v100:3x8", tenants=specs, **about)
        for queue, private in (("a", "v100:1x8"), ("b", "v100:1x4,v100:2x2"), ("c", "v100:1x4")):
            mine = Workload.of([spec for spec in jobs if spec.queue == queue])
            assert times(shared, queue) == times(simulate(mine, cluster=private, **about), queue)

    @pytest.mark.parametrize("policy", ["fifo", "srtf", "las"])
    @pytest.mark.parametrize("cells", ["v100:1x8 k80:2x4", "v100:1x4 v100:1x2 k80:1x4"])
    def test_tenants_of_several_gpu_types_too(self, policy: str, cells: str) -> None:
        jobs = [replace(spec, gpus=min(spec.gpus, 4), gpus_min=0, gpus_max=0) for spec in noisy_jobs(8)]
        specs = [TenantSpec.of("a", *cells.split()), TenantSpec.of("b", "v100:1x8", "k80:1x4")]
        shared = simulate(Workload.of(jobs), cluster="v100:3x8,k80:4x4", policy=policy, tenants=specs)
        mine = Workload.of([spec for spec in jobs if spec.queue == "a"])
        alone = simulate(mine, cluster=cells.replace(" ", ","), policy=policy)
        assert times(shared, "a") == times(alone, "a")

    @pytest.mark.parametrize("policy", ["fifo", "las", "proportional", "gandiva"])
    def test_a_failed_node_is_not_noticed_while_enough_sound_cells_are_left(self, policy: str) -> None:
        """One node is nobody's, and is down for good; some jobs shrink and grow, so it matters when they are asked."""
        specs = [TenantSpec.of("b", "1x8"), TenantSpec.of("a", "1x8", "1x4")]
        for seed in range(3):
            jobs = [spec for spec in noisy_jobs(seed, 16) if spec.queue in "ab"]
            jobs = [replace(spec, gpus=min(spec.gpus, 6), gpus_min=1, gpus_max=8) for spec in jobs]
            about: dict[str, Any] = {"cluster": "v100:4x8", "policy": policy, "tenants": specs}
            sound = simulate(Workload.of(jobs), **about)
            short = simulate(Workload.of(jobs), faults=Faults((Outage(1.0, 3, 1e6),)), observer=Invariants(), **about)
            owned = np.array([spec.priority >= 0 for spec in sound.specs])
            assert short.started_s[owned].tolist() == sound.started_s[owned].tolist()
            assert short.finished_s[owned].tolist() == sound.finished_s[owned].tolist()

    def test_without_the_layer_the_same_tenant_fares_otherwise(self) -> None:
        jobs = noisy_jobs(1)
        shared = simulate(Workload.of(jobs), cluster="v100:4x8", policy="fifo")
        alone = simulate(
            Workload.of([spec for spec in jobs if spec.queue == "a"]), cluster="v100:2x8,v100:1x4", policy="fifo"
        )
        assert times(shared, "a") != times(alone, "a")

    @pytest.mark.parametrize("spec", ["v100:2x8,k80:2x4", "v100:2x6,v100:1x8"])
    @pytest.mark.parametrize("seed", some([0, 1], 1))
    def test_all_jobs_end_though_nodes_fail(self, spec: str, seed: int) -> None:
        kind = "v100:" if "," in spec and "k80" in spec else ""
        cells = ["v100:1x8", "k80:1x4"] if kind else ["1x6", "1x8"]
        tenants = [TenantSpec.of("a", *cells), TenantSpec.of("b", f"{kind}1x4" if kind else "1x3")]
        jobs = [replace(spec, gpus=min(spec.gpus, 3), gpus_min=0, gpus_max=0) for spec in noisy_jobs(seed, 12)]
        faults = Faults(mtbf_s=4000.0, repair_s=700 / 3, seed=seed)
        for policy in ("fifo", "las:levels=300"):
            about: dict[str, Any] = {"cluster": spec, "policy": policy, "faults": faults, "observer": Invariants()}
            assert simulate(Workload.of(jobs), tenants=tenants, **about).finished == len(jobs)


def test_with_quotas_alone_a_single_gpu_of_one_tenant_keeps_the_gang_of_another_waiting() -> None:
    """Two nodes of 4 GPUs, half of them for each tenant. A small job of B fills the node on which A's jobs are, so A's
    next one starts on the other node, and B's gang of 4 has no node any more."""
    ones = [job(f"a{n}", 1, 1000.0, queue="a") for n in range(3)]
    jobs = [*ones, job("b0", 1, 10.0, queue="b"), job("a3", 1, 1000.0, 1.0, queue="a")]
    jobs.append(job("gang", 4, 100.0, 20.0, queue="b"))
    trace = Workload.of([replace(spec, skew=1.0) for spec in jobs])
    specs = [TenantSpec.of("a", "1x4"), TenantSpec.of("b", "1x4")]
    about: dict[str, Any] = {"cluster": "v100:2x4", "placement": TOGETHER}
    quota = QuotaOnly(make_policy("fifo"), Tenants(cluster("v100:2x4"), specs))
    assert times(simulate(trace, policy=quota, **about), "b")["gang"] == (1000.0, 1100.0)
    assert times(simulate(trace, policy="fifo", tenants=specs, **about), "b")["gang"] == (20.0, 120.0)


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_quotas_alone_add_queueing_and_cells_add_none(policy: str) -> None:
    quota_only, virtual_clusters = extra_queueing_min(policy, 0, jobs=100)
    assert quota_only[1] > 5.0
    assert virtual_clusters == (0.0, 0.0)


def layer(spec: str, *tenants: TenantSpec, policy: str | Policy = "fifo", **about: Any) -> Tenanted:
    inner = make_policy(policy) if isinstance(policy, str) else policy
    return Tenanted(inner, Tenants(cluster(spec), tenants), placement("packed"), **about)


def enacted(state: State, policy: Policy) -> tuple[Decision, Sequence[Action]]:
    """One round; returns the decision and its actions."""
    view = state.snapshot(policy.knows)
    decision = policy.decide(view)
    check(view, decision)
    planned = plan(view, decision, state.occupancy, placement("packed"))
    decision = planned.kept(decision)
    actions = reconcile(view, decision, planned)
    state.memory = decision.memory
    state.round += 1
    state.commit(actions, planned.occupancy)
    Invariants().check_state(state)
    return decision, actions


class TestLayer:
    def test_the_worked_example(self) -> None:
        """One node of 8 GPUs, half for A and half for B; an opportunistic job uses what is idle, and goes first."""
        policy = layer("v100:1x8", TenantSpec.of("a", "4"), TenantSpec.of("b", "4"))
        jobs = [job("a1", 1, 50.0, queue="a"), job("b1", 4, 50.0, queue="b")]
        jobs += [job("free", 4, 900.0, priority=-1), job("a2", 1, 50.0, queue="a")]
        state = state_of(jobs[:2], "v100:1x8")
        enacted(state, policy)
        assert state.held_gpus == {0: (0,), 1: (4, 5, 6, 7)}
        assert state.memory["free"] == [[[], [], [], []]]
        state.apply(JobFinished(50.0, 0))
        state.apply(JobFinished(50.0, 1))
        announce(state, jobs[2], 2)
        enacted(state, policy)
        assert state.memory["free"] == [[[0], [], [], []]]
        assert state.held_gpus == {2: (0, 1, 2, 3)}
        announce(state, jobs[3], 3)
        decision, _ = enacted(state, policy)
        assert state.held_gpus == {2: (0, 1, 2, 3), 3: (4,)}, "A's cell is bound where it evicts nobody"
        announce(state, job("b2", 4, 9.0, queue="b"), 4)
        decision, _ = enacted(state, policy)
        assert state.held_gpus == {3: (4,), 4: (0, 1, 2, 3)}
        assert decision.reason(state.snapshot(), 0) == (
            "opportunistic: needs 4 GPUs, 3 free; its GPUs are claimed by the tenant that has reserved them"
        )

    def test_the_least_is_evicted(self) -> None:
        policy = layer("v100:2x4", TenantSpec.of("a", "1x4"))
        jobs = [job("x", 2, priority=-1), job("y", 1, priority=-1), job("a", 4, queue="a")]
        state = state_of(jobs, "v100:2x4", running={"x": (0, 1), "y": (4,)})
        enacted(state, policy)
        assert state.held_gpus == {0: (0, 1), 1: (2,), 2: (4, 5, 6, 7)}

    def test_an_evicted_job_keeps_the_service_that_it_has_had(self) -> None:
        """The tenant takes the GPUs of one of two that have run as long: the other one stays where it is."""
        policy = layer("v100:1x8", TenantSpec.of("a", "4"), policy="las:levels=60")
        jobs = [job("x", 4, 9000.0, priority=-1), job("y", 4, 9000.0, priority=-1), job("z", 4, queue="a")]
        both = {"x": 600.0, "y": 600.0}
        running = {"x": (0, 1, 2, 3), "y": (4, 5, 6, 7)}
        state = state_of(jobs, "v100:1x8", now_s=1000.0, running=running, attained=both)
        enacted(state, policy)
        assert state.held_gpus == {1: (4, 5, 6, 7), 2: (0, 1, 2, 3)}
        assert state.snapshot().attained_gpu_s.tolist() == [2400.0, 2400.0, 0.0]

    def test_idle_gpus_of_a_cell_in_use_serve_opportunistic_jobs(self) -> None:
        policy = layer("v100:1x8", TenantSpec.of("a", "8"))
        state = state_of([job("a", 2, queue="a"), job("x", 6, priority=-1)], "v100:1x8")
        enacted(state, policy)
        assert state.held_gpus == {0: (0, 1), 1: (2, 3, 4, 5, 6, 7)}
        announce(state, job("a2", 1, queue="a"), 2)
        enacted(state, policy)
        assert state.held_gpus == {0: (0, 1), 2: (2,)}

    def test_a_waiting_job_is_told_about_its_tenants_gpus_only(self) -> None:
        policy = layer("v100:2x8", TenantSpec.of("a", "8"))
        state = state_of([job("a1", 4, queue="a"), job("a2", 8, queue="a"), job("a3", 8, queue="a")], "v100:2x8")
        decision, _ = enacted(state, policy)
        view = state.snapshot()
        assert decision.reason(view, 1) == "tenant a has 4 of its 8 GPUs in use: needs 8 GPUs, 4 free"
        assert decision.reason(view, 2) == (
            "tenant a has 4 of its 8 GPUs in use: waits behind job a2, which came first and does not fit yet"
        )
        assert sorted(decision.texts) == [1, 2]
        assert len(decision.texts) == 2
        again = policy.decide(view)
        assert again.reason(view, 1) == "tenant a has 4 of its 8 GPUs in use: needs 8 GPUs, 4 free", (
            "also where nobody was asked anew"
        )
        assert (again.ahead, 0 in again.texts) == (-1, False)

    def test_a_tenant_is_asked_only_when_something_happens_to_it(self) -> None:
        inner = Counting()
        policy = layer("v100:2x4", TenantSpec.of("a", "4"), TenantSpec.of("b", "4"), policy=inner)
        state = state_of([job("a", 2, queue="a"), job("b", 2, queue="b")], "v100:2x4")
        enacted(state, policy)
        assert Counting.asked == [[0], [1]]
        assert enacted(state, policy)[1] == []
        assert Counting.asked == [[0], [1]]
        announce(state, job("b2", 2, queue="b"), 2)
        enacted(state, policy)
        assert Counting.asked == [[0], [1], [1, 2]]
        enacted(state, replace(policy, in_rounds=True))
        assert Counting.asked[3:] == [[0], [1, 2]]

    def test_a_tenant_is_asked_when_the_time_has_come_that_it_named(self) -> None:
        policy = layer("v100:2x4", TenantSpec.of("a", "4"), TenantSpec.of("b", "4"), policy=Counting(wake_s=100.0))
        state = state_of([job("a", 2, queue="a"), job("b", 2, queue="b")], "v100:2x4")
        assert enacted(state, policy)[0].wake_s == 100.0
        announce(state, job("x", 1, submitted_s=99.0, priority=-1), 2)
        assert enacted(state, policy)[0].wake_s == 100.0
        assert Counting.asked == [[0], [1], [2]]
        announce(state, job("y", 1, submitted_s=100.0 - 1e-9, priority=-1), 3)
        assert enacted(state, policy)[0].wake_s == 200.0
        assert Counting.asked[3:] == [[0], [1], [2, 3]]

    def test_partners_and_throttles_are_translated_and_kept(self) -> None:
        policy = layer("v100:2x4", TenantSpec.of("a", "4"), TenantSpec.of("b", "4"), policy=Pairing())
        jobs = [job("b1", 2, queue="b"), job("a1", 2, queue="a"), job("a2", 2, queue="a")]
        state = state_of(jobs, "v100:2x4")
        decision, _ = enacted(state, policy)
        assert (decision.partners, decision.throttles, decision.warm) == ({2: 1}, {2: 0.5}, True)
        assert state.held_gpus == {0: (4, 5), 1: (0, 1), 2: (0, 1)}
        decision, actions = enacted(state, policy)
        assert (decision.partners, decision.throttles, actions) == ({2: 1}, {2: 0.5}, [])
        announce(state, job("b2", 2, queue="b"), 3)
        decision, _ = enacted(state, policy)
        assert (decision.partners, decision.throttles) == ({2: 1, 3: 0}, {2: 0.5, 3: 0.5})

    def test_a_cell_is_bound_around_a_job_that_ran_before_there_were_tenants(self) -> None:
        policy = layer("v100:2x4", TenantSpec.of("a", "4"), TenantSpec.of("b", "4"))
        state = state_of([job("old", 2, queue="a"), job("new", 4, queue="a")], "v100:2x4", running={"old": (1, 2)})
        enacted(state, policy)
        assert state.held_gpus == {0: (1, 2)}, "it counts as the tenant's, which has two GPUs left"
        assert state.memory["tenants"]["a"]["bound"] == {"0": 0}

    def test_a_job_for_which_the_tenant_has_no_cell_is_opportunistic_until_it_stops(self) -> None:
        policy = layer("v100:2x4", TenantSpec.of("a", "4"), TenantSpec.of("b", "4"))
        old = {"old": (1, 4)}
        state = state_of([job("old", 2, queue="a"), job("new", 4, queue="a")], "v100:2x4", running=old)
        enacted(state, policy)
        assert state.held_gpus == {0: (4, 5), 1: (0, 1, 2, 3)}, "it makes room for a job in the tenant's cell"

    def test_no_cell_is_bound_around_a_job_if_others_would_lose_theirs(self) -> None:
        """The job sits on one GPU of each half of a node; two cells of 1 around it would leave no half for b."""
        policy = layer("v100:1x4", TenantSpec.of("a", "2x1"), TenantSpec.of("b", "2"))
        state = state_of([job("old", 2, queue="a"), job("new", 2, queue="b")], "v100:1x4", running={"old": (1, 2)})
        enacted(state, policy)
        assert state.held_gpus[1] in {(0, 1), (2, 3)}

    def test_who_may_not_be_stopped_yet_is_waited_for(self) -> None:
        """Opportunistic jobs should have a negative priority; where one does not, its minute is respected."""
        policy = layer("v100:1x4", TenantSpec.of("a", "4"))
        state = state_of([job("x", 2), job("a", 4, queue="a")], "v100:1x4", running={"x": (0, 1)}, min_run_s=60.0)
        decision, _ = enacted(state, policy)
        assert decision.gpus.tolist() == [2, 0]
        assert decision.wake_s == pytest.approx(60.0)
        assert "started a moment ago" in decision.reason(state.snapshot(), 1)
        announce(state, job("y", 1, submitted_s=61.0, priority=-1), 2)
        enacted(state, policy)
        assert state.held_gpus == {1: (0, 1, 2, 3)}

    def test_a_cell_goes_to_other_hardware_when_its_node_fails(self) -> None:
        outage = Faults((Outage(50.0, 0, 1000.0),))
        jobs = Workload.of([job("a", 8, 100.0, queue="a", checkpoint_every_s=10.0)])
        result = simulate(jobs, cluster="v100:2x8", policy="fifo", tenants=[TenantSpec.of("a", "8")], faults=outage)
        assert result.finished_s.tolist() == [130.0]

    def test_a_job_waits_where_no_sound_hardware_is_left_for_its_cell(self) -> None:
        outage = Faults((Outage(50.0, 0, 500.0),))
        jobs = Workload.of([job("a", 8, 100.0, queue="a"), job("b", 8, 600.0, queue="b")])
        specs = [TenantSpec.of("a", "8"), TenantSpec.of("b", "8")]
        about: dict[str, Any] = {"cluster": "v100:2x8", "policy": "fifo", "faults": outage}
        result = simulate(jobs, tenants=specs, **about)
        assert result.finished_s.tolist() == [680.0, 600.0], "restarted at 550 s, from the start, with 30 s of restart"

    @pytest.mark.parametrize(
        ("spec", "a_gpus", "b_at_s", "b_finished_s"),
        [("v100:2x8", 8, 10.0, 150.0), ("v100:1x4,v100:1x8", 4, 200.0, 1110.0)],
    )
    def test_a_job_that_found_no_hardware_starts_when_there_is_some(
        self, spec: str, a_gpus: int, b_at_s: float, b_finished_s: float
    ) -> None:
        """Node 0 is down until 50 s. First, its repair is what B waits for; then, that A lets go of the larger node, on
        which it had to start because the smaller one was down."""
        jobs = [job("a", a_gpus, 1000.0, 10.0, queue="a"), job("b", 8, 100.0, b_at_s, queue="b")]
        specs = [TenantSpec.of("a", f"{a_gpus}"), TenantSpec.of("b", "8")]
        about: dict[str, Any] = {"cluster": spec, "policy": "fifo", "faults": Faults((Outage(0.0, 0, 50.0),))}
        result = simulate(Workload.of(jobs), tenants=specs, observer=Invariants(), **about)
        assert result.finished_s.tolist() == [1010.0, b_finished_s]

    def test_who_has_waited_for_hardware_comes_first_and_nobody_waits_for_ever(self) -> None:
        """One of two nodes is down for good, and A and B have reserved both: they take turns."""
        jobs = [job(f"a{n}", 8, 100.0, n, queue="a") for n in range(3)] + [job("b", 8, 100.0, 50.0, queue="b")]
        specs = [TenantSpec.of("a", "8"), TenantSpec.of("b", "8")]
        faults = Faults((Outage(0.0, 0, 1e6),))
        result = simulate(Workload.of(jobs), cluster="v100:2x8", policy="fifo", tenants=specs, faults=faults)
        assert sorted(result.finished_s.tolist()) == [100.0, 200.0, 300.0, 400.0]
        assert times(result, "b")["b"] == (100.0, 200.0)

    def test_tenants_of_which_each_holds_what_the_other_lacks_do_not_wait_for_each_other(self) -> None:
        """Each wants a node and a half, and only two nodes are left: neither may keep its node in vain."""
        jobs = [job("a", 12, 100.0, queue="a"), job("b", 12, 100.0, queue="b")]
        specs = [TenantSpec.of("a", "8", "4"), TenantSpec.of("b", "8", "4")]
        faults = Faults((Outage(0.0, 0, 1e6),))
        about: dict[str, Any] = {"cluster": "v100:3x8", "policy": "fifo", "faults": faults}
        result = simulate(Workload.of([replace(spec, submitted_s=1.0) for spec in jobs]), tenants=specs, **about)
        assert sorted(result.finished_s.tolist()) == [101.0, 201.0]

    def test_a_tenant_with_a_sound_cell_is_not_asked_because_a_node_is_down(self) -> None:
        policy = layer("v100:3x4", TenantSpec.of("a", "4"), TenantSpec.of("b", "4"), policy=Counting())
        state = state_of([job("a", 2, queue="a"), job("b", 2, queue="b")], "v100:3x4")
        enacted(state, policy)
        state.apply(NodeLost(1.0, 2))
        enacted(state, policy)
        assert Counting.asked == [[0], [1]]
        announce(state, job("b2", 2, queue="b"), 2)
        enacted(state, policy)
        assert Counting.asked[2:] == [[1, 2]]

    def test_a_tenant_is_asked_when_the_node_fails_on_which_its_job_sleeps(self) -> None:
        policy = layer("v100:3x4", TenantSpec.of("a", "2x4"), policy=Napping())
        state = state_of([job("old", 4, queue="a")], "v100:3x4")
        enacted(state, policy)
        announce(state, job("new", 4, queue="a"), 1)
        enacted(state, policy)
        assert state.held_gpus == {1: (4, 5, 6, 7)}
        assert state.memory["tenants"]["a"]["bound"] == {"0": 0, "1": 4}, "where the old job sleeps, nobody else goes"
        state.apply(NodeLost(1.0, 0))
        enacted(state, policy)
        assert state.memory["tenants"]["a"]["bound"] == {"1": 4}, "its memory is lost, so its cell is free to move"
        assert state.memory["tenants"]["a"]["asleep"] == {}

    def test_nobody_is_evicted_while_there_is_room_elsewhere(self) -> None:
        """The opportunistic job sits on the other GPU of the tenant's pair; its second is cut from another pair."""
        jobs = [job("t1", 1, 1000.0, queue="t"), job("o", 1, 100.0, 1.0), job("t2", 1, 100.0, 50.0, queue="t")]
        about: dict[str, Any] = {"cluster": "v100:2x8", "policy": "fifo", "tenants": [TenantSpec.of("t", "2x1")]}
        assert simulate(Workload.of(jobs), **about).jct_s.tolist() == [1000.0, 100.0, 100.0]

    @pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "gandiva"])
    def test_a_decision_is_a_pure_function_of_the_snapshot(self, policy: str) -> None:
        keeper = Keeper()
        simulate(Workload.of(noisy_jobs(7, 10)), cluster="v100:4x8", policy=policy, tenants=[A, B, C], observer=keeper)
        like = layer("v100:4x8", A, B, C, policy=policy)
        kept = [snapshot for snapshot in keeper.kept if snapshot.memory]
        assert len(kept) > 5
        for snapshot in kept[:12]:
            check_decision(lambda: replace(like), snapshot)

    def test_run_times_are_those_on_the_types_that_the_tenant_has(self) -> None:
        tenants = Tenants(cluster("v100:1x8,k80:1x4"), [TenantSpec.of("a", "k80:1x2", "v100:2")])
        jobs = [job("fits", 2, 100.0, queue="a"), job("slow", 1, 100.0, queue="a", gpu_types=("v100", "k80"))]
        state = state_of(jobs, "v100:1x8,k80:1x4", running={"slow": (8,)})
        whole, rows = state.snapshot(frozenset({"duration"})), np.arange(2)
        about: dict[str, Any] = {"held": {1: (2,)}, "lost": (), "memory": {}, "round_number": 0}
        view = tenant_view(whole, tenants.parts[0], rows, **about)
        assert view.oracle.remaining_s.tolist() == [100.0, 100.0]
        assert (view.capacity.tolist(), view.free, view.demand) == ([2, 2], 3, 3)
        assert view.gpu_type.tolist() == [-1, 1]
        only = Tenants(cluster("v100:1x8,k80:1x4"), [TenantSpec.of("a", "k80:2")])
        view = tenant_view(whole, only.parts[0], rows, **about)
        ratio = whole.speeds[0, 0] / whole.speeds[1, 0]
        assert view.oracle.remaining_s.tolist() == pytest.approx([100.0 * ratio, 100.0 * ratio])
        assert view.gpu_type.tolist() == [-1, 0]

    def test_it_knows_and_is_called_what_the_policy_inside_is(self) -> None:
        policy = layer("v100:8", TenantSpec.of("a", "8"), policy="srtf")
        assert (policy.name, policy.knows, policy.round_s) == ("srtf", frozenset({"duration"}), 0.0)
        assert isinstance(policy, Policy)
        empty = state_of([], "v100:8").snapshot(policy.knows)
        check(empty, policy.decide(empty))


def announce(state: State, spec: JobSpec, number: int) -> None:
    """Submit a job now, or when it says if that is later."""
    state.apply(submitted(spec, number, state.cluster, max(state.now_s, spec.submitted_s)))


class Keeper:
    """Keeps every tenth snapshot."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []
        self.rounds = 0

    def after_events(self, state: State, events: Sequence[Event]) -> None: ...

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        self.rounds += 1
        if self.rounds % 10 == 0:
            self.kept.append(snapshot.copy())


@dataclass(frozen=True)
class Counting:
    """Everybody runs; notes who was asked about."""

    wake_s: float = 0.0
    asked: ClassVar[list[list[int]]] = []
    name: ClassVar[str] = "counting"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        Counting.asked = []

    def decide(self, snapshot: Snapshot) -> Decision:
        Counting.asked.append(snapshot.jobs.tolist())
        wake_s = (snapshot.now_s + 1e-6) // self.wake_s * self.wake_s + self.wake_s if self.wake_s else np.inf
        return Decision(snapshot.gpus.copy(), np.zeros(len(snapshot), dtype=np.int8), wake_s=wake_s)


@dataclass(frozen=True)
class Pairing:
    """Everybody shares the GPUs of the first, at half speed."""

    name: ClassVar[str] = "pairing"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        guests: Mapping[int, int] = dict.fromkeys(range(1, len(snapshot)), 0)
        halves = dict.fromkeys(guests, 0.5)
        reasons = np.zeros(len(snapshot), dtype=np.int8)
        return Decision(snapshot.gpus.copy(), reasons, partners=guests, throttles=halves, warm=True)


@dataclass(frozen=True)
class Napping:
    """The last job runs on a node of its own; the others are suspended warm."""

    name: ClassVar[str] = "napping"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        last = len(snapshot) - 1
        gpus = np.where(np.arange(len(snapshot)) == last, snapshot.gpus, 0)
        first = snapshot.cluster.first_gpu[last]
        places = {last: tuple(range(first, first + 4))}
        reasons = np.where(gpus > 0, 0, int(Reason.NO_FREE_GPUS)).astype(np.int8)
        return Decision(gpus, reasons, placements=places, warm=True)
