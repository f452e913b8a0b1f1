"""AntMan: the controller of the worked example, who sits where, and the laws between the two classes of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.core.action import Action, Launch, Move
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.event import Woken
from fairway.core.pairing import MeasuredTable, PairTable
from fairway.core.snapshot import Snapshot
from fairway.models.profile import load_profile
from fairway.policies import make_policy
from fairway.policies.antman import AntMan, aimd
from fairway.policies.antman.control import ControlKnobs, HostWatch
from fairway.simulator.result import Result
from fairway.testing import check_policy, cluster, job, random_cluster, random_workload, snapshot_of, state_of
from fairway.testing.harness import run_policy
from fairway.testing.pace import loops
from fairway.testing.seeds import ALL

GIB = 2**30
LIMITS = ControlKnobs(eps=0.05, decrease=0.5, increase=0.1, least=0.1, window=10, interval_s=60.0, hold_s=1800.0)


def spare(name: str, gpus: int = 1, duration_s: float = 9000.0, **more: Any) -> JobSpec:
    return job(name, gpus, duration_s, priority=-1, **more)


def decided(jobs: list[JobSpec], machines: str = "v100:4", knobs: str = "", **about: Any) -> Decision:
    policy = make_policy(f"antman:{knobs}")
    return policy.decide(snapshot_of(jobs, machines, **about))


class Laws:
    """An observer: rounds, the slowdown of guaranteed jobs over time, and actions."""

    def __init__(self) -> None:
        self.decisions: list[tuple[float, Decision]] = []
        self.actions: list[Action] = []
        self.slow_s: dict[int, list[float]] = {}
        self._before_s = 0.0

    def after_events(self, *about: Any) -> None:
        pass

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        self.decisions.append((snapshot.now_s, decision))
        self.actions += actions
        for row in snapshot.running_rows.tolist():
            alone = snapshot.best_speed[row]
            if snapshot.priority[row] >= 0 and snapshot.held[row] == snapshot.gpus[row]:
                streak = self.slow_s.setdefault(int(snapshot.jobs[row]), [0.0, 0.0])
                slow = alone / snapshot.rate[row] > 1.05 + 1e-9
                streak[0] = streak[0] + snapshot.now_s - self._before_s if slow else 0.0
                streak[1] = max(streak)
        self._before_s = snapshot.now_s


def ran(jobs: list[JobSpec], machines: str = "v100:4", knobs: str = "") -> tuple[Result, Laws]:
    laws = Laws()
    return simulate(Workload.of(jobs), cluster=machines, policy=f"antman:{knobs}", observer=laws), laws


def test_the_controller_of_the_worked_example() -> None:
    shares, share = [], 1.0
    for step_ms in (230, 215, 205, 204):
        share = aimd(share, step_ms / 200)
        shares.append(round(share, 9))
    assert shares == [0.5, 0.25, 0.35, 0.45]


def test_a_throttle_is_raised_to_what_the_host_bears_and_then_rests() -> None:
    """A host that loses 0.25 of its time to a guest at full speed bears 0.2 of it; nine tenths of that are used."""
    watch, now_s, seen = HostWatch(alone=1.0, share=0.1, due_s=60.0), 60.0, []
    while not watch.settled:
        assert watch.step(now_s, 1 + 0.25 * watch.share, LIMITS)
        seen.append(watch.share)
        now_s += 60.0
    assert watch.share == pytest.approx(0.18)
    assert max(seen) <= 0.2
    assert watch.due_s == now_s - 60.0 + 1800.0


def test_a_harmless_guest_ends_without_a_throttle() -> None:
    watch = HostWatch(alone=1.0, share=0.2, due_s=60.0)
    for minute in range(1, 12):
        assert watch.step(60.0 * minute, 1.0, LIMITS)
    assert watch.share == 1.0
    assert watch.settled


def test_one_slow_step_among_ten_is_noise() -> None:
    watch = HostWatch(alone=1.0, share=0.5, due_s=600.0)
    for second in range(9):
        watch.step(float(second), 1.0, LIMITS)
    watch.step(600.0, 3.0, LIMITS)
    assert watch.share == pytest.approx(0.6)


def test_a_guest_that_could_hardly_compute_has_to_leave() -> None:
    watch = HostWatch(alone=1.0, share=0.2, due_s=60.0)
    assert not watch.step(60.0, 1 + 0.8 * 0.2, LIMITS)


def test_a_settled_throttle_is_cut_at_once_when_the_host_slows_down() -> None:
    watch = HostWatch(alone=1.0, share=0.4, due_s=9000.0, settled=True)
    assert watch.step(100.0, 1.08, LIMITS)
    assert watch.share == pytest.approx(0.2)
    assert watch.due_s == 160.0


def test_guaranteed_jobs_take_the_gpus_of_opportunistic_ones_the_youngest_first() -> None:
    jobs = [spare("old", 2), spare("young", 2, submitted_s=1.0), job("first", 2, 900.0, submitted_s=2.0)]
    decision = decided(jobs, now_s=10.0, running={"old": 2, "young": 2}, min_run_s=60.0)
    assert decision.gpus.tolist() == [2, 0, 2]
    assert decision.warm


def spread_out() -> list[JobSpec]:
    """On two nodes of four: a guaranteed job of 3 with an opportunistic one beside it, and two opportunistic ones."""
    return [
        job("g0", 3, 1e5),
        spare("oA", 3, 1e5, submitted_s=1.0),
        spare("oB", 1, 1e5, submitted_s=2.0),
        spare("oC", 1, 1e5, submitted_s=3.0),
        JobSpec("g1", 100.0, gpus=2, steps=4000, model="VGG19", batch_size=32),
    ]


@pytest.mark.parametrize("placement", ["packed", "spread"])
def test_a_guaranteed_gang_is_not_spread_by_opportunistic_jobs(placement: str) -> None:
    """The youngest two are on different nodes, where the gang would take twice as long."""
    jobs = spread_out()
    alone, among = (
        simulate(Workload.of(some), cluster="v100:2x4", policy="antman:share=off", placement=placement)
        for some in ([spec for spec in jobs if spec.priority >= 0], jobs)
    )
    assert among.jct_s[4] <= alone.jct_s[1]
    assert among.finished == 5


def test_who_leaves_is_on_the_gpus_that_a_guaranteed_gang_needs() -> None:
    running = {"g0": (0, 1, 2), "oB": (3,), "oA": (4, 5, 6), "oC": (7,)}
    decision = decided(spread_out(), "v100:2x4", "share=off", now_s=200.0, running=running)
    assert decision.gpus.tolist() == [3, 0, 1, 1, 2]
    assert decision.placements == {4: (4, 5)}


def test_where_nobody_has_to_leave_the_fewest_gpus_are_lost_and_then_the_youngest_leaves() -> None:
    jobs = [spare("a", 2), spare("b", 3), spare("c", 2), job("g", 2, 900.0)]
    about: Any = {"now_s": 100.0, "knobs": "share=off"}
    idle = decided(jobs, "v100:3x4", running={"a": (0, 1), "b": (4, 5, 6), "c": (8, 9)}, **about)
    assert idle.gpus.tolist() == [2, 3, 2, 2]
    assert idle.placements == {3: (2, 3)}
    jobs = [
        spare("a", 2),
        spare("b", 3),
        spare("c", 2),
        *(job(f"g{n}", 2, 900.0) for n in range(2)),
        job("last", 2, 900.0),
    ]
    running = {"a": (0, 1), "b": (4, 5, 6), "c": (8, 9), "g0": (2, 3), "g1": (10, 11)}
    full = decided(jobs, "v100:3x4", running=running, **about)
    assert full.gpus.tolist() == [2, 3, 0, 2, 2, 2]
    assert full.placements == {5: (8, 9)}


def test_who_had_to_leave_goes_on_elsewhere() -> None:
    jobs = [job("g0", 3, 900.0), spare("o", 1), job("g1", 4, 900.0)]
    decision = decided(jobs, "v100:2x4", now_s=100.0, running={"g0": (0, 1, 2), "o": (4,)})
    assert decision.gpus.tolist() == [3, 1, 4]
    assert decision.placements == {2: (4, 5, 6, 7), 1: (3,)}


def test_an_elastic_job_that_has_to_leave_goes_on_with_what_it_asks_for() -> None:
    jobs = [job("host", 1, 9000.0), spare("wide", 1, gpus_min=1, gpus_max=3), job("late", 1), job("later", 2)]
    about: Any = {"now_s": 100.0, "running": {"host": 1, "wide": 3}, "attained": {"host": 100.0}}
    assert decided(jobs[:3], **about).gpus.tolist() == [1, 1, 1]
    decision = decided(jobs, **about)
    assert decision.gpus.tolist() == [1, 1, 1, 2]
    assert decision.partners == {1: 0}


def test_a_gang_over_several_nodes_takes_as_few_as_without_opportunistic_jobs() -> None:
    jobs = [job("g0", 2, 900.0), spare("wide", 6), job("g1", 6, 900.0)]
    decision = decided(jobs, "v100:3x4", "share=off", now_s=100.0, running={"g0": (0, 1), "wide": (2, 3, 4, 5, 6, 7)})
    assert decision.gpus.tolist() == [2, 0, 6]
    assert decision.placements == {2: (8, 9, 10, 11, 2, 3)}


def test_without_opportunistic_jobs_the_placement_is_left_to_the_placer() -> None:
    assert not decided([job("a", 2, 900.0), job("b", 1, 900.0)]).placements
    assert not decided([job("a", 2, 900.0), spare("o")]).placements


@pytest.mark.parametrize(("kept", "partners"), [(None, {2: 0}), ((0.9, 0.95), {2: 1}), ((0.6, 0.5), {})])
def test_hosts_that_were_measured_to_suffer_from_such_guests_are_spared(
    kept: tuple[float, float] | None, partners: dict[int, int]
) -> None:
    jobs = [job("x", 2, 9000.0, model="A"), job("y", 2, 9000.0, model="B"), spare("o", 1, model="C")]
    view = snapshot_of(jobs, "v100:4", now_s=100.0, running={"x": 2, "y": 2}, attained={"x": 100.0, "y": 100.0})
    factors = {(0, 2): ((kept[0], 0.9),), (1, 2): ((kept[1], 0.9),)} if kept else {}
    view.frame = view.frame._replace(measured=MeasuredTable(PairTable({0: 0, 1: 1, 2: 2}, factors)))
    assert make_policy("antman").decide(view).partners == partners


def test_guaranteed_jobs_are_never_stopped() -> None:
    jobs = [job("runs", 3, 900.0), job("waits", 2, 900.0), job("fits", 1, 900.0)]
    assert decided(jobs, running={"runs": 3}).gpus.tolist() == [3, 0, 1]
    strict = decided(jobs, knobs="strict=on", running={"runs": 3})
    assert strict.gpus.tolist() == [3, 0, 0]
    assert strict.reasons.tolist() == [0, Reason.NO_FREE_GPUS, Reason.BEHIND]
    assert strict.ahead == 1


def test_opportunistic_jobs_use_idle_gpus_before_they_share() -> None:
    jobs = [job("host", 2, 9000.0), spare("a", 2), spare("b", 2)]
    decision = decided(jobs, now_s=100.0, running={"host": 2}, attained={"host": 100.0})
    assert decision.gpus.tolist() == [2, 2, 2]
    assert decision.partners == {2: 0}
    assert decision.throttles == {2: 0.2}


def test_a_host_is_first_measured_alone() -> None:
    jobs = [job("host", 4, 9000.0), spare("guest")]
    decision = decided(jobs, now_s=100.0, running={"host": 4}, attained={"host": 30.0})
    assert decision.gpus.tolist() == [4, 0]
    assert decision.wake_s == pytest.approx(130.0)
    assert "no guaranteed job" in decision.texts[1]


def test_one_guest_per_gpu_and_no_gang_larger_than_its_host() -> None:
    jobs = [job("host", 4, 9000.0), *(spare(f"g{n}", 2) for n in range(3)), spare("large", 5)]
    about: Any = {"now_s": 100.0, "running": {"host": 4}, "attained": {"host": 100.0}}
    assert decided(jobs[:4], **about).partners == {1: 0, 2: 0}
    assert decided([*jobs[:1], jobs[4]], "v100:5", **about).partners == {}


def test_a_guest_needs_memory_beside_its_host() -> None:
    hosts = [job("full", 1, 9000.0, memory_bytes=14 * GIB), job("light", 1, 9000.0, memory_bytes=2 * GIB)]
    guest = spare("guest", memory_bytes=6 * GIB)
    about: Any = {"now_s": 100.0, "running": {"full": 1, "light": 1}, "attained": {"full": 100.0, "light": 100.0}}
    assert decided([*hosts, guest], "v100:2", **about).partners == {2: 1}
    assert decided([hosts[0], spare("unknown")], "v100:1", **about | {"running": {"full": 1}}).partners == {1: 0}


def test_the_host_that_suffers_least_is_chosen() -> None:
    jobs = [job("a", 1, 9000.0, model="VGG19"), job("b", 1, 9000.0, model="LM"), spare("g", model="A3C")]
    about: Any = {"now_s": 9000.0, "running": {"a": 1, "b": 1}, "attained": {"a": 100.0, "b": 100.0}}
    memory = AntMan().decide(snapshot_of(jobs, "v100:3")).memory
    assert decided(jobs, "v100:2", **about).partners == {2: 0}
    known = {**memory, "pairs": {"0/2": [0.3, 8000.0]}}
    assert decided(jobs, "v100:2", memory=known, **about).partners == {2: 1}
    both = {**memory, "pairs": {"0/2": [0.9, 8000.0], "1/2": [0.8, 8000.0]}}
    spared = decided(jobs, "v100:2", memory=both, **about)
    assert spared.partners == {}
    assert spared.wake_s == 8000.0 + 3600.0


def test_without_sharing_opportunistic_jobs_use_idle_gpus_only() -> None:
    jobs = [job("host", 4, 9000.0), spare("guest")]
    decision = decided(jobs, knobs="share=off", now_s=100.0, running={"host": 4}, attained={"host": 100.0})
    assert decision.partners == {}
    assert decision.gpus.tolist() == [4, 0]


def steps_for(model: str, batch: int, seconds: float) -> dict[str, Any]:
    return {"model": model, "batch_size": batch, "steps": seconds * load_profile(None).rate(model, batch, "v100", 1)}


def test_a_gentle_guest_settles_within_what_its_host_bears() -> None:
    host = JobSpec("host", 0.0, **steps_for("ResNet-50", 64, 20_000.0))
    guest = JobSpec("guest", 100.0, priority=-1, **steps_for("Recommendation", 2048, 2000.0))
    result, laws = ran([host, guest], "v100:1")
    throttles = [decision.throttles[1] for _, decision in laws.decisions if decision.partners]
    assert throttles[-1] == pytest.approx(0.2, abs=0.03)
    assert result.jct_s[0] <= 20_000.0 * 1.05 + 1
    assert laws.slow_s[0][1] <= 120.0
    assert len(laws.decisions) < 60


def test_a_rough_guest_is_paused_and_told_why() -> None:
    jobs = [job("host", 1, 9000.0), spare("guest", submitted_s=100.0, duration_s=500.0)]
    result, laws = ran(jobs, "v100:1")
    assert laws.slow_s[0][1] <= 60.0 + 1
    texts = {text for _, decision in laws.decisions for text in decision.texts.values()}
    assert any("paused: it slowed job host by 16%" in text for text in texts)
    assert result.jct_s[0] <= 9000.0 * 1.05
    assert result.finished == 2


def test_a_guest_moves_to_idle_gpus_and_its_host_stays_although_it_came_later() -> None:
    jobs = [
        spare("guest", 1, 5000.0),
        job("host", 2, 5000.0, submitted_s=10.0),
        job("brief", 2, 300.0, submitted_s=20.0),
    ]
    result, laws = ran(jobs, "v100:4", "eps=1,least=0.01,start=0.5")
    assert [action for action in laws.actions if isinstance(action, Move) and action.job != 0] == []
    assert result.ledger.starts.tolist()[1:] == [1, 1]
    assert result.finished == 3


def test_a_guest_stays_on_the_gpus_when_its_host_ends() -> None:
    jobs = [job("host", 1, 500.0), spare("guest", 1, 1000.0, submitted_s=10.0)]
    result, laws = ran(jobs, "v100:1", "eps=1,least=0.01,start=0.5")
    assert result.ledger.started_s.tolist() == [0.0, 60.0]
    assert result.ledger.starts.tolist() == [1, 1]
    assert result.ledger.finished_s[1] > result.ledger.finished_s[0] > 500.0
    assert laws.decisions[-1][1].partners == {}


def test_a_pair_that_does_not_fit_is_not_tried_again() -> None:
    """The built-in profile knows that two such jobs exceed the memory of a V100; the policy has to find out."""
    host = JobSpec("host", 0.0, **steps_for("VGG19", 64, 4000.0))
    guest = JobSpec("guest", 100.0, priority=-1, **steps_for("BERT-base", 12, 500.0))
    result, laws = ran([host, guest], "v100:1")
    tried = [decision for _, decision in laws.decisions if decision.partners]
    assert len(tried) == 1
    assert result.finished == 2


def no_guaranteed_job_waits_for_an_opportunistic_one(snapshot: Snapshot, decision: Decision) -> None:
    """However a guaranteed job's types are filled, opportunistic jobs alone on GPUs do not hold what it needs."""
    available = snapshot.capacity.copy()
    kinds = decision.gpu_types if decision.gpu_types is not None else np.zeros(len(snapshot), dtype=np.int64)
    for row in decision.gpus.nonzero()[0].tolist():
        if snapshot.priority[row] >= 0:
            available[kinds[row]] -= decision.gpus[row]
    for row in (decision.gpus == 0).nonzero()[0].tolist():
        if snapshot.priority[row] >= 0:
            assert not ((available >= snapshot.gpus[row]) & (snapshot.speeds[:, row] > 0)).any()


