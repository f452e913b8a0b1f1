"""Tenants of the live scheduler, in simulated time: the promise, what may be configured, and what why says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway.api import views
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.core.event import NodeLost, NodeRestored
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon import explain
from fairway.runtime.daemon.config import ConfigError
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import FILE_NAME, Settings
from fairway.runtime.guard.incident import Incident
from fairway.runtime.jobs.draining import Drain
from fairway.runtime.jobs.life import ClusterGrew
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.site import NodesJoined
from fairway.testing.simulated_site import Behaviour, SimulatedJournal, SimulatedSite, SimulatedTime

TENANTS = """
[tenants.vision]
cells = ["1x4", "1x2"]
users = ["ann"]

[tenants.speech]
cells = ["1x4", "2x1"]
queues = ["asr"]
"""

ONE_QUEUE_EACH = """
[defaults]
queue = "all"

[queues.all]
[queues.asr]
"""


def machines(*gpus: int) -> Cluster:
    return Cluster.of([Node(f"n{n}", "fast", count) for n, count in enumerate(gpus)], [GpuType("fast", 0, 0.0, 1.0)])


class World:
    """A scheduler in simulated time."""

    def __init__(self, folder: Path, cluster: Cluster, config: str = "", policy: str = "fifo", **about: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.cluster, self.policy, self.about = folder, cluster, policy, about
        self.time, self.jobs = SimulatedTime(), 0
        self.site = SimulatedSite(self.time, lambda name: None)
        (folder / FILE_NAME).write_text(config)
        self.start()

    def start(self) -> None:
        """Start a scheduler on what an earlier one has left."""
        self.settings = Settings(self.folder)
        self.scheduler = Scheduler(
            self.folder,
            self.cluster,
            make_policy(self.policy),
            placement("packed"),
            policy_text=self.policy,
            terms=self.settings,
            journal=SimulatedJournal(self.folder / "journal.db", lambda name: None, lambda: False),
            site=self.site,
            time=self.time,
            **self.about,
        )
        self.settings.govern(self.scheduler)
        self.scheduler.begin()

    def kill(self) -> None:
        """Kill the scheduler."""
        self.scheduler.archive.close()
        self.scheduler.journal.close()

    def configure(self, config: str) -> None:
        """Change the configuration, and have it read."""
        (self.folder / FILE_NAME).write_text(config)
        self.settings.reload(self.scheduler)

    def submit(self, gpus: int = 1, work_s: float = 50.0, at_s: float = 0.0, **about: Any) -> None:
        """Have somebody submit a job at an instant."""
        command = Behaviour(work_s=work_s, stop_s=0.0, on_term=about.pop("on_term", "saves")).command()
        request = JobRequest(command=command, gpus=gpus, expected_s=work_s, **{"preempt": "checkpoint", **about})
        self.jobs += 1
        self.site.at(1000.0 + at_s, partial(self.scheduler.submission, [request]))

    def until(self, at_s: float) -> None:
        """Let time pass."""
        passed: list[bool] = []
        self.site.at(1000.0 + at_s, lambda: passed.append(True))
        while not passed:
            self.scheduler.loop.step()

    def rest(self) -> None:
        """Let time pass until all jobs have ended."""
        store, steps = self.scheduler.store, 0
        while len(list(store)) < self.jobs or not all(record.state.ended for record in store) or self.site.alive():
            self.scheduler.loop.step()
            steps += 1
            assert steps < 200_000, f"{self.jobs} jobs were submitted, {len(list(store))} are there"

    def records(self) -> dict[str, JobRecord]:
        """The jobs by name."""
        return {record.request.name: record for record in self.scheduler.store}

    def held(self) -> dict[str, tuple[int, ...]]:
        """The GPUs of jobs, by name."""
        store = self.scheduler.store
        return {store[job].request.name: gpus for job, gpus in self.scheduler.state.held_gpus.items()}

    def look(self, name: str) -> dict[str, Any]:
        """What `why` says."""
        record, engine = self.records()[name], self.scheduler.engine
        future = engine.ask(lambda now_s: explain._look(self.scheduler, record, now_s))
        while not future.done():
            self.scheduler.loop.step()
        return dict(future.result())


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    worlds: list[World] = []

    def make(cluster: Cluster, config: str = "", **about: Any) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), cluster, config, **about))
        return worlds[-1]

    yield make
    for world in worlds:
        world.kill()


def teams(seed: int, each: int = 14) -> list[dict[str, Any]]:
    """Jobs of two tenants and of nobody, more than their GPUs can serve at once."""
    random, jobs = np.random.default_rng(seed), []
    owners = {"v": {"user": "ann"}, "s": {"user": "bob", "queue": "asr"}, "x": {"user": "eve"}}
    sizes = {"v": (1, 2, 4, 6), "s": (1, 2, 4), "x": (1, 3, 8)}
    for team, about in owners.items():
        for number in range(each):
            shape = {"gpus": int(random.choice(sizes[team])), "work_s": float(random.integers(20, 400))}
            priority = int(random.choice([0, 0, 0, 2, -1])) if team == "s" else 0
            at_s = float(random.integers(0, 600))
            jobs.append({"name": f"{team}{number}", "at_s": at_s, "priority": priority, **shape, **about})
    return sorted(jobs, key=lambda job: float(job["at_s"]))


def times(world: World, team: str) -> dict[str, tuple[float, float]]:
    """When the jobs of a team began first, and when they ended."""
    records = {name: record for name, record in world.records().items() if name.startswith(team)}
    assert all(record.state is JobState.COMPLETED for record in records.values())
    return {name: (record.started_s or 0.0, record.ended_s or 0.0) for name, record in records.items()}


@pytest.mark.parametrize("policy", ["fifo", "backfill", "las", "tiresias", "srtf", "capacity"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_tenant_fares_as_on_a_private_cluster_of_its_cells(made: Any, policy: str, seed: int) -> None:
    """The promise: to the millisecond, whatever the other team and the opportunistic jobs do."""
    jobs = teams(seed)
    shared = made(machines(8, 8), TENANTS, policy=policy)
    alone = made(machines(4, 2), policy=policy)
    for job in jobs:
        shared.submit(**job)
        if job["user"] == "ann":
            alone.submit(**job)
    shared.rest()
    alone.rest()
    want, have = times(alone, "v"), times(shared, "v")
    assert have.keys() == want.keys()
    for name, (began_s, ended_s) in want.items():
        assert have[name] == pytest.approx((began_s, ended_s), abs=2e-3), name
    assert len(times(shared, "x")) == 14, "nobody else is forgotten"


def test_without_tenants_the_same_team_waits_for_others(made: Any) -> None:
    jobs = teams(1)
    shared, alone = made(machines(8, 8), ONE_QUEUE_EACH), made(machines(4, 2))
    for job in jobs:
        shared.submit(**job)
        if job["user"] == "ann":
            alone.submit(**job)
    shared.rest()
    alone.rest()
    want, have = times(alone, "v"), times(shared, "v")
    assert any(have[name][0] > want[name][0] + 10.0 for name in want)


def test_a_tenant_waits_for_opportunistic_jobs_no_longer_than_their_grace_period(made: Any) -> None:
    config = f"[defaults]\ngrace_s = 20\n{TENANTS}"
    world = made(machines(8, 4), config)
    world.submit(12, 500.0, name="squats", user="eve", grace_s=3600.0, on_term="ignores")
    world.submit(4, 50.0, 100.0, name="needs", user="ann")
    world.until(110.0)
    assert world.records()["needs"].state is JobState.PENDING
    assert world.look("needs")["reason"].startswith("it is about to start on GPU")
    world.rest()
    began_s = world.records()["needs"].started_s - world.records()["needs"].submitted_s
    assert began_s == pytest.approx(20.0, abs=0.1)


def test_why_and_status_name_the_tenant_and_its_quota(made: Any) -> None:
    world = made(machines(8, 8), TENANTS)
    world.submit(6, name="v1", user="ann")
    world.submit(2, name="v2", user="ann")
    world.submit(8, name="x1", user="eve")
    world.submit(4, name="x2", user="eve")
    world.submit(4, name="s1", user="bob", queue="asr")
    world.until(5.0)
    told = world.look("v2")
    assert told["reason"] == "tenant vision has 6 of its 6 GPUs in use: needs 2 GPUs, 0 free"
    assert told["tenant"] == {"name": "vision", "gpus": 6, "gpus_held": 6, "out_of_order": 0}
    assert [one["id"] for one in told["ahead"]] == [world.records()["v1"].id], "nobody else has its GPUs"
    assert [one["id"] for one in told["frees"]] == [world.records()["v1"].id]
    assert (told["position"], told["waiting"]) == (1, 1)
    told = world.look("x1")
    assert told["tenant"]["name"] is None
    assert told["reason"].startswith("opportunistic: ")
    shown = views.tenants(world.scheduler)
    assert [(one["name"], one["gpus_held"], one["gpus"], one["running"], one["waiting"]) for one in shown] == [
        ("vision", 6, 6, 1, 1),
        ("speech", 4, 6, 1, 0),
    ]
    assert shown[0]["cells"] == ["1x4", "1x2"]
    world.rest()


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (
            {"user": "ann", "gpus": 8},
            "gang of 8 GPUs is larger than the 6 that tenant 'vision' has reserved; with",
        ),
        ({"user": "eve", "preempt": "never"}, "never preempted needs GPUs of a tenant, and no tenant claims its queue"),
        ({"user": "ann", "preempt": "never", "priority": -1}, "needs GPUs of a tenant, and its priority is negative"),
    ],
)
def test_jobs_that_cannot_be_in_a_tenants_cells_are_refused(made: Any, about: dict[str, Any], message: str) -> None:
    world = made(machines(8, 8), TENANTS)
    future = world.scheduler.submission([JobRequest(command=("simulated",), **about)])
    world.scheduler.loop.step()
    with pytest.raises(InputError, match=message):
        future.result(0)


def test_a_job_that_is_never_preempted_cannot_become_opportunistic(made: Any) -> None:
    world = made(machines(8, 8), TENANTS)
    world.submit(2, name="stays", user="ann", preempt="never")
    world.until(5.0)
    change = world.scheduler.commands.changing({"priority": -1})
    future = world.scheduler.engine.ask(world.scheduler.commands.each(world.records()["stays"].id, change))
    world.scheduler.loop.step()
    with pytest.raises(InputError, match="its priority is negative"):
        future.result(0)
    world.rest()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            '[tenants.a]\ncells = ["1x16"]',
            "tenant 'a': fast nodes have no cells of 16 GPUs; they split into 8, 4, 2",
        ),
        ('[tenants.a]\ncells = ["3x8"]', "tenant 'a': 1 of its 3 cells of 8 fast GPUs cannot be reserved: other cells"),
        ('[tenants.a]\ncells = ["8q"]', "tenants.a: cells: '8q' is not COUNTxGPUS"),
        ("[tenants.a]\ncells = []", "tenants.a: it reserves no cells"),
        ('[tenants.a]\nusers = ["x"]', "tenants.a.cells"),
        ('[tenants.a]\ncells = ["1"]\nuser = ["x"]', "tenants.a.user: there is no such key; did you mean users?"),
        ('[tenants.a]\ncells = ["1"]\nqueues = ["q"]\n[queues.p]', "tenants.a: there is no queue 'q'; there are p"),
        (
            '[tenants.a]\ncells = ["1"]\nusers = ["u"]\n[tenants.b]\ncells = ["1"]\nusers = ["u"]',
            "user 'u' is claimed by two tenants, 'a' and 'b'",
        ),
    ],
)
def test_tenants_that_cannot_be_are_one_line_and_change_nothing(made: Any, config: str, message: str) -> None:
    world = made(machines(8, 8), TENANTS)
    world.submit(8, 100.0, name="x", user="eve")
    world.submit(4, 100.0, name="v", user="ann")
    world.until(5.0)
    before = world.settings.tenants()
    with pytest.raises(ConfigError) as raised:
        world.configure(config)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(world.folder / FILE_NAME))
    assert "\n" not in str(raised.value)
    world.until(6.0)
    assert world.settings.tenants() is before
    world.kill()
    with pytest.raises(ConfigError):
        world.start()
    (world.folder / FILE_NAME).write_text(TENANTS)
    world.start()
    world.rest()


def test_tenants_come_and_go_and_jobs_keep_their_gpus(made: Any) -> None:
    """Before, between and after: cells are bound around what runs, and priorities are what owners asked for again."""
    world = made(machines(8, 8))
    world.submit(2, 900.0, name="v", user="ann", priority=3)
    world.submit(4, 900.0, name="x", user="eve", priority=5)
    world.until(5.0)
    held = world.held()
    world.configure(TENANTS)
    world.until(6.0)
    assert world.held() == held
    snapshot = world.scheduler.state.snapshot()
    assert snapshot.priority.tolist() == [3, -1]
    assert world.records()["x"].request.priority == 5
    assert len(world.scheduler.state.memory["tenants"]["vision"]["bound"]) == 1
    world.submit(6, 900.0, 7.0, name="v6", user="ann")
    world.submit(4, 900.0, 7.0, name="s", user="bob", queue="asr")
    world.until(8.0)
    assert set(world.held()) == {"v", "x", "s"}, "vision has 2 of its 6 GPUs in use"
    world.configure(TENANTS.replace('cells = ["1x4", "1x2"]', 'cells = ["1x8"]'))
    world.until(9.0)
    assert world.held()["v"] == held["v"]
    assert set(world.held()) == {"v", "x", "s", "v6"}, "x makes room on the node that is vision's now"
    world.configure("")
    world.until(10.0)
    assert world.scheduler.state.snapshot().priority.tolist() == [3, 5, 0, 0]
    assert "tenants" not in world.scheduler.state.memory
    world.rest()


def test_bindings_outlive_the_scheduler_and_a_change_of_the_policy(made: Any) -> None:
    world = made(machines(8, 8), TENANTS)
    world.submit(2, 900.0, name="v", user="ann")
    world.submit(4, 900.0, name="s", user="bob", queue="asr")
    world.submit(8, 900.0, name="x", user="eve")
    world.until(5.0)
    bound, held = _bound(world), world.held()
    world.kill()
    world.start()
    assert _bound(world) == bound
    world.until(10.0)
    assert (_bound(world), world.held()) == (bound, held)
    world.scheduler.engine.ask(world.scheduler.policy_change(make_policy("srtf"), "srtf"))
    world.until(20.0)
    assert (_bound(world), world.held(), world.scheduler.guard.name) == (bound, held, "srtf")
    world.kill()
    world.policy = "las"
    world.start()
    world.until(30.0)
    assert world.held() == held
    world.rest()


def _bound(world: World) -> dict[str, dict[str, int]]:
    return {name: dict(known["bound"]) for name, known in world.scheduler.state.memory["tenants"].items()}


def test_blocked_gpus_are_the_loss_of_whoever_has_no_other_cell(made: Any) -> None:
    config = '[tenants.a]\ncells = ["4"]\nusers = ["ann"]\n[tenants.b]\ncells = ["4"]\nusers = ["bob"]'
    world = made(machines(8), config)
    world.scheduler.block_gpus({2: "somebody else computes there"})
    world.submit(4, 100.0, 1.0, name="a", user="ann")
    world.submit(3, 100.0, 2.0, name="b", user="bob")
    world.submit(1, 100.0, 2.0, name="b1", user="bob")
    world.until(5.0)
    assert world.held() == {"a": (4, 5, 6, 7), "b": (0, 1, 3)}
    told = world.look("b1")
    assert told["reason"].startswith("tenant b has 3 of its 4 GPUs in use, 1 out of order: needs 1 GPU, 0 free")
    assert told["tenant"] == {"name": "b", "gpus": 4, "gpus_held": 3, "out_of_order": 1}
    world.scheduler.block_gpus({})
    world.until(10.0)
    assert world.held()["b1"] == (2,)
    world.rest()


def test_a_node_that_is_lost_costs_opportunistic_jobs_first(made: Any) -> None:
    config = '[tenants.a]\ncells = ["4"]\nusers = ["ann"]'
    world = made(machines(4, 4), config)
    world.submit(4, 100.0, name="x", user="eve")
    world.until(1.0)
    assert world.held() == {"x": (0, 1, 2, 3)}
    engine = world.scheduler.engine
    engine.ask(lambda now_s: ([NodeLost(now_s, 1)], None))
    world.submit(4, 50.0, 2.0, name="a", user="ann")
    world.until(5.0)
    assert world.held() == {"a": (0, 1, 2, 3)}
    engine.ask(lambda now_s: ([NodeRestored(now_s, 1)], None))
    world.until(10.0)
    assert world.held() == {"a": (0, 1, 2, 3), "x": (4, 5, 6, 7)}
    world.rest()


def racks(*labels: str) -> Cluster:
    return Cluster.of([Node(f"n{n}", "fast", 4, label) for n, label in enumerate(labels)], machines(4).types)


def test_nodes_that_join_serve_others_and_tenants_keep_their_cells(made: Any) -> None:
    world = made(racks("r1", "r1"), '[tenants.a]\ncells = ["1x8"]\nusers = ["ann"]')
    world.submit(8, 500.0, name="x", user="eve")
    world.submit(4, 500.0, 1.0, name="a", user="ann")
    world.until(5.0)
    assert world.held() == {"a": (0, 1, 2, 3)}
    _grow(world, racks("r1", "r1", "r2", "r2"))
    world.until(10.0)
    assert world.held() == {"a": (0, 1, 2, 3), "x": (4, 5, 6, 7, 8, 9, 10, 11)}
    assert world.settings.problem == ""
    _grow(world, racks("r1", "r1", "r2", "r2", "r1"))
    world.submit(4, 500.0, 11.0, name="a2", user="ann")
    world.until(15.0)
    assert "nodes that have joined count as being in no rack" in world.settings.problem
    assert world.held()["a2"] == (4, 5, 6, 7)
    world.rest()


def _grow(world: World, cluster: Cluster) -> None:
    """Let nodes join."""
    nodes = world.scheduler.nodes
    grew = partial(ClusterGrew, joined=NodesJoined(cluster, None))
    world.scheduler.engine.ask(lambda now_s: (nodes.grew(grew(now_s)), None))


def test_where_nodes_are_is_remembered_while_they_are_away(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('[tenants.a]\ncells = ["1x8"]\nusers = ["ann"]')
    facts = Settings(tmp_path).fit(racks("r1", "r1"))
    away = racks("r1", "")
    with pytest.raises(ConfigError, match="no cells of 8 GPUs"):
        Settings(tmp_path).fit(away)
    again = Settings(tmp_path)
    again.fit(away, facts)
    assert again.tenants() is not None


def test_cells_of_no_type_are_of_the_type_that_the_cluster_had(tmp_path: Path) -> None:
    """A cluster that gets a second GPU type goes on, also after a restart; only a new one has to be told."""
    (tmp_path / FILE_NAME).write_text('[tenants.a]\ncells = ["1x4"]\nusers = ["ann"]')
    mixed = Cluster.of(
        [*machines(4, 4).nodes, Node("s", "slow", 8)], [*machines(4).types, GpuType("slow", 0, 0.0, 0.5)]
    )
    settings = Settings(tmp_path)
    facts = settings.fit(machines(4, 4))
    assert settings.fit(mixed) == facts
    assert settings.problem == ""
    again = Settings(tmp_path)
    again.fit(mixed, facts)
    for one in (settings, again):
        tenants = one.tenants()
        assert tenants is not None
        assert [node.gpu_type for node in tenants.parts[0].cluster.nodes] == ["fast"]
    with pytest.raises(ConfigError, match="cells 1x4 need a GPU type, like fast:1x4; here: fast, slow"):
        Settings(tmp_path).fit(mixed)


def test_nothing_new_starts_on_a_drained_node_and_its_cells_go_elsewhere(made: Any) -> None:
    world = made(machines(4, 4, 4), '[tenants.a]\ncells = ["2x4"]\nusers = ["ann"]')
    world.submit(1, 100.0, name="old", user="ann")
    world.submit(4, 500.0, name="x", user="eve")
    world.until(1.0)
    assert world.held()["old"] == (0,)
    world.scheduler.engine.ask(world.scheduler.draining.drain("n0", Drain("root", ""), move=False))
    world.submit(4, 100.0, 2.0, name="new", user="ann")
    world.submit(2, 50.0, 3.0, name="waits", user="ann")
    world.until(5.0)
    assert world.held().keys() == {"old", "x", "new"}
    assert "tenant a has 5 of its 8 GPUs in use, 3 out of order" in world.look("waits")["reason"]
    world.until(110.0)
    assert set(world.held()["waits"]).isdisjoint(range(4)), "the cell moves when its last job has left"
    world.rest()


def test_shares_of_a_gpu_stay_within_a_tenant(made: Any) -> None:
    config = '[tenants.a]\ncells = ["1"]\nusers = ["ann"]\n[tenants.b]\ncells = ["1"]\nusers = ["bob"]'
    world = made(machines(2), config)
    for name, user in (("a1", "ann"), ("b1", "bob"), ("a2", "ann"), ("b2", "bob"), ("a3", "ann")):
        world.submit(1, 100.0, name=name, user=user, gpu_share=0.5)
    world.until(5.0)
    held = world.held()
    assert set(held) == {"a1", "a2", "b1", "b2"}
    assert held["a1"] == held["a2"] != held["b1"] == held["b2"]
    assert views.tenants(world.scheduler)[0]["gpus_held"] == 1
    # When the first of them has left, the other is still in the tenant's cell, and its third takes the place.
    world.scheduler.engine.ask(world.scheduler.commands.each(world.records()["a1"].id, world.scheduler.commands.cancel))
    world.submit(2, 10.0, 6.0, name="x", user="eve")
    world.until(10.0)
    assert world.held() == {"a2": held["a2"], "a3": held["a2"], "b1": held["b1"], "b2": held["b1"]}
    world.rest()


def test_a_suspended_job_goes_on_where_its_memory_is(made: Any) -> None:
    """On real GPUs. While it stands still, its cell is its tenant's, and the other tenant is bound elsewhere."""
    config = '[tenants.a]\ncells = ["4"]\nusers = ["ann"]\n[tenants.b]\ncells = ["4"]\nusers = ["bob"]'
    world = made(machines(8), config, devices=[f"gpu-{n}" for n in range(8)])
    commands, engine = world.scheduler.commands, world.scheduler.engine
    world.submit(2, 100.0, name="a", user="ann", preempt="suspend")
    world.until(5.0)
    home = world.held()["a"]
    engine.ask(commands.each(world.records()["a"].id, commands.suspend))
    world.submit(4, 100.0, 6.0, name="b", user="bob")
    world.submit(4, 100.0, 7.0, name="x", user="eve")
    world.until(20.0)
    assert set(world.held()["b"]).isdisjoint(home)
    engine.ask(commands.each(world.records()["a"].id, commands.release))
    world.until(30.0)
    assert world.held()["a"] == home
    assert "x" not in world.held(), "it was on those GPUs, and gives way"
    world.rest()


