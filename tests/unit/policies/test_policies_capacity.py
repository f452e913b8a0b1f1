"""Capacity scheduling: queues get their parts as GPUs come free, first come first served inside, nobody is stopped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairway.core.decision import Reason
from fairway.core.errors import InputError
from fairway.core.event import JobFinished
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.policies import make_policy
from fairway.simulator.result import Result
from fairway.simulator.run import simulate
from fairway.testing import check_policy, job, snapshot_of, state_of
from fairway.testing.seeds import ALL


def run(*jobs: JobSpec, policy: str = "capacity", cluster: str = "v100:4", **about: Any) -> Result:
    return simulate(Workload.of(list(jobs)), cluster=cluster, policy=policy, **about)


def ends(result: Result) -> dict[str, float]:
    return {spec.id: round(float(end), 3) for spec, end in zip(result.specs, result.finished_s, strict=True)}


def granted(view: Snapshot, policy: str = "capacity") -> list[int]:
    return make_policy(policy).decide(view).gpus.tolist()


def example() -> list[JobSpec]:
    """The example of the policy's page."""
    return [
        job("a1", 2, 100.0, queue="A"),
        job("a2", 2, 60.0, queue="A"),
        job("a3", 2, 50.0, submitted_s=1.0, queue="A"),
        job("a4", 1, 30.0, submitted_s=2.0, queue="A"),
        job("b1", 1, 40.0, submitted_s=3.0, queue="B"),
        job("b2", 2, 20.0, submitted_s=4.0, queue="B"),
    ]


def test_the_worked_example() -> None:
    """Four GPUs, queues A and B: B overtakes the jobs of A that came before it, but stops none of them."""
    jobs = example()
    # At 60 s two GPUs come free: b1 takes one, b2 does not fit any more, nor does a3; a4 has to wait behind a3.
    # At 100 s, b1 and a1 having ended, b2 and a3 fill the cluster; a4 follows at 120 s, when b2 has ended.
    assert ends(run(*jobs)) == {"a1": 100.0, "a2": 60.0, "b1": 100.0, "b2": 120.0, "a3": 150.0, "a4": 150.0}
    fifo = ends(run(*jobs, policy="fifo"))
    assert fifo == {"a1": 100.0, "a2": 60.0, "a3": 110.0, "a4": 130.0, "b1": 140.0, "b2": 130.0}


def test_the_waits_of_the_worked_example_are_explained() -> None:
    left = [spec for spec in example() if spec.id != "a2"]
    view = snapshot_of(left, "v100:4", now_s=60.0, running={"a1": 2})
    decision = make_policy("capacity").decide(view)
    said = {view.job(row).id: decision.reason(view, row) for row in range(len(view))}
    assert said["b1"] == "it runs"
    assert said["b2"] == "needs 2 GPUs, 1 free; queue 'B' holds 1 and is entitled to 2.0"
    assert said["a4"] == "waits behind job a3, the first of queue 'A' that does not fit yet"


def test_a_queue_may_use_the_whole_cluster_while_it_is_alone() -> None:
    view = snapshot_of([job(f"a{n}", 1, queue="A") for n in range(6)], "v100:4")
    assert granted(view) == [1, 1, 1, 1, 0, 0]


def test_the_queue_that_holds_the_least_goes_first() -> None:
    jobs = [job("a0", 2, queue="A"), job("b0", 1, queue="B"), job("a1", 1, queue="A"), job("b1", 1, queue="B")]
    view = snapshot_of(jobs, "v100:4", running={"a0": 2, "b0": 1})
    assert granted(view) == [2, 1, 0, 1]


def test_queues_take_turns_and_ties_go_to_the_earliest_job() -> None:
    jobs = [job(f"a{n}", 1, queue="A") for n in range(4)] + [job(f"b{n}", 1, queue="B") for n in range(4)]
    assert granted(snapshot_of(jobs, "v100:5")) == [1, 1, 1, 0, 1, 1, 0, 0]


def test_a_head_that_does_not_fit_blocks_its_own_queue_only() -> None:
    jobs = [
        job("a0", 3, queue="A"),
        job("b0", 4, queue="B"),
        job("b1", 1, queue="B"),
        job("a1", 1, queue="A"),
    ]
    view = snapshot_of(jobs, "v100:4", running={"a0": 3})
    decision = make_policy("capacity").decide(view)
    assert decision.gpus.tolist() == [3, 0, 0, 1]
    assert decision.reasons.tolist() == [0, Reason.NO_FREE_GPUS, Reason.BEHIND, 0]


def test_waits_are_explained() -> None:
    jobs = [job("a0", 3, queue="A"), job("b0", 4, queue="B"), job("b1", 1, queue="B"), job("x", 2)]
    view = snapshot_of(jobs, "v100:4", running={"a0": 3})
    decision = make_policy("capacity").decide(view)
    assert decision.reason(view, 1) == "needs 4 GPUs, 1 free; queue 'B' holds 0 and is entitled to 1.3"
    assert decision.reason(view, 2) == "waits behind job b0, the first of queue 'B' that does not fit yet"
    assert decision.reason(view, 3).endswith("the queue without a name holds 0 and is entitled to 1.3")
    assert decision.reason(view, 0) == "it runs"
    assert list(decision.texts) == [1, 2, 3]
    assert len(decision.texts) == 3