def guests_are_opportunistic_and_alone_on_their_gpus(snapshot: Snapshot, decision: Decision) -> None:
    guests: dict[int, int] = {}
    for guest, host in decision.partners.items():
        assert snapshot.priority[guest] < 0 <= snapshot.priority[host]
        guests[host] = guests.get(host, 0) + int(decision.gpus[guest])
    assert all(count <= decision.gpus[host] for host, count in guests.items())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mixed", [False, True])
def test_the_laws_hold_on_random_clusters(seed: int, mixed: bool) -> None:
    where = random_cluster(seed, mixed=mixed)
    jobs = random_workload(seed, where, jobs=30).jobs
    checks = (no_guaranteed_job_waits_for_an_opportunistic_one, guests_are_opportunistic_and_alone_on_their_gpus)
    knobs = "" if seed % 2 else "eps=0.6,least=0.05"
    run_policy(make_policy(f"antman:{knobs}"), jobs, where, seed=seed, checks=checks)


def test_guaranteed_jobs_are_slowed_by_no_more_than_allowed_on_average() -> None:
    random = np.random.default_rng(7)
    models = [("ResNet-18", 64), ("ResNet-50", 32), ("LM", 20), ("Recommendation", 2048)]
    jobs = []
    for n in range(60):
        model, batch = models[int(random.integers(len(models)))]
        about = steps_for(model, batch, float(random.uniform(1800, 9000)))
        jobs.append(JobSpec(f"j{n}", 60.0 * n, priority=-(n % 2), **about))
    result, laws = ran(jobs, "v100:12")
    first = np.array([spec.priority >= 0 for spec in result.specs])
    slowdown = (result.ledger.held_s / result.ledger.exclusive_s)[first]
    assert slowdown.mean() <= 1.05
    assert max(streak for _, streak in laws.slow_s.values()) <= 3 * 60.0
    assert any(decision.partners for _, decision in laws.decisions)


