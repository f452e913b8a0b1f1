"""Hare's decisions: queues that stay while nothing changes, reasons, priorities, unknown lengths, whole gangs."""

from __future__ import annotations

import numpy as np
import pytest

from fairway import JobSpec
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.errors import InputError
from fairway.core.event import JobSubmitted, JobUpdated, NodeLost
from fairway.core.plan import plan
from fairway.core.reconcile import reconcile
from fairway.core.state import State
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.testing import snapshot_of, state_of
from fairway.testing.builders import submitted

KNOWS = frozenset({"duration", "tasks"})
MIXED = "v100:2,k80:2"


def job(name: str, seconds: float, gpus: int = 1, submitted_s: float = 0.0, **about: object) -> JobSpec:
    return JobSpec(name, submitted_s, gpus=gpus, duration_s=seconds, **about)  # type: ignore[arg-type]


def decided(state: State, policy: str = "hare") -> Decision:
    """The decision for a state, carried out as far as the state goes."""
    chosen = make_policy(policy)
    snapshot = state.snapshot(chosen.knows)
    decision = chosen.decide(snapshot)
    check(snapshot, decision)
    state.memory = decision.memory
    planned = plan(snapshot, decision, state.occupancy, placement("packed"))
    state.commit(reconcile(snapshot, decision, planned), planned.occupancy)
    return decision


def tasks_of(decision: Decision, number: int) -> int:
    return sum(task.job == number for tasks in decision.queues.values() for task in tasks)


def test_queues_stay_until_something_changes() -> None:
    state = state_of([job("a", 600, 2), job("b", 300)], MIXED, runs_queues=True)
    first = decided(state)
    assert decided(state).queues is first.queues
    state.apply(JobUpdated(1.0, 1, 5.0, 0, np.inf))
    second = decided(state)
    assert second.queues is not first.queues
    state.apply(NodeLost(2.0, 1))
    third = decided(state)
    assert all(gpu < 2 for gpu, tasks in third.queues.items() if tasks)
    state.apply(_arrival(job("c", 60, submitted_s=3.0), 2, state))
    assert tasks_of(decided(state), 2) == 1


def _arrival(spec: JobSpec, number: int, state: State) -> JobSubmitted:
    return submitted(spec, number, state.cluster)


def test_every_round_of_a_job_is_planned_with_all_its_tasks() -> None:
    decision = decided(state_of([job("a", 600, 2)], MIXED, runs_queues=True), "hare:group_s=60")
    assert tasks_of(decision, 0) == 2 * 10
    assert {task.until for tasks in decision.queues.values() for task in tasks} == {60.0 * k for k in range(1, 11)}


def test_a_waiting_job_is_told_when_its_first_task_is_planned() -> None:
    jobs = [job("short", 60, checkpoint_s=0.0), job("long", 6000, checkpoint_s=0.0)]
    state = state_of(jobs, "v100:1", runs_queues=True)
    decision = decided(state)
    snapshot = state.snapshot(KNOWS)
    assert decision.reasons.tolist() == [int(Reason.QUEUED)] * 2
    assert decision.reason(snapshot, 1) == "its first task is planned in 60 s"


def test_higher_priorities_are_planned_first() -> None:
    jobs = [job("light", 60), job("heavy", 6000, priority=1)]
    decision = decided(state_of(jobs, "v100:1", runs_queues=True))
    assert decision.queues[0][-1].job == 0
    same = decided(state_of([job("light", 60), job("heavy", 6000)], "v100:1", runs_queues=True))
    assert same.queues[0][0].job == 0


def test_a_job_that_no_gpu_can_run_now_waits_for_its_type() -> None:
    state = state_of([job("a", 60), job("b", 60, gpu_types=("k80",))], MIXED, runs_queues=True)
    state.apply(NodeLost(1.0, 1))
    assert decided(state).reasons.tolist() == [int(Reason.QUEUED), int(Reason.TYPE_FULL)]


def test_without_lengths_the_least_served_job_has_the_next_round() -> None:
    jobs = [job("served", 6000), job("fresh", 60, submitted_s=500.0)]
    state = state_of(jobs, "v100:1", now_s=500.0, attained={"served": 400.0}, runs_queues=True)
    decision = decided(state, "hare:clairvoyant=no")
    assert [task.job for task in decision.queues[0]] == [1, 0]
    assert make_policy("hare:clairvoyant=no").knows == {"tasks"}


@pytest.mark.parametrize(("weights", "first"), [((1.0, 1.0), "short"), ((9.0, 1.0), "long")])
def test_gangs_are_served_by_work_over_weight(weights: tuple[float, float], first: str) -> None:
    jobs = [job("long", 600, 2, weight=weights[0]), job("short", 100, 2, weight=weights[1])]
    snapshot = snapshot_of(jobs, "v100:2", knows=KNOWS)
    decision = make_policy("hare").decide(snapshot)
    assert [snapshot.job(row).id for row in decision.gpus.nonzero()[0].tolist()] == [first]
    assert decision.warm
    assert decision.wake_s == snapshot.now_s + 60.0


def test_a_gang_uses_idle_gpus_while_it_waits_for_the_type_on_which_it_ends_first() -> None:
    jobs = [job("a", 100, 2), job("b", 100, 2), job("c", 5000, 2)]
    snapshot = snapshot_of(jobs, MIXED, knows=KNOWS, speeds=dict.fromkeys("abc", (1.0, 0.1)))
    decision = make_policy("hare").decide(snapshot)
    assert decision.gpus.tolist() == [2, 2, 0]
    assert decision.gpu_types is not None
    assert decision.gpu_types.tolist() == [0, 1, -1]


@pytest.mark.parametrize("knobs", ["group_s=0", "group_s=-1", "assign=best", "clairvoyant=maybe"])
@pytest.mark.parametrize("policy", ["hare", "sched_homo"])
def test_knobs_that_make_no_sense_are_refused(policy: str, knobs: str) -> None:
    with pytest.raises(InputError, match=f"policy '{policy}'"):
        make_policy(f"{policy}:{knobs}")
