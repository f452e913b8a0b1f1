"""Suspended jobs of a simulated cluster: when their memory moves, by which way, at what cost, within which limits."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.models.suspend_table import H200, SuspendRow, SuspendTable
from fairway.models.suspension import Suspension
from fairway.policies import make_policy
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.suspending import Suspends
from fairway.simulator.switch_table import switching_of
from fairway.testing import cluster, job
from fairway.testing.seeds import some

GB = 10**9
RESTART_S = 30.0
MOVED, BOTH, DRIVER = H200.ways["moved"], H200.ways["both"], H200.ways["driver"]


def sized(name: str, gigabytes: float, gpus: int = 1) -> JobSpec:
    return job(name, gpus, memory_bytes=int(gigabytes * GB), checkpoint_s=RESTART_S)


def suspends(host_gb: float = math.inf, *, machines: str = "h200:1x4", pinned: bool = True) -> Suspends:
    """H200s with 151 GB each."""
    return Suspends(cluster(machines), Suspension("suspend", host_bytes=host_gb * GB, pinned=pinned))


A, B, C, D = (sized(name, 60) for name in "ABCD")


def test_nothing_moves_while_all_fit() -> None:
    on = suspends()
    assert [on.start_s(one, (0,)) for one in (A, B, A, A)] == [0.0, 0.0, 0.1, 0.0]
    assert set(on.on_gpu(0)) == {"A", "B"}
    assert (on.ways["in_place"].times, on.times) == (1, 2)


def test_the_job_that_ran_longest_ago_moves_when_another_needs_the_room() -> None:
    on = suspends()
    for one in (A, B):
        on.start_s(one, (0,))
    assert on.start_s(C, (0,)) == pytest.approx(MOVED.out_s(60 * GB, first=False))
    assert on.on_gpu(0) == ("B", "C")
    assert on.host_bytes(0) == 60 * GB
    both_s = MOVED.out_s(60 * GB, first=False) + MOVED.back_s(60 * GB)
    assert on.start_s(A, (0,)) == pytest.approx(both_s)
    assert on.on_gpu(0) == ("C", "A")
    assert on.ways["moved"].times == 1
    assert on.ways["moved"].gpu_s == pytest.approx(both_s + MOVED.out_s(60 * GB, first=False))


def test_the_first_time_is_slower_unless_memory_is_pinned_ahead() -> None:
    on = suspends(pinned=False)
    large = [sized(name, 40) for name in "abcd"]
    for one in large:
        last_s = on.start_s(one, (0,))
    assert last_s == pytest.approx(20.0)
    assert [on.start_s(one, (0,)) for one in large[:3]] == pytest.approx([20.0 + 0.82] * 3)
    assert on.start_s(large[3], (0,)) == pytest.approx(0.87 + 0.82)


def test_a_job_that_finds_no_room_in_host_memory_is_stopped_by_a_checkpoint() -> None:
    on = suspends(host_gb=100)
    for one in (A, B, C, D):
        on.start_s(one, (0,))
    assert on.host_bytes(0) == 60 * GB
    assert on.resume_s(A) == pytest.approx(MOVED.back_s(60 * GB))
    assert on.resume_s(B) == RESTART_S
    assert on.start_s(B, (0,)) == pytest.approx(RESTART_S)
    assert on.ways["restart"].times == 1


def test_the_cheapest_way_that_was_measured_is_taken() -> None:
    table = SuspendTable("driver only", [row for row in H200.rows if row.way == "driver"])
    on = Suspends(cluster("h200:1x1"), Suspension("suspend", ways=table))
    small = [sized(name, 4) for name in ("x", "y")]
    whole = sized("whole", 151)
    on.start_s(small[0], (0,))
    assert on.start_s(whole, (0,)) == pytest.approx(3.3)
    on.start_s(small[1], (0,))
    assert on.resume_s(whole) == RESTART_S, "the driver would take longer than a restart"
    assert on.start_s(small[0], (0,)) == pytest.approx(1.1)
    assert (on.ways["driver"].times, on.ways["restart"].times) == (1, 0)


def test_a_gang_leaves_as_one_and_the_gpu_that_waits_longest_counts() -> None:
    on = suspends()
    gang = sized("gang", 100, gpus=2)
    on.start_s(gang, (0, 1))
    assert on.start_s(sized("one", 100), (0,)) == pytest.approx(MOVED.out_s(100 * GB, first=False))
    assert on.on_gpu(1) == ()
    assert on.host_bytes(0) == 200 * GB
    on.start_s(sized("two", 100), (1,))
    out_s, back_s = MOVED.out_s(100 * GB, first=False), MOVED.back_s(100 * GB)
    assert on.start_s(gang, (0, 1)) == pytest.approx(out_s + back_s)


def test_only_the_driver_restores_on_other_gpus_of_the_machine() -> None:
    on = suspends(machines="h200:2x2")
    small = sized("small", 4)
    on.start_s(small, (0,))
    assert on.start_s(small, (1,)) == pytest.approx(3.3 + 1.1)
    assert on.start_s(small, (2,)) == RESTART_S
    on.start_s(sized("large", 149), (2,))
    assert on.start_s(small, (3,)) == RESTART_S, "its memory was moved out for the old GPU"


def test_what_stays_on_a_gpu_of_a_job_that_was_moved_out_takes_room() -> None:
    on = suspends()
    small = sized("small", 4)
    on.start_s(small, (0,))
    on.start_s(sized("x", 149), (0,))
    assert on.taken_bytes(0) == pytest.approx(149.85 * GB)
    assert on.on_gpu(0) == ("x",)
    on.ended(sized("x", 149))
    on.start_s(sized("y", 151), (0,))
    assert on.resume_s(small) == pytest.approx(BOTH.back_s(4 * GB)), "the driver takes its context"
    assert on.taken_bytes(0) == pytest.approx(151 * GB)
    assert on.ways["both"].gpu_s == pytest.approx(BOTH.out_s(4 * GB, first=False) - MOVED.out_s(4 * GB, first=False))
    alone = SuspendTable("no driver", [row for row in H200.rows if row.way == "moved"])
    on = Suspends(cluster("h200:1x1"), Suspension("suspend", ways=alone, pinned=True))
    for one in (small, sized("x", 149)):
        on.start_s(one, (0,))
    on.ended(sized("x", 149))
    on.start_s(sized("y", 151), (0,))
    assert on.resume_s(small) == RESTART_S, "there is no room for its context"
    on = suspends()
    on.start_s(small, (0,))
    assert on.start_s(sized("y", 151), (0,)) == pytest.approx(0.51), "all of it has to leave"
    assert on.start_s(small, (0,)) == pytest.approx(MOVED.out_s(151 * GB, first=False) + 0.46)


def test_mates_on_the_same_gpus_stay() -> None:
    on = suspends()
    for one in (A, B):
        on.start_s(one, (0,))
    on.start_s(C, (0,), beside=[A])
    assert set(on.on_gpu(0)) == {"A", "C"}


def test_jobs_that_end_or_lose_their_node_leave_all_memory() -> None:
    on = suspends()
    for one in (A, B, C):
        on.start_s(one, (0,))
    on.ended(A)
    assert on.host_bytes(0) == 0
    on.forget(0)
    assert on.on_gpu(0) == ()
    assert on.resume_s(B) == RESTART_S
    on.lose(C)
    assert on.start_s(C, (0,)) == RESTART_S


def test_jobs_and_gpus_of_unknown_memory_keep_each_other_off() -> None:
    on = suspends()
    on.start_s(A, (0,))
    on.start_s(job("unknown", checkpoint_s=RESTART_S), (0,))
    assert on.on_gpu(0) == ("unknown",)
    machine = Cluster.of([Node("here", "new", 1)], [GpuType("new", 0, 0.0, 1.0)])
    blind = Suspends(machine, Suspension("suspend"))
    for one in (A, job("unknown", checkpoint_s=RESTART_S), B):
        assert math.isfinite(blind.start_s(one, (0,)))
    assert blind.on_gpu(0) == ("B",)
    assert blind.resume_s(job("unknown", checkpoint_s=RESTART_S)) == RESTART_S


@pytest.mark.parametrize("seed", some(range(40), 8))
def test_memory_is_never_over_its_limits(seed: int) -> None:
    rng = random.Random(seed)
    on, most = suspends(host_gb=150, machines="h200:2x2"), 141 * 2**30
    jobs = [sized(f"j{number}", rng.choice([10, 60, 100]), rng.choice([1, 1, 2])) for number in range(8)]
    for _ in range(200):
        one = rng.choice(jobs)
        gpus = tuple(sorted(rng.sample(range(4), one.gpus)))
        assert 0 <= on.start_s(one, gpus) < 1000
        assert all(one.id in on.on_gpu(gpu) for gpu in gpus)
        assert max(on.taken_bytes(gpu) for gpu in range(4)) <= most
        assert max(on.host_bytes(0), on.host_bytes(1)) <= 150 * GB
        if rng.random() < 0.05:
            on.lose(rng.choice(jobs))
    for one in jobs:
        on.ended(one)
    assert on.host_bytes(0) == pytest.approx(0.0, abs=1)
    assert not any(on.on_gpu(gpu) for gpu in range(4))


def six_large_jobs() -> Workload:
    """Together 240 GB, on one GPU of 151."""
    return Workload.of([job(f"j{n}", 1, 1200.0, memory_bytes=40 * GB, checkpoint_s=RESTART_S) for n in range(6)])


def test_jobs_that_exceed_a_gpu_take_turns_at_the_measured_cost() -> None:
    told = {}
    for how in ("0", "pinned", "suspend", "30s"):
        result = simulate(six_large_jobs(), cluster="h200:1", policy="gandiva:pack=1", switching=how)
        assert result.finished == 6
        told[how] = result.figures()
    spans = [told[how]["makespan_s"] for how in ("0", "pinned", "suspend", "30s")]
    assert spans == sorted(spans)
    ways = told["pinned"]["switching_ways"]
    assert ways["moved"]["times"] > 50
    assert ways["restart"]["times"] == ways["driver"]["times"] == 0
    total = sum(way["gpu_h"] for way in ways.values())
    assert total == pytest.approx(told["pinned"]["switching_gpu_h"], rel=0.02)
    assert "switching_ways" not in told["30s"]


def test_less_host_memory_means_more_restarts() -> None:
    restarts = []
    for gigabytes in (1000, 80, 0):
        how = switching_of("pinned", gigabytes * GB)
        result = simulate(six_large_jobs(), cluster="h200:1", policy="gandiva:pack=1", switching=how)
        figures = result.figures()
        assert figures["host_memory_bytes"] == gigabytes * GB
        restarts.append(figures["switching_ways"]["restart"]["times"])
    assert restarts[0] == 0 < restarts[1] < restarts[2]


class _Prices:
    """A policy that notes the prices that it sees."""

    name, round_s, knows = "prices", 0.0, frozenset[str]()

    def __init__(self) -> None:
        self.inner = make_policy("gandiva:pack=1")
        self.seen: set[float] = set()

    def decide(self, snapshot: Snapshot) -> Decision:
        prices = [snapshot.switch_cost_s(row) for row in range(len(snapshot))]
        again = from_json(to_json(snapshot))
        assert [again.switch_cost_s(row) for row in range(len(again))] == prices
        assert [snapshot.copy().switch_cost_s(row) for row in range(len(snapshot))] == prices
        self.seen.update(round(price, 2) for price in prices)
        return self.inner.decide(snapshot)


def test_a_policy_sees_the_price_of_a_switch() -> None:
    policy = _Prices()
    simulate(six_large_jobs(), cluster="h200:1", policy=policy, switching="pinned")
    assert {0.1, 0.82, 1.69} <= policy.seen
    policy = _Prices()
    simulate(six_large_jobs(), cluster="h200:1", policy=policy)
    assert policy.seen == {RESTART_S}


@pytest.mark.parametrize(("host_gb", "evicted"), [(1000, 6), (0, 3)])
def test_a_failure_of_a_node_loses_what_was_suspended_there(host_gb: int, evicted: int) -> None:
    """Three jobs fit on the GPU; without host memory the others wait with a checkpoint, and lose nothing."""
    faults, how = Faults((Outage(601.0, 0, 60.0),)), switching_of("pinned", host_gb * GB)
    result = simulate(six_large_jobs(), cluster="h200:1", policy="gandiva:pack=1", switching=how, faults=faults)
    assert result.finished == 6
    assert sum(result.ledger.evictions) == evicted
    assert result.figures()["lost_gpu_h"] > 0


def test_what_does_not_go_with_suspending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only suspended jobs are kept in host memory"):
        switching_of("resident", 5)
    with pytest.raises(InputError, match="names no file"):
        switching_of("suspend:")
    with pytest.raises(InputError, match="runs jobs as tasks"):
        simulate(six_large_jobs(), cluster="h200:1", policy="hare", switching="suspend")
    path = tmp_path / "t.csv"
    path.write_text("way,gigabytes,out_s,back_s\nrestart,10,1,2\n")
    how = switching_of(f"suspend:{path}")
    assert isinstance(how, Suspension)
    assert how.ways.rows == (SuspendRow("restart", 10.0, 1.0, 2.0),)
    assert how.restart_s(job("a", memory_bytes=20 * GB)) == pytest.approx(6.0)