@pytest.mark.parametrize("knobs", ["strict=on", "eps=1,least=0.01,start=1,interval_s=7.3", "share=off"])
def test_the_contract_holds_with_other_knobs(knobs: str) -> None:
    check_policy(f"antman:{knobs}", seeds=[30], work_conserving="strict" not in knobs, other_processes=ALL)


@pytest.mark.parametrize(
    "knobs", ["eps=0", "least=0.5,start=0.2", "decrease=1", "window=0", "interval_s=0", "increase=0"]
)
def test_senseless_knobs_are_refused(knobs: str) -> None:
    with pytest.raises(InputError, match="must be"):
        make_policy(f"antman:{knobs}")


def test_two_thousand_jobs_are_seated_in_milliseconds() -> None:
    """The budget is 20 ms of CPU, four loops; five times as much is allowed here, because test machines are shared."""
    random = np.random.default_rng(1)
    jobs = [job(f"h{n}", 1, 9e4, model=f"m{n % 7}") for n in range(400)]
    jobs += [job(f"w{n}", 4, 9e4) for n in range(600)]
    jobs += [spare(f"s{n}", 1, 9e4, memory_bytes=int(random.integers(1, 14 * GIB))) for n in range(1000)]
    running = {f"h{n}": 1 for n in range(400)}
    snapshot = snapshot_of(
        jobs, cluster("v100:50x8"), now_s=999.0, running=running, attained=dict.fromkeys(running, 900.0)
    )
    decision = AntMan().decide(snapshot)
    assert len(decision.partners) == 400
    assert loops(lambda: AntMan().decide(snapshot), tries=3) < 20