def test_a_policy_that_fails_costs_tenants_nothing(made: Any) -> None:
    world = made(machines(8), '[tenants.a]\ncells = ["4"]\nusers = ["ann"]')

    class Broken:
        name, knows, round_s = "broken", frozenset[str](), 0.0

        def decide(self, snapshot: Any) -> Any:
            raise RuntimeError("it cannot decide")

    world.scheduler.guard.use(Broken())
    world.submit(8, 100.0, name="x", user="eve")
    world.submit(4, 50.0, 10.0, name="a", user="ann")
    world.until(12.0)
    assert world.held() == {"a": (0, 1, 2, 3)}
    assert "it cannot decide" in world.scheduler.guard.problem


def test_an_incident_with_tenants_can_be_repeated(made: Any) -> None:
    world = made(machines(8, 8), TENANTS)
    for job in teams(3, each=6):
        world.submit(**job)
    world.until(300.0)
    scheduler = world.scheduler
    snapshot = scheduler.state.snapshot(scheduler.guard.knows)
    config = str(scheduler.journal.facts(("config",))["config"])
    incident = Incident(snapshot.copy(), "fifo", {}, {}, {}, config, ())
    again = Incident.of_text(incident.text())
    assert [one.gpus for one in again.decide()] == scheduler.guard.decide(snapshot).gpus.tolist()
    assert any("tenant vision has" in one.reason for one in again.decide() if not one.gpus)
    world.rest()
