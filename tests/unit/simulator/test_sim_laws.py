"""Laws of the simulator, each in one small case."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairway import Faults, JobSpec, Workload, simulate
from fairway.core.decision import Decision
from fairway.core.job import Regime
from fairway.core.snapshot import Snapshot
from fairway.simulator.faults import Outage
from fairway.simulator.result import Result
from fairway.simulator.rules import Rules
from fairway.testing import Invariants


def run(jobs: list[JobSpec], cluster: str, policy: object, **terms: object) -> Result:
    return simulate(Workload.of(jobs), cluster=cluster, policy=policy, **terms)  # type: ignore[arg-type]


class Scripted:
    """A policy made of a function."""

    name, knows, round_s = "scripted", frozenset[str](), 0.0

    def __init__(self, decide: object) -> None:
        self.decide = decide


def granted(gpus: list[int], partners: dict[int, int] | None = None, wake_s: float = math.inf) -> Decision:
    grants = np.array(gpus, dtype=np.int64)
    return Decision(grants, (grants == 0).astype(np.int8) * 7, partners=partners or {}, wake_s=wake_s)


def test_a_job_that_ends_when_its_protection_ends_is_not_preempted() -> None:
    jobs = [JobSpec("a", 0, gpus=2, duration_s=60), JobSpec("b", 30, duration_s=100)]
    assert run(jobs, "v100:2", "smallest").jct_s.tolist() == pytest.approx([60, 130])
    jobs = [JobSpec("a", 0, duration_s=1000), JobSpec("c", 0, duration_s=60), JobSpec("b", 30, duration_s=20)]
    assert run(jobs, "v100:2", "srtf").figures()["preemptions"] == 0


def test_gpus_freed_at_the_end_of_a_round_do_not_count_as_work() -> None:
    ends = Rules("ends", round_s=360.0, frees_gpus="at_round_end")
    one = run([JobSpec("a", 0, duration_s=10)], "v100:1", "fifo", rules=ends)
    assert one.utilisation == pytest.approx(1.0)
    two = run([JobSpec("a", 0, duration_s=400), JobSpec("b", 0, duration_s=10)], "v100:1", "fifo", rules=ends)
    assert two.queue_s.tolist() == pytest.approx([0, 720])
    failed = Faults(schedule=(Outage(100, 0, 50),))
    assert run([JobSpec("a", 0, duration_s=10)], "v100:1", "fifo", rules=ends, faults=failed).jct_s[0] == 10


def test_a_pair_that_is_stopped_together_stands_still() -> None:
    def decide(snapshot: Snapshot) -> Decision:
        if len(snapshot) < 2:
            return granted([1] * len(snapshot))
        if snapshot.now_s < 100:
            return granted([1, 1], {1: 0}, wake_s=100.0)
        if snapshot.now_s < 150:
            return granted([0, 0], wake_s=snapshot.now_s + 25)
        return granted([1, 0], wake_s=snapshot.now_s + 100)

    jobs = [JobSpec("a", 0, duration_s=200), JobSpec("b", 0, duration_s=200)]
    result = run(jobs, "v100:1", Scripted(decide), rules="tiresias", observer=Invariants())
    assert result.finished == 2
    assert result.jct_s.tolist() == pytest.approx([150 + 145, 150 + 145 + 145], abs=2)


def test_an_outage_that_is_over_harms_nobody() -> None:
    faults = Faults(schedule=(Outage(70, 0, 10),))
    result = run([JobSpec("a", 61, duration_s=10)], "v100:1", "fifo", round_s=60, faults=faults)
    assert (result.jct_s[0], result.figures()["restarts"]) == (pytest.approx(69), 0)


def test_the_run_time_alone_is_that_on_a_type_with_room_for_the_gang() -> None:
    alone = run([JobSpec("a", 0, gpus=8, duration_s=100)], "k80:2x4,v100:1x2", "fifo")
    assert alone.ledger.exclusive_s[0] == 100
    assert alone.rho["static"][0] == pytest.approx(1)
    jobs = [JobSpec("big", 0, gpus=4, duration_s=100), JobSpec("x", 0, gpus=4, duration_s=50, gpu_types=("k80",))]
    assert run(jobs, "k80:1x4,v100:1x2", "srtf", rules="tiresias").jct_s.tolist() == [150, 50]


def test_a_job_that_outgrows_every_gpu_is_impossible_and_one_that_outgrows_its_own_moves_on() -> None:
    grows = (Regime(0.5, 8), Regime(1.0, 4096))
    job = JobSpec("a", 0, steps=1000, model="bert-base", batch_size=8, regimes=grows)
    with pytest.raises(Exception, match="memory that it needs"):
        run([job], "k80:1", "fifo")
    moves = JobSpec("a", 0, steps=1000, model="bert-base", batch_size=8, regimes=(Regime(0.5, 8), Regime(1.0, 128)))
    other = JobSpec("h", 0, steps=100_000, model="bert-base", batch_size=8, gpu_types=("h100",))
    assert run([other, moves], "h100:1,k80:1", "backfill").finished == 2


def test_no_work_and_regimes_and_a_failure() -> None:
    job = JobSpec("a", 0, duration_s=0, regimes=(Regime(0.5, None, 2.0), Regime(1.0)))
    faults = Faults(schedule=(Outage(10, 0, 10),))
    assert run([job], "v100:1", "fifo", rules="pollux", faults=faults).finished == 1


def test_a_user_pays_for_its_jobs_that_have_ended() -> None:
    jobs = [JobSpec(f"a{i}", 0, duration_s=5000, user="A") for i in range(3)]
    jobs.append(JobSpec("b", 0, duration_s=5000, user="B"))
    result = run(jobs, "v100:1", "proportional:by=user,quantum_s=100", rules="tiresias")
    assert result.jct_s[3] == pytest.approx(10_000, rel=0.05)
    short = [JobSpec(f"a{i}", 0, duration_s=100, user="A") for i in range(60)]
    short.append(JobSpec("b", 0, duration_s=3000, user="B"))
    assert run(short, "v100:1", "proportional:by=user,quantum_s=100", rules="tiresias").jct_s[60] < 6_400


@pytest.mark.parametrize("waiting", [5, 20])
def test_no_other_job_is_stopped_in_the_stead_of_a_protected_one(waiting: int) -> None:
    jobs = [JobSpec("r", 0, duration_s=5000), JobSpec("p", 90, gpus=2, duration_s=9000)]
    jobs.append(JobSpec("a", 100, gpus=3, duration_s=10))
    jobs += [JobSpec(f"z{i}", 100, gpus=2, duration_s=20 + i) for i in range(waiting)]
    segments = run(jobs, "v100:4", "srtf").ledger.segments
    assert next(segment for segment in segments if segment[0] == 0)[2] == pytest.approx(150, abs=11)


def test_a_newcomer_goes_behind_a_running_job_with_as_much_left() -> None:
    jobs = [JobSpec("a", 0, gpus=4, duration_s=10), JobSpec("b", 5, duration_s=20)]
    result = run(jobs, "v100:4", "srsf", rules="tiresias", placement="count")
    assert (result.jct_s.tolist(), result.figures()["preemptions"]) == ([10, 25], 0)


def test_a_dead_cluster_ends_the_run_although_the_policy_wants_to_be_woken() -> None:
    policy = Scripted(lambda s: granted([0] * len(s), wake_s=s.now_s + 60))
    faults = Faults(schedule=(Outage(50, 0, math.inf),))
    assert run([JobSpec("a", 0, duration_s=100)], "v100:1", policy, faults=faults).finished == 0


def test_a_deadline_met_to_the_microsecond_is_met() -> None:
    assert run([JobSpec("a", 1 / 3, duration_s=1 / 3, deadline_s=2 / 3)], "v100:1", "fifo").deadline_misses == 0


def test_two_jobs_that_need_more_memory_than_a_gpu_has_do_not_share_it() -> None:
    jobs = [JobSpec(name, 0, duration_s=100, memory_bytes=12 * 2**30) for name in "ab"]
    policy = Scripted(lambda s: granted([1, 1], {1: 0}, wake_s=s.now_s + 500) if len(s) > 1 else granted([1]))
    assert run(jobs, "v100:1", policy, rules="tiresias").finished_s.tolist() == [100, 200]