def test_many_guaranteed_jobs_evict_many_in_milliseconds() -> None:
    jobs = [spare(f"s{n}", 1 + n % 3, 9e4) for n in range(1000)] + [job(f"g{n}", 1 + n % 4, 9e4) for n in range(1000)]
    running, taken = {}, 0
    for spec in jobs[:200]:
        running[spec.id] = tuple(range(taken, taken + spec.gpus))
        taken += spec.gpus
    snapshot = snapshot_of(jobs, cluster("v100:50x8"), now_s=999.0, running=running)
    decision = AntMan().decide(snapshot)
    assert sum(len(gpus) for gpus in decision.placements.values()) == 400
    assert loops(lambda: AntMan().decide(snapshot), tries=3) < 20


# Jobs that may not be stopped.


def never(name: str, gpus: int = 1, **more: Any) -> JobSpec:
    return spare(name, gpus, preemptible=False, **more)


def _lawful(
    jobs: list[JobSpec], launches: Sequence[Launch], machines: str = "v100:1x4", memory: Any = None
) -> Decision:
    state = state_of(jobs, machines)
    state.commit(launches)
    state.memory = memory or {}
    state.apply(Woken(100.0))
    snapshot = state.snapshot()
    decision = make_policy("antman").decide(snapshot)
    check(snapshot, decision)
    return decision