def test_what_was_said_of_a_job_stays_so_when_another_has_left() -> None:
    """Rows move up when a job leaves: nobody is said to wait behind itself."""
    jobs = [job(name, 1, queue="A") for name in "wxyz"] + [job("b", 4, queue="B"), job("c", 1, queue="B")]
    state = state_of(jobs, "v100:4", running=dict.fromkeys("wxyz", 1))
    decision = make_policy("capacity").decide(state.snapshot())
    before = dict(decision.texts)
    assert before[5] == "waits behind job b, the first of queue 'B' that does not fit yet"
    state.apply(JobFinished(10.0, 3))
    assert dict(decision.texts) == before


def test_with_no_gpu_free_everybody_waits_for_that_reason() -> None:
    view = snapshot_of(
        [job("a", 4, queue="A"), job("b", 1, queue="B"), job("c", 1, queue="B")], "v100:4", running={"a": 4}
    )
    assert make_policy("capacity").decide(view).reasons.tolist() == [0, Reason.NO_FREE_GPUS, Reason.NO_FREE_GPUS]


def test_nobody_is_ever_stopped() -> None:
    jobs = [job(f"{q}{n}", 1 + n % 4, 50.0 + n, submitted_s=10.0 * n, queue=q) for q in "ABC" for n in range(20)]
    result = run(*jobs)
    assert result.finished == 60
    assert result.figures()["preemptions"] == 0


def test_quotas_name_the_parts() -> None:
    jobs = [job(f"a{n}", 1, queue="A") for n in range(8)] + [job(f"b{n}", 1, queue="B") for n in range(8)]
    view = snapshot_of(jobs, "v100:8")
    assert sum(granted(view, "capacity:quotas=A:3/B:1")[:8]) == 6
    assert sum(granted(view, "capacity:quotas=A:3")[:8]) == 6
    assert sum(granted(view)[:8]) == 4


def test_shares_by_weight_and_by_demand() -> None:
    light = [job(f"a{n}", 1, queue="A") for n in range(8)]
    heavy = [job(f"b{n}", 1, queue="B", weight=3.0) for n in range(16)]
    view = snapshot_of(light + heavy, "v100:8")
    assert sum(granted(view, "capacity:shares=weight")[8:]) == 6
    # B asks for twice as many GPUs: 5.33 of 8, and the tie at the end goes to the queue that is further below.
    assert sum(granted(view, "capacity:shares=demand")[8:]) == 5


@pytest.mark.parametrize("quotas", ["A", "A:0", "A:-1", "A:x", "A:inf", "A:1/A:2", "A:nan"])
def test_senseless_quotas_are_refused(quotas: str) -> None:
    with pytest.raises(InputError, match="quotas"):
        make_policy(f"capacity:quotas={quotas}")


def test_a_large_gang_starves_unless_gpus_are_kept_for_it() -> None:
    small = [job(f"a{n}", 2, 100.0, submitted_s=50.0 * n, queue="A") for n in range(40)]
    large = job("large", 4, 10.0, submitted_s=60.0, queue="B")
    assert ends(run(*small, large))["large"] > 2000.0
    kept = ends(run(*small, large, policy="capacity:reserve_after_s=300"))
    # Overdue at 360 s, when two small jobs run; they end at 400 and 450 s and nobody takes their place.
    assert kept["large"] == 460.0


def test_reserve_after_must_be_a_time() -> None:
    with pytest.raises(InputError, match="reserve_after_s"):
        make_policy("capacity:reserve_after_s=-1")


def test_on_several_types_a_gang_takes_the_fastest_with_room() -> None:
    jobs = [job("a", 4, queue="A"), job("b", 2, queue="B"), job("c", 4, queue="C")]
    decision = make_policy("capacity").decide(snapshot_of(jobs, "k80:1x4,v100:1x4"))
    assert decision.gpu_types is not None
    assert (decision.gpus.tolist(), decision.gpu_types.tolist()) == ([4, 2, 0], [1, 0, -1])


@pytest.mark.parametrize(
    "spec",
    [
        "capacity",
        "capacity:shares=weight",
        "capacity:shares=demand",
        "capacity:quotas=a:2",
        "capacity:reserve_after_s=100",
    ],
)
def test_the_contract_is_kept(spec: str) -> None:
    check_policy(spec, seeds=range(2), other_processes=ALL)


def _plain_serve(view: Snapshot) -> list[int]:
    """The same rule written without care for speed."""
    grants = view.held.tolist()
    free = int(view.capacity[0]) - sum(grants)
    queues = range(len(view.names.queues))
    blocked: set[int] = set()
    while True:
        used = [sum(g for g, of in zip(grants, view.queue, strict=True) if of == q) for q in queues]
        waiting = {q: [r for r in range(len(view)) if view.queue[r] == q and not grants[r]] for q in queues}
        candidates = [q for q in queues if waiting[q] and q not in blocked]
        if not candidates:
            return grants
        best = min(candidates, key=lambda q: (used[q], waiting[q][0]))
        row = waiting[best][0]
        if view.gpus[row] <= free:
            grants[row] = int(view.gpus[row])
            free -= grants[row]
        else:
            blocked.add(best)


@pytest.mark.parametrize("seed", range(20))
def test_fast_and_plain_form_agree(seed: int) -> None:
    random = np.random.default_rng(seed)
    jobs = [
        job(f"j{n}", int(random.choice([1, 1, 2, 3, 8])), submitted_s=n / 50, queue=f"q{random.integers(4)}")
        for n in range(40)
    ]
    running = {spec.id: spec.gpus for spec in jobs[:4]}
    view = snapshot_of(jobs, "v100:5x8", now_s=1.0, running=running)
    assert granted(view) == _plain_serve(view)