def test_an_opportunistic_job_that_may_not_be_stopped_keeps_its_gpus() -> None:
    jobs = [never("never", 2), spare("spare", 1), job("a", 4), job("b", 2)]
    decision = _lawful(jobs, [Launch(0, (0, 1), 0), Launch(1, (2,), 0)])
    assert decision.gpus[[0, 2, 3]].tolist() == [2, 0, 2]
    assert decision.placements[3] == (2, 3)
    assert decision.partners == {1: 0}


def test_before_it_starts_such_a_job_is_as_opportunistic_as_others() -> None:
    assert decided([never("never", 4), job("a", 2)]).gpus.tolist() == [0, 2]


def test_a_guest_that_may_not_be_stopped_stays_with_its_host() -> None:
    jobs = [spare("host", 2), never("guest", 2), job("a", 4), job("b", 2)]
    decision = _lawful(jobs, [Launch(0, (0, 1), 0), Launch(1, (0, 1), 0, 0, 0.3)])
    assert decision.gpus.tolist() == [2, 2, 0, 2]
    assert (decision.partners, decision.throttles) == ({1: 0}, {1: 0.3})


def test_such_a_guest_stays_even_if_its_host_is_slowed() -> None:
    jobs = [job("host", 2), never("guest", 2)]
    launches = [Launch(0, (0, 1), 0), Launch(1, (0, 1), 0, 0, 0.1)]
    watches = {"0": {"alone": 5.0, "share": 0.1, "due_s": 50.0}}
    memory = {"watches": watches, "closed": {}, "paused": {}, "pairs": {}, "refused": [], "joined": {}}
    decision = _lawful(jobs, launches, memory=memory)
    assert decision.gpus.tolist() == [2, 2]
    assert decision.partners == {1: 0}
